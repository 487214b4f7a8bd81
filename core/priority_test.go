package core_test

import (
	"cmp"
	"context"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/exactflow/exactflow/core"
)

// at is a request of that priority.
func at(p core.Priority) core.Request { return core.Request{Priority: p} }

// priorities are all there are, the least first.
var priorities = []core.Priority{core.Sheddable, core.Default, core.Critical}

// One slot, and six in line for it: the payments pass first, the batches last, and
// of one kind who came first.
func TestTheMoreImportantPassFirst(t *testing.T) {
	for _, limit := range []core.Limit{core.InFlight{N: 1}, core.Rate{N: 1, Per: time.Second}, core.Pace{N: 1, Per: time.Second}} {
		t.Run(limit.(interface{ String() string }).String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := limiterOf(t, queued(limit, 100, time.Hour))
				p := hold(t, l, core.Request{})
				var mu sync.Mutex // a bubble's clock tells the race detector nothing
				var order []int
				for i, p := range []core.Priority{core.Sheddable, core.Default, core.Critical, core.Sheddable, core.Default, core.Critical} {
					go l.Do(t.Context(), at(p), func(context.Context) error {
						mu.Lock()
						order = append(order, i)
						mu.Unlock()
						time.Sleep(ms)
						return nil
					})
					synctest.Wait()
				}
				p.Release()
				time.Sleep(time.Minute)
				mu.Lock()
				defer mu.Unlock()
				if want := []int{2, 5, 1, 4, 0, 3}; !slices.Equal(order, want) {
					t.Errorf("order %v; want %v", order, want)
				}
			})
		})
	}
}

// Priorities are bounds of nothing: who is out of range is as the nearest.
func TestAPriorityOutOfRangeIsTheNearest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, queued(core.InFlight{N: 1}, 100, time.Hour))
		p := hold(t, l, core.Request{})
		low, critical, high, sheddable := arrive(t.Context(), l, at(-128)), arrive(t.Context(), l, at(core.Critical)),
			arrive(t.Context(), l, at(127)), arrive(t.Context(), l, at(core.Sheddable))
		p.Release()
		want(t, "passed at 0s, waits, waits, waits", critical, high, low, sheddable)
		critical.permit.Release()
		want(t, "passed at 0s, waits, waits", high, low, sheddable)
		high.permit.Release()
		want(t, "passed at 0s, waits", low, sheddable)
		low.permit.Release()
		want(t, "passed at 0s", sheddable)
	})
	for p, want := range map[core.Priority]string{-128: "sheddable", core.Sheddable: "sheddable", core.Default: "default", core.Critical: "critical", 127: "critical"} {
		if got := p.String(); got != want {
			t.Errorf("%d is %q; want %q", int8(p), got, want)
		}
	}
}

// An important newcomer that does not wait passes those who do and are less so, but
// no equal.
func TestANewcomerIsBehindItsEqualsOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, queued(core.InFlight{N: 2}, 100, time.Hour))
		p := hold(t, l, core.Request{})
		big := core.Request{Cost: 2}
		a := arrive(t.Context(), l, big) // one is free
		want(t, "waits", a)
		for _, p := range []core.Priority{core.Sheddable, core.Default} {
			if p, ok := l.Try(at(p)); ok || p.Refusal().Reason != core.ReasonQueued {
				t.Errorf("a newcomer: %v; want %v", p.Refusal(), core.ReasonQueued)
			}
		}
		q, ok := l.Try(at(core.Critical))
		if !ok {
			t.Errorf("a critical newcomer: %v; want it to pass", q.Refusal())
		}
		q.Release()
		p.Release()
		want(t, "passed at 0s", a)
	})
}

// Those who are less important take no place from the more important, and do not
// count among those ahead.
func TestWhoIsLessImportantIsNotInTheWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, queued(core.Rate{N: 1, Per: time.Second}, 3, 20*time.Second))
		hold(t, l, core.Request{})
		a, b, c := arrive(t.Context(), l, at(core.Sheddable)), arrive(t.Context(), l, at(core.Sheddable)), arrive(t.Context(), l, at(core.Sheddable))
		full := arrive(t.Context(), l, at(core.Sheddable))
		want(t, "queue_full at 0s", full)
		d := arrive(t.Context(), l, at(core.Critical))
		e := arrive(t.Context(), l, at(core.Default))
		want(t, "waits, waits", d, e)
		ctx, cancel := context.WithTimeout(t.Context(), 1500*ms)
		defer cancel()
		late, soon := arrive(ctx, l, at(core.Default)), arrive(ctx, l, core.Request{Priority: core.Critical, Cost: 1})
		want(t, "queue_timeout at 0s, queue_timeout at 0s", late, soon) // the second passes at 2 s at best
		time.Sleep(5 * time.Second)
		want(t, "passed at 1s, passed at 2s, passed at 3s, passed at 4s, passed at 5s", d, e, a, b, c)
	})
}

// A stream of payments keeps the slot busy for ever, and a batch waits. Half of its
// time it is overtaken; from then on nobody who comes passes it.
func TestNobodyIsOvertakenWithoutEnd(t *testing.T) {
	for _, low := range []core.Priority{core.Sheddable, core.Default} {
		synctest.Test(t, func(t *testing.T) {
			l := limiterOf(t, queued(core.InFlight{N: 1}, 1000, 10*time.Second))
			ctx, cancel := context.WithCancel(t.Context())
			busy := func() {
				for ctx.Err() == nil {
					l.Do(ctx, at(core.Critical), func(context.Context) error { time.Sleep(10 * ms); return nil })
				}
			}
			for range 3 { // two of them wait at any time
				go busy()
			}
			synctest.Wait()
			a := arrive(t.Context(), l, at(low))
			time.Sleep(20 * time.Second)
			want(t, "passed at 5s", a) // a slot comes back then, and all in line have come later
			a.permit.Release()
			cancel()
			synctest.Wait()
		})
	}
}

// Who has waited for half of its time is first where it fits, at once: nobody else
// need move for it.
func TestWhoRisesToTheHeadPassesThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, queued(core.InFlight{N: 2}, 10, 10*time.Second))
		p := hold(t, l, core.Request{})
		big := core.Request{Cost: 2, Priority: core.Critical}
		a := arrive(t.Context(), l, core.Request{Cost: 2})
		time.Sleep(time.Second)
		b := arrive(t.Context(), l, big)
		c := arrive(t.Context(), l, at(core.Default))
		want(t, "waits, waits, waits", a, b, c)
		time.Sleep(4 * time.Second)
		p.Release() // a is first now, and did not fit before
		want(t, "passed at 5s, waits, waits", a, b, c)
		a.permit.Release()
		want(t, "passed at 5s, waits", b, c)
		b.permit.Release()
		want(t, "passed at 5s", c)
	})
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, queued(core.InFlight{N: 2}, 10, 10*time.Second))
		p := hold(t, l, core.Request{})
		ctx, cancel := context.WithCancel(t.Context())
		big := arrive(ctx, l, core.Request{Cost: 2, Priority: core.Critical})
		time.Sleep(time.Second)
		small := arrive(t.Context(), l, at(core.Sheddable)) // one is free
		want(t, "waits, waits", big, small)
		time.Sleep(5 * time.Second)
		want(t, "waits, waits", big, small) // both are as important now, and big came first
		cancel()
		want(t, "context canceled at 6s, passed at 6s", big, small)
		p.Release()
	})
}

// Where a Reserve is kept from those who wait, they do not rise above those for
// whom it is kept: else these would wait behind who cannot use what they could.
func TestWhoWaitsForAReserveIsInNobodysWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rule := queued(core.InFlight{N: 2}, 10, 10*time.Second)
		rule.Reserve = core.Reserve{Critical: 1}
		l := limiterOf(t, rule)
		p := hold(t, l, core.Request{})
		a, b := arrive(t.Context(), l, at(core.Sheddable)), arrive(t.Context(), l, at(core.Default))
		time.Sleep(9 * time.Second)
		c := hold(t, l, at(core.Critical)) // the unit that is kept
		want(t, "waits, waits", a, b)
		d := arrive(t.Context(), l, at(core.Critical))
		want(t, "waits", d)
		c.Release()
		want(t, "passed at 9s, waits, waits", d, a, b)
		p.Release()
		want(t, "waits, waits", a, b) // one is held, and one is kept
		d.permit.Release()
		want(t, "passed at 9s, waits", a, b) // nothing is kept from the one and not from the other
		a.permit.Release()
		want(t, "passed at 9s", b)
		b.permit.Release()
	})
}

// A new Reserve counts at once for those who wait, and so does a new time.
func TestAChangeOrdersTheLineAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rule := queued(core.InFlight{N: 2}, 10, 10*time.Second)
		l := limiterOf(t, rule)
		p, q := hold(t, l, core.Request{}), hold(t, l, core.Request{})
		a := arrive(t.Context(), l, core.Request{})
		time.Sleep(6 * time.Second)
		b := arrive(t.Context(), l, at(core.Critical)) // behind a, which has risen
		rule.Reserve = core.Reserve{Critical: 1}
		replace(t, l, rule)
		p.Release()
		want(t, "waits, passed at 6s", a, b)
		b.permit.Release()
		want(t, "waits", a)
		q.Release()
		want(t, "passed at 6s", a)
	})
	synctest.Test(t, func(t *testing.T) {
		rule := queued(core.InFlight{N: 1}, 10, 10*time.Second)
		l := limiterOf(t, rule)
		p := hold(t, l, core.Request{})
		a := arrive(t.Context(), l, core.Request{})
		time.Sleep(6 * time.Second)
		b := arrive(t.Context(), l, at(core.Critical))
		rule.Queue.Wait = time.Minute
		replace(t, l, rule)
		p.Release()
		want(t, "waits, passed at 6s", a, b)
		b.permit.Release()
		want(t, "passed at 6s", a)
	})
}

// Two hundred in line for one slot, of all priorities: with a race detector and real
// goroutines they pass in the order of priority, then arrival, whoever gives up.
func TestThePriorityHoldsInRealTime(t *testing.T) {
	for round := range 10 {
		l := limiterOf(t, queued(core.InFlight{N: 1}, 600, time.Hour))
		p := hold(t, l, core.Request{})
		r := rand.New(rand.NewPCG(uint64(round), 5))
		type place struct {
			p core.Priority
			i int
		}
		var order []place // guarded by the slot
		var all sync.WaitGroup
		var cancels []func()
		for i := range 200 {
			ctx, cancel := context.WithCancel(t.Context())
			cancels = append(cancels, cancel)
			p := priorities[r.IntN(3)]
			all.Go(func() {
				l.Do(ctx, at(p), func(context.Context) error {
					order = append(order, place{p, i})
					return nil
				})
			})
			for statOf(t, l, "rule").Waiting < i+1 {
				runtime.Gosched()
			}
		}
		watch(t, l, func() {
			go p.Release()
			for _, i := range r.Perm(200)[:100] {
				cancels[i]()
			}
			all.Wait()
		})
		for _, cancel := range cancels {
			cancel()
		}
		if len(order) < 100 || !slices.IsSortedFunc(order, func(a, b place) int { return cmp.Or(cmp.Compare(b.p, a.p), cmp.Compare(a.i, b.i)) }) {
			t.Errorf("order %v", order)
		}
		if s := statOf(t, l, "rule"); s.Waiting != 0 || s.InFlight != 0 {
			t.Errorf("%+v", s)
		}
	}
}
