package core_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/exactflow/exactflow/core"
)

// queued is a rule with a line of up to n, each for up to wait.
func queued(limit core.Limit, n int, wait time.Duration) core.Rule {
	return core.Rule{Name: "rule", Limit: limit, Queue: core.Queue{Len: n, Wait: wait}}
}

// An asker is one call of Wait in a goroutine of its own.
type asker struct {
	mu     sync.Mutex // a bubble's clock tells the race detector nothing
	permit core.Permit
	err    error
	at     time.Duration // when it came back
	back   bool
}

// arrive calls Wait, and returns when it has come back or waits.
func arrive(ctx context.Context, l *core.Limiter, r core.Request) *asker {
	a := new(asker)
	go func() {
		p, err := l.Wait(ctx, r)
		a.mu.Lock()
		defer a.mu.Unlock()
		a.permit, a.err, a.at, a.back = p, err, time.Since(midnight), true
	}()
	synctest.Wait()
	return a
}

// String is "waits", "passed at 1s", "queue_timeout at 2s", or the context's
// error and when.
func (a *asker) String() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	what := "passed"
	switch {
	case !a.back:
		return "waits"
	case errors.Is(a.err, core.ErrRefused):
		what = a.permit.Refusal().Reason.String()
	case a.err != nil:
		what = a.err.Error()
	}
	return fmt.Sprintf("%s at %v", what, a.at)
}

// want looks what has become of who asked, when all have come to rest.
func want(t testing.TB, what string, askers ...*asker) {
	t.Helper()
	synctest.Wait()
	var all []string
	for _, a := range askers {
		all = append(all, a.String())
	}
	if got := strings.Join(all, ", "); got != what {
		t.Errorf("at %v: %s; want %s", time.Since(midnight), got, what)
	}
}

// waiting is how many wait at the rule.
func waiting(t testing.TB, l *core.Limiter, rule string, n int) {
	t.Helper()
	if s := statOf(t, l, rule); s.Waiting != n {
		t.Errorf("at %v: %d wait at %q; want %d", time.Since(midnight), s.Waiting, rule, n)
	}
}

// Sixty ask at once for 20 a second: each second the next 20 pass, in the order in
// which they came.
func TestWhoWaitsPassesInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, queued(core.Rate{N: 20, Per: time.Second}, 100, time.Minute))
		var all []*asker
		for range 60 {
			all = append(all, arrive(t.Context(), l, core.Request{}))
		}
		time.Sleep(3 * time.Second)
		for i, a := range all {
			want(t, fmt.Sprintf("passed at %v", time.Duration(i/20)*time.Second), a)
		}
		if s := statOf(t, l, "rule"); s.Admitted != 60 || s.Waiting != 0 || len(s.Refused) != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// Two hundred wait for one slot. A change makes room for all of them, and takes the
// queue away: whoever of them is woken first, all are decided in their order, and pass.
func TestAQueueThatIsTakenAwayRefusesNobodyForWhomThereIsRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, queued(core.InFlight{N: 1}, 1000, time.Hour))
		hold(t, l, core.Request{})
		var all []*asker
		for range 200 {
			all = append(all, arrive(t.Context(), l, core.Request{}))
		}
		time.Sleep(time.Second)
		replace(t, l, core.Rule{Name: "rule", Limit: core.InFlight{N: 151}})
		for i, a := range all {
			if i < 150 {
				want(t, "passed at 1s", a)
			} else {
				want(t, "in_flight at 1s", a)
			}
		}
	})
}

// A context that ends while its request waits for a slot, of which nobody knows when it
// comes back, is the reason in any case: also where the request came so late that the
// context was about to end.
func TestAContextThatEndsIsTheReason(t *testing.T) {
	l := limiterOf(t, queued(core.InFlight{N: 1}, 1000, time.Hour))
	hold(t, l, core.Request{})
	var all sync.WaitGroup
	for _, d := range []time.Duration{time.Nanosecond, time.Microsecond, 100 * time.Microsecond, time.Millisecond} {
		for range 100 {
			all.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), d)
				defer cancel()
				if _, err := l.Wait(ctx, core.Request{}); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("after %v: %v; want %v", d, err, context.DeadlineExceeded)
				}
			})
		}
	}
	watch(t, l, all.Wait)
}

// A slot has one owner at a time, so the order is seen exactly: that of arrival.
func TestASlotGoesFromHandToHandInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, queued(core.InFlight{N: 1}, 100, time.Minute))
		var order []int
		for i := range 100 {
			go l.Do(t.Context(), core.Request{}, func(context.Context) error {
				order = append(order, i)
				time.Sleep(ms)
				return nil
			})
			synctest.Wait()
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if len(order) != 100 || !slices.IsSorted(order) {
			t.Errorf("order %v", order)
		}
	})
}

// Who comes with a context that is done gets its error: where there is room,
// where there is none, and where others wait. It takes nothing, and was never in
// line.
func TestAContextThatIsDoneTakesNothing(t *testing.T) {
	for _, rule := range []core.Rule{queued(core.InFlight{N: 2}, 5, time.Minute), inFlight(2)} {
		synctest.Test(t, func(t *testing.T) {
			rule.Name = "rule"
			l := limiterOf(t, rule)
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			for used := range 4 {
				p, err := l.Wait(ctx, core.Request{})
				if err != context.Canceled || p != (core.Permit{}) {
					t.Errorf("%d used: %+v, %v; want the zero permit and the context's error", used, p, err)
				}
				err = l.Do(ctx, core.Request{}, func(context.Context) error { t.Error("it runs"); return nil })
				if err != context.Canceled {
					t.Errorf("%d used: Do returns %v", used, err)
				}
				s := statOf(t, l, "rule")
				if s.InFlight != min(used, 2) || s.Canceled != 0 || s.Waiting != max(0, used-2) {
					t.Errorf("%d used: %+v", used, s)
				}
				if rule.Queue.Len == 0 && used == 2 {
					break
				}
				go l.Do(t.Context(), core.Request{}, func(context.Context) error { time.Sleep(time.Second); return nil })
				synctest.Wait()
			}
			time.Sleep(5 * time.Second)
		})
	}
}

// The head of the line wants two, and one is free. The next wants one. When the
// head goes away nobody is done and no unit has left: nothing but its leaving can
// wake the next.
func TestWhoIsBehindTheCanceledHeadIsWoken(t *testing.T) {
	for _, c := range []struct {
		limit core.Limit
		wait  time.Duration // the queue's, which only the head reaches
		end   time.Duration // the deadline of the head's context
		what  string
	}{
		{core.InFlight{N: 2}, time.Minute, time.Minute, "context canceled"},
		{core.Rate{N: 2, Per: time.Minute}, time.Hour, time.Hour, "context canceled"},
		{core.InFlight{N: 2}, time.Minute, 300 * ms, "context deadline exceeded"},
		{core.InFlight{N: 2}, 300 * ms, time.Minute, "queue_timeout"},
	} {
		t.Run(fmt.Sprint(c.limit, " ", c.what), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := limiterOf(t, queued(c.limit, 5, c.wait))
				hold(t, l, core.Request{})
				ctx, cancel := context.WithTimeout(t.Context(), c.end)
				head := arrive(ctx, l, core.Request{Cost: 2})
				sleepUntil(t, 200*ms)
				rest, stop := context.WithCancel(t.Context())
				next, last := arrive(rest, l, core.Request{}), arrive(rest, l, core.Request{})
				sleepUntil(t, 300*ms-1)
				want(t, "waits, waits, waits", head, next, last)
				time.Sleep(1 * time.Nanosecond)
				if c.what == "context canceled" {
					cancel()
				}
				want(t, c.what+" at 300ms, passed at 300ms, waits", head, next, last)
				cancel()
				stop()
				want(t, "context canceled at 300ms", last)
			})
		})
	}
}

// The line can be as long as the clock allows. One that cannot pass in time is
// told so at once, and those behind and those who come later never know that it
// was there.
func TestAWaitThatCannotEndInTimeIsRefusedAtOnce(t *testing.T) {
	const s = time.Second
	for _, c := range []struct {
		name     string
		cost     int
		deadline time.Duration
		what     string
	}{
		{"the context ends before", 1, 2*s - 1, "queue_timeout at 0s"},
		{"just in time", 1, 2 * s, "waits"},
		{"the queue lets none wait so long", 3, time.Hour, "queue_timeout at 0s"},
		{"all of its units just in time", 2, 2 * s, "waits"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				// 3 a second: 3 pass now, 4 wait, and 2 more pass at the latest at 2s.
				l := limiterOf(t, queued(core.Rate{N: 3, Per: s}, 10, 2*s+1))
				passes(l, core.Request{}, 3)
				var ahead []*asker
				for range 4 {
					ahead = append(ahead, arrive(t.Context(), l, core.Request{}))
				}
				before := statOf(t, l, "rule")
				ctx, cancel := context.WithTimeout(t.Context(), c.deadline)
				a := arrive(ctx, l, core.Request{Cost: c.cost})
				want(t, c.what, a)
				if c.what != "waits" {
					if r := a.permit.Refusal(); r != (core.Refusal{Rule: "rule", Reason: core.ReasonQueueTimeout, RetryAfter: s, Known: true}) {
						t.Errorf("%+v", r)
					}
					after := statOf(t, l, "rule")
					if after.Refused[core.ReasonQueueTimeout] != 1 {
						t.Errorf("%+v", after)
					}
					after.Refused = before.Refused
					if fmt.Sprint(after) != fmt.Sprint(before) {
						t.Errorf("%+v was %+v", after, before)
					}
				}
				cancel()
				synctest.Wait()
				var behind []*asker
				for range 2 {
					behind = append(behind, arrive(t.Context(), l, core.Request{}))
				}
				want(t, "queue_timeout at 0s", arrive(t.Context(), l, core.Request{Cost: 2}))
				time.Sleep(2 * s)
				want(t, "passed at 1s, passed at 1s, passed at 1s, passed at 2s", ahead...)
				want(t, "passed at 2s, passed at 2s", behind...)
			})
		})
	}
}

// Of a thousand in line nearly all give up late, in any order. Who stays passes
// when it would have if they had never come, and nothing is missing afterwards.
func TestCancelsLateInALongLineAreExact(t *testing.T) {
	for _, limit := range []core.Limit{core.Rate{N: 10, Per: time.Second}, core.InFlight{N: 10}} {
		t.Run(fmt.Sprint(limit), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := limiterOf(t, queued(limit, 1000, time.Hour))
				busy := func(p core.Permit) { time.Sleep(time.Second); p.Release() }
				for range 10 {
					go busy(hold(t, l, core.Request{}))
				}
				type one struct {
					cancel func()
					at     time.Duration
					err    error
				}
				all := make([]one, 1000)
				var mu sync.Mutex // guards the times and errors
				for i := range all {
					var ctx context.Context
					ctx, all[i].cancel = context.WithCancel(t.Context())
					go func() {
						p, err := l.Wait(ctx, core.Request{})
						mu.Lock()
						all[i].at, all[i].err = time.Since(midnight), err
						mu.Unlock()
						busy(p)
					}()
					synctest.Wait()
				}
				sleepUntil(t, 999*ms)
				for i := range all { // each once, jumping about
					if j := i * 389 % 1000; j%7 != 3 {
						all[j].cancel()
					}
				}
				synctest.Wait()
				stay := 0
				mu.Lock()
				for i, a := range all {
					if i%7 == 3 {
						stay++
					} else if a.err != context.Canceled || a.at != 999*ms {
						t.Errorf("number %d: %v at %v", i, a.err, a.at)
					}
				}
				mu.Unlock()
				waiting(t, l, "rule", stay)
				time.Sleep(time.Minute)
				synctest.Wait()
				nth := 0
				for i, a := range all {
					if i%7 == 3 {
						if want := time.Duration(1+nth/10) * time.Second; a.at != want || a.err != nil {
							t.Errorf("number %d: %v at %v; want to pass at %v", i, a.err, a.at, want)
						}
						nth++
					}
					a.cancel()
				}
				if s := statOf(t, l, "rule"); s.Canceled != uint64(1000-stay) || s.Admitted != uint64(10+stay) || s.Waiting != 0 || s.InFlight != 0 {
					t.Errorf("%+v", s)
				}
				if n := passes(l, core.Request{Cost: 10}, 1); n != 1 {
					t.Error("something is missing")
				}
			})
		})
	}
}

// A line has a bound on number, and a bound on time: exactly.
func TestALineIsBoundedInNumberAndInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, queued(core.InFlight{N: 1}, 2, time.Second))
		p := hold(t, l, core.Request{})
		a := arrive(t.Context(), l, core.Request{})
		sleepUntil(t, 400*ms)
		b := arrive(t.Context(), l, core.Request{})
		c := arrive(t.Context(), l, core.Request{})
		want(t, "waits, waits, queue_full at 400ms", a, b, c)
		if r := c.permit.Refusal(); r != (core.Refusal{Rule: "rule", Reason: core.ReasonQueueFull}) {
			t.Errorf("%+v", r)
		}
		sleepUntil(t, time.Second-1)
		want(t, "waits, waits", a, b)
		sleepUntil(t, time.Second)
		want(t, "queue_timeout at 1s, waits", a, b)
		if r := a.permit.Refusal(); r != (core.Refusal{Rule: "rule", Reason: core.ReasonQueueTimeout}) {
			t.Errorf("%+v", r)
		}
		d := arrive(t.Context(), l, core.Request{}) // there is a place again
		want(t, "waits, waits", b, d)
		want(t, "queue_full at 1s", arrive(t.Context(), l, core.Request{}))
		sleepUntil(t, 1400*ms)
		want(t, "queue_timeout at 1.4s, waits", b, d)
		p.Release()
		want(t, "passed at 1.4s", d)
		if s := statOf(t, l, "rule"); s.Refused[core.ReasonQueueTimeout] != 2 || s.Refused[core.ReasonQueueFull] != 2 || len(s.Refused) != 2 {
			t.Errorf("%+v", s)
		}
	})
}

// A large request is first in line. One unit is free, and whoever wants just that
// must not have it.
func TestANewcomerIsBehindWhoWaits(t *testing.T) {
	for _, limit := range []core.Limit{core.InFlight{N: 2}, core.Rate{N: 2, Per: time.Second}} {
		t.Run(fmt.Sprint(limit), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := limiterOf(t, queued(limit, 1, time.Minute))
				p := hold(t, l, core.Request{})
				large := arrive(t.Context(), l, core.Request{Cost: 2})
				for range 2 {
					if r := refused(t, l, core.Request{}); r != (core.Refusal{Rule: "rule", Reason: core.ReasonQueued}) {
						t.Errorf("%+v", r)
					}
				}
				if q, _ := l.Try(core.Request{}); q.Quota() != (core.Quota{Rule: "rule", Limit: 2, Window: q.Quota().Window, Remaining: 1}) {
					t.Errorf("%+v", q.Quota())
				}
				want(t, "queue_full at 0s", arrive(t.Context(), l, core.Request{}))
				if r := refused(t, l, core.Request{Cost: 3}); r.Reason != core.ReasonNever {
					t.Errorf("%+v", r)
				}
				sleepUntil(t, time.Second)
				p.Release()
				want(t, "passed at 1s", large)
				if s := statOf(t, l, "rule"); s.Refused[core.ReasonQueued] != 3 || s.Admitted != 2 {
					t.Errorf("%+v", s)
				}
				large.permit.Release()
				sleepUntil(t, 2*time.Second)
				if n := passes(l, core.Request{}, 2); n != 2 {
					t.Errorf("%d of 2 pass when nobody waits any more", n)
				}
			})
		})
	}
}

// Small requests come all the time, and would each fit. The large one that came
// before waits no longer than until its units are free.
func TestALargeRequestIsNotOvertaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, queued(core.Rate{N: 10, Per: time.Second}, 100, time.Minute))
		for i := range time.Duration(10) {
			trace(t, l, core.Request{}, volley{i * 100 * ms, 1, 1})
		}
		sleepUntil(t, time.Second-1)
		large := arrive(t.Context(), l, core.Request{Cost: 10})
		var small []*asker
		for i := range time.Duration(9) {
			sleepUntil(t, time.Second+i*100*ms)
			small = append(small, arrive(t.Context(), l, core.Request{}))
		}
		sleepUntil(t, 1900*ms)
		want(t, "passed at 1.9s", large)
		sleepUntil(t, 2900*ms)
		for _, a := range small {
			want(t, "passed at 2.9s", a)
		}
	})
}

// A slot comes free for a waiter in the very moment in which that gives up. The
// next gets it, every time: else the capacity shrinks to nothing.
func TestASlotOfOneThatGivesUpIsPassedOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, queued(core.InFlight{N: 1}, 10, time.Minute))
		gone := 0
		for i := range 1000 {
			p := hold(t, l, core.Request{})
			ctx, cancel := context.WithCancel(t.Context())
			first := arrive(ctx, l, core.Request{})
			next := arrive(t.Context(), l, core.Request{})
			if i%2 == 0 {
				p.Release()
				cancel()
			} else {
				cancel()
				p.Release()
			}
			synctest.Wait()
			if first.err != nil {
				gone++
			} else {
				first.permit.Release()
			}
			want(t, fmt.Sprintf("passed at %v", time.Since(midnight)), next)
			next.permit.Release()
		}
		if s := statOf(t, l, "rule"); s.InFlight != 0 || s.Waiting != 0 || s.Canceled != uint64(gone) {
			t.Errorf("%+v", s)
		}
		t.Logf("%d of 1000 gave up", gone)
	})
}

// The context ends in the very instant in which the door opens. Either answer is
// right, but it must be the whole truth: who has the error took nothing.
func TestADeadlineAtTheInstantOfTheOpening(t *testing.T) {
	for range 200 {
		synctest.Test(t, func(t *testing.T) {
			l := limiterOf(t, queued(core.Rate{N: 1, Per: time.Second}, 10, time.Minute))
			passes(l, core.Request{}, 1)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			first := arrive(ctx, l, core.Request{})
			next := arrive(t.Context(), l, core.Request{})
			want(t, "waits, waits", first, next)
			time.Sleep(time.Second)
			synctest.Wait()
			if first.err == nil {
				want(t, "passed at 1s, waits", first, next)
			} else {
				want(t, "context deadline exceeded at 1s, passed at 1s", first, next)
			}
			time.Sleep(time.Second)
		})
	}
}

// The queue's time ends in the very instant in which the door opens: that is in
// time.
func TestAQueueWhoseTimeEndsAtTheInstantOfTheOpening(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, queued(core.Rate{N: 1, Per: time.Second}, 10, time.Second))
		passes(l, core.Request{}, 1)
		a := arrive(t.Context(), l, core.Request{})
		want(t, "waits", a)
		time.Sleep(time.Second)
		want(t, "passed at 1s", a)
	})
}

// Each key has its line, its bound on it, and its order.
func TestEachKeyHasItsLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rule := queued(core.Rate{N: 1, Per: time.Second}, 2, time.Minute)
		rule.By = "user"
		rule.For = map[string]core.Limit{
			"vip":   core.Rate{N: 2, Per: 500 * ms},
			"root":  core.Unlimited{},
			"thief": core.Rate{N: 0, Per: time.Second},
		}
		l := limiterOf(t, rule)
		line := func(user string, n int) (all []*asker) {
			for range n {
				all = append(all, arrive(t.Context(), l, of("user", user)))
			}
			return all
		}
		ann, bob, vip, root, thief, none := line("ann", 4), line("bob", 3), line("vip", 5), line("root", 4), line("thief", 1), line("", 2)
		want(t, "passed at 0s, waits, waits, queue_full at 0s", ann...)
		want(t, "passed at 0s, waits, waits", bob...)
		want(t, "passed at 0s, passed at 0s, waits, waits, queue_full at 0s", vip...)
		want(t, "passed at 0s, passed at 0s, passed at 0s, passed at 0s", root...)
		want(t, "never at 0s", thief...)
		want(t, "passed at 0s, waits", none...)
		waiting(t, l, "rule", 7)
		time.Sleep(2 * time.Second)
		want(t, "passed at 1s, passed at 2s", ann[1:3]...)
		want(t, "passed at 1s, passed at 2s", bob[1:]...)
		want(t, "passed at 500ms, passed at 500ms", vip[2:4]...)
		want(t, "passed at 1s", none[1])
		if s := statOf(t, l, "rule"); s.Waiting != 0 || s.Empty != 2 || s.Refused[core.ReasonQueueFull] != 2 {
			t.Errorf("%+v", s) // counted once a request, however often it looked
		}
	})
}

// Several parts make one key, and several keys make several lines.
func TestEachKeyOfSeveralPartsHasItsLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rule := queued(core.InFlight{N: 1}, 1, time.Minute)
		rule.By = "user,resource"
		l := limiterOf(t, rule)
		r := core.Request{On: "a", Keys: []core.Key{{By: "user", Value: "ann"}}}
		other := core.Request{On: "b", Keys: r.Keys}
		p := hold(t, l, r)
		a := arrive(t.Context(), l, r)
		want(t, "waits, queue_full at 0s, passed at 0s", a, arrive(t.Context(), l, r), arrive(t.Context(), l, other))
		r.Keys[0].Value = "bob" // which is the caller's own, once Wait has come back
		r.Keys[0].Value = "ann"
		p.Release()
		want(t, "passed at 0s", a)
	})
}

// Keys beyond MaxKeys share their count and their line, those of a place that
// comes free do not.
func TestKeysBeyondMaxKeysWaitTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rule := queued(core.Rate{N: 2, Per: time.Second}, 2, time.Minute)
		rule.By, rule.MaxKeys = "user", 1
		l := limiterOf(t, rule)
		ann, bob := of("user", "ann"), of("user", "bob")
		trace(t, l, ann, volley{0, 1, 1})
		trace(t, l, bob, volley{200 * ms, 2, 3})
		b := []*asker{arrive(t.Context(), l, bob), arrive(t.Context(), l, bob), arrive(t.Context(), l, bob)}
		want(t, "waits, waits, queue_full at 200ms", b...)
		trace(t, l, ann, volley{500 * ms, 1, 2}) // keeps the place until 1.5s
		time.Sleep(700 * ms)
		want(t, "passed at 1.2s, passed at 1.2s", b[:2]...)
		b = []*asker{arrive(t.Context(), l, bob)}
		want(t, "waits", b...)
		waiting(t, l, "rule", 1)
		time.Sleep(time.Second) // ann's place is free, and what bob shared is gone
		want(t, "passed at 2.2s", b...)
		waiting(t, l, "rule", 0)
	})
}

// A key that waits is in use: nobody else gets its place, so that no waiter is
// refused for want of one.
func TestAWaitersKeyKeepsItsPlace(t *testing.T) {
	for range 100 {
		synctest.Test(t, func(t *testing.T) {
			rule := queued(core.InFlight{N: 1}, 2, time.Minute)
			rule.By, rule.MaxKeys = "user", 1
			l := limiterOf(t, rule)
			p := hold(t, l, of("user", "ann"))
			a := []*asker{arrive(t.Context(), l, of("user", "ann")), arrive(t.Context(), l, of("user", "ann"))}
			p.Release()
			q, ok := l.Try(of("user", "bob")) // before anybody wakes
			synctest.Wait()
			if ok {
				t.Error("bob has the place")
			}
			q.Release()
			want(t, "passed at 0s, waits", a...)
			a[0].permit.Release()
			want(t, "passed at 0s", a[1])
			a[1].permit.Release()
			// and when the last who waits gives up, others can have it
			p = hold(t, l, of("user", "ann"))
			ctx, cancel := context.WithCancel(t.Context())
			last := arrive(ctx, l, of("user", "ann"))
			p.Release()
			cancel()
			synctest.Wait()
			last.permit.Release() // it may have been the first
			want(t, "passed at 0s", arrive(t.Context(), l, of("user", "bob")))
			if r := refused(t, l, of("user", "ann")); r.Reason != core.ReasonKeys {
				t.Errorf("%+v", r)
			}
		})
	}
}

// A slot is free, its key idle, and the waiter not yet awake, when thousands of
// other keys come and look for what can be forgotten. The waiter's key is not.
func TestAWaitersKeyIsNotForgotten(t *testing.T) {
	for range 20 {
		synctest.Test(t, func(t *testing.T) {
			rule := queued(core.InFlight{N: 1}, 5, time.Minute)
			rule.By = "user"
			l := limiterOf(t, rule)
			p := hold(t, l, of("user", "ann"))
			a, b := arrive(t.Context(), l, of("user", "ann")), arrive(t.Context(), l, of("user", "ann"))
			p.Release()
			for i := range 2000 {
				passes(l, of("user", fmt.Sprint(i)), 1)
			}
			if r := refused(t, l, of("user", "ann")); r.Reason != core.ReasonQueued && r.Reason != core.ReasonInFlight {
				t.Errorf("%+v", r)
			}
			want(t, "passed at 0s, waits", a, b)
			a.permit.Release()
			want(t, "passed at 0s", b)
		})
	}
}

// Costs count in the line as they do everywhere.
func TestCostsCountInLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, queued(core.Rate{N: 10, Per: time.Second}, 10, 3*time.Second))
		passes(l, core.Request{Cost: 10}, 1)
		var all []*asker
		for _, cost := range []int{4, 7, 3, 10, 1} {
			all = append(all, arrive(t.Context(), l, core.Request{Cost: cost}))
		}
		want(t, "queue_timeout at 0s, never at 0s, never at 0s", // 26 and more than 30
			arrive(t.Context(), l, core.Request{Cost: 6}), arrive(t.Context(), l, core.Request{Cost: 11}), arrive(t.Context(), l, core.Request{Cost: -1}))
		time.Sleep(4 * time.Second)
		want(t, "passed at 1s, passed at 2s, passed at 2s, passed at 3s, queue_timeout at 3s", all...)
	})
}

// A rule and what it is about, for requests that are about both.
func both(slots, rate core.Rule) []core.Rule {
	slots.Name, slots.On = "slots", "*slot*"
	rate.Name, rate.On = "rate", "*rate*"
	return []core.Rule{slots, rate}
}

// Who waits for a slot holds nothing. When it has the slot and the rate is full
// it goes over to the line of the rate, to the place of its arrival, though that
// line is full; and the slot is free for others.
func TestWhoGoesFromDoorToDoorKeepsItsPlace(t *testing.T) {
	for _, backwards := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			rules := both(queued(core.InFlight{N: 1}, 1, time.Minute), queued(core.Rate{N: 1, Per: time.Second}, 1, time.Minute))
			if backwards {
				slices.Reverse(rules)
			}
			l := limiterOf(t, rules...)
			p := hold(t, l, core.Request{On: "slot"})
			x := arrive(t.Context(), l, core.Request{On: "slot rate"})
			if n := passes(l, core.Request{On: "rate"}, 2); n != 1 {
				t.Errorf("%d pass of the rate; want 1: who waits for a slot holds nothing", n)
			}
			y := arrive(t.Context(), l, core.Request{On: "rate"})
			want(t, "waits, waits, queue_full at 0s", x, y, arrive(t.Context(), l, core.Request{On: "rate"}))
			waiting(t, l, "slots", 1)
			waiting(t, l, "rate", 1)
			sleepUntil(t, 500*ms)
			p.Release()
			want(t, "waits, waits", x, y)
			waiting(t, l, "slots", 0)
			waiting(t, l, "rate", 2)
			if n := passes(l, core.Request{On: "slot"}, 1); n != 1 {
				t.Error("the slot is held")
			}
			sleepUntil(t, time.Second)
			want(t, "passed at 1s, waits", x, y)
			if r := refused(t, l, core.Request{On: "slot"}); r.Reason != core.ReasonInFlight {
				t.Errorf("%+v", r)
			}
			sleepUntil(t, 2*time.Second)
			want(t, "passed at 2s", y)
			x.permit.Release()
			for _, name := range []string{"slots", "rate"} {
				if s := statOf(t, l, name); s.Waiting != 0 || s.InFlight != 0 {
					t.Errorf("%+v", s)
				}
			}
		})
	}
}

// A newcomer is behind at each of its doors: also at one that is open for itself.
func TestANewcomerIsBehindAtEachOfItsDoors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, both(queued(core.InFlight{N: 2}, 5, time.Minute), queued(core.Rate{N: 9, Per: time.Second}, 5, time.Minute))...)
		p := hold(t, l, core.Request{On: "slot"})
		x := arrive(t.Context(), l, core.Request{On: "slot", Cost: 2})
		y := arrive(t.Context(), l, core.Request{On: "slot rate"})
		if r := refused(t, l, core.Request{On: "rate slot"}); r != (core.Refusal{Rule: "slots", Reason: core.ReasonQueued}) {
			t.Errorf("%+v", r)
		}
		if n := passes(l, core.Request{On: "rate"}, 1); n != 1 {
			t.Error("nobody waits for the rate, and it is closed")
		}
		want(t, "waits, waits", x, y)
		p.Release()
		want(t, "passed at 0s, waits", x, y)
		x.permit.Release()
		want(t, "passed at 0s", y)
	})
}

// After a move the time of the present door counts, from the arrival on.
func TestTheTimeOfThePresentDoorCountsFromTheArrival(t *testing.T) {
	for _, c := range []struct {
		wait time.Duration
		what string
	}{
		{time.Minute, "passed at 1s"},
		{time.Second, "passed at 1s"},
		{800 * ms, "queue_timeout at 800ms"},
		{500 * ms, "queue_timeout at 500ms"},
		{100 * ms, "queue_timeout at 500ms"},
	} {
		synctest.Test(t, func(t *testing.T) {
			l := limiterOf(t, both(queued(core.InFlight{N: 1}, 5, time.Minute), queued(core.Rate{N: 1, Per: time.Second}, 5, c.wait))...)
			p := hold(t, l, core.Request{On: "slot"})
			x := arrive(t.Context(), l, core.Request{On: "slot rate"})
			passes(l, core.Request{On: "rate"}, 1)
			sleepUntil(t, 500*ms)
			p.Release()
			sleepUntil(t, 5*time.Second)
			want(t, c.what, x)
		})
	}
}

// A request waits only if each rule that refuses it would let it: at first, and
// when it looks again.
func TestEachRuleThatRefusesMustLetWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, both(queued(core.InFlight{N: 1}, 5, time.Minute), rate(1, time.Second))...)
		r := core.Request{On: "slot rate"}
		p := hold(t, l, r)
		a := arrive(t.Context(), l, r) // both refuse it, and one would let it wait
		want(t, "in_flight at 0s", a)
		if f := a.permit.Refusal(); f != (core.Refusal{Rule: "slots", Reason: core.ReasonInFlight, RetryAfter: time.Second}) {
			t.Errorf("%+v", f)
		}
		sleepUntil(t, time.Second)
		b, c := arrive(t.Context(), l, r), arrive(t.Context(), l, r)
		want(t, "waits, waits", b, c)
		sleepUntil(t, 1500*ms)
		p.Release()
		want(t, "passed at 1.5s, waits", b, c)
		b.permit.Release()
		want(t, "rate at 1.5s", c)
		waiting(t, l, "slots", 0)
		if n := passes(l, core.Request{On: "slot"}, 1); n != 1 {
			t.Error("the slot is not free")
		}
	})
}

// The order of the rules tells nothing: not who waits, nor what a refusal says.
func TestTheOrderOfRulesTellsNothingToWhoWaits(t *testing.T) {
	slow := core.Rule{Name: "slow", Limit: core.Rate{N: 1, Per: time.Hour}, Queue: core.Queue{Len: 5, Wait: time.Second}}
	for _, other := range []core.Rule{
		{Name: "other", Limit: core.Rate{N: 0, Per: time.Hour}},
		{Name: "other", Limit: core.InFlight{N: 1}},
		{Name: "other", Limit: core.Rate{N: 1, Per: 2 * time.Hour}},
		{Name: "other", Limit: core.Rate{N: 1, Per: time.Minute}},
		{Name: "other", Limit: core.InFlight{N: 1}, Queue: core.Queue{Len: 5, Wait: time.Second}},
	} {
		synctest.Test(t, func(t *testing.T) {
			var said []core.Refusal
			for _, rules := range [][]core.Rule{{slow, other}, {other, slow}} {
				l := limiterOf(t, rules...)
				l.Try(core.Request{}) // it is refused where other blocks
				p, _ := l.Try(core.Request{On: "x"})
				a := arrive(t.Context(), l, core.Request{})
				said = append(said, a.permit.Refusal())
				if tried := p.Refusal(); other.Queue.Len == 0 && a.permit.Refusal() != tried {
					t.Errorf("%v: Wait says %+v; want what Try says, %+v: %q has no queue", other.Limit, a.permit.Refusal(), tried, "other")
				}
			}
			if said[0] != said[1] {
				t.Errorf("%v: %+v, and backwards %+v", other.Limit, said[0], said[1])
			}
		})
	}
}

// A change of the rules reaches those who wait.
func TestAReplaceReachesWhoWaits(t *testing.T) {
	rule := func(limit core.Limit, n int, wait time.Duration) []core.Rule {
		if wait == 0 {
			return []core.Rule{{Name: "rule", Limit: limit}}
		}
		return []core.Rule{queued(limit, n, wait)}
	}
	const s = time.Second
	per := func(n int) core.Rate { return core.Rate{N: n, Per: s} }
	block := core.Rule{Name: "block", Limit: core.InFlight{N: 0}}
	for _, c := range []struct {
		name  string
		rules []core.Rule
		what  string // of three who wait for 1 a second, changed after 400 ms
		later string // of one more, asked right after that
	}{
		{"nothing", rule(per(1), 5, s*9), "passed at 1s, passed at 2s, passed at 3s", "passed at 4s"},
		{"other rules", append(rule(per(1), 5, s*9), core.Rule{Name: "other", On: "x", Limit: per(1)}), "passed at 1s, passed at 2s, passed at 3s", "passed at 4s"},
		{"raised by one", rule(per(2), 5, s*9), "passed at 400ms, passed at 1s, passed at 1.4s", "passed at 2s"},
		{"raised", rule(per(9), 5, s*9), "passed at 400ms, passed at 400ms, passed at 400ms", "passed at 400ms"},
		{"a longer window", rule(core.Rate{N: 1, Per: 2 * s}, 5, s*9), "passed at 2s, passed at 4s, passed at 6s", "passed at 8s"},
		{"a shorter window", rule(core.Rate{N: 1, Per: s / 2}, 5, s*9), "passed at 500ms, passed at 1s, passed at 1.5s", "passed at 2s"},
		{"lowered to nothing", rule(per(0), 5, s*9), "never at 400ms, never at 400ms, never at 400ms", "never at 400ms"},
		{"removed", nil, "passed at 400ms, passed at 400ms, passed at 400ms", "passed at 400ms"},
		{"unlimited", rule(core.Unlimited{}, 5, s*9), "passed at 400ms, passed at 400ms, passed at 400ms", "passed at 400ms"},
		{"another name", []core.Rule{{Name: "new", Limit: per(3), Queue: core.Queue{Len: 5, Wait: 9 * s}}}, "passed at 400ms, passed at 400ms, passed at 400ms", "passed at 1.4s"},
		{"another kind", rule(core.InFlight{N: 3}, 5, s*9), "passed at 400ms, passed at 400ms, passed at 400ms", "queue_timeout at 9.4s"},
		{"only for others", []core.Rule{{Name: "rule", On: "x", Limit: per(1), Queue: core.Queue{Len: 5, Wait: 9 * s}}}, "passed at 400ms, passed at 400ms, passed at 400ms", "passed at 400ms"},
		{"a shadow", []core.Rule{{Name: "rule", Limit: per(1), Queue: core.Queue{Len: 5, Wait: 9 * s}, Shadow: true}}, "passed at 400ms, passed at 400ms, passed at 400ms", "passed at 400ms"},
		{"no queue", rule(per(1), 0, 0), "rate at 400ms, rate at 400ms, rate at 400ms", "rate at 400ms"},
		{"a shorter line", rule(per(1), 2, s*9), "passed at 1s, passed at 2s, passed at 3s", "queue_full at 400ms"},
		{"less time", rule(per(1), 5, 1500*ms), "passed at 1s, queue_timeout at 1.5s, queue_timeout at 1.5s", "queue_timeout at 400ms"},
		{"no time", rule(per(1), 5, 400*ms), "queue_timeout at 400ms, queue_timeout at 400ms, queue_timeout at 400ms", "queue_timeout at 400ms"},
		{"a further rule that blocks", append(rule(per(1), 5, s*9), block), "never at 1s, never at 1s, never at 1s", "never at 400ms"},
		{"another that blocks", []core.Rule{block}, "never at 400ms, never at 400ms, never at 400ms", "never at 400ms"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := limiterOf(t, rule(per(1), 5, 9*s)...)
				passes(l, core.Request{}, 1)
				all := []*asker{arrive(t.Context(), l, core.Request{}), arrive(t.Context(), l, core.Request{}), arrive(t.Context(), l, core.Request{})}
				sleepUntil(t, 400*ms)
				want(t, "waits, waits, waits", all...)
				replace(t, l, c.rules...)
				synctest.Wait()
				later := arrive(t.Context(), l, core.Request{})
				sleepUntil(t, 20*s)
				want(t, c.what, all...)
				want(t, c.later, later)
				for _, s := range l.Stats() {
					if s.Waiting != 0 || s.Canceled != 0 {
						t.Errorf("%+v", s)
					}
				}
			})
		})
	}
}

// A change for one value wakes who waits under that.
func TestAReplaceReachesWhoWaitsUnderAValue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rule := queued(core.InFlight{N: 1}, 5, time.Minute)
		rule.By = "user"
		l := limiterOf(t, rule)
		p := hold(t, l, of("user", "ann"))
		hold(t, l, of("user", "bob"))
		ann, bob := arrive(t.Context(), l, of("user", "ann")), arrive(t.Context(), l, of("user", "bob"))
		for _, n := range []int{1, 2} {
			rule.For = map[string]core.Limit{"ann": core.InFlight{N: n}}
			replace(t, l, rule)
			what := []string{"waits, waits", "passed at 0s, waits"}[n-1]
			want(t, what, ann, bob)
		}
		p.Release()
		rule.For["bob"] = core.Unlimited{}
		replace(t, l, rule)
		want(t, "passed at 0s, passed at 0s", ann, bob)
		waiting(t, l, "rule", 0)
	})
}

// A pardon opens the door to those who wait, in their order; what is held stays
// held.
func TestAPardonReachesWhoWaits(t *testing.T) {
	for _, key := range [][]string{{"ann"}, nil} {
		synctest.Test(t, func(t *testing.T) {
			rules := []core.Rule{queued(core.Rate{N: 2, Per: time.Hour}, 9, 3*time.Hour), queued(core.InFlight{N: 1}, 9, 3*time.Hour)}
			for i, name := range []string{"rate", "slots"} {
				rules[i].Name, rules[i].On, rules[i].By = name, name, "user"
			}
			l := limiterOf(t, rules...)
			of := func(on, user string) core.Request {
				return core.Request{On: on, Keys: []core.Key{{By: "user", Value: user}}}
			}
			passes(l, of("rate", "ann"), 2)
			passes(l, of("rate", "bob"), 2)
			hold(t, l, of("slots", "ann"))
			ctx, cancel := context.WithCancel(t.Context())
			var ann []*asker
			for range 3 {
				ann = append(ann, arrive(ctx, l, of("rate", "ann")))
			}
			bob, slot := arrive(ctx, l, of("rate", "bob")), arrive(ctx, l, of("slots", "ann"))
			sleepUntil(t, time.Second)
			for _, name := range []string{"rate", "slots"} {
				if err := l.Forget(name, key...); err != nil {
					t.Fatal(err)
				}
			}
			want(t, "passed at 1s, passed at 1s, waits", ann...)
			want(t, "waits", slot)
			if key == nil {
				want(t, "passed at 1s", bob)
			} else {
				want(t, "waits", bob)
			}
			cancel()
			synctest.Wait()
		})
	}
	synctest.Test(t, func(t *testing.T) { // a rule without a key
		l := limiterOf(t, queued(core.Rate{N: 1, Per: time.Hour}, 9, 3*time.Hour))
		passes(l, core.Request{}, 1)
		a, b := arrive(t.Context(), l, core.Request{}), arrive(t.Context(), l, core.Request{})
		l.Forget("rule")
		want(t, "passed at 0s, waits", a, b)
		sleepUntil(t, time.Hour)
		want(t, "passed at 1h0m0s", b)
	})
}

// A shadow rule makes nobody wait, whatever its Queue. It judges who waited when
// that is admitted: once, at that instant.
func TestAShadowRuleMakesNobodyWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shadow := core.Rule{Name: "shadow", Limit: core.Rate{N: 1, Per: time.Minute}, Queue: core.Queue{Len: 5, Wait: time.Hour}, Shadow: true}
		l := limiterOf(t, shadow)
		want(t, "passed at 0s, passed at 0s", arrive(t.Context(), l, core.Request{}), arrive(t.Context(), l, core.Request{}))
		if s := statOf(t, l, "shadow"); s.Shadowed != 1 || s.Waiting != 0 || s.Admitted != 1 {
			t.Errorf("%+v", s)
		}

		l = limiterOf(t, shadow, queued(core.InFlight{N: 1}, 5, time.Hour))
		p := hold(t, l, core.Request{})
		a, b := arrive(t.Context(), l, core.Request{}), arrive(t.Context(), l, core.Request{})
		for range 10 {
			replace(t, l, shadow, queued(core.InFlight{N: 1}, 5, 2*time.Hour)) // who waits looks again
			replace(t, l, shadow, queued(core.InFlight{N: 1}, 5, time.Hour))
			want(t, "waits, waits", a, b)
		}
		if s := statOf(t, l, "shadow"); s.Shadowed != 0 || s.Admitted != 1 {
			t.Errorf("%+v", s)
		}
		sleepUntil(t, 59*time.Second)
		p.Release()
		want(t, "passed at 59s, waits", a, b)
		sleepUntil(t, time.Minute)
		a.permit.Release()
		want(t, "passed at 1m0s", b)
		if s := statOf(t, l, "shadow"); s.Shadowed != 1 || s.Admitted != 2 {
			t.Errorf("%+v", s)
		}
	})
}

// A rule that turns into a shadow has room for all who waited, so none of them
// is one that it would have refused.
func TestAShadowHasNoLine(t *testing.T) {
	for range 20 {
		synctest.Test(t, func(t *testing.T) {
			rule := queued(core.InFlight{N: 1}, 5, time.Hour)
			l := limiterOf(t, rule)
			hold(t, l, core.Request{})
			for range 5 {
				arrive(t.Context(), l, core.Request{})
			}
			rule.Limit, rule.Shadow = core.InFlight{N: 6}, true
			replace(t, l, rule)
			synctest.Wait()
			if s := statOf(t, l, "rule"); s.Shadowed != 0 || s.InFlight != 6 || s.Waiting != 0 {
				t.Errorf("%+v", s)
			}
		})
	}
}

// Do waits as Wait does, and gives the slot on.
func TestDoWaits(t *testing.T) {
	type own struct{}
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, queued(core.InFlight{N: 1}, 3, 2*time.Second))
		failure := errors.New("failure")
		var mu sync.Mutex
		var said []string
		say := func(what ...any) {
			mu.Lock()
			defer mu.Unlock()
			said = append(said, fmt.Sprint(what...))
		}
		do := func(ctx context.Context, name string, hold time.Duration, err error) {
			go func() {
				got := l.Do(ctx, core.Request{}, func(ctx context.Context) error {
					say(name, " begins at ", time.Since(midnight), " ", ctx.Value(own{}))
					time.Sleep(hold)
					return err
				})
				say(name, " ends at ", time.Since(midnight), ": ", got)
				if !errors.Is(got, core.ErrRefused) != cmp.Or(got == nil, got == failure, got == context.Canceled) {
					t.Errorf("%s: %v", name, got)
				}
			}()
			synctest.Wait()
		}
		ctx, cancel := context.WithCancel(t.Context())
		do(t.Context(), "a", time.Second, failure)
		do(ctx, "b", time.Second, nil)
		do(context.WithValue(t.Context(), own{}, "value"), "c", 1500*ms, nil)
		do(t.Context(), "d", time.Second, nil)
		do(t.Context(), "e", time.Second, nil)
		sleepUntil(t, 500*ms)
		cancel()
		sleepUntil(t, 10*time.Second)
		synctest.Wait()
		want := []string{
			"a begins at 0s <nil>",
			`e ends at 0s: core: refused by rule "rule": queue_full`,
			"b ends at 500ms: context canceled",
			"a ends at 1s: failure",
			"c begins at 1s value",
			`d ends at 2s: core: refused by rule "rule": queue_timeout`,
			"c ends at 2.5s: <nil>",
		}
		slices.Sort(want) // what happens at one instant has no order
		slices.Sort(said)
		if !slices.Equal(said, want) {
			t.Errorf("got\n%s\nwant\n%s", strings.Join(said, "\n"), strings.Join(want, "\n"))
		}
		if s := statOf(t, l, "rule"); s.Failed != 1 || s.InFlight != 0 || s.Waiting != 0 || s.Canceled != 1 || s.Admitted != 2 {
			t.Errorf("%+v", s)
		}
	})
}

// However often a request looks, it is counted once: as what it ended.
func TestWhoWaitsIsCountedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rule := queued(core.Rate{N: 3, Per: time.Second}, 9, 10*time.Second)
		rule.By, rule.MaxKeys = "user", 1
		l := limiterOf(t, rule, core.Rule{Name: "other", By: "tenant", Limit: core.Rate{N: 100, Per: time.Second}})
		trace(t, l, of("user", "ann"), volley{0, 1, 1}) // has the only place, and comes again
		passes(l, core.Request{Cost: 3}, 1)
		ctx, cancel := context.WithCancel(t.Context())
		a, b := arrive(ctx, l, core.Request{Cost: 2}), arrive(t.Context(), l, core.Request{Cost: 2})
		for i := range 8 {
			time.Sleep(100 * ms)
			rule.Queue.Len = 9 + i // who waits looks again
			replace(t, l, rule, core.Rule{Name: "other", By: "tenant", Limit: core.Rate{N: 100, Per: time.Second}})
			passes(l, of("user", "ann"), 1)
		}
		want(t, "waits, waits", a, b)
		before := statOf(t, l, "rule")
		if before.Overflowed != 1 || before.Empty != 1 || before.Waiting != 2 || before.Canceled != 0 {
			t.Errorf("%+v", before)
		}
		if s := statOf(t, l, "other"); s.Empty != 10 { // ann's, and the one of cost 3
			t.Errorf("%+v", s)
		}
		cancel()
		time.Sleep(time.Second)
		want(t, "context canceled at 800ms, passed at 1s", a, b)
		s := statOf(t, l, "rule")
		if s.Overflowed != 2 || s.Empty != 2 || s.Waiting != 0 || s.Canceled != 1 || s.Refused[core.ReasonQueueTimeout] != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// Half a queue is a mistake, and says so.
func TestHalfAQueueIsAnError(t *testing.T) {
	l := limiterOf(t, queued(core.InFlight{N: 1}, 1, time.Second))
	for _, q := range []core.Queue{{Len: 1}, {Wait: 1}, {Len: -1}, {Wait: -1}, {Len: -1, Wait: time.Second}, {Len: 1, Wait: -time.Second}} {
		bad := core.Rule{Name: "bad", Limit: core.InFlight{N: 1}, Queue: q}
		if _, err := core.New(bad); err == nil || !strings.Contains(err.Error(), `"bad"`) || !strings.Contains(err.Error(), "Queue") {
			t.Errorf("New with %+v: %v", q, err)
		}
		if err := l.Replace(bad); err == nil || len(l.Stats()) != 1 || l.Stats()[0].Rule != "rule" {
			t.Errorf("Replace with %+v: %v, %+v", q, err, l.Stats())
		}
	}
	limiterOf(t, core.Rule{Name: "none", Limit: core.InFlight{N: 1}})
	limiterOf(t, queued(core.InFlight{N: 1}, math.MaxInt, 1<<62))
}

// A line of any length has no goroutine but its callers', and when they have gone
// none is left: a bubble does not end before.
func TestWaitingCostsNoGoroutine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, queued(core.InFlight{N: 1}, 100, time.Minute))
		p := hold(t, l, core.Request{})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		before := runtime.NumGoroutine()
		for range 100 {
			arrive(ctx, l, core.Request{})
		}
		if n := runtime.NumGoroutine() - before; n > 100 { // those of other tests may end meanwhile
			t.Errorf("%d goroutines for 100 who wait", n)
		}
		time.Sleep(time.Second)
		p.Release()
	})
}

// The largest values there are saturate: they do not turn into the past.
func TestAWaitOfAllTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Hour)
		l := limiterOf(t, queued(core.Rate{N: 1, Per: 1<<63 - 1}, math.MaxInt, 1<<63-1))
		time.Sleep(time.Hour)
		passes(l, core.Request{}, 1)
		ctx, cancel := context.WithCancel(t.Context())
		a, b := arrive(ctx, l, core.Request{}), arrive(ctx, l, core.Request{})
		want(t, "waits", a)
		time.Sleep(24 * time.Hour)
		want(t, "waits", a)
		cancel()
		want(t, "context canceled at 26h0m0s", a)
		synctest.Wait()
		_ = b

		l = limiterOf(t, queued(core.InFlight{N: math.MaxInt}, math.MaxInt, 1<<63-1))
		p := hold(t, l, core.Request{Cost: math.MaxInt})
		var all []*asker
		for range 5 {
			all = append(all, arrive(t.Context(), l, core.Request{Cost: math.MaxInt}))
		}
		p.Release()
		for _, a := range all {
			want(t, "passed at 26h0m0s", a)
			a.permit.Release()
		}
	})
}
