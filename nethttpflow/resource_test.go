package nethttpflow_test

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/exactflow/exactflow/core"
	"github.com/exactflow/exactflow/nethttpflow"
)

// seen is how many resources a limiter with the rule each was asked about.
func seen(t *testing.T, l *core.Limiter) int { return stat(t, l, "each").Keys }

var each = core.Rule{Name: "each", By: "resource", Limit: core.Rate{N: 1000, Per: time.Hour}}

// only is a limiter that blocks exactly this resource.
func only(t *testing.T, resource string) *core.Limiter {
	return limiter(t, core.Rule{Name: "only", On: resource, Limit: core.Rate{N: 0, Per: time.Second}})
}

func TestTheResourceIsMethodAndRoute(t *testing.T) {
	for _, c := range []struct{ pattern, method, target, want string }{
		{"GET /u/{id}", "GET", "http://example.com/u/42", "GET /u/{id}"},
		{"GET /u/{id}", "HEAD", "http://example.com/u/42", "GET /u/{id}"},
		{"/u/{id}", "POST", "http://example.com/u/42", "POST /u/{id}"},
		{"GET example.com/u/{id}", "GET", "http://example.com:8080/u/42", "GET /u/{id}"},
		{"example.com/u/{id}", "DELETE", "http://example.com/u/42", "DELETE /u/{id}"},
		{"/", "GET", "http://example.com/u/42", "GET /"},
		{"/u/", "GET", "http://example.com/u/42/43", "GET /u/"},
		{"/any/", "GET", "http://example.com/any", "GET /any/"}, // redirected there
		{"/{rest...}", "OPTIONS", "http://example.com/u/42", "OPTIONS /{rest...}"},
		{"/u/", "CONNECT", "/u/", "CONNECT /u/"},
		{"GET  /spaced", "GET", "http://example.com/spaced", "GET /spaced"},
		{"GET\t/tabbed", "GET", "http://example.com/tabbed", "GET /tabbed"},
		{"PURGE /u/{id}", "PURGE", "http://example.com/u/42", "PURGE /u/{id}"}, // the program's own
		{"PURGE example.com/u/{id}", "PURGE", "http://example.com/u/42", "PURGE /u/{id}"},
		{"/u/{id}", "PURGE", "http://example.com/u/42", "_OTHER /u/{id}"}, // the client's
		{"GET /u/{id}", "POST", "http://example.com/u/42", nethttpflow.Unmatched},
		{"GET /u/{id}", "GET", "http://example.com/v/42", nethttpflow.Unmatched},
	} {
		t.Run(c.pattern+" "+c.method, func(t *testing.T) {
			around := http.NewServeMux()
			around.Handle(c.pattern, ok)
			h := nethttpflow.Middleware(only(t, c.want), nethttpflow.Options{Mux: around})(around)
			if res := ask(h, c.method, c.target); res.StatusCode != 429 {
				t.Errorf("around the mux: %s", res.Status)
			}
			if c.want == nethttpflow.Unmatched || c.pattern == "/any/" {
				return // no handler to be inside of
			}
			inside := http.NewServeMux()
			inside.Handle(c.pattern, nethttpflow.Middleware(only(t, c.want), nethttpflow.Options{})(ok))
			if res := ask(inside, c.method, c.target); res.StatusCode != 429 {
				t.Errorf("inside the route: %s", res.Status)
			}
		})
	}
}

// Else a client would pass by the rule with another method.
func TestARuleForAllMethodsIsForAPatternWithoutOne(t *testing.T) {
	mux := http.NewServeMux()
	mux.Handle("/any", ok)
	h := nethttpflow.Middleware(only(t, "* /any"), nethttpflow.Options{})(mux)
	for _, method := range []string{"GET", "HEAD", "POST", "OPTIONS", "PURGE", "any", "CONNECT"} {
		if res := ask(h, method, "/any"); res.StatusCode != 429 {
			t.Errorf("%s: %s", method, res.Status)
		}
	}
}

// A mux further in is not seen: who limits its routes asks it.
func TestOfNestedMuxesTheOneAskedIsSeen(t *testing.T) {
	inner := http.NewServeMux()
	inner.Handle("GET /api/u/{id}", ok)
	outer := http.NewServeMux()
	outer.Handle("/api/", inner)
	for resource, o := range map[string]nethttpflow.Options{"GET /api/": {}, "GET /api/u/{id}": {Mux: inner}} {
		h := nethttpflow.Middleware(only(t, resource), o)(outer)
		if res := ask(h, "GET", "/api/u/42"); res.StatusCode != 429 {
			t.Errorf("not %q: %s", resource, res.Status)
		}
	}
}

// Behind StripPrefix the outer pattern is all that the request tells; the mux
// knows better.
func TestTheGivenMuxIsAskedAlsoBelowAnother(t *testing.T) {
	api := http.NewServeMux()
	api.Handle("GET /u/{id}", ok)
	outer := http.NewServeMux()
	outer.Handle("/api/", http.StripPrefix("/api", nethttpflow.Middleware(only(t, "GET /u/{id}"), nethttpflow.Options{Mux: api})(api)))
	if res := ask(outer, "GET", "/api/u/42"); res.StatusCode != 429 {
		t.Fatal(res.Status)
	}
}

// Whoever forgets Options.Mux has rules that bind all the same.
func TestAMuxThatIsNextIsAskedByItself(t *testing.T) {
	mux := http.NewServeMux()
	mux.Handle("GET /u/{id}", ok)
	own := nethttpflow.Options{Resource: func(*http.Request) string { return "own" }}
	other := http.NewServeMux()
	other.Handle("GET /", ok)
	for _, c := range []struct {
		name, resource string
		o              nethttpflow.Options
		next           http.Handler
	}{
		{"a mux", "GET /u/{id}", nethttpflow.Options{}, mux},
		{"a type that embeds a mux", "GET /u/{id}", nethttpflow.Options{}, struct{ *http.ServeMux }{mux}},
		{"a mux, and a Resource", "own", own, mux},
		{"a mux, and another as Mux", "GET /", nethttpflow.Options{Mux: other}, mux},
		{"a handler around a mux", nethttpflow.Unmatched, nethttpflow.Options{}, http.HandlerFunc(mux.ServeHTTP)},
	} {
		h := nethttpflow.Middleware(only(t, c.resource), c.o)(c.next)
		if res := ask(h, "GET", "/u/42"); res.StatusCode != 429 {
			t.Errorf("%s: not %q: %s", c.name, c.resource, res.Status)
		}
	}
}

// One middleware serves many handlers, each of them with its own routes.
func TestEachMuxOfAMiddlewareIsAskedForItself(t *testing.T) {
	limited := nethttpflow.Middleware(only(t, "GET /a"), nethttpflow.Options{})
	a, b := http.NewServeMux(), http.NewServeMux()
	a.Handle("GET /a", ok)
	b.Handle("GET /{any}", ok)
	ha, hb := limited(a), limited(b)
	if res := ask(ha, "GET", "/a"); res.StatusCode != 429 {
		t.Errorf("the one: %s", res.Status)
	}
	if res := ask(hb, "GET", "/a"); res.StatusCode != 200 {
		t.Errorf("the other: %s", res.Status)
	}
}

// A route of the program's own has a method of the program's own.
func TestAResourceOfARouteKeepsItsMethod(t *testing.T) {
	var known nethttpflow.Resources
	for _, c := range []struct{ method, template, of, ofRoute string }{
		{"GET", "/u", "GET /u", "GET /u"},
		{"PROPFIND", "/u", "_OTHER /u", "PROPFIND /u"},
		{"PROPFIND", "", nethttpflow.Unmatched, nethttpflow.Unmatched},
	} {
		if of, ofRoute := known.Of(c.method, c.template), known.OfRoute(c.method, c.template); of != c.of || ofRoute != c.ofRoute {
			t.Errorf("%s %q: %q and %q, want %q and %q", c.method, c.template, of, ofRoute, c.of, c.ofRoute)
		}
	}
}

// Clients invent methods and paths without end. They are one resource.
func TestInventionsMakeNoResources(t *testing.T) {
	mux := http.NewServeMux()
	mux.Handle("GET /u/{id}", ok)
	mux.Handle("/any/{id}", ok)
	mux.Handle("/tree/{id}/", ok)
	for _, c := range []struct {
		name   string
		method func(int) string
		path   func(int) string
	}{
		{"methods on a route", func(i int) string { return fmt.Sprint("M", i) }, func(int) string { return "/any/1" }},
		{"methods on a route of another", func(i int) string { return fmt.Sprint("M", i) }, func(int) string { return "/u/1" }},
		{"paths on a route", func(int) string { return "GET" }, func(i int) string { return fmt.Sprint("/u/", i) }},
		{"unmatched paths", func(int) string { return "GET" }, func(i int) string { return fmt.Sprint("/no/", i) }},
		{"unmatched methods", func(i int) string { return fmt.Sprint("M", i) }, func(i int) string { return fmt.Sprint("/no/", i) }},
		{"redirects", func(int) string { return "GET" }, func(i int) string { return fmt.Sprint("/tree/", i) }},
		{"redirects of CONNECT", func(int) string { return "CONNECT" }, func(i int) string { return fmt.Sprint("/tree/", i) }},
		{"escaped redirects of CONNECT", func(int) string { return "CONNECT" }, func(i int) string { return fmt.Sprint("/tree/%2e%20", i) }},
		{"clean paths", func(int) string { return "GET" }, func(i int) string { return fmt.Sprint("/u//../u/", i) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := limiter(t, each)
			h := nethttpflow.Middleware(l, nethttpflow.Options{Mux: mux})(mux)
			for i := range 10 {
				path := c.path(i)
				ask(h, c.method(i), "/", func(r *http.Request) {
					u, err := url.Parse(path)
					if err != nil {
						t.Fatal(err)
					}
					r.URL, r.RequestURI = u, path
				})
			}
			if n := seen(t, l); n != 1 {
				t.Fatalf("%d resources", n)
			}
		})
	}
}

// A handler without any router has no route.
func TestWithoutARouterAllIsUnmatched(t *testing.T) {
	h := nethttpflow.Middleware(only(t, nethttpflow.Unmatched), nethttpflow.Options{})(ok)
	if res := ask(h, "GET", "/a/b"); res.StatusCode != 429 {
		t.Fatal(res.Status)
	}
}

func TestAResourceOfYourOwn(t *testing.T) {
	h := nethttpflow.Middleware(only(t, "api"), nethttpflow.Options{
		Resource: func(r *http.Request) string { return strings.Split(r.URL.Path, "/")[1] },
	})(ok)
	if res := ask(h, "GET", "/api/b"); res.StatusCode != 429 {
		t.Fatal(res.Status)
	}
	if res := ask(h, "GET", "/other/b"); res.StatusCode != 200 {
		t.Fatal(res.Status)
	}
}

// A router that gives raw paths for templates is answered rightly and costs no
// memory without end.
func TestResourcesRemembersNoMoreThanItsBound(t *testing.T) {
	var known nethttpflow.Resources
	for range 2 {
		for i := range 10_000 {
			template := fmt.Sprint("/", i)
			if got := known.Of("GET", template); got != "GET "+template {
				t.Fatalf("%q", got)
			}
		}
	}
	if n := known.Len(); n > 4096 {
		t.Fatalf("%d remembered", n)
	}
}
