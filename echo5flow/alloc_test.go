//go:build !race

package echo5flow_test

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/labstack/echo/v5"

	"github.com/exactflow/exactflow/core"
	"github.com/exactflow/exactflow/echo5flow"
)

// The race detector allocates too, so this file is not built with it.

func TestAnAdmittedRequestAllocatesNothingMore(t *testing.T) {
	for name, remote := range map[string]string{"IPv4": "192.0.2.7:1234", "IPv6": "[2001:db8::1]:1234"} {
		t.Run(name, func(t *testing.T) {
			l := limiter(t,
				core.Rule{Name: "per-client", By: "ip", Limit: core.Rate{N: 10_000, Per: time.Hour}},
				core.Rule{Name: "service", Limit: core.InFlight{N: 10}})
			allocs := func(use ...echo.MiddlewareFunc) float64 {
				router := echo.New()
				router.Use(use...)
				router.GET("/u/:id", func(*echo.Context) error { return nil })
				r := httptest.NewRequest("GET", "/u/42", nil)
				r.RemoteAddr = remote
				w := header{}
				for range 5000 { // grow the ring first
					router.ServeHTTP(w, r)
				}
				return testing.AllocsPerRun(1000, func() { router.ServeHTTP(w, r) })
			}
			bare := allocs()
			if n := allocs(echo5flow.Middleware(l, echo5flow.Options{})); n > bare {
				t.Errorf("%v allocations, without the middleware %v", n, bare)
			}
			if s := stat(t, l, "per-client"); s.Admitted != 6001 {
				t.Errorf("%d admitted, want all 6001", s.Admitted)
			}
		})
	}
}

// header is a writer that keeps nothing.
type header http.Header

func (h header) Header() http.Header         { return http.Header(h) }
func (h header) Write(b []byte) (int, error) { return len(b), nil }
func (h header) WriteHeader(int)             {}
