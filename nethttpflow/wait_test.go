package nethttpflow_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/exactflow/exactflow/core"
	"github.com/exactflow/exactflow/flowtest"
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

// A request that would fit, and may not wait, is told that others do.
func TestWhoMayNotWaitIsToldThatOthersDo(t *testing.T) {
	h := nethttpflow.Middleware(flowtest.Refusing(t, core.ReasonQueued, 0), nethttpflow.Options{})(ok)
	res := ask(h, "GET", "/")
	body, _ := io.ReadAll(res.Body)
	if res.StatusCode != 503 || res.Header.Get("Retry-After") != "" ||
		!strings.Contains(string(body), `"detail":"Others wait already, and this request may not wait.","violated-policies":["flowtest"]`) {
		t.Errorf("%s, Retry-After %q, %s", res.Status, res.Header.Get("Retry-After"), body)
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
