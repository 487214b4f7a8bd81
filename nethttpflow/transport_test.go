package nethttpflow_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"golang.org/x/net/websocket"

	"github.com/exactflow/exactflow/core"
	"github.com/exactflow/exactflow/nethttpflow"
)

// transport is a next that a test makes of a function.
type transport func(*http.Request) (*http.Response, error)

func (f transport) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// answers is a next that answers with a status and a body.
func answers(status int, body io.ReadCloser) transport {
	return func(*http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: status, ProtoMajor: 1, Body: body, Header: http.Header{}}, nil
	}
}

func text(s string) io.ReadCloser { return io.NopCloser(strings.NewReader(s)) }

// call makes a request that has not been anywhere.
func call(t testing.TB, method, target string, body io.Reader) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, target, body)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// A sent is the body of a request, and notes that it was closed.
type sent struct {
	io.Reader
	closed atomic.Int32
}

func (s *sent) Close() error { s.closed.Add(1); return nil }

var one = core.Rule{Name: "one", Limit: core.InFlight{N: 1}}

// Whatever a caller does at last with a body gives the slot back, once: what he
// does after that must not give back the slot of another.
func TestACallHoldsUntilItsBodyEnds(t *testing.T) {
	broken := errors.New("the cable is broken")
	for _, c := range []struct {
		name   string
		body   io.ReadCloser
		during func(io.ReadCloser)
		end    func(io.ReadCloser) error
		failed uint64
	}{
		{"closed unread", text("ok"), nil, io.ReadCloser.Close, 0},
		{"closed half read", text("ok"), func(b io.ReadCloser) { b.Read(make([]byte, 1)) }, io.ReadCloser.Close, 0},
		{"read to the end", text("ok"), func(b io.ReadCloser) { b.Read(make([]byte, 2)) }, func(b io.ReadCloser) error {
			_, err := io.ReadAll(b)
			return err
		}, 0},
		{"an end that comes with the last bytes", io.NopCloser(iotest.DataErrReader(strings.NewReader("ok"))), nil, func(b io.ReadCloser) error {
			if n, err := b.Read(make([]byte, 2)); n != 2 || err != io.EOF {
				return fmt.Errorf("%d bytes, %v", n, err)
			}
			return nil
		}, 0},
		{"a read that fails", io.NopCloser(iotest.ErrReader(broken)), nil, func(b io.ReadCloser) error {
			if _, err := b.Read(make([]byte, 1)); err != broken {
				return fmt.Errorf("read: %v", err)
			}
			return nil
		}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := limiter(t, one)
			res, err := nethttpflow.Transport(answers(200, c.body), l, nethttpflow.TransportOptions{}).RoundTrip(call(t, "GET", "http://h/", nil))
			if err != nil {
				t.Fatal(err)
			}
			if c.during != nil {
				c.during(res.Body)
			}
			if n := stat(t, l, "one").InFlight; n != 1 {
				t.Fatalf("before the end: %d in flight", n)
			}
			if err := c.end(res.Body); err != nil {
				t.Fatal(err)
			}
			if s := stat(t, l, "one"); s.InFlight != 0 || s.Failed != c.failed {
				t.Fatalf("after the end: %d in flight, %d failed", s.InFlight, s.Failed)
			}
			other, ok := l.Try(core.Request{})
			if !ok {
				t.Fatal("refused")
			}
			res.Body.Read(make([]byte, 1))
			res.Body.Close()
			res.Body.Close()
			if n := stat(t, l, "one").InFlight; n != 1 {
				t.Errorf("the slot of another was given back: %d in flight", n)
			}
			other.Release()
		})
	}
}

// With a context that never ends, a body that nobody closes is the caller's leak, and
// keeps the slot. If that came to change, our docs would be wrong.
func TestABodyThatNobodyClosesKeepsItsSlot(t *testing.T) {
	l := limiter(t, one)
	client := &http.Client{Transport: nethttpflow.Transport(answers(200, text("ok")), l, nethttpflow.TransportOptions{})}
	if _, err := client.Get("http://h/"); err != nil {
		t.Fatal(err)
	}
	runtime.GC()
	if _, err := client.Get("http://h/"); !errors.Is(err, core.ErrRefused) {
		t.Errorf("the second: %v", err)
	}
	if n := stat(t, l, "one").InFlight; n != 1 {
		t.Errorf("%d in flight", n)
	}
}

// Callers forget to close; but when their context has ended, net/http gives the
// connection up, and so does the slot come back. A deadline has failed, as it does
// for one who reads.
func TestABodyThatNobodyClosesHoldsUntilItsContextEnds(t *testing.T) {
	for name, protocols := range protocols() {
		for end, failed := range map[string]uint64{"cancel": 0, "deadline": 1, "Client.Timeout": 1} {
			t.Run(name+" "+end, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					l := limiter(t, one)
					var served atomic.Int32
					client := run(t, &http.Server{Protocols: protocols, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						served.Add(1)
						defer served.Add(-1)
						http.NewResponseController(w).Flush()
						<-r.Context().Done()
					})})
					client.Transport = nethttpflow.Transport(client.Transport, l, nethttpflow.TransportOptions{})
					ctx := context.Background()
					switch end {
					case "cancel":
						canceled, cancel := context.WithCancel(ctx)
						time.AfterFunc(time.Second, cancel)
						ctx = canceled
					case "deadline":
						timed, cancel := context.WithTimeout(ctx, time.Second)
						defer cancel()
						ctx = timed
					default:
						client.Timeout = time.Second
					}
					if _, err := client.Do(call(t, "GET", "http://in.bubble/", nil).WithContext(ctx)); err != nil {
						t.Fatal(err)
					}
					time.Sleep(time.Second - 1)
					if s := stat(t, l, "one"); s.InFlight != 1 || served.Load() != 1 {
						t.Errorf("before the end: %+v, %d served", s, served.Load())
					}
					time.Sleep(time.Nanosecond)
					synctest.Wait()
					if s := stat(t, l, "one"); s.InFlight != 0 || s.Failed != failed || served.Load() != 0 {
						t.Errorf("after the end: %+v, %d served", s, served.Load())
					}
				})
			})
		}
	}
}

// An endable is a context that can end, and counts those who want to hear of it.
type endable struct {
	context.Context
	done      chan struct{}
	now, ever atomic.Int32
}

func (e *endable) Done() <-chan struct{} { return e.done }

func (e *endable) AfterFunc(func()) func() bool {
	e.now.Add(1)
	e.ever.Add(1)
	return sync.OnceValue(func() bool { e.now.Add(-1); return true })
}

// A context may live as long as the program: calls that are over leave nothing in it.
func TestAnEndedBodyIsForgottenByItsContext(t *testing.T) {
	read := func(b io.ReadCloser) { io.ReadAll(b) }
	shut := func(b io.ReadCloser) { b.Close() }
	a, b := net.Pipe()
	defer b.Close()
	for _, c := range []struct {
		name   string
		status int
		body   io.ReadCloser
		end    func(io.ReadCloser)
		ever   int32
	}{
		{"closed", 200, text("ok"), shut, 1},
		{"read", 200, text("ok"), read, 1},
		{"read, and closed", 200, text("ok"), func(b io.ReadCloser) { read(b); shut(b) }, 1},
		{"broken", 200, io.NopCloser(iotest.ErrReader(errors.New("broken"))), read, 1},
		{"none", 200, http.NoBody, shut, 0},
		{"switched", 101, a, shut, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx := &endable{Context: context.Background(), done: make(chan struct{})}
			made := nethttpflow.Transport(answers(c.status, c.body), limiter(t, one), nethttpflow.TransportOptions{})
			res, err := made.RoundTrip(call(t, "GET", "http://h/", nil).WithContext(ctx))
			if err != nil {
				t.Fatal(err)
			}
			if n := ctx.now.Load(); n != c.ever {
				t.Errorf("before the end: watched by %d, want %d", n, c.ever)
			}
			c.end(res.Body)
			if now, ever := ctx.now.Load(), ctx.ever.Load(); now != 0 || ever != c.ever {
				t.Errorf("after the end: watched by %d, ever %d, want %d", now, ever, c.ever)
			}
		})
	}
}

func TestAResponseWithoutABodyHoldsNothing(t *testing.T) {
	for name, c := range map[string]struct {
		method string
		res    http.Response
	}{
		"nil":       {"GET", http.Response{StatusCode: 200}},
		"NoBody":    {"GET", http.Response{StatusCode: 200, Body: http.NoBody}},
		"to HEAD":   {"HEAD", http.Response{StatusCode: 200, ContentLength: 9, Body: text("")}},
		"204":       {"GET", http.Response{StatusCode: 204, ContentLength: -1, Body: text("")}},
		"304":       {"GET", http.Response{StatusCode: 304, ContentLength: 9, Body: text("")}},
		"by HTTP/2": {"GET", http.Response{StatusCode: 200, ProtoMajor: 2, Body: text("")}},
	} {
		t.Run(name, func(t *testing.T) {
			l := limiter(t, one)
			body := c.res.Body
			next := transport(func(*http.Request) (*http.Response, error) { return &c.res, nil })
			res, err := nethttpflow.Transport(next, l, nethttpflow.TransportOptions{}).RoundTrip(call(t, c.method, "http://h/", nil))
			if err != nil || res.Body != body {
				t.Fatalf("%v, %v", res, err)
			}
			if s := stat(t, l, "one"); s.InFlight != 0 || s.Admitted != 1 || s.Failed != 0 {
				t.Errorf("%+v", s)
			}
		})
	}
}

// Both of net/http's own protocols, with what they really send for no body.
func TestAnEmptyAnswerOfARealServerHoldsNothing(t *testing.T) {
	for name, protocols := range protocols() {
		for _, method := range []string{"GET", "HEAD", "POST"} {
			for _, status := range []int{200, 204, 304} {
				t.Run(fmt.Sprintf("%s %s %d", name, method, status), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						l := limiter(t, one)
						client := run(t, &http.Server{Protocols: protocols, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
							if method == "HEAD" {
								w.Header().Set("Content-Length", "9")
							}
							w.WriteHeader(status)
						})})
						client.Transport = nethttpflow.Transport(client.Transport, l, nethttpflow.TransportOptions{})
						res, err := client.Do(call(t, method, "http://in.bubble/", nil))
						if err != nil || res.StatusCode != status {
							t.Fatal(res, err)
						}
						if n := stat(t, l, "one").InFlight; n != 0 {
							t.Errorf("%d in flight, with body %T", n, res.Body)
						}
						res.Body.Close()
					})
				})
			}
		}
	}
}

func TestAnErrorOfTheNextTransportGivesTheSlotBack(t *testing.T) {
	l := limiter(t, one)
	broken := errors.New("no route to host")
	client := &http.Client{Transport: nethttpflow.Transport(transport(func(*http.Request) (*http.Response, error) { return nil, broken }), l, nethttpflow.TransportOptions{})}
	for range 3 {
		if _, err := client.Get("http://h/"); !errors.Is(err, broken) {
			t.Fatal(err)
		}
	}
	if s := stat(t, l, "one"); s.InFlight != 0 || s.Failed != 3 {
		t.Errorf("%+v", s)
	}
}

func TestAPanicOfTheNextTransportGivesTheSlotBackAndGoesOn(t *testing.T) {
	l := limiter(t, one)
	value := errors.New("this very one")
	panics := nethttpflow.Transport(transport(func(*http.Request) (*http.Response, error) { panic(value) }), l, nethttpflow.TransportOptions{})
	func() {
		defer func() {
			if got := recover(); got != value {
				t.Errorf("recovered %v", got)
			}
		}()
		panics.RoundTrip(call(t, "GET", "http://h/", nil))
	}()
	exits := nethttpflow.Transport(transport(func(*http.Request) (*http.Response, error) { runtime.Goexit(); return nil, nil }), l, nethttpflow.TransportOptions{})
	r, returned := call(t, "GET", "http://h/", nil), false
	var wg sync.WaitGroup
	wg.Go(func() {
		exits.RoundTrip(r)
		returned = true
	})
	wg.Wait()
	if s := stat(t, l, "one"); returned || s.InFlight != 0 || s.Failed != 2 || s.Admitted != 2 {
		t.Errorf("returned %v, %+v", returned, s)
	}
}

// The functions of the options are not ours. Whoever made the request waits for its
// body to be closed, whatever becomes of it.
func TestAPanicOfAnOptionClosesTheRequestsBody(t *testing.T) {
	for name, o := range map[string]nethttpflow.TransportOptions{
		"Keys":     {Keys: []nethttpflow.Key{{By: "k", Of: func(*http.Request) string { panic("k") }}}},
		"Resource": {Resource: func(*http.Request) string { panic("r") }},
		"Cost":     {Cost: func(*http.Request) int { panic("c") }},
		"Priority": {Priority: func(*http.Request) core.Priority { panic("p") }},
		"Skip":     {Skip: func(*http.Request) bool { panic("s") }},
	} {
		t.Run(name, func(t *testing.T) {
			l, body := limiter(t, one), &sent{Reader: strings.NewReader("body")}
			func() {
				defer func() {
					if recover() == nil {
						t.Error("no panic")
					}
				}()
				nethttpflow.Transport(answers(200, text("")), l, o).RoundTrip(call(t, "POST", "http://h/", body))
			}()
			if s := stat(t, l, "one"); body.closed.Load() != 1 || s.InFlight != 0 || s.Admitted != 0 {
				t.Errorf("closed %d times, %+v", body.closed.Load(), s)
			}
		})
	}
	// One that is passed by is next's to close.
	body := &sent{Reader: strings.NewReader("body")}
	o := nethttpflow.TransportOptions{Skip: func(*http.Request) bool { return true }}
	nethttpflow.Transport(answers(200, text("")), limiter(t), o).RoundTrip(call(t, "POST", "http://h/", body))
	if body.closed.Load() != 0 {
		t.Errorf("skipped: closed %d times", body.closed.Load())
	}
}

// A call has failed if the server has; not if the caller was not interested any
// more. One who set a deadline was.
func TestWhatCountsAsAFailedCall(t *testing.T) {
	broken := errors.New("broken")
	for _, c := range []struct {
		name   string
		next   transport
		end    error // of the context, before the call is over
		failed uint64
	}{
		{"200", answers(200, text("ok")), nil, 0},
		{"429", answers(429, text("later")), nil, 0},
		{"499", answers(499, text("")), nil, 0},
		{"500", answers(500, text("sorry")), nil, 1},
		{"503 without a body", answers(503, http.NoBody), nil, 1},
		{"599", answers(599, text("")), nil, 1},
		{"error", func(*http.Request) (*http.Response, error) { return nil, broken }, nil, 1},
		{"error after a deadline", func(r *http.Request) (*http.Response, error) { <-r.Context().Done(); return nil, broken }, context.DeadlineExceeded, 1},
		{"error after cancel", func(r *http.Request) (*http.Response, error) { <-r.Context().Done(); return nil, broken }, context.Canceled, 0},
		{"500 after cancel", func(r *http.Request) (*http.Response, error) {
			<-r.Context().Done()
			return answers(500, text(""))(r)
		}, context.Canceled, 1},
		{"a body that breaks", answers(200, io.NopCloser(iotest.ErrReader(broken))), nil, 1},
		{"a body that breaks after a deadline", answers(200, io.NopCloser(iotest.ErrReader(broken))), context.DeadlineExceeded, 1},
		{"a body that breaks after cancel", answers(200, io.NopCloser(iotest.ErrReader(broken))), context.Canceled, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := limiter(t, one)
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				switch c.end {
				case context.Canceled:
					time.AfterFunc(time.Second, func() { cancel(errors.New("a reason of its own")) })
				case context.DeadlineExceeded:
					timed, stop := context.WithTimeout(ctx, time.Second)
					defer stop()
					ctx = timed
				}
				res, err := nethttpflow.Transport(c.next, l, nethttpflow.TransportOptions{}).RoundTrip(call(t, "GET", "http://h/", nil).WithContext(ctx))
				if err == nil {
					if c.end != nil {
						<-ctx.Done()
					}
					io.ReadAll(res.Body)
					res.Body.Close()
				}
				if c.end != nil && ctx.Err() != c.end {
					t.Fatal(ctx.Err())
				}
				if s := stat(t, l, "one"); s.Failed != c.failed || s.InFlight != 0 {
					t.Errorf("%+v", s)
				}
			})
		})
	}
}

// A refused call is told as one, with what and where, through all that is put
// around errors; nothing is sent; and the body is closed, as of all requests.
func TestARefusedCallIsToldAndSendsNothing(t *testing.T) {
	l := limiter(t, core.Rule{Name: "calls", By: "host", Limit: core.Rate{N: 1, Per: time.Hour}})
	calls := 0
	client := &http.Client{Transport: nethttpflow.Transport(transport(func(r *http.Request) (*http.Response, error) {
		calls++
		return answers(200, text("ok"))(r)
	}), l, nethttpflow.TransportOptions{})}
	if res, err := client.Get("http://api.example.com/"); err != nil {
		t.Fatal(err)
	} else {
		res.Body.Close()
	}

	body := &sent{Reader: strings.NewReader("body")}
	_, err := client.Post("http://API.example.com:80/orders?id=7", "text/plain", body)
	var refusal core.Refusal
	var outer *url.Error
	if !errors.As(err, &outer) || !errors.As(err, &refusal) || !errors.Is(err, core.ErrRefused) {
		t.Fatalf("%v", err)
	}
	if refusal.Rule != "calls" || refusal.Reason != core.ReasonRate || !refusal.Known || refusal.RetryAfter < time.Minute {
		t.Errorf("%+v", refusal)
	}
	if want := "nethttpflow: POST api.example.com: " + refusal.Error(); outer.Err.Error() != want {
		t.Errorf("%v, want %s", outer.Err, want)
	}
	if calls != 1 || body.closed.Load() != 1 {
		t.Errorf("%d calls, body closed %d times", calls, body.closed.Load())
	}
	if res, err := client.Get("http://www.example.com/"); err != nil {
		t.Errorf("another host: %v", err)
	} else {
		res.Body.Close()
	}
}

// Who gives up while he waits gets his context's error, sends nothing, and
// leaves no trace but a count. A client's Timeout is such an end too.
func TestACallThatGivesUpWhileItWaits(t *testing.T) {
	for _, c := range []struct {
		name    string
		timeout time.Duration
		end     func(context.Context) (context.Context, context.CancelFunc)
		want    error
		after   time.Duration
	}{
		{"cancel", 0, func(ctx context.Context) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(ctx)
			time.AfterFunc(time.Second, cancel)
			return ctx, cancel
		}, context.Canceled, time.Second},
		{"deadline", 0, func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, 2*time.Second)
		}, context.DeadlineExceeded, 2 * time.Second},
		{"Client.Timeout", 3 * time.Second, context.WithCancel, context.DeadlineExceeded, 3 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := limiter(t, core.Rule{Name: "one", Limit: core.InFlight{N: 1}, Queue: core.Queue{Len: 1, Wait: time.Minute}})
				holds, _ := l.Try(core.Request{})
				next := transport(func(*http.Request) (*http.Response, error) {
					t.Error("called")
					return nil, errors.New("called")
				})
				client := &http.Client{Timeout: c.timeout, Transport: nethttpflow.Transport(next, l, nethttpflow.TransportOptions{})}
				ctx, cancel := c.end(t.Context())
				defer cancel()
				body := &sent{Reader: strings.NewReader("body")}
				begin := time.Now()
				_, err := client.Do(call(t, "POST", "http://h/", body).WithContext(ctx))
				if took := time.Since(begin); !errors.Is(err, c.want) || took != c.after {
					t.Errorf("after %v: %v", took, err)
				}
				var timeout interface{ Timeout() bool }
				if !errors.As(err, &timeout) || timeout.Timeout() != (c.want == context.DeadlineExceeded) {
					t.Errorf("Timeout() of %v", err)
				}
				if s := stat(t, l, "one"); s.Waiting != 0 || s.Canceled != 1 || body.closed.Load() != 1 {
					t.Errorf("%+v, body closed %d times", s, body.closed.Load())
				}
				holds.Release()
			})
		})
	}
}

// Never more calls under way than the limit, seen from the server, and all of
// them get their turn, by each protocol, on real connections.
func TestCallsUnderWayAreNeverAboveTheLimit(t *testing.T) {
	for _, http2 := range []bool{false, true} {
		t.Run(fmt.Sprintf("HTTP2 %v", http2), func(t *testing.T) {
			const n, callers, each = 3, 16, 10
			var now, most atomic.Int32
			server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if (r.ProtoMajor == 2) != http2 {
					t.Errorf("by %s", r.Proto)
				}
				k := now.Add(1)
				for m := most.Load(); k > m && !most.CompareAndSwap(m, k); m = most.Load() {
				}
				io.Copy(io.Discard, r.Body)
				w.Write(make([]byte, 10))
				http.NewResponseController(w).Flush()
				w.Write(make([]byte, 10_000))
				now.Add(-1) // before the client can see the end
			}))
			server.EnableHTTP2 = http2
			server.StartTLS()
			defer server.Close()

			l := limiter(t, core.Rule{Name: "n", By: "host", Limit: core.InFlight{N: n}, Queue: core.Queue{Len: callers, Wait: time.Hour}})
			client := server.Client()
			client.Transport = nethttpflow.Transport(client.Transport, l, nethttpflow.TransportOptions{})
			var wg sync.WaitGroup
			for i := range callers {
				wg.Go(func() {
					for j := range each {
						res, err := client.Post(server.URL, "text/plain", strings.NewReader("body"))
						if err != nil {
							t.Error(err)
							return
						}
						if read, err := io.Copy(io.Discard, res.Body); read != 10_010 || err != nil {
							t.Errorf("%d bytes, %v", read, err)
						}
						if (i+j)%2 == 0 {
							res.Body.Close()
						}
					}
				})
			}
			wg.Wait()
			if s := stat(t, l, "n"); most.Load() > n || s.InFlight != 0 || s.Admitted != callers*each || s.Failed != 0 {
				t.Errorf("at most %d at once, %+v", most.Load(), s)
			}
		})
	}
}

// Wherever a call is when its caller gives up, in line, on its way, in its body or
// held back, its slot comes back once.
func TestCallsThatAreCanceledAnywhereLeakNothing(t *testing.T) {
	for _, http2 := range []bool{false, true} {
		t.Run(fmt.Sprintf("HTTP2 %v", http2), func(t *testing.T) {
			const n, callers, each = 3, 12, 20
			server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/busy" {
					w.Header().Set("Retry-After", "1")
					w.WriteHeader(http.StatusTooManyRequests)
				}
				for range 5 {
					if _, err := w.Write(make([]byte, 10_000)); err != nil {
						return
					}
					http.NewResponseController(w).Flush()
					select {
					case <-time.After(time.Millisecond):
					case <-r.Context().Done():
						return
					}
				}
			}))
			server.Config.ErrorLog = log.New(io.Discard, "", 0)
			server.EnableHTTP2 = http2
			server.StartTLS()
			defer server.Close()

			l := limiter(t, core.Rule{Name: "n", Limit: core.InFlight{N: n}, Queue: core.Queue{Len: callers, Wait: time.Minute}})
			client := server.Client()
			client.Transport = nethttpflow.Transport(client.Transport, l, nethttpflow.TransportOptions{HoldBack: 20 * time.Millisecond})
			var wg sync.WaitGroup
			for i := range callers {
				wg.Go(func() {
					for j := range each {
						ctx, cancel := context.WithCancel(t.Context())
						time.AfterFunc(time.Duration((i*each+j)%25)*time.Millisecond, cancel)
						path := "/"
						if j%5 == 0 {
							path = "/busy"
						}
						res, err := client.Do(call(t, "GET", server.URL+path, nil).WithContext(ctx))
						if err == nil {
							io.Copy(io.Discard, res.Body)
							res.Body.Close()
						} else if ctx.Err() == nil && !errors.As(err, new(nethttpflow.HeldBack)) {
							t.Error(err)
						}
						cancel()
					}
				})
			}
			wg.Wait()
			if s := stat(t, l, "n"); s.InFlight != 0 || s.Waiting != 0 || s.Failed != 0 {
				t.Errorf("%+v", s)
			}
			if _, ok := l.Try(core.Request{Cost: n}); !ok {
				t.Error("not all slots are free")
			}
			if _, ok := l.Try(core.Request{}); ok {
				t.Error("there are more slots than there were")
			}
		})
	}
}

// Streams are ended by closing what another goroutine reads. In HTTP/2 that one sees
// an error before Close has returned; nothing has failed.
func TestWhoClosesABodyIsNotInterestedInIt(t *testing.T) {
	l := limiter(t, one)
	in, out := io.Pipe()
	defer out.Close()
	seen := make(chan struct{})
	res, err := nethttpflow.Transport(answers(200, shutting{in, seen}), l, nethttpflow.TransportOptions{}).RoundTrip(call(t, "GET", "http://h/", nil))
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := io.ReadAll(res.Body); err != io.ErrClosedPipe {
			t.Error(err)
		}
		close(seen)
	})
	res.Body.Close()
	wg.Wait()
	if s := stat(t, l, "one"); s.InFlight != 0 || s.Failed != 0 {
		t.Errorf("%+v", s)
	}
}

// A shutting is a body whose Close waits until who reads it has seen that.
type shutting struct {
	*io.PipeReader
	seen chan struct{}
}

func (s shutting) Close() error {
	err := s.PipeReader.Close()
	<-s.seen
	return err
}

// One slot is enough for any number of redirects: each hop is a call, which is
// over before the next begins.
func TestEachHopOfARedirectIsACall(t *testing.T) {
	for name, protocols := range protocols() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := limiter(t, one, core.Rule{Name: "b", On: "GET b.bubble", Limit: core.Rate{N: 9, Per: time.Hour}})
				client := run(t, &http.Server{Protocols: protocols, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					switch r.URL.Path {
					case "/1":
						w.Header().Set("Location", "http://b.bubble/2")
						w.WriteHeader(307)
						w.Write(make([]byte, 100_000)) // more than the client reads before it closes
					case "/2":
						http.Redirect(w, r, "/3", http.StatusFound)
					default:
						io.WriteString(w, "here")
					}
				})})
				client.Transport = nethttpflow.Transport(client.Transport, l, nethttpflow.TransportOptions{})
				res, err := client.Get("http://a.bubble/1")
				if err != nil {
					t.Fatal(err)
				}
				if s := stat(t, l, "one"); s.Admitted != 3 || s.InFlight != 1 {
					t.Errorf("before the end: %+v", s)
				}
				body, _ := io.ReadAll(res.Body)
				if s := stat(t, l, "one"); string(body) != "here" || s.InFlight != 0 {
					t.Errorf("%q, %+v", body, s)
				}
				if s := stat(t, l, "b"); s.Admitted != 2 {
					t.Errorf("hops on the second host: %+v", s)
				}
			})
		})
	}
}

// net/http repeats a request where an idle connection turns out to be closed.
// That happens below the limiter, and is one call.
func TestARequestThatIsRepeatedBelowIsOneCall(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	var connections, requests atomic.Int32
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			first := connections.Add(1) == 1
			go func() {
				defer c.Close()
				for in, n := bufio.NewReader(c), 1; ; n++ {
					r, err := http.ReadRequest(in)
					if err != nil {
						return
					}
					io.Copy(io.Discard, r.Body)
					requests.Add(1)
					if first && n == 2 {
						return // without an answer
					}
					io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
				}
			}()
		}
	}()

	l := limiter(t, one)
	base := &http.Transport{}
	defer base.CloseIdleConnections()
	client := &http.Client{Transport: nethttpflow.Transport(base, l, nethttpflow.TransportOptions{})}
	for range 2 {
		res, err := client.Get("http://" + listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		io.Copy(io.Discard, res.Body)
		res.Body.Close()
	}
	if connections.Load() != 2 || requests.Load() != 3 {
		t.Fatalf("it was not repeated: %d connections, %d requests", connections.Load(), requests.Load())
	}
	if s := stat(t, l, "one"); s.Admitted != 2 || s.InFlight != 0 || s.Failed != 0 {
		t.Errorf("%+v", s)
	}
}

// A connection that changes its protocol is read from and written to through the
// body, and is under way until it is closed: that the server says nothing more does
// not mean that the client does not.
func TestASwitchedConnectionHoldsUntilItIsClosed(t *testing.T) {
	heard := make(chan string, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: talk\r\n\r\nhello")
		rw.Flush()
		c.(*net.TCPConn).CloseWrite()
		said, _ := io.ReadAll(rw)
		heard <- string(said)
	}))
	defer server.Close()
	l := limiter(t, one)
	client := server.Client()
	client.Transport = nethttpflow.Transport(client.Transport, l, nethttpflow.TransportOptions{})
	r := call(t, "GET", server.URL, nil)
	r.Header.Set("Connection", "Upgrade")
	r.Header.Set("Upgrade", "talk")
	res, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	if hello, err := io.ReadAll(res.Body); string(hello) != "hello" || err != nil {
		t.Fatalf("%q, %v", hello, err)
	}
	body, ok := res.Body.(io.ReadWriteCloser)
	if !ok {
		t.Fatalf("the body is a %T", res.Body)
	}
	if _, err := io.WriteString(body, "and goodbye"); err != nil {
		t.Fatal(err)
	}
	if n := stat(t, l, "one").InFlight; n != 1 {
		t.Errorf("before it is closed: %d in flight", n)
	}
	if err := body.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
		t.Error(err)
	}
	if got := <-heard; got != "and goodbye" {
		t.Errorf("heard %q", got)
	}
	if n := stat(t, l, "one").InFlight; n != 1 {
		t.Errorf("half closed: %d in flight", n)
	}
	body.Close()
	if s := stat(t, l, "one"); s.InFlight != 0 || s.Failed != 0 {
		t.Errorf("closed: %+v", s)
	}
}

// A reverse proxy drops a 101 that it cannot pass on, without closing it. A backend
// that answers so, or a client that asks for upgrades where the proxy cannot hijack,
// must not take the slots one by one.
func TestASwitchedConnectionThatNobodyHasIsGivenBack(t *testing.T) {
	for name, asked := range map[string]string{"not the upgrade that was asked for": "", "a writer that cannot be hijacked": "talk"} {
		t.Run(name, func(t *testing.T) {
			l := limiter(t, core.Rule{Name: "three", Limit: core.InFlight{N: 3}})
			proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: "h"})
			proxy.ErrorLog = log.New(io.Discard, "", 0)
			proxy.Transport = nethttpflow.Transport(transport(func(r *http.Request) (*http.Response, error) {
				here, _ := net.Pipe()
				res, err := answers(101, here)(r)
				res.Header.Set("Connection", "Upgrade")
				res.Header.Set("Upgrade", "talk")
				return res, err
			}), l, nethttpflow.TransportOptions{})
			for range 3 {
				if res := ask(proxy, "GET", "/", func(r *http.Request) {
					if asked != "" {
						r.Header.Set("Connection", "Upgrade")
						r.Header.Set("Upgrade", asked)
					}
				}); res.StatusCode != 502 {
					t.Fatal(res.Status)
				}
			}
			if n := stat(t, l, "three").Admitted; n != 3 {
				t.Fatalf("%d admitted", n)
			}
			until(t, "the slots are free", func() bool {
				runtime.GC()
				return stat(t, l, "three").InFlight == 0
			})
		})
	}
}

// Who waits for the last that a connection says has no further use for its body,
// and the connection is in use all the same; and so it is while the body is kept.
func TestASwitchedConnectionThatIsInUseIsNotGivenBack(t *testing.T) {
	for name, use := range map[string]func(io.ReadWriteCloser){
		"reads":  func(b io.ReadWriteCloser) { b.Read(make([]byte, 1)) },
		"writes": func(b io.ReadWriteCloser) { b.Write(make([]byte, 1)) },
	} {
		t.Run(name, func(t *testing.T) {
			l := limiter(t, one)
			here, there := net.Pipe()
			using := make(chan io.ReadWriteCloser, 1)
			var wg sync.WaitGroup
			wg.Go(func() { use(<-using) })
			func() { // so that nobody has the body but who uses it
				res, err := nethttpflow.Transport(answers(101, here), l, nethttpflow.TransportOptions{}).RoundTrip(call(t, "GET", "http://h/", nil))
				if err != nil {
					t.Fatal(err)
				}
				using <- res.Body.(io.ReadWriteCloser)
			}()
			for range 20 {
				runtime.GC()
				time.Sleep(time.Millisecond) // a mistake has time to show
				if n := stat(t, l, "one").InFlight; n != 1 {
					t.Fatalf("%d in flight", n)
				}
			}
			there.Close()
			wg.Wait()
			until(t, "the slot is free", func() bool {
				runtime.GC()
				return stat(t, l, "one").InFlight == 0
			})
		})
	}
}

// A body that can be written to, but not half closed, says so.
func TestCloseWriteOfWhatHasNoneIsNotSupported(t *testing.T) {
	a, b := net.Pipe()
	defer b.Close()
	res, err := nethttpflow.Transport(answers(101, a), limiter(t, one), nethttpflow.TransportOptions{}).RoundTrip(call(t, "GET", "http://h/", nil))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if err := res.Body.(interface{ CloseWrite() error }).CloseWrite(); !errors.Is(err, http.ErrNotSupported) {
		t.Errorf("%v", err)
	}
}

// A reverse proxy that calls by the transport can carry a WebSocket, and gives the
// slot back when that ends. What is refused, its ErrorHandler can tell.
func TestAReverseProxyCallsByTheTransport(t *testing.T) {
	backend := httptest.NewServer(websocket.Handler(func(c *websocket.Conn) { io.Copy(c, c) }))
	defer backend.Close()
	to, _ := url.Parse(backend.URL)
	l := limiter(t, one)
	proxy := httputil.NewSingleHostReverseProxy(to)
	proxy.Transport = nethttpflow.Transport(nil, l, nethttpflow.TransportOptions{})
	proxy.ErrorLog = log.New(io.Discard, "", 0)
	proxy.ErrorHandler = func(w http.ResponseWriter, r *http.Request, err error) {
		if errors.Is(err, core.ErrRefused) {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		t.Error(err)
	}
	front := httptest.NewServer(proxy)
	defer front.Close()

	c, err := websocket.Dial("ws"+strings.TrimPrefix(front.URL, "http"), "", front.URL)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{"one", "two"} {
		var got string
		if err := websocket.Message.Send(c, s); err != nil {
			t.Fatal(err)
		}
		if err := websocket.Message.Receive(c, &got); err != nil || got != s {
			t.Fatalf("%q, %v", got, err)
		}
	}
	if res, err := http.Get(front.URL); err != nil {
		t.Error(err)
	} else if res.Body.Close(); res.StatusCode != 503 {
		t.Errorf("while it talks: %s", res.Status)
	}
	c.Close()
	until(t, "the slot is free", func() bool { return stat(t, l, "one").InFlight == 0 })
}

// Reading and closing from two goroutines is what a watchdog does.
func TestABodyMayBeClosedWhileItIsRead(t *testing.T) {
	l := limiter(t, one)
	for range 100 {
		in, out := io.Pipe()
		res, err := nethttpflow.Transport(answers(200, in), l, nethttpflow.TransportOptions{}).RoundTrip(call(t, "GET", "http://h/", nil))
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		wg.Go(func() { io.ReadAll(res.Body) })
		wg.Go(func() { res.Body.Close() })
		wg.Go(func() { out.Close() })
		wg.Wait()
		if n := stat(t, l, "one").InFlight; n != 0 {
			t.Fatalf("%d in flight", n)
		}
	}
}

// The request is the caller's: it goes to the next transport as it is.
func TestTheRequestIsNotChanged(t *testing.T) {
	l := limiter(t, one)
	r := call(t, "POST", "http://API.Example.com.:80/", strings.NewReader("body"))
	r.Method, r.Header = "", nil
	before := *r
	next := transport(func(got *http.Request) (*http.Response, error) {
		if got != r || got.URL != before.URL || got.Body != before.Body || got.Method != "" || got.Header != nil || got.URL.Host != "API.Example.com.:80" {
			t.Errorf("%+v", got)
		}
		return answers(200, http.NoBody)(got)
	})
	if _, err := nethttpflow.Transport(next, l, nethttpflow.TransportOptions{}).RoundTrip(r); err != nil {
		t.Fatal(err)
	}
}

func TestHostIsOneNameForOneServer(t *testing.T) {
	for target, want := range map[string]string{
		"http://api.example.com/a?b":        "api.example.com",
		"http://API.Example.COM":            "api.example.com",
		"http://api.example.com.":           "api.example.com",
		"http://api.example.com:":           "api.example.com",
		"http://api.example.com:80":         "api.example.com",
		"http://api.example.com.:80":        "api.example.com",
		"https://api.example.com:443":       "api.example.com",
		"https://user:pw@api.example.com":   "api.example.com",
		"https://api.example.com:80":        "api.example.com:80",
		"http://api.example.com:443":        "api.example.com:443",
		"http://API.example.com:8080":       "api.example.com:8080",
		"http://api.example.com.:8080":      "api.example.com:8080",
		"http://192.0.2.7":                  "192.0.2.7",
		"http://192.0.2.7:8080":             "192.0.2.7:8080",
		"http://[2001:DB8::1]:80":           "[2001:db8::1]",
		"http://[2001:db8::1]:8080":         "[2001:db8::1]:8080",
		"http://[2001:db8::80]":             "[2001:db8::80]",
		"file:///etc/hosts":                 "",
		"/orders/7":                         "",
		"http://a.very.long.name.of.8080.:": "a.very.long.name.of.8080",
	} {
		u, err := url.Parse(target)
		if err != nil {
			t.Fatal(err)
		}
		if got := nethttpflow.Host().Of(&http.Request{URL: u}); got != want {
			t.Errorf("%s: %q, want %q", target, got, want)
		}
	}
	if got := nethttpflow.Host().Of(&http.Request{}); got != "" {
		t.Errorf("without URL: %q", got)
	}
	if got := nethttpflow.Host().Of(httptest.NewRequest("GET", "/", nil)); got != "" {
		t.Errorf("of a request that came in: %q", got)
	}
}

// What rules can count and name: never a path, and no method that a program
// invents as it runs.
func TestTheResourceOfACallIsMethodAndHost(t *testing.T) {
	for _, c := range []struct{ method, target, want string }{
		{"GET", "http://api.example.com/orders/7", "GET api.example.com"},
		{"", "http://api.example.com/orders/8", "GET api.example.com"},
		{"POST", "https://API.example.com:443/", "POST api.example.com"},
		{"PURGE", "http://api.example.com:8080/", "_OTHER api.example.com:8080"},
		{"PROPFIND", "http://api.example.com/", "_OTHER api.example.com"}, // as TransportOptions.Resource tells
	} {
		l := limiter(t, core.Rule{Name: "want", On: c.want, Limit: core.InFlight{N: 9}}, core.Rule{Name: "all", By: "host,resource", Limit: core.InFlight{N: 9}})
		r := call(t, "GET", c.target, nil)
		r.Method = c.method
		if _, err := nethttpflow.Transport(answers(200, http.NoBody), l, nethttpflow.TransportOptions{}).RoundTrip(r); err != nil {
			t.Fatal(err)
		}
		if n := stat(t, l, "want").Admitted; n != 1 {
			t.Errorf("%s %s is not %s", c.method, c.target, c.want)
		}
	}
}

// Each option reaches the limiter.
func TestTransportOptionsSayWhatACallIs(t *testing.T) {
	l := limiter(t,
		core.Rule{Name: "orders", On: "orders", By: "tenant", Limit: core.InFlight{N: 5}, Reserve: core.Reserve{Critical: 2},
			For: map[string]core.Limit{"blocked": core.InFlight{}}},
	)
	priority := core.Default
	calls := 0
	o := nethttpflow.TransportOptions{
		Keys:     []nethttpflow.Key{nethttpflow.Header("tenant", "X-Tenant")},
		Resource: func(r *http.Request) string { return strings.Trim(r.URL.Path, "/") },
		Cost:     func(r *http.Request) int { return len(r.Header["X-Unit"]) },
		Priority: func(*http.Request) core.Priority { return priority },
		Skip:     func(r *http.Request) bool { return r.URL.Path == "/health" },
	}
	made := nethttpflow.Transport(transport(func(r *http.Request) (*http.Response, error) {
		calls++
		return answers(200, text(""))(r)
	}), l, o)
	o.Keys[0] = nethttpflow.Host() // they were copied
	do := func(path, tenant string, units int) error {
		r := call(t, "GET", "http://h"+path, nil)
		r.Header["X-Tenant"] = []string{tenant}
		r.Header["X-Unit"] = make([]string, units)
		_, err := made.RoundTrip(r)
		return err
	}
	refused := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, core.ErrRefused) {
			t.Errorf("%s: %v", what, err)
		}
	}
	passed := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	refused("blocked tenant", do("/orders", "blocked", 1))
	passed("another resource", do("/other", "blocked", 1))
	passed("skipped", do("/health", "blocked", 1))
	passed("3 of the 3 that are not kept", do("/orders", "a", 3))
	refused("a fourth", do("/orders", "a", 1))
	priority = core.Critical
	passed("what is kept", do("/orders", "a", 2))
	refused("a sixth", do("/orders", "a", 1))
	passed("another tenant", do("/orders", "b", 0))
	if s := stat(t, l, "orders"); calls != 5 || s.InFlight != 6 {
		t.Errorf("%d calls, %+v", calls, s)
	}
}

type idler struct {
	transport
	closed int
}

func (i *idler) CloseIdleConnections() { i.closed++ }

func TestIdleConnectionsCanBeClosedThroughTheTransport(t *testing.T) {
	l := limiter(t)
	next := &idler{transport: answers(200, text(""))}
	(&http.Client{Transport: nethttpflow.Transport(next, l, nethttpflow.TransportOptions{})}).CloseIdleConnections()
	if next.closed != 1 {
		t.Errorf("closed %d times", next.closed)
	}
	// One that keeps none has nothing to close.
	(&http.Client{Transport: nethttpflow.Transport(answers(200, text("")), l, nethttpflow.TransportOptions{})}).CloseIdleConnections()
}

func TestATransportThatCannotWorkPanicsWhenMade(t *testing.T) {
	l := limiter(t)
	of := func(*http.Request) string { return "" }
	for want, make := range map[string]func(){
		"nethttpflow: the limiter is nil": func() { nethttpflow.Transport(nil, nil, nethttpflow.TransportOptions{}) },
		"nethttpflow: TransportOptions.HoldBack is -1s; want 0 or more": func() {
			nethttpflow.Transport(nil, l, nethttpflow.TransportOptions{HoldBack: -time.Second})
		},
		`nethttpflow: two of Options.Keys are By "host"; want one, since of two only the first would count`: func() {
			nethttpflow.Transport(nil, l, nethttpflow.TransportOptions{Keys: []nethttpflow.Key{nethttpflow.Host(), {By: "host", Of: of}}})
		},
		"nethttpflow: Options.Keys[0] lacks its By or its Of; want both": func() {
			nethttpflow.Transport(nil, l, nethttpflow.TransportOptions{Keys: []nethttpflow.Key{{By: "host"}}})
		},
	} {
		func() {
			defer func() {
				if got := recover(); got != want {
					t.Errorf("%v, want %s", got, want)
				}
			}()
			make()
		}()
	}
}

// Two calls at once to each host, ten in any second to all, and a host that asks to
// wait is left in peace.
func ExampleTransport() {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/busy" {
			w.Header().Set("Retry-After", "30")
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		io.WriteString(w, "all is well")
	}))
	defer server.Close()

	limiter, err := core.New(
		core.Rule{Name: "calls", By: "host", Limit: core.InFlight{N: 2}, Queue: core.Queue{Len: 100, Wait: time.Minute}},
		core.Rule{Name: "polite", Limit: core.Pace{N: 10, Per: time.Second}, Queue: core.Queue{Len: 100, Wait: time.Minute}},
	)
	if err != nil {
		log.Fatal(err)
	}
	client := &http.Client{
		Timeout:   20 * time.Second,
		Transport: nethttpflow.Transport(nil, limiter, nethttpflow.TransportOptions{HoldBack: 10 * time.Minute}),
	}

	for _, path := range []string{"/", "/busy", "/"} {
		res, err := client.Get(server.URL + path)
		var held nethttpflow.HeldBack
		switch {
		case errors.As(err, &held):
			fmt.Println("not before", held.RetryAfter.Round(time.Minute/2))
		case err != nil:
			log.Fatal(err)
		default:
			fmt.Println(res.Status)
			res.Body.Close() // and with it, the permit is given back
		}
	}
	// Output:
	// 200 OK
	// 503 Service Unavailable
	// not before 30s
}
