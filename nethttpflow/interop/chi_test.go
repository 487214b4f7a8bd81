// Package interop shows how nethttpflow goes with routers and protocols that stand
// on net/http. It is a module of its own, so that nobody else needs them. What the
// documentation of nethttpflow tells to copy is here, and tested.
package interop

import (
	"cmp"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"

	"github.com/exactflow/exactflow/core"
	"github.com/exactflow/exactflow/nethttpflow"
)

// ahead is for the Use of the router itself.
func ahead() func(*http.Request) string {
	known := new(nethttpflow.Resources)
	return func(r *http.Request) string {
		c := chi.RouteContext(r.Context())
		method, path := cmp.Or(c.RouteMethod, r.Method), cmp.Or(c.RoutePath, r.URL.RawPath, r.URL.Path, "/")
		return known.OfRoute(method, c.Routes.Find(chi.NewRouteContext(), method, path))
	}
}

// routed is for With, and for the Use of a Group.
func routed() func(*http.Request) string {
	known := new(nethttpflow.Resources)
	return func(r *http.Request) string {
		c := chi.RouteContext(r.Context())
		return known.OfRoute(cmp.Or(c.RouteMethod, r.Method), c.RoutePattern())
	}
}

func limiter(t testing.TB, rules ...core.Rule) *core.Limiter {
	t.Helper()
	l, err := core.New(rules...)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func ok(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "ok") }

// seen is a middleware that notes what its options make of a request.
func seen(t testing.TB, note *string, resource func(*http.Request) string) func(http.Handler) http.Handler {
	return nethttpflow.Middleware(limiter(t), nethttpflow.Options{Resource: func(r *http.Request) string {
		*note = resource(r)
		return *note
	}})
}

func ask(h http.Handler, method, path string) int {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(method, path, nil))
	return w.Code
}

func shop(outside, inside func(http.Handler) http.Handler) http.Handler {
	r := chi.NewRouter()
	r.Use(middleware.StripSlashes, middleware.GetHead)
	if outside != nil {
		r.Use(outside)
	}
	routes := func(r chi.Router) {
		if inside != nil {
			r.Use(inside)
		}
		r.Get("/", ok)
		r.Get("/orders/{id}", ok)
		r.Post("/orders/{id:[0-9]+}/items", ok)
		r.Handle("/any/*", http.HandlerFunc(ok))
	}
	r.Group(routes)
	r.Route("/api", func(r chi.Router) {
		r.Group(routes)
		r.Route("/v1/{tenant}", func(r chi.Router) { r.Group(routes) })
	})
	r.Mount("/files", http.HandlerFunc(ok))
	return r
}

// In the Use of the router, all requests pass, and each counts as the route that
// chi will serve it by, if any.
func TestChiIsAskedAhead(t *testing.T) {
	var got string
	h := shop(seen(t, &got, ahead()), nil)
	for _, c := range []struct {
		method, path, want string
		status             int
	}{
		{"GET", "/", "GET /", 200},
		{"GET", "/orders/7", "GET /orders/{id}", 200},
		{"GET", "/orders/a%2Fb", "GET /orders/{id}", 200},
		{"GET", "/orders/7/", "GET /orders/{id}", 200}, // after StripSlashes
		{"HEAD", "/orders/7", "GET /orders/{id}", 200}, // after GetHead
		{"POST", "/orders/7/items", "POST /orders/{id:[0-9]+}/items", 200},
		{"GET", "/api/orders/7", "GET /api/orders/{id}", 200},
		{"GET", "/api/v1/acme/orders/7", "GET /api/v1/{tenant}/orders/{id}", 200},
		{"PUT", "/any/x/y", "PUT /any/*", 200},
		{"GET", "/files/a", "GET /files/*", 200},
		{"GET", "/none", nethttpflow.Unmatched, 404},
		{"GET", "/api/none", nethttpflow.Unmatched, 404},
		{"POST", "/orders/x/items", nethttpflow.Unmatched, 404},
		{"DELETE", "/orders/7", nethttpflow.Unmatched, 405},
		{"DELETE", "/api/orders/7", nethttpflow.Unmatched, 405},
		{"BREW", "/orders/7", nethttpflow.Unmatched, 405},
		{"BREW", "/any/x", nethttpflow.Unmatched, 405},
	} {
		got = ""
		if status := ask(h, c.method, c.path); got != c.want || status != c.status {
			t.Errorf("%s %s: %q, %d; want %q, %d", c.method, c.path, got, status, c.want, c.status)
		}
	}
}

// On routes, only requests that have one pass, and the route is known without
// asking.
func TestChiHasRoutedWhereRoutesStand(t *testing.T) {
	var got string
	h := shop(nil, seen(t, &got, routed()))
	for _, c := range []struct{ method, path, want string }{
		{"GET", "/", "GET /"},
		{"GET", "/orders/7", "GET /orders/{id}"},
		{"GET", "/orders/7/", "GET /orders/{id}"},
		{"HEAD", "/orders/7", "GET /orders/{id}"},
		{"POST", "/orders/7/items", "POST /orders/{id:[0-9]+}/items"},
		{"GET", "/api/orders/7", "GET /api/orders/{id}"},
		{"GET", "/api/v1/acme/orders/7", "GET /api/v1/{tenant}/orders/{id}"},
		{"PUT", "/any/x/y", "PUT /any/*"},
		{"GET", "/none", ""},
		{"GET", "/api/none", ""},
		{"DELETE", "/orders/7", ""},
		{"BREW", "/any/x", ""},
	} {
		got = ""
		if ask(h, c.method, c.path); got != c.want {
			t.Errorf("%s %s: %q, want %q", c.method, c.path, got, c.want)
		}
	}
}

// Both are wrong in the other's place, and without them the routes are not told
// apart: this is why there are two.
func TestChiInTheWrongPlace(t *testing.T) {
	var got string
	for name, c := range map[string]struct {
		h    http.Handler
		path string
		want string
	}{
		"the pattern is empty before routing": {shop(seen(t, &got, routed()), nil), "/orders/7", nethttpflow.Unmatched},
		"a mounted router's Use knows the mount alone": {func() http.Handler {
			r := chi.NewRouter()
			r.Route("/api", func(r chi.Router) {
				r.Use(seen(t, &got, routed()))
				r.Get("/orders/{id}", ok)
			})
			return r
		}(), "/api/orders/7", "GET /api/*"},
		"so does a Group around a mount": {func() http.Handler {
			r := chi.NewRouter()
			r.Group(func(r chi.Router) {
				r.Use(seen(t, &got, routed()))
				r.Route("/api", func(r chi.Router) { r.Get("/orders/{id}", ok) })
			})
			return r
		}(), "/api/orders/7", "GET /api/*"},
		"a mounted router cannot be asked ahead": {func() http.Handler {
			r := chi.NewRouter()
			r.Route("/api", func(r chi.Router) {
				r.Use(seen(t, &got, ahead()))
				r.Get("/orders/{id}", ok)
			})
			return r
		}(), "/api/orders/7", nethttpflow.Unmatched},
	} {
		got = ""
		if status := ask(c.h, "GET", c.path); got != c.want || status != 200 {
			t.Errorf("%s: %q, %d; want %q", name, got, status, c.want)
		}
	}
}

// Clients invent methods and paths without end; and a slash at the end, or HEAD,
// is no way around a rule.
func TestChiIsLimitedByRoute(t *testing.T) {
	l := limiter(t,
		core.Rule{Name: "each", By: "resource", Limit: core.Rate{N: 1000, Per: time.Hour}},
		core.Rule{Name: "orders", On: "GET /orders/{id}", Limit: core.Rate{N: 2, Per: time.Hour}})
	h := shop(nethttpflow.Middleware(l, nethttpflow.Options{Resource: ahead()}), nil)
	for i, want := range []int{200, 200, 429, 429} {
		for _, request := range [][2]string{{"HEAD", "/orders/%d/"}, {fmt.Sprint("M", i), "/orders/7"}, {"GET", "/none/%d"}} {
			path := request[1]
			if path != "/orders/7" {
				path = fmt.Sprintf(path, i)
			}
			if status := ask(h, request[0], path); request[0] == "HEAD" && status != want {
				t.Errorf("%d: %s %s: %d, want %d", i, request[0], path, status, want)
			}
		}
	}
	if keys := l.Stats()[0].Keys; keys != 2 { // the route, and what is unmatched
		t.Errorf("%d resources", keys)
	}
}
