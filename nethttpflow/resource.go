package nethttpflow

import (
	"net/http"
	"path"
	"strings"
	"sync"
	"sync/atomic"
)

// Unmatched is the one resource of all requests that no route matches.
const Unmatched = "(unmatched)"

// Resources makes resources of methods and route templates, "GET /orders/{id}",
// for adapters to routers. It remembers some thousands of them, so that a
// request on a known route allocates nothing. The zero value is ready. It is
// safe for concurrent use, and must not be copied after first use.
type Resources struct {
	known sync.Map // route -> string
	size  atomic.Int64
}

type route struct{ method, template string }

// maxKnown bounds what is remembered. Templates are the program's own, so only
// a router that gives raw paths for templates gets there; its further resources
// are made anew for each request.
const maxKnown = 1 << 12

// Of is the resource of a method and a template: both, or "_OTHER" for a method
// that is none of RFC 9110's nor PATCH, or [Unmatched] for an empty template.
// The method may be the client's word.
func (s *Resources) Of(method, template string) string {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch,
		http.MethodDelete, http.MethodConnect, http.MethodOptions, http.MethodTrace:
	default:
		method = "_OTHER"
	}
	return s.OfRoute(method, template)
}

// OfRoute is Of where the method is not the client's word, but that of a route
// which the program has for it: so it stays what it is, PROPFIND too.
func (s *Resources) OfRoute(method, template string) string {
	if template == "" {
		return Unmatched
	}
	if v, ok := s.known.Load(route{method, template}); ok {
		return v.(string)
	}
	resource := method + " " + template
	if s.size.Load() < maxKnown {
		// The template is kept as a part of the resource, not of a URL that it may be from.
		if _, known := s.known.LoadOrStore(route{method, resource[len(method)+1:]}, resource); !known {
			s.size.Add(1)
		}
	}
	return resource
}

// routes knows the resources of net/http requests.
type routes struct {
	mux router // nil if there is none
	*Resources
}

// A router tells the route of a request before it serves it.
type router interface {
	Handler(*http.Request) (http.Handler, string)
}

func (s routes) resource(r *http.Request) string {
	pattern := r.Pattern
	if s.mux != nil {
		_, pattern = s.mux.Handler(r)
		if r.Method == http.MethodConnect && redirected(r.URL.Path, pattern) {
			return Unmatched
		}
	}
	// A pattern is [METHOD ][HOST]/[PATH]; the host is left out. Its method is one
	// of the program's own, so it may be one that HTTP does not know. For HEAD it
	// may be GET.
	method, rest, ok := strings.Cut(pattern, " ")
	if !ok {
		return s.Of(r.Method, hostless(pattern))
	}
	if strings.HasPrefix(rest, "/") {
		return pattern
	}
	return s.OfRoute(method, hostless(rest))
}

func hostless(pattern string) string {
	return pattern[max(strings.IndexByte(pattern, '/'), 0):]
}

// redirected reports that the mux's pattern is not one but the path that it
// redirects a CONNECT to, which is the client's word: for all other methods
// ServeMux tells the pattern that matches after the redirect.
func redirected(p, pattern string) bool {
	return !strings.HasSuffix(p, "/") && path.Clean("/"+p)+"/" == pattern
}
