package echo5flow_test

import (
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/labstack/echo/v5"

	"github.com/exactflow/exactflow/core"
)

func limiter(t testing.TB, rules ...core.Rule) *core.Limiter {
	t.Helper()
	l, err := core.New(rules...)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func stat(t testing.TB, l *core.Limiter, rule string) core.Stat {
	t.Helper()
	for _, s := range l.Stats() {
		if s.Rule == rule {
			return s
		}
	}
	t.Fatalf("no rule %q", rule)
	return core.Stat{}
}

// ask gives one request to h and returns the response.
func ask(h http.Handler, method, target string, change ...func(*http.Request)) *http.Response {
	r := httptest.NewRequest(method, target, nil)
	for _, f := range change {
		f(r)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result()
}

// from sets the peer's address.
func from(remote string) func(*http.Request) {
	return func(r *http.Request) { r.RemoteAddr = remote }
}

// serve runs h on a real port; its complaints about panics are not shown.
func serve(t testing.TB, h http.Handler) *httptest.Server {
	s := httptest.NewUnstartedServer(h)
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.Start()
	t.Cleanup(s.Close)
	return s
}

func ok(c *echo.Context) error { return c.String(http.StatusOK, "ok") }
