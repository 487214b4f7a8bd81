package nethttpflow_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"path/filepath"
	"testing"
	"time"

	"github.com/exactflow/exactflow/core"
	"github.com/exactflow/exactflow/nethttpflow"
)

var (
	proxies = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("127.0.0.1/32")}

	// claims are the headers in which clients try to be somebody else, and how.
	claims = map[string]string{
		"X-Forwarded-For": "%s", "X-Real-Ip": "%s", "True-Client-Ip": "%s", "Cf-Connecting-Ip": "%s", "Forwarded": "for=%s",
	}
)

// A public server, behind a load balancer for some of its clients.
func ExampleClientIP() {
	limiter, err := core.New(core.Rule{Name: "per-client", By: "ip", Limit: core.Rate{N: 1, Per: time.Minute}})
	if err != nil {
		fmt.Println(err)
		return
	}
	trust := nethttpflow.Trust{Proxies: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/28")}}
	limited := nethttpflow.Middleware(limiter, nethttpflow.Options{Keys: []nethttpflow.Key{nethttpflow.ClientIP(trust)}})
	handler := limited(http.NotFoundHandler())

	ask := func(peer, forwarded string) {
		r := httptest.NewRequest("GET", "/", nil)
		r.RemoteAddr = peer
		r.Header.Set("X-Forwarded-For", forwarded)
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		fmt.Printf("%-17s %-28s %d\n", peer, forwarded, w.Code)
	}
	ask("10.0.0.1:4711", "203.0.113.9")
	ask("10.0.0.1:4711", "203.0.113.8")
	ask("10.0.0.2:4711", "198.51.100.1, 203.0.113.9") // the left one is a lie
	ask("203.0.113.9:4711", "198.51.100.2")           // past the load balancer

	// Output:
	// 10.0.0.1:4711     203.0.113.9                  404
	// 10.0.0.1:4711     203.0.113.8                  404
	// 10.0.0.2:4711     198.51.100.1, 203.0.113.9    429
	// 203.0.113.9:4711  198.51.100.2                 429
}

// Twenty requests from one connection, each from somewhere else if one believes
// what it says in every header there is.
func TestAClientThatClaimsToBeOthersIsOne(t *testing.T) {
	for header, form := range claims {
		trust := nethttpflow.Trust{Proxies: proxies[:1], Header: header}
		l := limiter(t, core.Rule{Name: "r", By: "ip", Limit: core.Rate{N: 3, Per: time.Hour}})
		server := httptest.NewServer(nethttpflow.Middleware(l, nethttpflow.Options{Keys: []nethttpflow.Key{nethttpflow.ClientIP(trust)}})(ok))
		passed := 0
		for i := range 20 {
			r, _ := http.NewRequest("GET", server.URL, nil)
			for header, form := range claims {
				r.Header.Set(header, fmt.Sprintf(form, fmt.Sprint("203.0.113.", i)))
			}
			r.Header.Add(header, fmt.Sprintf(form, fmt.Sprint("10.0.0.", i)))
			res, err := server.Client().Do(r)
			if err != nil {
				t.Fatal(err)
			}
			res.Body.Close()
			if res.StatusCode == 200 {
				passed++
			}
		}
		server.Close()
		if s := stat(t, l, "r"); passed != 3 || s.Keys != 1 {
			t.Errorf("%s: %d of 3 passed, for %d keys", header, passed, s.Keys)
		}
	}
}

// A proxy's word is believed about the one header, and about no other that it lets
// through.
func TestAProxyIsBelievedInOneHeader(t *testing.T) {
	for header, form := range claims {
		key := nethttpflow.ClientIP(nethttpflow.Trust{Proxies: proxies, Header: header})
		for other, otherForm := range claims {
			r := httptest.NewRequest("GET", "/", nil)
			r.RemoteAddr = "10.0.0.1:80"
			r.Header.Set(other, fmt.Sprintf(otherForm, "198.51.100.1"))
			want := "10.0.0.1"
			if other == header {
				want = "198.51.100.1"
			}
			if got := key.Of(r); got != want {
				t.Errorf("%s, and sent is %s: %q, want %q", header, other, got, want)
			}
			r.Header.Set(header, fmt.Sprintf(form, "203.0.113.9"))
			if got := key.Of(r); got != "203.0.113.9" {
				t.Errorf("%s beside %s: %q", header, other, got)
			}
		}
	}
}

// Two clients behind a real proxy, which appends to what they send.
func TestClientsBehindAProxyAreCountedApart(t *testing.T) {
	l := limiter(t, core.Rule{Name: "r", By: "ip", Limit: core.Rate{N: 2, Per: time.Hour}})
	options := nethttpflow.Options{Keys: []nethttpflow.Key{nethttpflow.ClientIP(nethttpflow.Trust{Proxies: proxies})}}
	server := httptest.NewServer(nethttpflow.Middleware(l, options)(ok))
	defer server.Close()
	to, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httptest.NewServer(httputil.NewSingleHostReverseProxy(to))
	defer proxy.Close()

	for _, client := range []string{"127.0.0.2", "127.0.0.3"} {
		dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(client)}}
		transport := &http.Transport{DialContext: dialer.DialContext}
		for i, want := range []int{200, 200, 429, 429} {
			r, _ := http.NewRequest("GET", proxy.URL, nil)
			r.Header["X-Forwarded-For"] = []string{fmt.Sprint("203.0.113.", i), fmt.Sprint("127.0.0.1, 198.51.100.", i)}
			res, err := transport.RoundTrip(r)
			if err != nil {
				t.Fatal(err)
			}
			res.Body.Close()
			if res.StatusCode != want {
				t.Errorf("request %d of %s: %s, want %d", i, client, res.Status, want)
			}
		}
		transport.CloseIdleConnections()
	}
}

// A proxy on a Unix socket has no address, so it is counted as a hop. Requests that
// it says nothing about have the empty key, and one sees that.
func TestAProxyOnAUnixSocketIsAHop(t *testing.T) {
	listener, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	l := limiter(t, core.Rule{Name: "r", By: "ip", Limit: core.Rate{N: 1, Per: time.Hour}})
	options := nethttpflow.Options{Keys: []nethttpflow.Key{nethttpflow.ClientIP(nethttpflow.Trust{Hops: 1})}}
	server := httptest.NewUnstartedServer(nethttpflow.Middleware(l, options)(ok))
	server.Listener.Close()
	server.Listener = listener
	server.Start()
	defer server.Close()
	transport := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
		return net.Dial("unix", listener.Addr().String())
	}}
	defer transport.CloseIdleConnections()
	for _, tt := range []struct {
		forwarded string
		want      int
	}{
		{"1.1.1.1, 203.0.113.9", 200}, {"1.1.1.2, 203.0.113.9", 429}, {"203.0.113.8", 200}, {"", 200}, {"203.0.113.7, unknown", 429},
	} {
		r, _ := http.NewRequest("GET", "http://socket/", nil)
		r.Header.Set("X-Forwarded-For", tt.forwarded)
		res, err := transport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != tt.want {
			t.Errorf("%q: %s, want %d", tt.forwarded, res.Status, tt.want)
		}
	}
	if s := stat(t, l, "r"); s.Empty != 2 {
		t.Errorf("%d under the empty key, want 2", s.Empty)
	}
}

// A client that rotates in its /64 is one key; a site that rotates through its /48
// meets the second rule.
func TestASiteIsLimitedBesideItsClients(t *testing.T) {
	trust := nethttpflow.Trust{Proxies: proxies}
	network := nethttpflow.ClientIPPrefix(trust, 24, 48)
	network.By = "net"
	l := limiter(t,
		core.Rule{Name: "clients", By: "ip", Limit: core.Rate{N: 5, Per: time.Hour}},
		core.Rule{Name: "sites", By: "net", Limit: core.Rate{N: 8, Per: time.Hour}})
	h := nethttpflow.Middleware(l, nethttpflow.Options{Keys: []nethttpflow.Key{nethttpflow.ClientIP(trust), network}})(ok)
	passed := func(format string) (n int) {
		for i := range 100 {
			if ask(h, "GET", "/", from("10.0.0.1:80"), func(r *http.Request) {
				r.Header.Set("X-Forwarded-For", fmt.Sprintf(format, i))
			}).StatusCode == 200 {
				n++
			}
		}
		return n
	}
	for _, tt := range []struct {
		format string
		want   int
	}{
		{"2001:db8:1:2:%x::1", 5}, {"[2001:db8:1:%x::1]:80", 3}, {"2001:db8:2:2::%x", 5}, {"::ffff:203.0.113.%d", 8}, {"198.51.100.9:%d", 5},
	} {
		if got := passed(tt.format); got != tt.want {
			t.Errorf("%s: %d passed, want %d", tt.format, got, tt.want)
		}
	}
}

// What a middleware further out has put into RemoteAddr is the peer.
func TestARewrittenPeerIsThePeer(t *testing.T) {
	key := nethttpflow.ClientIP(nethttpflow.Trust{Proxies: proxies})
	for remote, want := range map[string]string{
		"198.51.100.1": "198.51.100.1", "10.0.0.1": "203.0.113.9", "2001:db8::1": "2001:db8::/64", "who knows": "", "": "",
	} {
		r := &http.Request{RemoteAddr: remote, Header: http.Header{"X-Forwarded-For": {"203.0.113.9"}}}
		if got := key.Of(r); got != want {
			t.Errorf("%q: %q, want %q", remote, got, want)
		}
	}
}

func TestAKeyByAddressAllocatesNothing(t *testing.T) {
	r := httptest.NewRequest("GET", "/", nil)
	for _, tt := range []struct {
		key          nethttpflow.Key
		remote, want string
	}{
		{nethttpflow.Peer(), "192.0.2.7:80", "192.0.2.7"},
		{nethttpflow.Peer(), "[2001:db8:1:2::1]:80", "2001:db8:1:2::/64"},
		{nethttpflow.PeerPrefix(24, 48), "192.0.2.7:80", "192.0.2.0/24"},
		{nethttpflow.Peer(), "@", ""},
		{nethttpflow.ClientIP(nethttpflow.Trust{}), "[2001:db8:1:2::1]:80", "2001:db8:1:2::/64"},
		{nethttpflow.ClientIP(nethttpflow.Trust{Proxies: proxies}), "10.0.0.1:80", "2001:db8:9:9::/64"},
		{nethttpflow.ClientIP(nethttpflow.Trust{Hops: 1}), "@", "2001:db8:9:9::/64"},
	} {
		r.RemoteAddr = tt.remote
		r.Header.Set("X-Forwarded-For", "evil, 2001:db8:9:9::9")
		got := ""
		if n := testing.AllocsPerRun(1000, func() { got = tt.key.Of(r) }); n != 0 || got != tt.want {
			t.Errorf("%s: %q with %v allocations, want %q with none", tt.remote, got, n, tt.want)
		}
	}
}

func TestAWrongTrustPanicsAtOnce(t *testing.T) {
	for want, build := range map[string]func(){
		"nethttpflow: Trust.Hops is -1; want how many addresses your own proxies append, at most 64": func() {
			nethttpflow.ClientIP(nethttpflow.Trust{Hops: -1})
		},
		`nethttpflow: Trust.Header is "X-Real-IP", and nobody is trusted to write it; want Proxies or Hops`: func() {
			nethttpflow.ClientIP(nethttpflow.Trust{Header: "X-Real-IP"})
		},
		"nethttpflow: Trust.Header is Host, which is not among net/http's headers; want the one in which your proxies write addresses": func() {
			nethttpflow.ClientIP(nethttpflow.Trust{Hops: 1, Header: "host"})
		},
		"nethttpflow: ClientIPPrefix(33, 64): want 1 to 32 and 1 to 128 bits": func() {
			nethttpflow.ClientIPPrefix(nethttpflow.Trust{}, 33, 64)
		},
		"nethttpflow: PeerPrefix(32, 0): want 1 to 32 and 1 to 128 bits": func() { nethttpflow.PeerPrefix(32, 0) },
	} {
		func() {
			defer func() {
				if got := recover(); got != want {
					t.Errorf("%v, want %s", got, want)
				}
			}()
			build()
		}()
	}
}
