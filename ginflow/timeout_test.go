package ginflow_test

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/exactflow/exactflow/core"
	"github.com/exactflow/exactflow/ginflow"
)

// A handler whose timeout is over runs on. With the TimeoutHandler around the engine
// the limiter knows, lets no second one run beside it, and hears how it ends.
func TestAHandlerThatRunsPastItsTimeoutHoldsItsSlot(t *testing.T) {
	for name, c := range map[string]struct {
		end    func(*gin.Context)
		failed uint64
	}{
		"late answer": {func(c *gin.Context) {
			if _, err := c.Writer.WriteString("late"); err != http.ErrHandlerTimeout {
				t.Errorf("after the timeout it could write: %v", err)
			}
		}, 0},
		"late failure": {func(c *gin.Context) { c.Status(500) }, 1},
		"late panic":   {func(*gin.Context) { panic("at the disco") }, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := limiter(t, core.Rule{Name: "one", Limit: core.InFlight{N: 1}})
				h := http.TimeoutHandler(oneRoute(ginflow.Middleware(l, carry), func(g *gin.Context) {
					time.Sleep(time.Minute) // it does not look at its context
					c.end(g)
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

// Who waits inside a TimeoutHandler leaves the line at the timeout, and does not begin
// to wait for what cannot come in time.
func TestAWaitIsPartOfTheTimeout(t *testing.T) {
	for name, c := range map[string]struct {
		limit core.Limit
		after time.Duration // of the answer
		want  int
	}{
		"slot": {core.InFlight{N: 1}, timeout, 503},
		"rate": {core.Rate{N: 1, Per: time.Minute}, 0, 429},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := limiter(t, core.Rule{Name: "r", Limit: c.limit, Queue: core.Queue{Len: 1, Wait: time.Hour}})
				h := http.TimeoutHandler(oneRoute(ginflow.Middleware(l, ginflow.Options{}), ok), timeout, "")
				first, _ := l.Try(core.Request{})
				defer first.Release()
				if res := ask(h, "GET", "/"); res.StatusCode != c.want || time.Since(midnight) != c.after {
					t.Errorf("%s after %v; want %d after %v", res.Status, time.Since(midnight), c.want, c.after)
				}
				synctest.Wait()
				if s := stat(t, l, "r"); s.Waiting != 0 || s.Admitted != 1 {
					t.Errorf("%d wait when all are answered, %d admitted", s.Waiting, s.Admitted)
				}
			})
		})
	}
}

// A middleware that runs the later handlers in a goroutine, answers at its timeout and
// waits until they have returned, may stand on either side.
func TestBesideATimeoutThatWaitsForTheHandlerTheSlotIsHeld(t *testing.T) {
	for _, inside := range []bool{true, false} {
		t.Run(fmt.Sprintf("inside: %v", inside), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := limiter(t, core.Rule{Name: "one", Limit: core.InFlight{N: 1}})
				answered := make(chan struct{})
				patient := func(c *gin.Context) {
					ctx, cancel := context.WithTimeout(c.Request.Context(), timeout)
					defer cancel()
					c.Request = c.Request.WithContext(ctx)
					w, ended := c.Writer, make(chan struct{})
					go func() {
						defer close(ended)
						c.Next()
					}()
					<-ctx.Done()
					w.WriteHeader(http.StatusGatewayTimeout)
					w.WriteHeaderNow()
					close(answered)
					<-ended
				}
				router := gin.New()
				if inside {
					router.Use(patient, ginflow.Middleware(l, ginflow.Options{}))
				} else {
					router.Use(ginflow.Middleware(l, ginflow.Options{}), patient)
				}
				router.GET("/", func(*gin.Context) {
					<-answered
					time.Sleep(time.Minute)
				})
				returned := make(chan int)
				go func() { returned <- ask(router, "GET", "/").StatusCode }()
				<-answered
				time.Sleep(time.Minute - 1)
				if n := stat(t, l, "one").InFlight; n != 1 {
					t.Errorf("answered, and not yet ended: %d in flight; want 1", n)
				}
				if status := <-returned; status != http.StatusGatewayTimeout {
					t.Errorf("the client got %d", status)
				}
				if n := stat(t, l, "one").InFlight; n != 0 {
					t.Errorf("ended: %d in flight", n)
				}
			})
		})
	}
}

const timeout = time.Second

// midnight is when the clock of a bubble starts.
var midnight = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

var carry = ginflow.Options{Carry: true}

// oneRoute is a server whose one route is h, behind the middleware.
func oneRoute(limited gin.HandlerFunc, h gin.HandlerFunc) http.Handler {
	router := gin.New()
	router.Use(limited)
	router.Any("/", h)
	return router
}
