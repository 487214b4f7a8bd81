package echoflow_test

import (
	"fmt"
	"net/http"
	"net/netip"
	"testing"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/exactflow/exactflow/core"
	"github.com/exactflow/exactflow/echoflow"
	"github.com/exactflow/exactflow/nethttpflow"
)

// claims are the headers in which clients try to be somebody else, and how.
var claims = map[string]string{
	"X-Forwarded-For": "%s", "X-Real-IP": "%s", "True-Client-IP": "%s", "CF-Connecting-IP": "%s", "Forwarded": "for=%s",
}

// Twenty requests to a new server, which believes all of them to come from
// somewhere else, whether the limiter counts peers or clients of a proxy that this
// peer is not.
func TestAClientThatClaimsToBeOthersIsOne(t *testing.T) {
	for name, key := range map[string]func(header string) echoflow.Key{
		"Peer": func(string) echoflow.Key { return echoflow.Peer() },
		"ClientIP": func(header string) echoflow.Key {
			return echoflow.ClientIP(nethttpflow.Trust{Proxies: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, Header: header})
		},
	} {
		for header, form := range claims {
			l := limiter(t, core.Rule{Name: "r", By: "ip", Limit: core.Rate{N: 3, Per: time.Hour}})
			e := echo.New()
			believed := map[string]bool{}
			e.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
				return func(c echo.Context) error { believed[c.RealIP()] = true; return next(c) }
			}, echoflow.Middleware(l, echoflow.Options{Keys: []echoflow.Key{key(header)}}))
			e.GET("/", ok)
			server := serve(t, e)
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
			if s := stat(t, l, "r"); passed != 3 || s.Keys != 1 {
				t.Errorf("%s, %s: %d of 3 passed, for %d keys", name, header, passed, s.Keys)
			}
			if want := clientsOfEcho(t, 20); len(believed) != want {
				t.Errorf("echo %s took them for %d clients, not %d: what the docs say of its defaults is not so", echo.Version, len(believed), want)
			}
		}
	}
}

// Behind a proxy its clients are apart, by the header it writes and no other, and
// IPv6 by the /64.
func TestClientsBehindAProxyAreCountedApart(t *testing.T) {
	for header, form := range claims {
		trust := nethttpflow.Trust{Proxies: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, Header: header}
		network := echoflow.ClientIPPrefix(trust, 24, 48)
		network.By = "net"
		l := limiter(t,
			core.Rule{Name: "r", By: "ip", Limit: core.Rate{N: 1, Per: time.Hour}},
			core.Rule{Name: "net", By: "net", Limit: core.Rate{N: 2, Per: time.Hour}})
		e := echo.New()
		e.Use(echoflow.Middleware(l, echoflow.Options{Keys: []echoflow.Key{echoflow.ClientIP(trust), network}}))
		e.GET("/", ok)
		for i, tt := range []struct {
			client string
			want   int
		}{
			{`"[2001:db8:1:2::1]"`, 200}, {`"[2001:db8:1:2::2]:80"`, 429}, {`"[2001:db8:1:3::1]"`, 200}, {`"[2001:db8:1:4::1]"`, 429}, {"203.0.113.9", 200},
		} {
			client := tt.client
			if form == "%s" && client[0] == '"' {
				client = client[1 : len(client)-1]
			}
			res := ask(e, "GET", "/", from("10.0.0.1:80"), func(r *http.Request) {
				for other, form := range claims {
					r.Header.Set(other, fmt.Sprintf(form, fmt.Sprint("198.51.100.", i)))
				}
				r.Header.Set(header, fmt.Sprintf(form, client))
			})
			if res.StatusCode != tt.want {
				t.Errorf("%s: %s: %s, want %d", header, client, res.Status, tt.want)
			}
		}
	}
}

// Who cannot be told is limited with all of whom that is so, and one sees it.
func TestAClientWithoutAnAddressCountsVisibly(t *testing.T) {
	l := limiter(t, core.Rule{Name: "r", By: "ip", Limit: core.Rate{N: 2, Per: time.Hour}})
	e := echo.New()
	e.Use(echoflow.Middleware(l, echoflow.Options{Keys: []echoflow.Key{echoflow.ClientIP(nethttpflow.Trust{Hops: 1})}}))
	e.GET("/", ok)
	for i, want := range []int{200, 200, 429} {
		res := ask(e, "GET", "/", from("@"), func(r *http.Request) { r.Header.Set("X-Forwarded-For", "203.0.113.9, unknown") })
		if res.StatusCode != want {
			t.Errorf("request %d: %s, want %d", i, res.Status, want)
		}
	}
	if s := stat(t, l, "r"); s.Empty != 3 {
		t.Errorf("%d under the empty key, want 3", s.Empty)
	}
}

// clientsOfEcho is for how many clients echo's own default takes one that claims to be
// so many.
func clientsOfEcho(t *testing.T, claimed int) int {
	var major, minor, patch int
	if _, err := fmt.Sscanf(echo.Version, "%d.%d.%d", &major, &minor, &patch); err != nil {
		t.Fatal(err)
	}
	if minor > 16 || minor == 16 && patch >= 3 {
		return 1
	}
	return claimed
}
