package nethttpflow_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/exactflow/exactflow/core"
	"github.com/exactflow/exactflow/nethttpflow"
)

// until waits for what a server does in its own time. It is patient, because a
// test that gives up on a slow machine says nothing.
func until(t testing.TB, what string, is func() bool) {
	t.Helper()
	for begin := time.Now(); !is(); time.Sleep(time.Millisecond) {
		if time.Since(begin) > time.Minute {
			t.Fatalf("not after a minute: %s", what)
		}
	}
}

// protocols are those by which a client may come, without TLS.
func protocols() map[string]*http.Protocols {
	one, two := new(http.Protocols), new(http.Protocols)
	one.SetHTTP1(true)
	two.SetUnencryptedHTTP2(true)
	return map[string]*http.Protocols{"HTTP/1.1": one, "HTTP/2": two}
}

// What a queue refuses is told as what its rule refuses: whose limit it is says
// the status, and a wait that is known is told.
func TestWhatAQueueRefusesIsToldInFull(t *testing.T) {
	const (
		exceeded = `429 {"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Quota exceeded","status":429,"detail":`
		reduced  = `503 {"type":"https://iana.org/assignments/http-problem-types#temporary-reduced-capacity","title":"Temporarily reduced capacity","status":503,"detail":`
		policies = `,"violated-policies":["r"]}` + "\n"

		inFlight = "Cache-Control: no-store\nRateLimit-Policy: \"r\";q=1;qu=\"concurrent-requests\"\nRateLimit: \"r\";r=0\n"
		rate     = "Retry-After: 60\nCache-Control: no-store\nRateLimit-Policy: \"r\";q=1;w=60\nRateLimit: \"r\";r=0;t=60\n"

		full = `"As many requests wait already as may.`
		late = `"The wait is longer than it may be.`
	)
	for _, c := range []struct {
		name    string
		rule    core.Rule
		waiting int
		reason  core.Reason
		after   time.Duration
		headers string
		want    string
	}{
		{
			"full, in flight for all",
			core.Rule{Limit: core.InFlight{N: 1}, Queue: core.Queue{Len: 1, Wait: time.Hour}}, 1,
			core.ReasonQueueFull, 0, inFlight, reduced + full + `"` + policies,
		},
		{
			"full, in flight for each client",
			core.Rule{By: "ip", Limit: core.InFlight{N: 1}, Queue: core.Queue{Len: 1, Wait: time.Hour}}, 1,
			core.ReasonQueueFull, 0, inFlight, exceeded + full + `"` + policies,
		},
		{
			"full, a rate for all",
			core.Rule{Limit: core.Rate{N: 1, Per: time.Minute}, Queue: core.Queue{Len: 1, Wait: time.Hour}}, 1,
			core.ReasonQueueFull, 0, rate, exceeded + full + ` Try again in 60 s."` + policies,
		},
		{
			"too long a wait, in flight for all",
			core.Rule{Limit: core.InFlight{N: 1}, Queue: core.Queue{Len: 1, Wait: 7 * time.Second}}, 0,
			core.ReasonQueueTimeout, 7 * time.Second, inFlight, reduced + late + `"` + policies,
		},
		{
			"too long a wait, in flight for each client",
			core.Rule{By: "ip", Limit: core.InFlight{N: 1}, Queue: core.Queue{Len: 1, Wait: 7 * time.Second}}, 0,
			core.ReasonQueueTimeout, 7 * time.Second, inFlight, exceeded + late + `"` + policies,
		},
		{
			"too long a wait, a rate for all, which is known from the begin",
			core.Rule{Limit: core.Rate{N: 1, Per: time.Minute}, Queue: core.Queue{Len: 1, Wait: 59 * time.Second}}, 0,
			core.ReasonQueueTimeout, 0, rate, exceeded + late + ` Try again in 60 s."` + policies,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c.rule.Name = "r"
				l := limiter(t, c.rule)
				work := make(chan struct{})
				h := nethttpflow.Middleware(l, nethttpflow.Options{})(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-work }))
				var wg sync.WaitGroup
				for range 1 + c.waiting {
					wg.Go(func() {
						if res := ask(h, "GET", "/"); res.StatusCode != 200 {
							t.Errorf("one before: %s", res.Status)
						}
					})
					synctest.Wait()
				}
				begin := time.Now()
				res := ask(h, "GET", "/")
				if took := time.Since(begin); took != c.after {
					t.Errorf("refused after %v, want %v", took, c.after)
				}
				body, _ := io.ReadAll(res.Body)
				if got := res.Status[:4] + string(body); got != c.want {
					t.Errorf("%s\nwant\n%s", got, c.want)
				}
				if got := told(res); got != c.headers {
					t.Errorf("headers\n%swant\n%s", got, c.headers)
				}
				if s := stat(t, l, "r"); s.Refused[c.reason] != 1 || s.Waiting != c.waiting {
					t.Errorf("%+v", s)
				}
				close(work)
				wg.Wait()
			})
		})
	}
}

// A request that fits, but not before those who wait, and that another rule does
// not let wait, is refused by the rule where they wait.
func TestWhoWouldFitButMayNotWaitIsToldThatOthersDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t,
			core.Rule{Name: "service", Limit: core.InFlight{N: 2}, Queue: core.Queue{Len: 1, Wait: time.Hour}},
			core.Rule{Name: "exports", On: "export", Limit: core.Rate{N: 1, Per: time.Minute}})
		work := make(chan struct{})
		h := nethttpflow.Middleware(l, nethttpflow.Options{
			Resource: func(r *http.Request) string { return r.URL.Path[1:] },
			Cost: func(r *http.Request) int {
				if r.URL.Path == "/large" {
					return 2
				}
				return 1
			},
		})(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-work }))
		var wg sync.WaitGroup
		for _, path := range []string{"/export", "/large"} {
			wg.Go(func() { ask(h, "GET", path) })
			synctest.Wait()
		}
		res := ask(h, "GET", "/export")
		body, _ := io.ReadAll(res.Body)
		if res.StatusCode != 503 || res.Header.Get("Retry-After") != "" ||
			!strings.Contains(string(body), `"detail":"Others wait already, and this request may not wait.","violated-policies":["service"]`) {
			t.Errorf("%s, Retry-After %q, %s", res.Status, res.Header.Get("Retry-After"), body)
		}
		close(work)
		wg.Wait()
	})
}

// A client that hangs up while it waits leaves the line at once. It takes
// nothing, its handler never runs, and nobody is told of a refusal.
func TestAWaitingRequestWhoseClientHasGoneLeaves(t *testing.T) {
	for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
		t.Run(proto, func(t *testing.T) {
			l := limiter(t, core.Rule{Name: "one", Limit: core.InFlight{N: 1}, Queue: core.Queue{Len: 1, Wait: time.Minute}})
			var ran atomic.Int32
			limited := nethttpflow.Middleware(l, nethttpflow.Options{
				Headers: nethttpflow.HeadersAlways,
				Refuse:  func(http.ResponseWriter, *http.Request, core.Permit) { t.Error("refused") },
			})(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { ran.Add(1) }))
			left := make(chan http.Header, 1)
			server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Proto != proto {
					t.Errorf("the request came by %s", r.Proto)
				}
				limited.ServeHTTP(w, r)
				left <- w.Header()
			}))
			if proto == "HTTP/2.0" {
				server.EnableHTTP2 = true
				server.StartTLS()
			} else {
				server.Start() // TLS says goodbye before it closes, and so might still hear an answer
			}
			defer server.Close()

			holds, _ := l.Try(core.Request{})
			ctx, hangUp := context.WithCancel(t.Context())
			gone := make(chan error)
			go func() {
				r, _ := http.NewRequestWithContext(ctx, "GET", server.URL, nil)
				_, err := server.Client().Do(r)
				gone <- err
			}()
			until(t, "it waits", func() bool { return stat(t, l, "one").Waiting == 1 })
			hangUp()
			if err := <-gone; !errors.Is(err, context.Canceled) {
				t.Fatalf("client: %v", err)
			}
			if h := <-left; len(h) != 0 {
				t.Errorf("told: %v", h)
			}
			if s := stat(t, l, "one"); s.Waiting != 0 || s.Canceled != 1 || s.Admitted != 1 || len(s.Refused) != 0 {
				t.Errorf("afterwards: %+v", s)
			}

			holds.Release()
			res, err := server.Client().Get(server.URL)
			if err != nil {
				t.Fatal(err)
			}
			res.Body.Close()
			if res.StatusCode != 200 || ran.Load() != 1 {
				t.Errorf("the next: %s; %d handlers ran", res.Status, ran.Load())
			}
		})
	}
}

// By HTTP/1.1 net/http looks whether the client is still there only once the
// request's body is read, which nobody has. If that came to change, our docs would
// be wrong.
func TestAClientThatLeavesABodyUnreadIsNoticedByHTTP2Only(t *testing.T) {
	for name, protocols := range protocols() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := limiter(t, core.Rule{Name: "one", Limit: core.InFlight{N: 1}, Queue: core.Queue{Len: 1, Wait: time.Minute}})
				if _, ok := l.Try(core.Request{}); !ok {
					t.Fatal("refused")
				}
				client := run(t, &http.Server{Protocols: protocols, Handler: nethttpflow.Middleware(l, nethttpflow.Options{})(ok)})
				ctx, hangUp := context.WithCancel(t.Context())
				r, _ := http.NewRequestWithContext(ctx, "POST", "http://in.bubble/", strings.NewReader("a body"))
				go client.Do(r)
				synctest.Wait()
				if n := stat(t, l, "one").Waiting; n != 1 {
					t.Fatalf("%d wait", n)
				}
				hangUp()
				synctest.Wait()
				canceled := uint64(0)
				if name == "HTTP/2" {
					canceled = 1
				}
				if s := stat(t, l, "one"); s.Canceled != canceled || s.Waiting != 1-int(canceled) {
					t.Errorf("it has gone: %+v", s)
				}
				time.Sleep(time.Minute)
				synctest.Wait()
				if s := stat(t, l, "one"); s.Waiting != 0 || s.Canceled+s.Refused[core.ReasonQueueTimeout] != 1 {
					t.Errorf("a minute later: %+v", s)
				}
			})
		})
	}
}

// A deadline of the server's own that comes before the wait can end refuses at
// once, instead of when it is too late.
func TestAWaitThatCannotEndBeforeTheDeadlineIsRefusedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, core.Rule{Name: "r", Limit: core.Rate{N: 1, Per: time.Minute}, Queue: core.Queue{Len: 9, Wait: time.Hour}})
		h := nethttpflow.Middleware(l, nethttpflow.Options{})(ok)
		ask(h, "GET", "/")
		for _, c := range []struct {
			within, takes time.Duration
			want          int
		}{{59 * time.Second, 0, 429}, {61 * time.Second, 60 * time.Second, 200}} {
			begin := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), c.within)
			defer cancel()
			res := ask(h, "GET", "/", func(r *http.Request) { *r = *r.WithContext(ctx) })
			if took := time.Since(begin); res.StatusCode != c.want || took != c.takes {
				t.Errorf("%v: %s after %v, want %d after %v", c.within, res.Status, took, c.want, c.takes)
			}
		}
	})
}

// A server that is shut down answers all who wait, each in its turn or when its
// time is over, and is done when the last of them is. The bubble sees to it that no
// goroutine is left.
func TestAShutdownEndsWithTheLastWhoWaits(t *testing.T) {
	for name, protocols := range protocols() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := limiter(t, core.Rule{Name: "one", Limit: core.InFlight{N: 1}, Queue: core.Queue{Len: 9, Wait: 10 * time.Second}})
				server := &http.Server{
					Protocols: protocols,
					Handler: nethttpflow.Middleware(l, nethttpflow.Options{})(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
						time.Sleep(4 * time.Second)
					})),
				}
				client := run(t, server)
				var wg sync.WaitGroup
				var passed, refused atomic.Int32
				for range 10 {
					wg.Go(func() {
						res, err := client.Get("http://in.bubble/")
						if err != nil {
							t.Error(err)
							return
						}
						defer res.Body.Close()
						switch res.StatusCode {
						case 200:
							passed.Add(1)
						case 503:
							refused.Add(1)
						}
					})
				}
				time.Sleep(time.Second)
				if n := stat(t, l, "one").Waiting; n != 9 {
					t.Fatalf("%d wait", n)
				}
				begin := time.Now()
				if err := server.Shutdown(t.Context()); err != nil {
					t.Error(err)
				}
				// The third begins after 8 s and ends after 12, of which one is over;
				// Shutdown looks twice a second.
				if took := time.Since(begin); took < 11*time.Second || took > 12*time.Second {
					t.Errorf("it took %v", took)
				}
				wg.Wait()
				if passed.Load() != 3 || refused.Load() != 7 {
					t.Errorf("%d passed, %d refused; want 3 and 7", passed.Load(), refused.Load())
				}
				if s := stat(t, l, "one"); s.Waiting != 0 || s.InFlight != 0 || s.Canceled != 0 {
					t.Errorf("%+v", s)
				}
			})
		})
	}
}
