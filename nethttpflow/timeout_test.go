package nethttpflow_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/exactflow/exactflow/core"
	"github.com/exactflow/exactflow/nethttpflow"
)

// A handler whose timeout is over runs on. Inside the TimeoutHandler the limiter knows,
// and lets no second one run beside it; outside it has given the slot back, unless the
// handler has detached its permit.
func TestAHandlerThatRunsPastItsTimeoutHoldsItsSlotInside(t *testing.T) {
	for _, c := range []struct {
		name     string
		stand    func(limited middleware, h http.Handler) http.Handler
		detach   bool
		inFlight int
	}{
		{"inside", inside, false, 1},
		{"outside", outside, false, 0},
		{"outside, detached", outside, true, 1},
		{"inside, detached", inside, true, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := limiter(t, core.Rule{Name: "one", Limit: core.InFlight{N: 1}})
				var running atomic.Int64
				h := c.stand(nethttpflow.Middleware(l, carry), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if c.detach {
						defer core.PermitFrom(r.Context()).Detach().Release()
					}
					running.Add(1)
					time.Sleep(time.Minute) // it does not look at its context
					running.Add(-1)
					if _, err := w.Write(nil); err != http.ErrHandlerTimeout {
						t.Errorf("after the timeout it could write: %v", err)
					}
				}))
				for i := range 2 {
					if res := ask(h, "GET", "/"); res.StatusCode != 503 {
						t.Fatalf("request %d: %s", i, res.Status)
					}
				}
				if n, want := running.Load(), int64(2-c.inFlight); n != want {
					t.Errorf("%d run; want %d", n, want)
				}
				if n := stat(t, l, "one").InFlight; n != c.inFlight || time.Since(midnight) > 10*time.Second {
					t.Errorf("after %v, %d in flight; want %d", time.Since(midnight), n, c.inFlight)
				}
				time.Sleep(2 * time.Minute)
				synctest.Wait()
				if s := stat(t, l, "one"); s.InFlight != 0 || s.Failed != 0 || s.Admitted != uint64(2-c.inFlight) {
					t.Errorf("when they have ended: %d in flight, %d failed of %d", s.InFlight, s.Failed, s.Admitted)
				}
			})
		})
	}
}

// A panic goes through a TimeoutHandler, and counts as failed on either side of it;
// one that comes after the timeout is lost to all but a limiter inside.
func TestAPanicThroughATimeoutHandlerHasFailed(t *testing.T) {
	for _, c := range []struct {
		name   string
		stand  func(limited middleware, h http.Handler) http.Handler
		after  time.Duration
		failed uint64
	}{
		{"inside, in time", inside, 0, 1},
		{"inside, too late", inside, time.Minute, 1},
		{"outside, in time", outside, 0, 1},
		{"outside, too late", outside, time.Minute, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := limiter(t, core.Rule{Name: "one", Limit: core.InFlight{N: 1}})
				value := errors.New("this very one")
				h := c.stand(nethttpflow.Middleware(l, nethttpflow.Options{}), http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
					time.Sleep(c.after)
					panic(value)
				}))
				var got any
				func() {
					defer func() { got = recover() }()
					ask(h, "GET", "/")
				}()
				if inTime := c.after == 0; (got == value) != inTime || !inTime && got != nil {
					t.Errorf("recovered %v", got)
				}
				time.Sleep(time.Hour)
				if s := stat(t, l, "one"); s.Failed != c.failed || s.InFlight != 0 {
					t.Errorf("failed %d, want %d; in flight %d", s.Failed, c.failed, s.InFlight)
				}
			})
		})
	}
}

// Who waits for a slot inside a TimeoutHandler leaves the line at the timeout, and does
// not begin to wait for what cannot come in time. Outside, the timeout begins when the
// wait is over.
func TestAWaitIsPartOfTheTimeoutInside(t *testing.T) {
	queue := core.Queue{Len: 1, Wait: time.Hour}
	for _, c := range []struct {
		name  string
		stand func(limited middleware, h http.Handler) http.Handler
		limit core.Limit
		after time.Duration // of the answer
		want  int
	}{
		{"slot, inside", inside, core.InFlight{N: 1}, timeout, 503},
		{"slot, outside", outside, core.InFlight{N: 1}, time.Minute, 200},
		{"rate, inside", inside, core.Rate{N: 1, Per: time.Minute}, 0, 429},
		{"rate, outside", outside, core.Rate{N: 1, Per: time.Minute}, time.Minute, 200},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := limiter(t, core.Rule{Name: "r", Limit: c.limit, Queue: queue})
				h := c.stand(nethttpflow.Middleware(l, nethttpflow.Options{}), ok)
				first, _ := l.Try(core.Request{})
				time.AfterFunc(time.Minute, first.Release)
				if res := ask(h, "GET", "/"); res.StatusCode != c.want || time.Since(midnight) != c.after {
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

// What lives long finds neither its connection nor a flush inside a TimeoutHandler.
func TestATimeoutHandlerLeavesNothingToHijack(t *testing.T) {
	l := limiter(t, core.Rule{Name: "one", Limit: core.InFlight{N: 1}})
	for name, stand := range map[string]func(middleware, http.Handler) http.Handler{"inside": inside, "outside": outside} {
		server := httptest.NewServer(stand(nethttpflow.Middleware(l, nethttpflow.Options{}), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			c := http.NewResponseController(w)
			_, _, hijack := c.Hijack()
			if flush := c.Flush(); !errors.Is(hijack, http.ErrNotSupported) || !errors.Is(flush, http.ErrNotSupported) {
				t.Errorf("%s: %v, %v", name, hijack, flush)
			}
			w.WriteHeader(http.StatusNoContent)
		})))
		res, err := server.Client().Get(server.URL)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != http.StatusNoContent {
			t.Errorf("%s: %s", name, res.Status)
		}
		server.Close()
	}
}

const timeout = time.Second

// midnight is when the clock of a bubble starts.
var midnight = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

type middleware = func(http.Handler) http.Handler

// inside has the limiter inside a TimeoutHandler, and outside around it.
func inside(limited middleware, h http.Handler) http.Handler {
	return http.TimeoutHandler(limited(h), timeout, "")
}

func outside(limited middleware, h http.Handler) http.Handler {
	return limited(http.TimeoutHandler(h, timeout, ""))
}

var carry = nethttpflow.Options{Carry: true}
