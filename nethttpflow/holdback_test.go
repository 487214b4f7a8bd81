package nethttpflow_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/exactflow/exactflow/core"
	"github.com/exactflow/exactflow/nethttpflow"
)

// says is a next that answers the first call with a status and header, and all
// further ones with 200.
func says(status int, h http.Header) transport {
	var said atomic.Bool
	return func(r *http.Request) (*http.Response, error) {
		if said.Swap(true) {
			return answers(200, http.NoBody)(r)
		}
		return &http.Response{StatusCode: status, Header: h, Body: http.NoBody}, nil
	}
}

// held is what holds no rule back, so that only hosts do.
func held(t testing.TB, next http.RoundTripper, most time.Duration) *http.Client {
	return &http.Client{Transport: nethttpflow.Transport(next, limiter(t), nethttpflow.TransportOptions{HoldBack: most})}
}

// get makes a call whose response is of no interest.
func get(t testing.TB, c *http.Client, target string) {
	t.Helper()
	res, err := c.Do(call(t, "GET", target, nil))
	if err != nil {
		t.Error(err)
		return
	}
	io.Copy(io.Discard, res.Body)
	res.Body.Close()
}

// A host that asks to wait is called again at the very instant that it has
// told; other hosts, and what asks for something else, at once.
func TestAHostThatAsksToWaitIsLeftInPeaceForThatLong(t *testing.T) {
	for _, c := range []struct {
		status int
		header http.Header
		want   time.Duration
	}{
		{429, header("Retry-After: 7"), 7 * time.Second},
		{503, header("Retry-After: 7"), 7 * time.Second},
		{503, header("Retry-After: Sat, 01 Jan 2000 00:01:00 GMT"), time.Minute},
		{429, header(`RateLimit: "a";r=0;t=7`), 7 * time.Second},
		{200, header(`RateLimit: "a";r=0;t=7`), 7 * time.Second},
		{404, header(`RateLimit: "a";r=0;t=7, "b";r=9;t=20`), 7 * time.Second},
		{429, header("Retry-After: 3", `RateLimit: "a";r=0;t=7`), 3 * time.Second},
		{200, header("Retry-After: 3", `RateLimit: "a";r=0;t=7`), 3 * time.Second},

		{429, header(), 0},
		{429, header("Retry-After: 0"), 0},
		{429, header("Retry-After: soon"), 0},
		{429, header("Retry-After: Fri, 31 Dec 1999 23:59:00 GMT"), 0},
		{200, header(`RateLimit: "a";r=1;t=7`), 0},
		{200, header(`RateLimit: "a";r=0`), 0},
		{429, header(`RateLimit: "a";r=0;t=7;`), 0},
		{200, header("Retry-After: 7"), 0}, // the job will be done
		{202, header("Retry-After: 7"), 0},
		{500, header("Retry-After: 7"), 0},
		{503, header("Retry-After: 7", "Age: 1"), 0},
		{200, header(`RateLimit: "a";r=0;t=7`, "Age: 1"), 0},

		// Nobody is believed for longer than HoldBack.
		{503, header("Retry-After: 600"), 10 * time.Minute},
		{503, header("Retry-After: 86400"), 10 * time.Minute},
		{503, header("Retry-After: 99999999999999999999"), 10 * time.Minute},
		{503, header("Retry-After: Fri, 31 Dec 9999 23:59:59 GMT"), 10 * time.Minute},
		{200, header(`RateLimit: "a";r=0;t=999999999999999`), 10 * time.Minute},
	} {
		t.Run(fmt.Sprint(c.status, c.header), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := held(t, says(c.status, c.header), 10*time.Minute)
				begin := time.Now()
				get(t, client, "http://a.example/1")
				get(t, client, "http://b.example/")
				if took := time.Since(begin); took != 0 {
					t.Errorf("another host waited for %v", took)
				}
				get(t, client, "https://A.example.:443/2")
				if took := time.Since(begin); took != c.want {
					t.Errorf("called again after %v, want %v", took, c.want)
				}
				get(t, client, "http://a.example/3")
				if took := time.Since(begin); took != c.want {
					t.Errorf("it went on for %v", took)
				}
			})
		})
	}
}

// Without HoldBack, or where Skip says so, the caller does as he likes.
func TestWhoIsNotToBeHeldBackIsNot(t *testing.T) {
	for _, o := range []nethttpflow.TransportOptions{
		{},
		{HoldBack: time.Hour, Skip: func(*http.Request) bool { return true }},
		{HoldBack: time.Hour, Skip: func(r *http.Request) bool { return r.URL.Path == "/1" }},
		{HoldBack: time.Hour, Skip: func(r *http.Request) bool { return r.URL.Path == "/2" }},
	} {
		synctest.Test(t, func(t *testing.T) {
			client := &http.Client{Transport: nethttpflow.Transport(says(429, header("Retry-After: 7")), limiter(t), o)}
			begin := time.Now()
			get(t, client, "http://h/1")
			get(t, client, "http://h/2")
			if took := time.Since(begin); took != 0 {
				t.Errorf("it took %v", took)
			}
		})
	}
}

// A call that cannot wait long enough does not wait for nothing: it is told at
// once, with the time to come back, and has spent nothing.
func TestACallThatCannotWaitThatLongIsToldAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, core.Rule{Name: "r", Limit: core.Rate{N: 9, Per: time.Hour}})
		client := &http.Client{Transport: nethttpflow.Transport(says(503, header("Retry-After: 60")), l, nethttpflow.TransportOptions{HoldBack: time.Hour})}
		get(t, client, "http://api.example.com/")
		time.Sleep(10 * time.Second)
		for _, c := range []struct {
			within time.Duration
			told   bool
		}{{49 * time.Second, true}, {50 * time.Second, true}, {50*time.Second + 1, false}} {
			ctx, cancel := context.WithTimeout(t.Context(), c.within)
			defer cancel()
			body := &sent{Reader: strings.NewReader("body")}
			begin := time.Now()
			_, err := client.Do(call(t, "POST", "http://api.example.com/", body).WithContext(ctx))
			took := time.Since(begin)
			if !c.told {
				if err != nil || took != 50*time.Second {
					t.Errorf("%v: %v after %v", c.within, err, took)
				}
				continue
			}
			var held nethttpflow.HeldBack
			if want := (nethttpflow.HeldBack{Host: "api.example.com", RetryAfter: 50 * time.Second}); !errors.As(err, &held) || held != want || took != 0 {
				t.Errorf("%v: %+v after %v", c.within, err, took)
			}
			var outer *url.Error
			if errors.Is(err, core.ErrRefused) || !errors.As(err, &outer) || outer.Err.Error() != "nethttpflow: held back: api.example.com has asked to wait, retry after 50s" {
				t.Errorf("%v", err)
			}
			if s := stat(t, l, "r"); s.Admitted != 1 || body.closed.Load() != 1 {
				t.Errorf("%+v, body closed %d times", s, body.closed.Load())
			}
		}
	})
}

func TestACallThatGivesUpWhileItIsHeldBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := held(t, says(503, header("Retry-After: 60")), time.Hour)
		get(t, client, "http://h/")
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		for _, after := range []time.Duration{time.Second, 0} { // while it waits, and before
			body := &sent{Reader: strings.NewReader("body")}
			begin := time.Now()
			_, err := client.Transport.RoundTrip(call(t, "POST", "http://h/", body).WithContext(ctx))
			if took := time.Since(begin); err != context.Canceled || took != after || body.closed.Load() != 1 {
				t.Errorf("%v after %v, body closed %d times", err, took, body.closed.Load())
			}
		}
		over, cancel := context.WithTimeout(t.Context(), 0)
		defer cancel()
		if _, err := client.Transport.RoundTrip(call(t, "GET", "http://h/", nil).WithContext(over)); err != context.DeadlineExceeded {
			t.Errorf("whose time was over before: %v", err)
		}
	})
}

// Who is held back holds nothing: others have all of the limit.
func TestACallThatIsHeldBackHoldsNoSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, one)
		client := &http.Client{Transport: nethttpflow.Transport(says(503, header("Retry-After: 60")), l, nethttpflow.TransportOptions{HoldBack: time.Hour})}
		get(t, client, "http://a.example/")
		var wg sync.WaitGroup
		wg.Go(func() { get(t, client, "http://a.example/") })
		synctest.Wait()
		if s := stat(t, l, "one"); s.InFlight != 0 || s.Admitted != 1 {
			t.Errorf("held back: %+v", s)
		}
		get(t, client, "http://b.example/")
		wg.Wait()
		if s := stat(t, l, "one"); s.Admitted != 3 || len(s.Refused) != 0 {
			t.Errorf("afterwards: %+v", s)
		}
	})
}

// An answer to a call that was under way may ask for more: who waits, waits on, but
// never longer than HoldBack in all. One that asks for less takes nothing back.
func TestAHostMayAskForMoreWhileCallsWait(t *testing.T) {
	for _, c := range []struct {
		most, more, want time.Duration // more is asked for after 30 s of 60
		told             bool
	}{
		{time.Hour, 90 * time.Second, 120 * time.Second, false},
		{time.Hour, 10 * time.Second, 60 * time.Second, false},
		{2 * time.Minute, 90 * time.Second, 120 * time.Second, false},
		{2 * time.Minute, 91 * time.Second, 60 * time.Second, true},
		{2 * time.Minute, time.Hour, 60 * time.Second, true},
	} {
		t.Run(fmt.Sprint(c.most, c.more), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := held(t, transport(func(r *http.Request) (*http.Response, error) {
					switch r.URL.Path {
					case "/first":
						return &http.Response{StatusCode: 429, Header: header("Retry-After: 60")}, nil
					case "/slow":
						time.Sleep(30 * time.Second)
						return &http.Response{StatusCode: 429, Header: header(fmt.Sprintf("Retry-After: %d", c.more/time.Second))}, nil
					}
					return answers(200, http.NoBody)(r)
				}), c.most)
				var wg sync.WaitGroup
				wg.Go(func() { get(t, client, "http://h/slow") })
				synctest.Wait()
				get(t, client, "http://h/first")
				begin := time.Now()
				wg.Go(func() { // who comes when more has been asked for
					time.Sleep(45 * time.Second)
					get(t, client, "http://h/")
					if took, want := time.Since(begin), max(time.Minute, 30*time.Second+min(c.more, c.most)); took != want {
						t.Errorf("who comes later goes out after %v, want %v", took, want)
					}
				})
				_, err := client.Get("http://h/")
				took := time.Since(begin)
				if told := errors.As(err, new(nethttpflow.HeldBack)); took != c.want || told != c.told || !told && err != nil {
					t.Errorf("%v after %v", err, took)
				}
				wg.Wait()
			})
		})
	}
}

// Those who stand in the limiter's line when a host asks to wait are not sent to
// it, one after the other, each to be refused: they wait too. That they were admitted
// once already costs nothing.
func TestWhoStandsInLineWhenAHostAsksToWaitIsHeldBackToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t,
			core.Rule{Name: "one", Limit: core.InFlight{N: 1}, Queue: core.Queue{Len: 20, Wait: time.Hour}},
			core.Rule{Name: "ten", Limit: core.Rate{N: 10, Per: time.Hour}})
		begin := time.Now()
		var first, early, passed atomic.Int32
		next := transport(func(r *http.Request) (*http.Response, error) {
			if first.Add(1) == 1 {
				time.Sleep(time.Second)
				return &http.Response{StatusCode: 503, Header: header("Retry-After: 60"), Body: http.NoBody}, nil
			}
			if time.Since(begin) < 61*time.Second {
				early.Add(1)
			}
			passed.Add(1)
			return answers(200, text("ok"))(r)
		})
		client := &http.Client{Transport: nethttpflow.Transport(next, l, nethttpflow.TransportOptions{HoldBack: time.Hour})}
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() { get(t, client, "http://h/") })
			synctest.Wait()
		}
		if n := stat(t, l, "one").Waiting; n != 9 {
			t.Fatalf("%d wait", n)
		}
		wg.Wait()
		if early.Load() != 0 || passed.Load() != 9 {
			t.Errorf("%d too early, of %d", early.Load(), passed.Load())
		}
		if s := stat(t, l, "one"); s.InFlight != 0 || s.Waiting != 0 || len(s.Refused) != 0 {
			t.Errorf("%+v", s)
		}
		if _, err := client.Get("http://h/"); !errors.Is(err, core.ErrRefused) {
			t.Errorf("the eleventh: %v", err)
		}
	})
}

// All who were held back wake at one instant; the limiter, which they ask then,
// lets them on one by one.
func TestTheLimiterSmoothesTheEndOfAWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, core.Rule{Name: "smooth", By: "host", Limit: core.Rate{N: 1, Per: 100 * time.Millisecond}, Queue: core.Queue{Len: 20, Wait: time.Minute}})
		var mu sync.Mutex
		var at []time.Duration
		begin := time.Now()
		inner := says(429, header("Retry-After: 60"))
		client := &http.Client{Transport: nethttpflow.Transport(transport(func(r *http.Request) (*http.Response, error) {
			mu.Lock()
			at = append(at, time.Since(begin))
			mu.Unlock()
			return inner(r)
		}), l, nethttpflow.TransportOptions{HoldBack: time.Hour})}
		get(t, client, "http://h/")
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() { get(t, client, "http://h/") })
		}
		wg.Wait()
		for i, got := range at[1:] {
			if want := time.Minute + time.Duration(i)*100*time.Millisecond; got != want {
				t.Errorf("call %d went out after %v, want %v", i, got, want)
			}
		}
	})
}

// A client that obeys is refused once by a server of ours that tells its limit on
// refusals, and never by one that always tells it; and gets all there is to get.
func TestAClientThatObeysIsRefusedOnceOrNever(t *testing.T) {
	for headers, most := range map[nethttpflow.Headers]uint64{nethttpflow.HeadersOnRefusal: 1, nethttpflow.HeadersAlways: 0} {
		for name, protocols := range protocols() {
			t.Run(fmt.Sprint(name, headers), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					server := limiter(t, core.Rule{Name: "r", By: "ip", Limit: core.Rate{N: 2, Per: 10 * time.Second}})
					client := run(t, &http.Server{Protocols: protocols, Handler: nethttpflow.Middleware(server, nethttpflow.Options{Headers: headers})(ok)})
					client.Transport = nethttpflow.Transport(client.Transport, limiter(t), nethttpflow.TransportOptions{HoldBack: time.Minute})
					begin := time.Now()
					passed := 0
					for passed < 6 {
						res, err := client.Get("http://in.bubble/")
						if err != nil {
							t.Fatal(err)
						}
						res.Body.Close()
						if res.StatusCode == 200 {
							passed++
						}
					}
					s := stat(t, server, "r")
					if refused := s.Refused[core.ReasonRate]; refused != 2*most {
						t.Errorf("refused %d times in two full windows", refused)
					}
					if took := time.Since(begin); took != 20*time.Second {
						t.Errorf("6 calls, 2 in 10 s, took %v", took)
					}
				})
			})
		}
	}
}

// Many callers, many hosts, in real time: all who are held back
// come through, and none before its time.
func TestManyCallersAreHeldBackAtOnce(t *testing.T) {
	const wait = time.Second // the shortest that a server can ask for
	var mu sync.Mutex
	asked := map[string]time.Time{}
	next := transport(func(r *http.Request) (*http.Response, error) {
		mu.Lock()
		defer mu.Unlock()
		if at, was := asked[r.URL.Host]; was {
			if r.URL.Path == "/late" && time.Since(at) < wait {
				t.Errorf("%s was called after %v", r.URL.Host, time.Since(at))
			}
			return answers(200, http.NoBody)(r)
		}
		asked[r.URL.Host] = time.Now()
		return &http.Response{StatusCode: 429, Header: header("Retry-After: 1"), Body: http.NoBody}, nil
	})
	client := held(t, next, time.Minute)
	var wg sync.WaitGroup
	for i := range 8 {
		host := fmt.Sprintf("http://h%d", i)
		wg.Go(func() {
			get(t, client, host+"/")
			for range 8 {
				wg.Go(func() { get(t, client, host+"/late") })
			}
		})
	}
	wg.Wait()
	if len(asked) != 8 {
		t.Errorf("%d hosts", len(asked))
	}
}
