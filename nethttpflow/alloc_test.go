//go:build !race

package nethttpflow_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/exactflow/exactflow/core"
	"github.com/exactflow/exactflow/nethttpflow"
)

// The race detector allocates too, so this file is not built with it.

// nothing is a handler and a writer that allocate nothing themselves.
var nothing = http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})

func TestAnAdmittedRequestAllocatesNothing(t *testing.T) {
	for _, c := range []struct {
		name, pattern, remote string
		most                  float64
	}{
		{"IPv4", "GET /u/{id}", "192.0.2.7:1234", 0},
		{"IPv6", "GET /u/{id}", "[2001:db8::1]:1234", 1},
		{"IPv6 with a zone", "GET /u/{id}", "[fe80::1%eth0]:1234", 1},
		{"a pattern without a method", "/u/{id}", "192.0.2.7:1234", 0},
		{"a pattern with a host", "GET example.com/u/{id}", "192.0.2.7:1234", 0},
		{"no pattern", "", "192.0.2.7:1234", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := limiter(t,
				core.Rule{Name: "per-client", By: "ip", Limit: core.Rate{N: 10_000, Per: time.Hour}},
				core.Rule{Name: "service", Limit: core.InFlight{N: 10}})
			h := nethttpflow.Middleware(l, nethttpflow.Options{})(nothing)
			r := httptest.NewRequest("GET", "/u/42", nil)
			r.RemoteAddr, r.Pattern = c.remote, c.pattern
			w := httptest.NewRecorder()
			for range 5000 { // grow the ring first
				h.ServeHTTP(w, r)
			}
			if n := testing.AllocsPerRun(1000, func() { h.ServeHTTP(w, r) }); n > c.most {
				t.Errorf("%v allocations, want %v", n, c.most)
			}
			if s := stat(t, l, "per-client"); s.Admitted != 6001 {
				t.Errorf("%d admitted, want all 6001", s.Admitted)
			}
		})
	}
}

func TestAskingAMuxAllocatesNothingMoreThanTheMux(t *testing.T) {
	l := limiter(t, core.Rule{Name: "per-client", By: "ip", Limit: core.Rate{N: 10_000, Per: time.Hour}})
	mux := http.NewServeMux()
	mux.Handle("GET /u/{id}", nothing)
	h := nethttpflow.Middleware(l, nethttpflow.Options{Mux: mux})(nothing)
	r := httptest.NewRequest("GET", "/u/42", nil)
	w := httptest.NewRecorder()
	for range 5000 {
		h.ServeHTTP(w, r)
	}
	bare := testing.AllocsPerRun(1000, func() { mux.Handler(r) })
	if n := testing.AllocsPerRun(1000, func() { h.ServeHTTP(w, r) }); n > bare {
		t.Errorf("%v allocations, the mux has %v", n, bare)
	}
}

func TestKnownResourcesAllocateNothing(t *testing.T) {
	var known nethttpflow.Resources
	templates := make([]string, 1000)
	for i := range templates {
		templates[i] = fmt.Sprintf("/t%d/{id}", i)
		known.Of("GET", templates[i])
	}
	i := 0
	if n := testing.AllocsPerRun(1000, func() { known.Of("GET", templates[i%1000]); i++ }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
