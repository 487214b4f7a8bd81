package echo5flow_test

import (
	"fmt"
	"net/http"
	"net/netip"
	"testing"
	"time"

	"github.com/labstack/echo/v5"

	"github.com/exactflow/exactflow/core"
	"github.com/exactflow/exactflow/echo5flow"
	"github.com/exactflow/exactflow/nethttpflow"
)

func TestTheResourceIsMethodAndRoute(t *testing.T) {
	for _, c := range []struct{ method, path, want string }{
		{"GET", "/u/42", "GET /u/:id"},
		{"POST", "/u/42", "POST /u/:id"},
		{"GET", "/group/files/a/b", "GET /group/files/*"},
		{"GET", "/none", nethttpflow.Unmatched},
		{"BREW", "/none", nethttpflow.Unmatched},
		{"DELETE", "/u/42", "DELETE /u/:id"},   // echo knows the route, and answers 405
		{"HEAD", "/u/42", "HEAD /u/:id"},       // likewise
		{"OPTIONS", "/u/42", "OPTIONS /u/:id"}, // likewise, and answers 204
		{"PURGE", "/u/42", "PURGE /u/:id"},     // a method that the program has
		{"PROPFIND", "/u/42", "_OTHER /u/:id"}, // it has not
		{"LOCK", "/u/42", "_OTHER /u/:id"},
		{"GET", "/any/1", "GET /any/:id"},
		{"HEAD", "/any/1", "HEAD /any/:id"},
		{"QUERY", "/any/1", "_OTHER /any/:id"},
		{"echo_route_any", "/any/1", "_OTHER /any/:id"},         // which is what echo calls it
		{"echo_route_not_found", "/group/1", "_OTHER /group/*"}, // likewise
		{"GET", "/group/none", "GET /group/*"},                  // the group's middlewares run there
		{"DELETE", "/group/files/a", "DELETE /group/files/*"},
	} {
		l := limiter(t, core.Rule{Name: "only", On: c.want, Limit: core.Rate{N: 0, Per: time.Second}})
		router := echo.New()
		router.Use(echo5flow.Middleware(l, echo5flow.Options{}))
		router.GET("/u/:id", ok)
		router.POST("/u/:id", ok)
		router.Add("PURGE", "/u/:id", ok)
		router.Any("/any/:id", ok)
		group := router.Group("/group")
		group.Use(func(next echo.HandlerFunc) echo.HandlerFunc { return next })
		group.GET("/files/*", ok)
		if res := ask(router, c.method, c.path); res.StatusCode != 429 {
			t.Errorf("%s %s is not %q: %s", c.method, c.path, c.want, res.Status)
		}
	}
}

// A limit on GET is not got around by HEAD where echo runs the handler of GET for
// it.
func TestHeadCountsAsTheRouteThatServesIt(t *testing.T) {
	l := limiter(t, core.Rule{Name: "get", On: "GET /u/:id", Limit: core.Rate{N: 2, Per: time.Hour}})
	router := echo.NewWithConfig(echo.Config{Router: echo.NewRouter(echo.RouterConfig{AutoHandleHEAD: true})})
	router.Use(echo5flow.Middleware(l, echo5flow.Options{}))
	router.GET("/u/:id", ok)
	router.GET("/both", ok)
	router.HEAD("/both", ok)
	for i, method := range []string{"HEAD", "GET", "HEAD", "GET"} {
		if res := ask(router, method, "/u/42"); (res.StatusCode == 200) != (i < 2) {
			t.Errorf("%d, %s: %s", i, method, res.Status)
		}
	}
	if res := ask(router, "HEAD", "/both"); res.StatusCode != 200 {
		t.Errorf("HEAD with a route of its own: %s", res.Status)
	}
}

// Before the router there is no route.
func TestBeforeTheRouterAllIsUnmatched(t *testing.T) {
	l := limiter(t, core.Rule{Name: "only", On: nethttpflow.Unmatched, Limit: core.Rate{N: 0, Per: time.Second}})
	router := echo.New()
	router.Pre(echo5flow.Middleware(l, echo5flow.Options{}))
	router.GET("/u/:id", ok)
	for _, method := range []string{"GET", "HEAD", "BREW"} {
		if res := ask(router, method, "/u/42"); res.StatusCode != 429 {
			t.Errorf("%s: %s", method, res.Status)
		}
	}
}

// Clients invent methods and paths without end. They are one resource.
func TestInventionsMakeNoResources(t *testing.T) {
	for name, request := range map[string]func(i int) (method, path string){
		"methods":          func(i int) (string, string) { return fmt.Sprint("M", i), "/u/1" },
		"paths on a route": func(i int) (string, string) { return "GET", fmt.Sprint("/u/", i) },
		"unmatched paths":  func(i int) (string, string) { return "GET", fmt.Sprint("/no/", i) },
	} {
		t.Run(name, func(t *testing.T) {
			l := limiter(t, core.Rule{Name: "each", By: "resource", Limit: core.Rate{N: 1000, Per: time.Hour}})
			router := echo.New()
			router.Use(echo5flow.Middleware(l, echo5flow.Options{}))
			router.Any("/u/:id", ok)
			for i := range 10 {
				method, path := request(i)
				ask(router, method, path)
			}
			if s := stat(t, l, "each"); s.Keys != 1 || s.Admitted != 10 {
				t.Fatalf("%d resources of %d requests", s.Keys, s.Admitted)
			}
		})
	}
}

// A host has all the addresses of its /64 to ask from. They are one client.
func TestAnIPv6ClientThatRotatesIsOneKey(t *testing.T) {
	l := limiter(t,
		core.Rule{Name: "r", By: "ip", Limit: core.Rate{N: 5, Per: time.Hour}})
	router := echo.New()
	router.Use(echo5flow.Middleware(l, echo5flow.Options{}))
	router.GET("/", ok)
	passed := 0
	for i := range 100 {
		if ask(router, "GET", "/", from(fmt.Sprintf("[2001:db8:1:2:%x::%x]:80", i*601, i))).StatusCode == 200 {
			passed++
		}
	}
	if passed != 5 {
		t.Fatalf("%d of 5 passed", passed)
	}
}

// The default key believes no forwarding header, whatever the server's IPExtractor
// does.
func TestForwardingHeadersAreNotBelieved(t *testing.T) {
	l := limiter(t, core.Rule{Name: "r", By: "ip", Limit: core.Rate{N: 1, Per: time.Hour}})
	router := echo.New()
	router.IPExtractor = echo.LegacyIPExtractor()
	router.Use(echo5flow.Middleware(l, echo5flow.Options{}))
	router.GET("/", ok)
	ask(router, "GET", "/")
	for i, name := range []string{"X-Forwarded-For", "X-Real-IP", "True-Client-IP", "CF-Connecting-IP", "X-Appengine-Remote-Addr"} {
		if res := ask(router, "GET", "/", func(r *http.Request) { r.Header.Set(name, fmt.Sprint("203.0.113.", i)) }); res.StatusCode != 429 {
			t.Errorf("%s: %s", name, res.Status)
		}
	}
}

// Behind a proxy of one's own the client is who it says it is asked by; from
// anywhere else the header is the client's own word.
func TestTheClientBehindAProxyIsAKey(t *testing.T) {
	l := limiter(t, core.Rule{Name: "r", By: "ip", Limit: core.Rate{N: 1, Per: time.Hour}})
	trust := nethttpflow.Trust{Proxies: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}
	router := echo.New()
	router.Use(echo5flow.Middleware(l, echo5flow.Options{Keys: []echo5flow.Key{echo5flow.ClientIP(trust)}}))
	router.GET("/", ok)
	for _, c := range []struct {
		peer, forwarded string
		want            int
	}{
		{"10.0.0.1:80", "203.0.113.1", 200},
		{"10.0.0.2:80", "203.0.113.9, 203.0.113.1", 429},
		{"10.0.0.1:80", "203.0.113.2", 200},
		{"192.0.2.1:80", "203.0.113.3", 200},
		{"192.0.2.1:80", "203.0.113.4", 429},
	} {
		if res := ask(router, "GET", "/", from(c.peer), func(r *http.Request) { r.Header.Set("X-Forwarded-For", c.forwarded) }); res.StatusCode != c.want {
			t.Errorf("%s from %s: %s, want %d", c.forwarded, c.peer, res.Status, c.want)
		}
	}
}

func TestKeys(t *testing.T) {
	l := limiter(t,
		core.Rule{Name: "tenants", By: "tenant,api", Limit: core.Rate{N: 1, Per: time.Hour}},
		core.Rule{Name: "networks", By: "ip", Limit: core.Rate{N: 5, Per: time.Hour}},
		core.Rule{Name: "users", By: "user", Limit: core.Rate{N: 100, Per: time.Hour}})
	router := echo.New()
	router.Use(echo5flow.Middleware(l, echo5flow.Options{Keys: []echo5flow.Key{
		echo5flow.Param("tenant", "tenant"),
		echo5flow.Header("api", "x-api-key"),
		echo5flow.PeerPrefix(24, 48),
		{By: "user", Of: func(c *echo.Context) string { user, _ := c.Get("user").(string); return user }}, // nobody sets it
	}}))
	router.GET("/:tenant/x", ok)
	for _, c := range []struct {
		tenant, api, remote string
		want                int
	}{
		{"a", "1", "192.0.2.1:80", 200},
		{"a", "1", "192.0.3.1:80", 429}, // the same tenant and key
		{"b", "1", "192.0.2.2:80", 200},
		{"a", "2", "192.0.2.3:80", 200},
		{"c", "", "192.0.2.4:80", 200},
		{"d", "", "192.0.2.5:80", 200},
		{"e", "", "192.0.2.6:80", 429}, // the sixth of its network
		{"e", "", "192.0.3.6:80", 200},
	} {
		if res := ask(router, "GET", "/"+c.tenant+"/x", from(c.remote), func(r *http.Request) { r.Header.Set("X-API-Key", c.api) }); res.StatusCode != c.want {
			t.Errorf("%v: %s", c, res.Status)
		}
	}
	if s := stat(t, l, "users"); s.Empty == 0 {
		t.Error("nobody sees that users are not known")
	}
}
