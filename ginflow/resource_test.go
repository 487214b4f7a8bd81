package ginflow_test

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/exactflow/exactflow/core"
	"github.com/exactflow/exactflow/ginflow"
	"github.com/exactflow/exactflow/nethttpflow"
)

func TestTheResourceIsMethodAndRoute(t *testing.T) {
	for _, c := range []struct{ method, path, want string }{
		{"GET", "/u/42", "GET /u/:id"},
		{"POST", "/u/42", "POST /u/:id"},
		{"GET", "/group/files/a/b", "GET /group/files/*path"},
		{"GET", "/none", nethttpflow.Unmatched},
		{"DELETE", "/u/42", nethttpflow.Unmatched},
		{"PROPFIND", "/u/42", "PROPFIND /u/:id"},  // the program has a route for it
		{"PURGE", "/u/42", nethttpflow.Unmatched}, // and none for this
	} {
		l := limiter(t, core.Rule{Name: "only", On: c.want, Limit: core.Rate{N: 0, Per: time.Second}})
		router := gin.New()
		router.Use(ginflow.Middleware(l, ginflow.Options{}))
		router.GET("/u/:id", ok)
		router.POST("/u/:id", ok)
		router.Handle("PROPFIND", "/u/:id", ok)
		router.Group("/group").GET("/files/*path", ok)
		if res := ask(router, c.method, c.path); res.StatusCode != 429 {
			t.Errorf("%s %s is not %q: %s", c.method, c.path, c.want, res.Status)
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
			router := gin.New()
			router.HandleMethodNotAllowed = true
			router.Use(ginflow.Middleware(l, ginflow.Options{}))
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
	router := gin.New()
	router.Use(ginflow.Middleware(l, ginflow.Options{}))
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

// gin believes forwarding headers by default; the default key does not.
func TestForwardingHeadersAreNotBelieved(t *testing.T) {
	l := limiter(t, core.Rule{Name: "r", By: "ip", Limit: core.Rate{N: 1, Per: time.Hour}})
	router := gin.New()
	router.Use(ginflow.Middleware(l, ginflow.Options{}))
	router.GET("/", ok)
	ask(router, "GET", "/")
	for i, name := range []string{"X-Forwarded-For", "X-Real-IP", "True-Client-IP", "CF-Connecting-IP", "X-Appengine-Remote-Addr"} {
		if res := ask(router, "GET", "/", func(r *http.Request) { r.Header.Set(name, fmt.Sprint("203.0.113.", i)) }); res.StatusCode != 429 {
			t.Errorf("%s: %s", name, res.Status)
		}
	}
}

func TestKeys(t *testing.T) {
	l := limiter(t,
		core.Rule{Name: "tenants", By: "tenant,api", Limit: core.Rate{N: 1, Per: time.Hour}},
		core.Rule{Name: "networks", By: "ip", Limit: core.Rate{N: 5, Per: time.Hour}},
		core.Rule{Name: "users", By: "user", Limit: core.Rate{N: 100, Per: time.Hour}})
	router := gin.New()
	router.Use(ginflow.Middleware(l, ginflow.Options{Keys: []ginflow.Key{
		ginflow.Param("tenant", "tenant"),
		ginflow.Header("api", "x-api-key"),
		ginflow.PeerPrefix(24, 48),
		{By: "user", Of: func(c *gin.Context) string { return c.GetString("user") }}, // nobody sets it
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
