package flowtest

import (
	"context"
	"math"
	"runtime"
	"testing"
	"time"

	"github.com/exactflow/exactflow/core"
)

// Refusing is a limiter that refuses every request for that reason, whatever its
// resource and keys: for tests of what a service does then, of its hooks, its error
// pages, its clients. It is asked by Wait, as adapters do, with a cost of up to 4095.
// The rule that refuses is called "flowtest", and has no By, but "flowtest" for
// [core.ReasonKeys]. For a rule of one's own see [Fill].
//
// The refusal's RetryAfter is after, less the time since: exactly in a bubble of
// testing/synctest. Then the limiter admits. [core.ReasonRate] needs one;
// [core.ReasonQueueFull] and [core.ReasonQueueTimeout] may have one, and are refusals
// by a rate then, else by what is in flight; for the others after is 0. Any other
// combination ends the test. What the limiter holds is released at the test's end.
func Refusing(t testing.TB, why core.Reason, after time.Duration) *core.Limiter {
	t.Helper()
	right, want := after == 0, "0"
	switch why {
	case core.ReasonRate:
		right, want = after > 0, "above 0"
	case core.ReasonQueueFull, core.ReasonQueueTimeout:
		right, want = after >= 0, "0 or above"
	case core.ReasonNever, core.ReasonInFlight, core.ReasonKeys, core.ReasonQueued:
	default:
		t.Fatalf("flowtest: no refusal has reason %q", why)
	}
	if !right {
		t.Fatalf("flowtest: no refusal for reason %q has RetryAfter %v; want %s", why, after, want)
	}

	const all = 4096 // of a rate, the most that is exact
	rule := core.Rule{Name: "flowtest", Limit: core.InFlight{N: all}}
	if after > 0 {
		rule.Limit = core.Rate{N: all, Per: after}
	}
	rules := []core.Rule{rule}
	holds := core.Request{Cost: all}
	var waits core.Request // who waits ahead of all, if its cost is not 0
	switch r := &rules[0]; why {
	case core.ReasonNever:
		r.Limit, holds.Cost = core.InFlight{N: 0}, 0
	case core.ReasonInFlight, core.ReasonRate:
	case core.ReasonKeys:
		r.By, r.MaxKeys = r.Name, 1
		holds.Keys = []core.Key{{By: r.By, Value: "the only one"}}
	case core.ReasonQueueFull:
		r.Queue = core.Queue{Len: 1, Wait: math.MaxInt64}
		waits.Cost = 1
	case core.ReasonQueueTimeout:
		r.Queue = core.Queue{Len: math.MaxInt32, Wait: 1}
	case core.ReasonQueued:
		// Half is free, but who waits ahead needs all; and another rule, which is full
		// for all but that one, lets nobody wait.
		r.Limit = core.InFlight{N: 2 * all}
		r.Queue = core.Queue{Len: math.MaxInt32, Wait: math.MaxInt64}
		waits.Cost = 2 * all
		waits.Keys = []core.Key{{By: r.Name, Value: "ahead"}}
		rules = append(rules, core.Rule{
			Name: "flowtest, no waiting", By: r.Name,
			Limit: core.Rate{N: all, Per: math.MaxInt64},
			For:   map[string]core.Limit{"ahead": core.Unlimited{}},
		})
	}
	l, err := core.New(rules...)
	if err != nil {
		panic(err)
	}
	if holds.Cost > 0 {
		p, _ := l.Try(holds)
		t.Cleanup(p.Release)
	}
	if waits.Cost > 0 {
		waits.Priority = core.Critical
		ahead(t, l, waits)
	}
	return l
}

// ahead lets a request wait until the test ends.
func ahead(t testing.TB, l *core.Limiter, r core.Request) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if p, err := l.Wait(ctx, r); err == nil { // the rate has opened
			p.Release()
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	for l.Stats()[0].Waiting == 0 {
		runtime.Gosched() // sleep would take of the bubble's time
	}
}
