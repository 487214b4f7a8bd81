package echoflow_test

import (
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"

	"github.com/exactflow/exactflow/core"
	"github.com/exactflow/exactflow/echoflow"
)

// A handler whose timeout is over runs on. With the TimeoutHandler around the server
// the limiter knows, lets no second one run beside it, and hears how it ends.
func TestAHandlerThatRunsPastItsTimeoutHoldsItsSlot(t *testing.T) {
	for name, c := range map[string]struct {
		end    func(echo.Context) error
		failed uint64
	}{
		"late answer": {func(c echo.Context) error {
			if _, err := c.Response().Write(nil); err != http.ErrHandlerTimeout {
				t.Errorf("after the timeout it could write: %v", err)
			}
			return nil
		}, 0},
		"late failure": {func(c echo.Context) error { return c.NoContent(500) }, 1},
		"late panic":   {func(echo.Context) error { panic("at the disco") }, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := limiter(t, core.Rule{Name: "one", Limit: core.InFlight{N: 1}})
				h := http.TimeoutHandler(oneRoute(echoflow.Middleware(l, carry), func(e echo.Context) error {
					time.Sleep(time.Minute) // it does not look at its context
					return c.end(e)
				}), timeout, "")
				for i := range 2 {
					if res := ask(h, "GET", "/"); res.StatusCode != 503 {
						t.Fatalf("request %d: %s", i, res.Status)
					}
				}
				if s := stat(t, l, "one"); s.InFlight != 1 || s.Refused[core.ReasonInFlight] != 1 || time.Since(midnight) != timeout {
					t.Errorf("after %v, %d in flight, %d refused; want %v, 1, 1", time.Since(midnight), s.InFlight, s.Refused[core.ReasonInFlight], timeout)
				}
				time.Sleep(time.Minute)
				synctest.Wait()
				if s := stat(t, l, "one"); s.InFlight != 0 || s.Failed != c.failed {
					t.Errorf("when it has ended: %d in flight, %d failed; want 0 and %d", s.InFlight, s.Failed, c.failed)
				}
			})
		})
	}
}

// Echo's own Timeout is a TimeoutHandler further in. Inside it the slot is held as long
// as the handler runs, outside it is back at the timeout, unless it was detached.
func TestEchosTimeoutIsLikeATimeoutHandler(t *testing.T) {
	for _, c := range []struct {
		inside, detach bool
		inFlight       int
	}{{true, false, 1}, {false, false, 0}, {false, true, 1}} {
		t.Run(fmt.Sprintf("inside: %v, detach: %v", c.inside, c.detach), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := limiter(t, core.Rule{Name: "one", Limit: core.InFlight{N: 1}})
				//lint:ignore SA1019 services still use it, and must know on which side the limiter stands
				early := middleware.TimeoutWithConfig(middleware.TimeoutConfig{Timeout: timeout})
				h := beside(early, c.inside, echoflow.Middleware(l, carry), func(e echo.Context) error {
					if c.detach {
						defer core.PermitFrom(e.Request().Context()).Detach().Release()
					}
					time.Sleep(time.Minute)
					return nil
				})
				// One request: the next might be given the context that the first still has.
				res := ask(h, "GET", "/")
				if n := stat(t, l, "one").InFlight; res.StatusCode != 503 || n != c.inFlight || time.Since(midnight) != timeout {
					t.Errorf("%s after %v, and %d in flight; want 503, %v, %d", res.Status, time.Since(midnight), n, timeout, c.inFlight)
				}
				time.Sleep(time.Minute)
				synctest.Wait()
				if n := stat(t, l, "one").InFlight; n != 0 {
					t.Errorf("ended: %d in flight", n)
				}
			})
		})
	}
}

// ContextTimeout ends no handler, and no request: who does not look at the context is
// waited for. So on either side of it the slot is held as long as the handler runs; and
// one that does look, and says so, has failed.
func TestContextTimeoutHoldsTheSlotOnEitherSide(t *testing.T) {
	for _, inside := range []bool{true, false} {
		for _, looks := range []bool{true, false} {
			t.Run(fmt.Sprintf("inside: %v, looks: %v", inside, looks), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					l := limiter(t, core.Rule{Name: "one", Limit: core.InFlight{N: 1}})
					h := beside(middleware.ContextTimeout(timeout), inside, echoflow.Middleware(l, carry), func(c echo.Context) error {
						if looks {
							<-c.Request().Context().Done()
							return c.Request().Context().Err()
						}
						time.Sleep(time.Minute)
						return c.NoContent(http.StatusOK)
					})
					takes, want, failed := time.Minute, http.StatusOK, uint64(0)
					if looks {
						takes, want, failed = timeout, http.StatusServiceUnavailable, 1
					}
					returned := make(chan int)
					go func() { returned <- ask(h, "GET", "/").StatusCode }()
					time.Sleep(takes - 1)
					if n := stat(t, l, "one").InFlight; n != 1 {
						t.Errorf("just before it ends: %d in flight; want 1", n)
					}
					if got := <-returned; got != want || time.Since(midnight) != takes {
						t.Errorf("%d after %v; want %d after %v", got, time.Since(midnight), want, takes)
					}
					if s := stat(t, l, "one"); s.InFlight != 0 || s.Failed != failed {
						t.Errorf("afterwards: %d in flight, %d failed; want 0 and %d", s.InFlight, s.Failed, failed)
					}
				})
			})
		}
	}
}

// Inside a timeout what a request waits is a part of it: who waits for a slot leaves
// the line when it is over, and nobody begins to wait for what cannot come in time.
// Outside, the timeout begins when the wait is over.
func TestAWaitIsPartOfTheTimeoutInside(t *testing.T) {
	context := middleware.ContextTimeout(timeout)
	inside := func(m echo.MiddlewareFunc) http.Handler { return beside(context, true, m, ok) }
	outside := func(m echo.MiddlewareFunc) http.Handler { return beside(context, false, m, ok) }
	within := func(m echo.MiddlewareFunc) http.Handler { return http.TimeoutHandler(oneRoute(m, ok), timeout, "") }
	for name, c := range map[string]struct {
		stand func(limited echo.MiddlewareFunc) http.Handler
		limit core.Limit
		after time.Duration // of the answer
		want  int
	}{
		"slot, inside":                  {inside, core.InFlight{N: 1}, timeout, 503},
		"slot, outside":                 {outside, core.InFlight{N: 1}, time.Minute, 200},
		"rate, inside":                  {inside, core.Rate{N: 1, Per: time.Minute}, 0, 429},
		"rate, outside":                 {outside, core.Rate{N: 1, Per: time.Minute}, time.Minute, 200},
		"slot, inside a TimeoutHandler": {within, core.InFlight{N: 1}, timeout, 503},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := limiter(t, core.Rule{Name: "r", Limit: c.limit, Queue: core.Queue{Len: 1, Wait: time.Hour}})
				first, _ := l.Try(core.Request{})
				time.AfterFunc(time.Minute, first.Release)
				if res := ask(c.stand(echoflow.Middleware(l, echoflow.Options{})), "GET", "/"); res.StatusCode != c.want || time.Since(midnight) != c.after {
					t.Errorf("%s after %v; want %d after %v", res.Status, time.Since(midnight), c.want, c.after)
				}
				synctest.Wait()
				if n := stat(t, l, "r").Waiting; n != 0 {
					t.Errorf("%d wait when all are answered", n)
				}
				time.Sleep(time.Minute)
			})
		})
	}
}

const timeout = time.Second

// midnight is when the clock of a bubble starts.
var midnight = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// beside is a server whose one route has the limiter inside a middleware with a
// timeout, or around it.
func beside(timeout echo.MiddlewareFunc, inside bool, limited echo.MiddlewareFunc, h echo.HandlerFunc) http.Handler {
	e := echo.New()
	if inside {
		e.Use(timeout, limited)
	} else {
		e.Use(limited, timeout)
	}
	e.GET("/", h)
	return e
}

var carry = echoflow.Options{Carry: true}

// oneRoute is a server whose one route is h, behind the middleware.
func oneRoute(limited echo.MiddlewareFunc, h echo.HandlerFunc) http.Handler {
	e := echo.New()
	e.Use(limited)
	e.Any("/", h)
	return e
}
