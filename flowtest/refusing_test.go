package flowtest_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/exactflow/exactflow/core"
	"github.com/exactflow/exactflow/flowtest"
	"github.com/exactflow/exactflow/nethttpflow"
)

// Whatever the request is, it gets the refusal that was asked for, again and again.
func TestRefusingRefusesForTheReason(t *testing.T) {
	for _, want := range []core.Refusal{
		{Rule: "flowtest", Reason: core.ReasonNever},
		{Rule: "flowtest", Reason: core.ReasonInFlight},
		{Rule: "flowtest", Reason: core.ReasonRate, RetryAfter: 1, Known: true},
		{Rule: "flowtest", Reason: core.ReasonRate, RetryAfter: 30 * time.Second, Known: true},
		{Rule: "flowtest", Reason: core.ReasonKeys, By: "flowtest"},
		{Rule: "flowtest", Reason: core.ReasonQueued},
		{Rule: "flowtest", Reason: core.ReasonQueueFull},
		{Rule: "flowtest", Reason: core.ReasonQueueFull, RetryAfter: time.Hour, Known: true},
		{Rule: "flowtest", Reason: core.ReasonQueueTimeout},
		{Rule: "flowtest", Reason: core.ReasonQueueTimeout, RetryAfter: time.Hour, Known: true},
	} {
		t.Run(want.Error(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := flowtest.Refusing(t, want.Reason, want.RetryAfter)
				for i, r := range []core.Request{
					{},
					{Cost: 4095},
					{On: "GET /orders/{id}", Keys: []core.Key{{By: "ip", Value: "192.0.2.7"}, {By: "tenant", Value: "a"}}},
					{Priority: core.Critical},
					{Priority: core.Sheddable, Cost: 7},
				} {
					begin := time.Now()
					p, err := l.Wait(t.Context(), r)
					if err != core.ErrRefused || p.Refusal() != want {
						t.Errorf("request %d: %v, %+v; want %+v", i, err, p.Refusal(), want)
					}
					if took := time.Since(begin); took > 1 {
						t.Errorf("request %d: refused after %v", i, took)
					}
				}
				if want.Known {
					time.Sleep(want.RetryAfter + 1) // who waits ahead may be first
					p, err := l.Wait(t.Context(), core.Request{})
					if err != nil {
						t.Errorf("after RetryAfter: %v, %+v", err, p.Refusal())
					}
					p.Release()
				}
			})
		})
	}
}

func TestRefusingKnowsWhatThereIsNot(t *testing.T) {
	for _, c := range []struct {
		why   core.Reason
		after time.Duration
		want  string
	}{
		{core.ReasonNone, 0, `has reason ""`},
		{core.ReasonNone, 1, `has reason ""`},
		{99, 0, `has reason "` + core.Reason(99).String() + `"`},
		{core.ReasonNever, 1, `for reason "never" has RetryAfter 1ns; want 0`},
		{core.ReasonInFlight, time.Second, `for reason "in_flight" has RetryAfter 1s; want 0`},
		{core.ReasonRate, 0, `for reason "rate" has RetryAfter 0s; want above 0`},
		{core.ReasonRate, -1, `for reason "rate" has RetryAfter -1ns; want above 0`},
		{core.ReasonKeys, -1, `for reason "keys" has RetryAfter -1ns; want 0`},
		{core.ReasonQueued, 1, `for reason "queued" has RetryAfter 1ns; want 0`},
		{core.ReasonQueueFull, -1, `for reason "queue_full" has RetryAfter -1ns; want 0 or above`},
		{core.ReasonQueueTimeout, -1, `for reason "queue_timeout" has RetryAfter -1ns; want 0 or above`},
	} {
		t.Run(c.want, func(t *testing.T) {
			r := record(func(t testing.TB) { flowtest.Refusing(t, c.why, c.after) })
			if want := "flowtest: no refusal " + c.want; !r.ended || len(r.said) != 1 || r.said[0] != want {
				t.Errorf("ended: %v, said %q; want %q", r.ended, r.said, want)
			}
		})
	}
}

func TestFillLeavesNoRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, err := core.New(
			core.Rule{Name: "service", Limit: core.InFlight{N: 50}},
			core.Rule{Name: "clients", By: "ip", Limit: core.Rate{N: 20, Per: time.Minute}})
		if err != nil {
			t.Fatal(err)
		}
		ip := func(s string) core.Request { return core.Request{Keys: []core.Key{{By: "ip", Value: s}}} }
		r := record(func(t testing.TB) { flowtest.Fill(t, l, ip("a")) })
		if r.ended || len(r.said) != 0 {
			t.Fatalf("ended: %v, said %q", r.ended, r.said)
		}
		if p, ok := l.Try(ip("a")); ok || p.Refusal() != (core.Refusal{Rule: "clients", By: "ip", Reason: core.ReasonRate, RetryAfter: time.Minute, Known: true}) {
			t.Errorf("%v, %+v", ok, p.Refusal())
		}
		if p, ok := l.Try(ip("b")); !ok {
			t.Errorf("another: %+v", p.Refusal())
		} else {
			p.Release()
		}
		if n := l.Stats()[0].InFlight; n != 20 {
			t.Errorf("%d in flight", n)
		}
		r.cleanUp()
		if n := l.Stats()[0].InFlight; n != 0 {
			t.Errorf("at the end: %d in flight", n)
		}
	})
}

func TestFillEndsTheTestWhereNothingLimits(t *testing.T) {
	l, err := core.New(
		core.Rule{Name: "others", On: "other", Limit: core.InFlight{N: 1}},
		core.Rule{Name: "trial", Limit: core.InFlight{N: 1}, Shadow: true})
	if err != nil {
		t.Fatal(err)
	}
	r := record(func(t testing.TB) { flowtest.Fill(t, l, core.Request{On: "mine"}) })
	if !r.ended || len(r.said) != 1 || r.said[0] != `flowtest: no rule limits a request on "mine"` {
		t.Errorf("ended: %v, said %q", r.ended, r.said)
	}
	r.cleanUp()
	if n := l.Stats()[1].InFlight; n != 0 {
		t.Errorf("%d in flight", n)
	}
}

// What is left when r fits no more is taken too, by each of several rules.
func TestFillLeavesNoRoomForLess(t *testing.T) {
	for _, c := range []struct{ limit, cost int }{{3, 2}, {3, 0}, {7, 7}, {100, 70}, {4096, 4095}, {1000, 3}} {
		l, err := core.New(
			core.Rule{Name: "held", Limit: core.InFlight{N: c.limit}},
			core.Rule{Name: "rate", Limit: core.Rate{N: c.limit + 1, Per: time.Hour}})
		if err != nil {
			t.Fatal(err)
		}
		r := record(func(t testing.TB) { flowtest.Fill(t, l, core.Request{Cost: c.cost}) })
		if r.ended || len(r.said) != 0 {
			t.Fatalf("%+v: ended: %v, said %q", c, r.ended, r.said)
		}
		for cost := range max(c.cost, 1) {
			if _, ok := l.Try(core.Request{Cost: cost + 1}); ok {
				t.Errorf("%+v: one of %d passes", c, cost+1)
			}
		}
		if n := l.Stats()[0].InFlight; n != c.limit {
			t.Errorf("%+v: %d in flight", c, n)
		}
		r.cleanUp()
	}
}

// Else a test would go on, green, with nothing filled.
func TestFillEndsTheTestWhereNothingCanPass(t *testing.T) {
	l, err := core.New(
		core.Rule{Name: "closed", On: "closed", Limit: core.Rate{N: 0, Per: time.Hour}},
		core.Rule{Name: "all", Limit: core.InFlight{N: 5}})
	if err != nil {
		t.Fatal(err)
	}
	for want, request := range map[string]core.Request{
		`flowtest: no request has cost -1; want 0, which is 1, or above`:                                    {On: "mine", Cost: -1},
		`flowtest: rule "all" never lets a request on "mine" of cost 6 pass: there is nothing to fill`:      {On: "mine", Cost: 6},
		`flowtest: rule "closed" never lets a request on "closed" of cost 1 pass: there is nothing to fill`: {On: "closed"},
	} {
		r := record(func(t testing.TB) { flowtest.Fill(t, l, request) })
		if !r.ended || len(r.said) != 1 || r.said[0] != want {
			t.Errorf("ended: %v, said %q; want %q", r.ended, r.said, want)
		}
		r.cleanUp()
	}
}

// The values that Fill's documentation names are those which adapters make.
func TestFillIsOfTheKeysThatAdaptersMake(t *testing.T) {
	for value, ask := range map[string]func(http.Handler) int{
		"192.0.2.1": func(h http.Handler) int {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
			return w.Code
		},
		"2001:db8:1:2::/64": func(h http.Handler) int {
			r := httptest.NewRequest("GET", "/", nil)
			r.RemoteAddr = "[2001:db8:1:2::3]:4"
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			return w.Code
		},
		"127.0.0.1": func(h http.Handler) int {
			s := httptest.NewServer(h)
			defer s.Close()
			res, err := s.Client().Get(s.URL)
			if err != nil {
				t.Fatal(err)
			}
			res.Body.Close()
			return res.StatusCode
		},
	} {
		l, err := core.New(core.Rule{Name: "each", By: "ip", Limit: core.Rate{N: 3, Per: time.Hour}})
		if err != nil {
			t.Fatal(err)
		}
		h := nethttpflow.Middleware(l, nethttpflow.Options{})(http.NotFoundHandler())
		if got := ask(h); got != 404 {
			t.Errorf("%s, before: %d", value, got)
		}
		flowtest.Fill(t, l, core.Request{Keys: []core.Key{{By: "ip", Value: value}}})
		if got := ask(h); got != 429 {
			t.Errorf("%s, filled: %d", value, got)
		}
	}
}

func TestNoneHeldFindsAForgottenRelease(t *testing.T) {
	l, err := core.New(
		core.Rule{Name: "service", Limit: core.InFlight{N: 9}},
		core.Rule{Name: "clients", By: "ip", Limit: core.Rate{N: 20, Per: time.Minute}})
	if err != nil {
		t.Fatal(err)
	}
	for forgets, want := range map[bool]string{
		true:  `[flowtest: rule "service" has 3 units in flight at the end: a permit was not released (or NoneHeld was called after Fill)]`,
		false: "[]",
	} {
		var forgotten core.Permit
		r := record(func(t testing.TB) {
			flowtest.NoneHeld(t, l)
			if forgets {
				forgotten, _ = l.Try(core.Request{Cost: 3})
			}
			flowtest.Fill(t, l, core.Request{Cost: 2}) // it gives back before NoneHeld looks
		})
		r.cleanUp()
		if got := fmt.Sprint(r.said); got != want {
			t.Errorf("forgets: %v; said %s, want %s", forgets, got, want)
		}
		forgotten.Release()
	}
}

// A recorder is a test whose failures are looked at.
type recorder struct {
	testing.TB
	said     []string
	ended    bool
	cleanups []func()
}

// record runs f as a test does, without its end.
func record(f func(testing.TB)) *recorder {
	r := &recorder{ended: true}
	done := make(chan struct{})
	go func() {
		defer close(done)
		f(r)
		r.ended = false
	}()
	<-done
	return r
}

func (r *recorder) cleanUp() {
	for i := len(r.cleanups) - 1; i >= 0; i-- {
		r.cleanups[i]()
	}
}

func (r *recorder) Helper()          {}
func (r *recorder) Cleanup(f func()) { r.cleanups = append(r.cleanups, f) }
func (r *recorder) Errorf(format string, args ...any) {
	r.said = append(r.said, fmt.Sprintf(format, args...))
}
func (r *recorder) Fatalf(format string, args ...any) {
	r.Errorf(format, args...)
	runtime.Goexit()
}
