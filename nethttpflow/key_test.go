package nethttpflow_test

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/exactflow/exactflow/core"
	"github.com/exactflow/exactflow/nethttpflow"
)

func TestThePeersKeyIsItsAddress(t *testing.T) {
	for _, c := range []struct {
		v4, v6       int
		remote, want string
	}{
		{32, 64, "192.0.2.7:80", "192.0.2.7"},
		{32, 64, "255.255.255.255:65535", "255.255.255.255"},
		{32, 64, "192.0.2.7", "192.0.2.7"}, // a middleware put it there
		{24, 64, "192.0.2.7:80", "192.0.2.0/24"},
		{1, 64, "192.0.2.7:80", "128.0.0.0/1"},
		{32, 64, "[2001:db8:1:2:3:4:5:6]:80", "2001:db8:1:2::/64"},
		{32, 64, "2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"},
		{32, 64, "[2001:db8:1:2:3:4:5:6]", "2001:db8:1:2::/64"},
		{32, 48, "[2001:db8:1:2:3:4:5:6]:80", "2001:db8:1::/48"},
		{32, 56, "[2001:db8:1:ff02:3:4:5:6]:80", "2001:db8:1:ff00::/56"},
		{32, 128, "[2001:DB8::1]:80", "2001:db8::1"},
		{32, 128, "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:80", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"},
		{32, 127, "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:80", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe/127"},
		{32, 64, "[::1]:80", "::/64"},
		{32, 64, "[::ffff:192.0.2.7]:80", "192.0.2.7"},    // IPv4 in IPv6's clothes
		{32, 64, "::ffff:c000:207", "192.0.2.7"},          // likewise
		{24, 64, "[::ffff:192.0.2.7]:80", "192.0.2.0/24"}, // likewise
		{32, 64, "[fe80::1%eth0]:80", "fe80::/64"},
		{32, 128, "[fe80::1%eth0]:80", "fe80::1"},
		{32, 64, "192.0.2.007:80", ""}, // one spelling for each address
		{32, 64, "@", ""},              // a Unix socket
		{32, 64, "", ""},
		{32, 64, ":", ""},
		{32, 64, "[", ""},
		{32, 64, "localhost:80", ""},
		{32, 64, "192.0.2.7, 192.0.2.8", ""},
	} {
		key := nethttpflow.PeerPrefix(c.v4, c.v6)
		if got := key.Of(&http.Request{RemoteAddr: c.remote}); key.By != "ip" || got != c.want {
			t.Errorf("PeerPrefix(%d, %d) of %q: %s %q, want %q", c.v4, c.v6, c.remote, key.By, got, c.want)
		}
	}
}

// A host has all the 2^64 addresses of its network to ask from. They are one
// client.
func TestAnIPv6ClientThatRotatesIsOneKey(t *testing.T) {
	l := limiter(t, core.Rule{Name: "r", By: "ip", Limit: core.Rate{N: 5, Per: time.Hour}})
	h := nethttpflow.Middleware(l, nethttpflow.Options{})(ok)
	passed := 0
	for i := range 100 {
		if ask(h, "GET", "/", from(fmt.Sprintf("[2001:db8:1:2:%x::%x]:80", i*601, i))).StatusCode == 200 {
			passed++
		}
	}
	if passed != 5 || stat(t, l, "r").Keys != 1 {
		t.Fatalf("%d of 5 passed, for %d keys", passed, stat(t, l, "r").Keys)
	}
	if ask(h, "GET", "/", from("[2001:db8:1:3::1]:80")).StatusCode != 200 {
		t.Fatal("the neighbour was refused")
	}
}

// Whoever sends a request writes its headers: they do not make a new client.
func TestForwardingHeadersAreNotBelieved(t *testing.T) {
	l := limiter(t, core.Rule{Name: "r", By: "ip", Limit: core.Rate{N: 1, Per: time.Hour}})
	h := nethttpflow.Middleware(l, nethttpflow.Options{})(ok)
	ask(h, "GET", "/")
	for i, name := range []string{
		"X-Forwarded-For", "X-Real-IP", "True-Client-IP", "CF-Connecting-IP", "X-Client-IP", "Fastly-Client-IP", "Forwarded",
	} {
		res := ask(h, "GET", "/", func(r *http.Request) {
			r.Header.Set(name, fmt.Sprintf("203.0.113.%d", i))
			if name == "Forwarded" {
				r.Header.Set(name, "for=203.0.113.99")
			}
		})
		if res.StatusCode != 429 {
			t.Errorf("%s: %s", name, res.Status)
		}
	}
}

// Requests without a key are limited, all together, and one sees that there are
// some.
func TestAMissingKeyCountsVisibly(t *testing.T) {
	l := limiter(t,
		core.Rule{Name: "tenants", By: "tenant", Limit: core.Rate{N: 2, Per: time.Hour}},
		core.Rule{Name: "peers", By: "ip", Limit: core.Rate{N: 100, Per: time.Hour}})
	h := nethttpflow.Middleware(l, nethttpflow.Options{
		Keys: []nethttpflow.Key{nethttpflow.Header("tenant", "x-tenant"), nethttpflow.Peer()},
	})(ok)
	passed := 0
	for i := range 5 {
		if ask(h, "GET", "/", from(fmt.Sprintf("192.0.2.%d:80", i))).StatusCode == 200 {
			passed++
		}
	}
	ask(h, "GET", "/", from("@"), func(r *http.Request) { r.Header.Set("X-Tenant", "a") })
	if tenants, peers := stat(t, l, "tenants"), stat(t, l, "peers"); passed != 2 || tenants.Empty != 5 || peers.Empty != 1 {
		t.Fatalf("%d of 2 passed; without tenant %d, want 5; without address %d, want 1", passed, tenants.Empty, peers.Empty)
	}
}

func TestHeadersAndPathValuesAreKeys(t *testing.T) {
	l := limiter(t, core.Rule{Name: "r", By: "tenant,api", Limit: core.Rate{N: 1, Per: time.Hour}})
	limited := nethttpflow.Middleware(l, nethttpflow.Options{
		Keys: []nethttpflow.Key{nethttpflow.PathValue("tenant", "t"), nethttpflow.Header("api", "x-api-key")},
	})
	mux := http.NewServeMux()
	mux.Handle("GET /tenants/{t}/", limited(ok))
	for _, c := range []struct {
		path, key string
		want      int
	}{
		{"/tenants/a/x", "1", 200}, {"/tenants/a/y", "1", 429}, {"/tenants/b/x", "1", 200}, {"/tenants/a/x", "2", 200},
	} {
		if res := ask(mux, "GET", c.path, func(r *http.Request) { r.Header.Set("X-API-Key", c.key) }); res.StatusCode != c.want {
			t.Errorf("%s with key %s: %s, want %d", c.path, c.key, res.Status, c.want)
		}
	}
}

func TestMoreThanFourKeysWork(t *testing.T) {
	l := limiter(t, core.Rule{Name: "r", By: "e", Limit: core.Rate{N: 1, Per: time.Hour}})
	var keys []nethttpflow.Key
	for _, by := range []string{"a", "b", "c", "d", "e"} {
		keys = append(keys, nethttpflow.Header(by, "X-"+by))
	}
	h := nethttpflow.Middleware(l, nethttpflow.Options{Keys: keys})(ok)
	for _, c := range []struct {
		e    string
		want int
	}{{"1", 200}, {"2", 200}, {"1", 429}} {
		if res := ask(h, "GET", "/", func(r *http.Request) { r.Header.Set("X-E", c.e) }); res.StatusCode != c.want {
			t.Errorf("%s: %s, want %d", c.e, res.Status, c.want)
		}
	}
}
