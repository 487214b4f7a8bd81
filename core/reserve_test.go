package core_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/exactflow/exactflow/core"
)

// keeps is what the rules here keep: 5 of N from who is sheddable, 3 of it from most.
var keeps = core.Reserve{Default: 2, Critical: 3}

func keptFrom(p core.Priority) int {
	return map[core.Priority]int{core.Sheddable: 5, core.Default: 3, core.Critical: 0}[p]
}

// keeping is a rule with that Reserve.
func keeping(limit core.Limit) core.Rule {
	return core.Rule{Name: "rule", Limit: limit, Reserve: keeps}
}

// The batches come first and ask for all there is, then the users, then payments:
// each finds what was kept for it, and leaves what is kept from it.
func TestWhatIsKeptIsThereForWhomItIsKept(t *testing.T) {
	for _, limit := range []core.Limit{core.Rate{N: 10, Per: time.Second}, core.InFlight{N: 10}, warm(10, time.Second, 10, time.Second),
		core.Rate{N: 5000, Per: time.Second}} { // in slices
		n, _ := size(limit)
		synctest.Test(t, func(t *testing.T) {
			l := limiterOf(t, keeping(limit))
			var permits []core.Permit
			for _, c := range []struct {
				p    core.Priority
				want int
			}{{core.Sheddable, n - 5}, {core.Default, 2}, {core.Sheddable, 0}, {core.Critical, 3}, {core.Critical, 0}} {
				passed := 0
				for range n + 10 {
					p, ok := l.Try(at(c.p))
					if permits = append(permits, p); ok {
						passed++
					}
				}
				if passed != c.want {
					t.Errorf("%v: %d of the %v pass; want %d", limit, passed, c.p, c.want)
				}
			}
			// And in the other order: who is important may take all, also what is for others.
			for _, p := range permits {
				p.Release()
			}
			time.Sleep(time.Second)
			for range n - 4 {
				hold(t, l, at(core.Critical))
			}
			refused(t, l, at(core.Sheddable))
			hold(t, l, at(core.Default))
			refused(t, l, at(core.Default))
			for range 3 {
				hold(t, l, at(core.Critical))
			}
			refused(t, l, at(core.Critical))
		})
	}
}

// At whatever instant who is less important passes, what is kept from it is free:
// in its window, or of what is held. Costs and times are random.
func TestWhatIsKeptIsFreeWheneverTheLessImportantPass(t *testing.T) {
	random := rand.New(rand.NewPCG(21, 22))
	tight := map[string]int{}
	for range 600 / slower {
		synctest.Test(t, func(t *testing.T) {
			n := 6 + random.IntN(20)
			rate := core.Rate{N: n, Per: time.Second}
			limit := []core.Limit{rate, core.InFlight{N: n}, core.WarmUp{Rate: rate, From: 1 + random.IntN(n), Over: 5 * time.Second}}[random.IntN(3)]
			l := limiterOf(t, keeping(limit))
			begun := time.Now()
			var log []admission
			held := map[core.Permit]int{}
			sum := 0 // of what is held
			for range 300 {
				r := core.Request{Priority: priorities[random.IntN(3)], Cost: 1 + random.IntN(3)}
				now := time.Since(begun)
				p, ok := l.Try(r)
				k := keptFrom(r.Priority)
				if _, is := limit.(core.InFlight); is {
					if ok {
						held[p], sum = r.Cost, sum+r.Cost
						if sum > n-k {
							t.Fatalf("%v: a %v passed, %d are held", limit, r.Priority, sum)
						} else if sum == n-k {
							tight[r.Priority.String()]++
						}
					}
					for p, cost := range held {
						if random.IntN(8) == 0 {
							p.Release()
							delete(held, p)
							sum -= cost
						}
					}
					continue
				}
				if !ok && p.Refusal().Known {
					time.Sleep(p.Refusal().RetryAfter / time.Duration(1+random.IntN(4)))
					continue
				} else if !ok {
					continue
				}
				log = append(log, admission{now, r.Cost})
				in := 0
				for _, a := range log {
					if a.at > now-time.Second {
						in += a.cost
					}
				}
				most := n
				if w, is := limit.(core.WarmUp); is {
					most = ideal(w, int64(now)) // one that begins anew is lower
				}
				if in > most-k {
					t.Fatalf("%v: a %v passed at %v, %d are in the window; want %d at most", limit, r.Priority, now, in, most-k)
				} else if in == most-k {
					tight[r.Priority.String()]++
				}
			}
			for p := range held {
				p.Release()
			}
		})
	}
	t.Logf("times that all there was for it was used: %v", tight)
	for _, p := range priorities {
		if tight[p.String()] < 1000/slower {
			t.Errorf("few of the %v use all: this proves little", p)
		}
	}
}

// From the one before, who is less important keeps the gap of a slower pace; who
// comes after it need not.
func TestTheLessImportantKeepALargerGap(t *testing.T) {
	limit := core.Pace{N: 10, Per: time.Second}
	slow := func(p core.Priority) core.Pace { return core.Pace{N: 10 - keptFrom(p), Per: time.Second} }
	for _, p := range priorities { // alone, each has a pace of N-k
		synctest.Test(t, func(t *testing.T) {
			l := limiterOf(t, keeping(limit))
			gap := time.Duration(gapOf(slow(p), 1))
			begun := time.Now()
			for i := range 50 {
				if want := max(0, time.Duration(i)*gap-time.Duration(slackOf(limit))); time.Since(begun) != want {
					t.Fatalf("%v: number %d passes at %v; want %v", p, i, time.Since(begun), want)
				}
				hold(t, l, at(p))
				time.Sleep(refused(t, l, at(p)).RetryAfter)
			}
		})
	}
	random := rand.New(rand.NewPCG(23, 24))
	synctest.Test(t, func(t *testing.T) { // and in any mix, from the one before
		l := limiterOf(t, keeping(limit))
		last, count := time.Now().Add(-time.Hour), map[core.Priority]int{}
		for range 5000 / slower {
			p := priorities[random.IntN(3)]
			if _, ok := l.Try(at(p)); !ok {
				time.Sleep(time.Duration(random.Int64N(int64(300 * time.Millisecond))))
				continue
			}
			if d, gap := time.Since(last), gapOf(slow(p), 1)-slackOf(limit); int64(d) < gap {
				t.Fatalf("a %v passes %v after the one before; its gap is %v", p, d, time.Duration(gap))
			}
			last = time.Now()
			count[p]++
		}
		if min(count[core.Sheddable], count[core.Default], count[core.Critical]) < 100/slower {
			t.Errorf("%v passed: this proves little", count)
		}
	})
}

// A crowd of all priorities at the same instants. Of those that pass at one, nobody
// knows the order; but the last sheddable has seen all the others of its kind.
func TestACrowdLeavesWhatIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n, per = 40, time.Second
		l := limiterOf(t, keeping(core.Rate{N: n, Per: per}))
		var mu sync.Mutex
		log := map[time.Duration]map[core.Priority]int{}
		begun := time.Now()
		var all sync.WaitGroup
		for g := range 24 {
			p, random := priorities[g%3], rand.New(rand.NewPCG(25, uint64(g)))
			all.Go(func() {
				for range 400 / min(slower, 4) {
					if _, ok := l.Try(at(p)); ok {
						mu.Lock()
						now := time.Since(begun)
						if log[now] == nil {
							log[now] = map[core.Priority]int{}
						}
						log[now][p]++
						mu.Unlock()
					}
					time.Sleep(time.Duration(1+random.IntN(8)) * 25 * time.Millisecond)
				}
			})
		}
		all.Wait()
		passed := map[core.Priority]int{}
		for now, here := range log {
			before := 0
			for at, o := range log {
				if at > now-per && at < now {
					before += o[core.Sheddable] + o[core.Default] + o[core.Critical]
				}
			}
			seen := before
			for _, p := range priorities { // the least first
				passed[p] += here[p]
				if seen += here[p]; here[p] > 0 && seen > n-keptFrom(p) {
					t.Errorf("at %v %d of the %v pass, and %d are in the window", now, here[p], p, seen)
				}
			}
		}
		t.Logf("%v passed", passed)
		if min(passed[core.Sheddable], passed[core.Default], passed[core.Critical]) == 0 {
			t.Error("some never pass: this proves little")
		}
	})
}

// In real time: whatever the others hold, three payments at a time find their slots,
// each time, and nobody ever holds what is kept from it.
func TestSlotsThatAreKeptAreThereInRealTime(t *testing.T) {
	const n = 12
	l := limiterOf(t, keeping(core.InFlight{N: n}))
	var shed, less, total atomic.Int64 // held by the sheddable; by them and the default; by all
	var done atomic.Bool
	var others, payments sync.WaitGroup
	count := func(p core.Priority, d int64) {
		if p == core.Sheddable && shed.Add(d) > n-5 || p < core.Critical && less.Add(d) > n-3 || total.Add(d) > n {
			t.Errorf("a %v holds more than is for it", p)
		}
	}
	var passed [3]atomic.Int64
	use := func(p core.Priority) bool {
		permit, ok := l.Try(at(p))
		if ok {
			passed[p+1].Add(1)
			count(p, +1)
			time.Sleep(time.Microsecond)
			count(p, -1)
			permit.Release()
		}
		return ok
	}
	for _, p := range []core.Priority{core.Sheddable, core.Default} {
		for range 20 {
			others.Go(func() {
				for !done.Load() {
					use(p)
				}
			})
		}
	}
	for range 3 {
		payments.Go(func() {
			for range 2000 / min(slower, 4) {
				if !use(core.Critical) {
					t.Error("a payment is refused")
				}
			}
		})
	}
	payments.Wait()
	done.Store(true)
	others.Wait()
	if passed[0].Load() == 0 || passed[1].Load() == 0 {
		t.Errorf("%d sheddable and %d default passed: this proves little", passed[0].Load(), passed[1].Load())
	}
	if s := statOf(t, l, "rule"); s.InFlight != 0 {
		t.Errorf("%+v", s)
	}
}

// The same with a window that lasts for as long as the test.
func TestUnitsThatAreKeptAreThereInRealTime(t *testing.T) {
	for _, n := range []int{200, 5000} {
		l := limiterOf(t, keeping(core.Rate{N: n, Per: time.Hour}))
		var passed [3]atomic.Int64
		var all sync.WaitGroup
		for g := range 12 {
			p := priorities[g%2]
			all.Go(func() {
				for range n {
					if _, ok := l.Try(at(p)); ok {
						passed[p+1].Add(1)
					}
				}
			})
		}
		all.Go(func() {
			for range 3 {
				time.Sleep(time.Microsecond)
				if _, ok := l.Try(at(core.Critical)); !ok {
					t.Error("a payment is refused")
				}
				passed[2].Add(1)
			}
		})
		all.Wait()
		// The payments are in no one's place, but count: who comes after them sees them.
		shed, less := passed[0].Load(), passed[0].Load()+passed[1].Load()
		if int(shed) > n-5 || int(less) > n-3 || int(less) < n-6 {
			t.Errorf("of %d, %d sheddable and %d others passed", n, shed, less-shed)
		}
		if left := n - int(less) - 3; passes(l, at(core.Critical), n) != left {
			t.Errorf("not all of the %d that are left are there for payments", left)
		}
	}
}

// What each priority is told is true: a cost of Remaining passes and no larger one,
// the larger one after Reset; and after RetryAfter, not before.
func TestEachPriorityIsToldWhatIsLeftToIt(t *testing.T) {
	random := rand.New(rand.NewPCG(27, 28))
	told := 0
	for _, limit := range []core.Limit{
		core.Rate{N: 12, Per: time.Second}, core.Pace{N: 12, Per: time.Second}, core.Pace{N: 12, Per: time.Second, From: 7, Over: 4 * time.Second},
		core.Pace{N: 600, Per: time.Second}, warm(12, time.Second, 7, 4*time.Second), warm(40, time.Second, 1, 9*time.Second),
	} {
		synctest.Test(t, func(t *testing.T) {
			l := limiterOf(t, keeping(limit))
			n, per := size(limit)
			for range 400 / slower {
				r := core.Request{Priority: priorities[random.IntN(3)], Cost: 1 + random.IntN(4)}
				p, ok := l.Try(r)
				if !ok { // wait exactly that long, ask again, pass
					f := p.Refusal()
					if f.Reason != core.ReasonRate || !f.Known || f.RetryAfter <= 0 {
						t.Fatalf("%v: %+v", limit, f)
					}
					time.Sleep(f.RetryAfter - 1)
					if again := refused(t, l, r); again.RetryAfter != 1 {
						t.Fatalf("%v: %+v, and then %+v", limit, f, again)
					}
					time.Sleep(1 * time.Nanosecond)
					p = hold(t, l, r)
					told++
				}
				q := p.Quota()
				if q.Limit != n || q.Window != per {
					t.Fatalf("%v: %+v", limit, q)
				}
				if q.Remaining < n-keptFrom(r.Priority) {
					if f := refused(t, l, core.Request{Priority: r.Priority, Cost: q.Remaining + 1}); f.RetryAfter != q.Reset {
						t.Fatalf("%v: %+v; of one more: %+v", limit, q, f)
					}
				}
				if q.Remaining > 0 && random.IntN(2) == 0 {
					hold(t, l, core.Request{Priority: r.Priority, Cost: q.Remaining})
				}
				if random.IntN(4) == 0 {
					time.Sleep(time.Duration(random.Int64N(int64(per))))
				}
			}
		})
	}
	if told < 300/slower {
		t.Errorf("%d came back only", told)
	}
}

// What is in flight has no time, and its quota is that of the priority too.
func TestEachPriorityIsToldHowManySlotsAreLeftToIt(t *testing.T) {
	l := limiterOf(t, keeping(core.InFlight{N: 10}))
	for i, want := range []struct {
		p         core.Priority
		remaining int
	}{{core.Sheddable, 4}, {core.Default, 5}, {core.Critical, 7}, {core.Critical, 6}, {core.Sheddable, 0}, {core.Default, 1}, {core.Critical, 3}} {
		p := hold(t, l, at(want.p))
		if q := p.Quota(); q != (core.Quota{Rule: "rule", Limit: 10, Remaining: want.remaining}) {
			t.Errorf("%d: a %v sees %+v; want %d of 10", i, want.p, q, want.remaining)
		}
	}
	p, _ := l.Try(at(core.Default))
	if f, q := p.Refusal(), p.Quota(); f.Reason != core.ReasonInFlight || f.Known || q.Remaining != 0 || q.Limit != 10 {
		t.Errorf("%+v, %+v", f, q)
	}
}

// A ramp that is lower than what is kept: who comes alone begins it, is told when
// it is there, and passes then.
func TestWhoWaitsForARampAboveWhatIsKeptBeginsIt(t *testing.T) {
	for _, limit := range []core.Limit{warm(20, time.Second, 2, 18*time.Second), core.Pace{N: 20, Per: time.Second, From: 2, Over: 18 * time.Second}} {
		for _, c := range []struct {
			p    core.Priority
			want time.Duration
		}{{core.Sheddable, 4 * time.Second}, {core.Default, 2 * time.Second}, {core.Critical, 0}} {
			synctest.Test(t, func(t *testing.T) {
				l := limiterOf(t, keeping(limit))
				if c.want > 0 {
					if f := refused(t, l, at(c.p)); f.RetryAfter != c.want {
						t.Errorf("%v: a %v is told %+v; want %v", limit, c.p, f, c.want)
					}
					time.Sleep(c.want - 1)
					if f := refused(t, l, at(c.p)); f.RetryAfter != 1 {
						t.Errorf("%v: a %v is told %+v; want 1ns", limit, c.p, f)
					}
					time.Sleep(1 * time.Nanosecond)
				}
				hold(t, l, at(c.p))
			})
		}
	}
}

// More at once than will ever be for it.
func TestMoreThanIsLeftToAPriorityIsNever(t *testing.T) {
	for _, limit := range []core.Limit{core.Rate{N: 10, Per: time.Second}, core.InFlight{N: 10}, core.Pace{N: 10, Per: time.Second},
		warm(10, time.Second, 1, time.Second), core.Pace{N: 10, Per: time.Second, From: 1, Over: time.Second}} {
		for _, p := range priorities {
			synctest.Test(t, func(t *testing.T) {
				l := limiterOf(t, keeping(limit))
				most := 10 - keptFrom(p)
				if f := refused(t, l, core.Request{Priority: p, Cost: most + 1}); f.Reason != core.ReasonNever || f.Known {
					t.Errorf("%v: %d of a %v: %+v; want never", limit, most+1, p, f)
				}
				r := core.Request{Priority: p, Cost: most}
				if p, ok := l.Try(r); !ok {
					time.Sleep(p.Refusal().RetryAfter)
					hold(t, l, r)
				}
			})
		}
	}
	// All of it can be kept.
	l := limiterOf(t, core.Rule{Name: "rule", Limit: core.Rate{N: 2, Per: time.Second}, Reserve: core.Reserve{Critical: 2}})
	p, ok := l.Try(at(core.Default))
	if f, q := p.Refusal(), p.Quota(); ok || f.Reason != core.ReasonNever || q.Remaining != 0 || q.Limit != 2 {
		t.Errorf("%v, %+v, %+v", ok, f, q)
	}
	if n := passes(l, at(core.Critical), 3); n != 2 {
		t.Errorf("%d of the critical pass; want 2", n)
	}
}

// A Reserve of a rule is one of each of its keys, and of each value's own N. What
// blocks has nothing to keep, and what is Unlimited need not.
func TestAReserveIsOfEachKey(t *testing.T) {
	l := limiterOf(t, core.Rule{Name: "rule", By: "key", Limit: core.Rate{N: 10, Per: time.Second}, Reserve: keeps,
		For: map[string]core.Limit{"small": core.Rate{N: 5, Per: time.Second}, "none": core.Rate{Per: time.Second}, "other": core.InFlight{}, "free": core.Unlimited{}}})
	for key, want := range map[string][3]int{"a": {5, 2, 3}, "b": {5, 2, 3}, "small": {0, 2, 3}, "none": {}, "other": {}, "free": {20, 20, 20}} {
		for i, p := range priorities {
			r := of("key", key)
			r.Priority = p
			if n := passes(l, r, 20); n != want[i] {
				t.Errorf("%s: %d of the %v pass; want %d", key, n, p, want[i])
			}
		}
	}
}

// Who is not important enough for one rule takes nothing of the others.
func TestWhoIsRefusedForAReserveTakesNothingElsewhere(t *testing.T) {
	l := limiterOf(t, core.Rule{Name: "a", Limit: core.Rate{N: 100, Per: time.Hour}}, core.Rule{Name: "b", Limit: core.Rate{N: 6, Per: time.Hour}, Reserve: keeps})
	if n := passes(l, at(core.Sheddable), 50); n != 1 {
		t.Errorf("%d pass; want 1", n)
	}
	if a := statOf(t, l, "a"); a.Admitted != 1 {
		t.Errorf("%+v", a)
	}
	hold(t, l, core.Request{Priority: core.Critical, Cost: 5})
}

// A shadow rule judges by what it would keep.
func TestAShadowKeepsNothingAndSaysSo(t *testing.T) {
	rule := keeping(core.Rate{N: 6, Per: time.Hour})
	rule.Shadow = true
	l := limiterOf(t, rule)
	if n := passes(l, at(core.Sheddable), 4) + passes(l, at(core.Default), 4) + passes(l, at(core.Critical), 4); n != 12 {
		t.Errorf("%d pass; want all", n)
	}
	if s := statOf(t, l, "rule"); s.Admitted != 6 || s.Shadowed != 6 {
		t.Errorf("%+v; want 1, 2 and 3 admitted", s)
	}
}

// Priorities have no range that can be left.
func TestAPriorityOutOfRangeFindsTheReserveOfTheNearest(t *testing.T) {
	for p, near := range map[core.Priority]core.Priority{-128: core.Sheddable, -2: core.Sheddable, 2: core.Critical, 127: core.Critical} {
		l := limiterOf(t, keeping(core.Rate{N: 10, Per: time.Hour}))
		if n, want := passes(l, at(p), 20), 10-keptFrom(near); n != want {
			t.Errorf("%d of priority %d pass; want %d", n, p, want)
		}
	}
}

// A new Reserve holds at once, and what was counted stays so.
func TestANewReserveKeepsTheCounts(t *testing.T) {
	for _, limit := range []core.Limit{core.Rate{N: 10, Per: time.Minute}, core.InFlight{N: 10}, warm(10, time.Minute, 10, time.Second)} {
		synctest.Test(t, func(t *testing.T) {
			rule := core.Rule{Name: "rule", Limit: limit}
			l := limiterOf(t, rule)
			var held []core.Permit
			for range 6 {
				held = append(held, hold(t, l, core.Request{}))
			}
			rule.Reserve = core.Reserve{Critical: 4}
			replace(t, l, rule)
			refused(t, l, core.Request{}) // 6 are used, of 10-4
			hold(t, l, at(core.Critical))
			rule.Reserve = core.Reserve{Default: 1, Critical: 2}
			replace(t, l, rule)
			refused(t, l, at(core.Sheddable))
			hold(t, l, core.Request{})
			refused(t, l, core.Request{})
			rule.Reserve = core.Reserve{}
			replace(t, l, rule)
			hold(t, l, at(core.Sheddable))
			hold(t, l, at(core.Sheddable))
			refused(t, l, at(core.Critical))
			for _, p := range held {
				p.Release()
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		rule := core.Rule{Name: "rule", Limit: core.Pace{N: 10, Per: time.Minute}}
		l := limiterOf(t, rule)
		hold(t, l, core.Request{})
		wants := func(p core.Priority, n int) {
			t.Helper()
			if d := refused(t, l, at(p)).RetryAfter; int64(d) != gapOf(core.Pace{N: n, Per: time.Minute}, 1)-slackOf(core.Pace{Per: time.Minute}) {
				t.Errorf("a %v is told %v; want the gap of %d", p, d, n)
			}
		}
		wants(core.Default, 10)
		rule.Reserve = keeps
		replace(t, l, rule)
		wants(core.Sheddable, 5)
		wants(core.Default, 7)
		wants(core.Critical, 10)
	})
}

// A wrong Reserve names its rule, its numbers and what would be right, also when it
// comes by a reload, which then changes nothing.
func TestAWrongReserveIsAnError(t *testing.T) {
	rate := core.Rate{N: 10, Per: time.Second}
	for _, c := range []struct {
		rule core.Rule
		told []string
	}{
		{core.Rule{Limit: rate, Reserve: core.Reserve{Critical: 11}}, []string{"Critical: 11", "N, 10"}},
		{core.Rule{Limit: rate, Reserve: core.Reserve{Default: 6, Critical: 5}}, []string{"Default: 6", "Critical: 5", "N, 10"}},
		{core.Rule{Limit: rate, Reserve: core.Reserve{Default: -1}}, []string{"Default: -1", "below 0"}},
		{core.Rule{Limit: rate, Reserve: core.Reserve{Default: 3, Critical: -1}}, []string{"Critical: -1", "below 0"}},
		{core.Rule{Limit: rate, Reserve: core.Reserve{Default: math.MaxInt, Critical: math.MaxInt}}, []string{"N, 10"}},
		{core.Rule{Limit: core.InFlight{N: 1}, Reserve: core.Reserve{Default: 1, Critical: 1}}, []string{"N, 1"}},
		{core.Rule{Limit: core.Pace{N: 2, Per: 1}, Reserve: core.Reserve{Default: 3}}, []string{"N, 2"}},
		{core.Rule{Limit: warm(2, 1, 1, 1), Reserve: core.Reserve{Default: 3}}, []string{"N, 2"}},
		{core.Rule{Limit: core.Rate{Per: 1}, Reserve: core.Reserve{Default: -3}}, []string{"below 0"}},
		{core.Rule{By: "ip", Limit: rate, Reserve: keeps, For: map[string]core.Limit{"a": core.Rate{N: 4, Per: 1}}}, []string{`For["a"]`, "4 per 1ns", "N, 4"}},
		{core.Rule{By: "ip", Limit: core.Unlimited{}, Reserve: keeps, For: map[string]core.Limit{"b": core.InFlight{N: 4}}}, []string{`For["b"]`, "N, 4"}},
	} {
		c.rule.Name = "wrong"
		l := limiterOf(t, core.Rule{Name: "old", Limit: core.Rate{N: 1, Per: time.Hour}})
		for how, err := range map[string]error{"New": wrongOf(t, c.rule), "Replace": l.Replace(c.rule)} {
			if err == nil {
				t.Errorf("%s: %+v is right", how, c.rule)
				continue
			}
			for _, want := range append(c.told, "Reserve", `rule "wrong"`) {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%s: %q does not tell %q", how, err, want)
				}
			}
		}
		if n := passes(l, core.Request{}, 2); n != 1 {
			t.Errorf("after a wrong Replace %d pass; want 1 by the old rule", n)
		}
	}
	for _, right := range []core.Rule{
		{Limit: rate, Reserve: core.Reserve{Default: 4, Critical: 6}},
		{Limit: core.Rate{Per: 1}, Reserve: core.Reserve{Default: 4, Critical: 6}},
		{Limit: core.Unlimited{}, Reserve: keeps},
		{By: "ip", Limit: rate, Reserve: keeps, For: map[string]core.Limit{"a": core.InFlight{}, "b": core.Unlimited{}, "c": core.Rate{N: 5, Per: 1}}},
	} {
		right.Name = "right"
		if _, err := core.New(right); err != nil {
			t.Errorf("%v: %v", fmt.Sprint(right), err)
		}
	}
}

// Who waits for a shadow's ramp begins it, also where another rule refuses, and does
// so without a lock.
func TestAShadowsRampBeginsWithWhoIsRefusedElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, core.Rule{Name: "rule", Limit: core.Rate{N: 1, Per: 2 * time.Second}},
			core.Rule{Name: "shadow", On: "read", Limit: warm(20, time.Second, 2, 18*time.Second), Reserve: core.Reserve{Critical: 3}, Shadow: true})
		hold(t, l, write)
		refused(t, l, read) // L is 4 in 2 s: 1, and 3 that are kept
		time.Sleep(2 * time.Second)
		hold(t, l, read)
		if s := statOf(t, l, "shadow"); s.Admitted != 1 || s.Shadowed != 0 {
			t.Errorf("%+v; want 1 admitted", s)
		}
	})
}

// Of a hundred a second ninety are kept. Three hundred come at once: ten pass, ten can
// pass in a second, and all others know at once that they cannot in time.
func TestWhoWaitsForAReserveKnowsHowLongTheLineIs(t *testing.T) {
	for _, limit := range []core.Limit{core.Rate{N: 100, Per: time.Second}, core.Pace{N: 100, Per: time.Second}} {
		synctest.Test(t, func(t *testing.T) {
			rule := queued(limit, 1000, 1500*ms)
			rule.Reserve = core.Reserve{Critical: 90}
			l := limiterOf(t, rule)
			said := map[string]int{}
			var all []*asker
			for range 300 {
				all = append(all, arrive(t.Context(), l, core.Request{}))
			}
			time.Sleep(2 * time.Second)
			for _, a := range all {
				what, _, _ := strings.Cut(a.String(), " at ")
				if said[what]++; what != "passed" && a.at > 0 {
					t.Errorf("%v: %v; want it to be told at once", limit, a)
				}
			}
			if passed := said["passed"]; passed+said["queue_timeout"] != 300 || passed < 15 || passed > 20 {
				t.Errorf("%v: %v", limit, said)
			}
		})
	}
}
