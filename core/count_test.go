package core_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/exactflow/exactflow/core"
)

// Here writes are counted, and hold back the reads.
var (
	write = core.Request{On: "write"}
	read  = core.Request{On: "read"}
)

func counting(limit core.Limit) core.Rule {
	return core.Rule{Name: "rule", On: "read", Count: "write", Limit: limit}
}

// Ten writes in a second close the door for reads until the first has left; writes
// themselves pass all the time.
func TestManyWritesHoldBackReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, counting(core.Rate{N: 10, Per: time.Second}))
		trace(t, l, write, volley{0, 9, 9})
		trace(t, l, read, volley{0, 50, 50}, volley{100 * ms, 50, 50})
		trace(t, l, write, volley{100 * ms, 1, 1})
		trace(t, l, read, volley{100 * ms, 0, 50}, volley{time.Second - 1, 0, 50}, volley{time.Second, 50, 50})
	})
	l := limiterOf(t, counting(core.InFlight{N: 2}))
	a, b, c := hold(t, l, write), core.Permit{}, core.Permit{}
	hold(t, l, read)
	b, c = hold(t, l, write), hold(t, l, write) // more than N are held
	if f := refused(t, l, read); f.Reason != core.ReasonInFlight || f.Known {
		t.Errorf("%+v", f)
	}
	a.Release()
	refused(t, l, read)
	a.Release() // once
	refused(t, l, read)
	b.Release()
	hold(t, l, read)
	c.Release()
	if s := statOf(t, l, "rule"); s.InFlight != 0 {
		t.Errorf("%+v", s)
	}
}

// Of thirty writes the latest ten count: the door opens when the first of these
// leaves, and what is told before is exact.
func TestOnlyTheLatestNAreKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, counting(core.Rate{N: 10, Per: time.Second}))
		for i := range 30 {
			sleepUntil(t, time.Duration(i)*10*ms)
			hold(t, l, write)
		}
		// Those at 200 ms to 290 ms count.
		for i := range 10 {
			r := core.Request{On: "read", Cost: i + 1}
			f := refused(t, l, r)
			opens := time.Second + 200*ms + time.Duration(i)*10*ms
			if time.Since(midnight)+f.RetryAfter != opens || f.Reason != core.ReasonRate || !f.Known {
				t.Errorf("%d are told %+v at %v; want %v", r.Cost, f, time.Since(midnight), opens)
			}
			sleepUntil(t, opens-1)
			refused(t, l, r)
			sleepUntil(t, opens)
			if q := hold(t, l, r).Quota(); q.Remaining != i+1 || q.Limit != 10 || q.Window != time.Second {
				t.Errorf("%+v; want %d left", q, i+1)
			}
		}
	})
}

// Every sequence of writes and reads, with costs: the door is open when the latest N
// units of the writes leave room. The history is enough to tell.
func TestReadsSeeTheLatestNOfTheWrites(t *testing.T) {
	random := rand.New(rand.NewPCG(31, 32))
	passed, held := 0, 0
	for range 1000 / slower {
		synctest.Test(t, func(t *testing.T) {
			limit := core.Rate{N: 1 + random.IntN(12), Per: time.Second}
			l := limiterOf(t, counting(limit))
			var units []time.Time // one each
			for range 100 {
				cost := 1 + random.IntN([]int{1 + limit.N/4, limit.N + limit.N/3}[random.IntN(2)])
				if random.IntN(3) == 0 {
					hold(t, l, core.Request{On: "write", Cost: cost})
					for range min(cost, limit.N) { // above N it is as N
						units = append(units, time.Now())
					}
					units = units[max(0, len(units)-limit.N):]
				}
				cost = 1 + random.IntN(1+limit.N/3)
				in := 0
				for _, at := range units {
					if time.Since(at) < limit.Per {
						in++
					}
				}
				_, ok := l.Try(core.Request{On: "read", Cost: cost})
				if ok != (cost <= limit.N-in) {
					t.Fatalf("%v: a read of %d: %v, and %d are in the window", limit, cost, ok, in)
				}
				if ok {
					passed++
				} else {
					held++
				}
				if random.IntN(3) == 0 {
					time.Sleep(time.Duration(random.Int64N(int64(limit.Per) * 4 / 3)))
				}
			}
		})
	}
	if min(passed, held) < 10_000/slower {
		t.Errorf("%d passed, %d were held back: this proves little", passed, held)
	}
}

// A thousand reads change nothing, neither those that pass nor those that do not.
func TestWhoOnlyLooksChangesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, counting(core.Rate{N: 2, Per: time.Second}))
		hold(t, l, write)
		if n := passes(l, read, 1000); n != 1000 {
			t.Errorf("%d of 1000 pass", n)
		}
		time.Sleep(500 * ms)
		hold(t, l, write)
		if n := passes(l, read, 1000); n != 0 {
			t.Errorf("%d of 1000 pass", n)
		}
		if d := refused(t, l, read).RetryAfter; d != 500*ms {
			t.Errorf("it opens in %v; want 500 ms", d)
		}
		if s := statOf(t, l, "rule"); s.Admitted != 1002 || s.Refused[core.ReasonRate] != 1001 || s.Keys != 0 {
			t.Errorf("%+v", s)
		}
	})
	l := limiterOf(t, counting(core.InFlight{N: 1}))
	for range 1000 {
		hold(t, l, read)
	}
	if s := statOf(t, l, "rule"); s.InFlight != 0 || s.Admitted != 1000 {
		t.Errorf("%+v", s)
	}
	p := hold(t, l, write)
	refused(t, l, read)
	p.Release()
	hold(t, l, read)
}

// Reads that look, with keys of their own, are no keys of the rule.
func TestWhoOnlyLooksMakesNoKey(t *testing.T) {
	for _, limit := range []core.Limit{core.Rate{N: 1, Per: time.Hour}, core.InFlight{N: 1}} {
		rule := counting(limit)
		rule.By, rule.MaxKeys = "user", 3
		l := limiterOf(t, rule)
		for i := range 1000 {
			r := of("user", fmt.Sprint(i))
			r.On = "read"
			hold(t, l, r)
		}
		if s := statOf(t, l, "rule"); s.Keys != 0 || s.Overflowed != 0 {
			t.Errorf("%v: %+v", limit, s)
		}
	}
}

// What matches both is counted, and never refused.
func TestWhatCountsIsNotLimited(t *testing.T) {
	for _, on := range []string{"", "*", "orders/*"} {
		rule := core.Rule{Name: "rule", On: on, Count: "orders/new", Limit: core.Rate{N: 3, Per: time.Hour}}
		l := limiterOf(t, rule)
		if n := passes(l, core.Request{On: "orders/7"}, 10) + passes(l, core.Request{On: "orders/new"}, 10); n != 20 {
			t.Errorf("On %q: %d of 20 pass", on, n)
		}
		if n := passes(l, core.Request{On: "orders/7"}, 10); n != 0 {
			t.Errorf("On %q: %d of 10 pass", on, n)
		}
		if n := passes(l, core.Request{On: "orders/new", Cost: 100}, 10); n != 10 {
			t.Errorf("On %q: %d of 10 pass", on, n)
		}
		if n := passes(l, core.Request{On: "customers"}, 10); n != 10 && on == "orders/*" {
			t.Errorf("%d of 10 that the rule is not for pass", n)
		}
	}
}

// Ann's writes hold back Ann's reads.
func TestWritesAreCountedApart(t *testing.T) {
	for _, limit := range []core.Limit{core.Rate{N: 2, Per: time.Hour}, core.InFlight{N: 2}} {
		rule := counting(limit)
		rule.By, rule.For = "user", map[string]core.Limit{"bob": core.Unlimited{}, "eve": core.Rate{Per: 1}}
		l := limiterOf(t, rule)
		by := func(r core.Request, user string) core.Request {
			r.Keys = []core.Key{{By: "user", Value: user}}
			return r
		}
		for _, user := range []string{"ann", "bob", "eve"} {
			hold(t, l, by(write, user))
			hold(t, l, by(write, user))
		}
		for user, want := range map[string]bool{"ann": false, "bob": true, "cid": true, "eve": false, "": true} {
			if _, ok := l.Try(by(read, user)); ok != want {
				t.Errorf("%v: %q reads: %v; want %v", limit, user, ok, want)
			}
		}
		if f := refused(t, l, by(read, "eve")); f.Reason != core.ReasonNever {
			t.Errorf("%+v", f)
		}
	}
}

// A write that another rule refuses is not counted, by whichever order of names.
func TestAWriteThatIsRefusedElsewhereIsNotCounted(t *testing.T) {
	for _, name := range []string{"a", "z"} {
		for _, limit := range []core.Limit{core.Rate{N: 2, Per: time.Hour}, core.InFlight{N: 2}} {
			l := limiterOf(t, counting(limit), core.Rule{Name: name, On: "write", Limit: core.Rate{N: 1, Per: time.Hour}})
			if n := passes(l, write, 50); n != 1 {
				t.Errorf("%d writes pass", n)
			}
			if n := passes(l, read, 50); n != 50 {
				t.Errorf("%d of 50 reads pass", n)
			}
			if s := statOf(t, l, "rule"); s.Admitted != 51 {
				t.Errorf("%+v", s)
			}
		}
	}
}

// And a read that is held back takes nothing elsewhere.
func TestAReadThatIsHeldBackTakesNothingElsewhere(t *testing.T) {
	for _, name := range []string{"a", "z"} {
		l := limiterOf(t, counting(core.Rate{N: 1, Per: time.Hour}), core.Rule{Name: name, Limit: core.Rate{N: 3, Per: time.Hour}})
		hold(t, l, write)
		if n := passes(l, read, 50); n != 0 {
			t.Errorf("%d reads pass", n)
		}
		if n := passes(l, write, 50); n != 2 {
			t.Errorf("%d writes pass after one; want 2", n)
		}
	}
}

// One write may count for several rules, and look at another.
func TestARequestCountsHereAndLooksThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, counting(core.InFlight{N: 1}),
			core.Rule{Name: "reads", On: "write", Count: "read", Limit: core.Rate{N: 2, Per: time.Second}})
		hold(t, l, read)
		a := hold(t, l, write)
		refused(t, l, read)
		a.Release()
		hold(t, l, read)
		if f := refused(t, l, write); f.Rule != "reads" || f.RetryAfter != time.Second {
			t.Errorf("%+v", f)
		}
		hold(t, l, read)
		time.Sleep(time.Second)
		hold(t, l, write)
	})
}

// A write that is released twice, or by a copy, or by all at once, is back once.
func TestAWriteIsGivenBackOnce(t *testing.T) {
	l := limiterOf(t, counting(core.InFlight{N: 3}))
	p, q := hold(t, l, core.Request{On: "write", Cost: 100}), hold(t, l, write) // above N it is as N
	if s := statOf(t, l, "rule"); s.InFlight != 4 {
		t.Errorf("%+v; want 4 held", s)
	}
	var all sync.WaitGroup
	for range 8 {
		all.Go(p.Release)
	}
	all.Wait()
	if s := statOf(t, l, "rule"); s.InFlight != 1 {
		t.Errorf("%+v; want 1 held", s)
	}
	hold(t, l, core.Request{On: "read", Cost: 2})
	refused(t, l, core.Request{On: "read", Cost: 3})
	if f := refused(t, l, core.Request{On: "read", Cost: 4}); f.Reason != core.ReasonNever {
		t.Errorf("%+v", f)
	}
	q.Release()
	hold(t, l, core.Request{On: "read", Cost: 3})

	if err := l.Do(t.Context(), write, func(context.Context) error { refused(t, l, core.Request{On: "read", Cost: 3}); return nil }); err != nil {
		t.Error(err)
	}
	hold(t, l, core.Request{On: "read", Cost: 3})
}

// What was held under a smaller N comes back as it was taken.
func TestAWriteGivesBackWhatItTook(t *testing.T) {
	rule := counting(core.InFlight{N: 2})
	l := limiterOf(t, rule)
	p := hold(t, l, core.Request{On: "write", Cost: 5})
	rule.Limit = core.InFlight{N: 10}
	replace(t, l, rule)
	q := hold(t, l, core.Request{On: "write", Cost: 5})
	if s := statOf(t, l, "rule"); s.InFlight != 7 {
		t.Errorf("%+v; want 2 and 5 held", s)
	}
	rule.Limit = core.InFlight{N: 1}
	replace(t, l, rule)
	p.Release()
	q.Release()
	if s := statOf(t, l, "rule"); s.InFlight != 0 {
		t.Errorf("%+v", s)
	}
	hold(t, l, read)
}

// In real time: reads and writes hammer; in the end nothing is held, and no read
// passed while as many writes as N were held from before until after.
func TestReadsAndWritesInRealTime(t *testing.T) {
	const n = 4
	l := limiterOf(t, counting(core.InFlight{N: n}))
	var held [n]core.Permit
	for i := range held {
		held[i] = hold(t, l, write)
	}
	var all sync.WaitGroup
	hammer := func(want bool) {
		for g := range 8 {
			r := []core.Request{read, write}[g%2]
			all.Go(func() {
				for range 2000 / min(slower, 10) {
					p, ok := l.Try(r)
					if ok != (want || r.On == "write") {
						t.Errorf("a %s: %v", r.On, ok)
					}
					p.Release()
				}
			})
		}
		all.Wait()
	}
	hammer(false)
	for _, p := range held {
		p.Release()
	}
	if s := statOf(t, l, "rule"); s.InFlight != 0 {
		t.Errorf("%+v", s)
	}
	rule := counting(core.InFlight{N: 5}) // four at a time are no five
	replace(t, l, rule)
	hammer(true)
	if s := statOf(t, l, "rule"); s.InFlight != 0 {
		t.Errorf("%+v", s)
	}
}

// A shadow counts as the rule would, and only says whom it would hold back.
func TestAShadowCountsWrites(t *testing.T) {
	rule := counting(core.Rate{N: 2, Per: time.Hour})
	rule.Shadow = true
	l := limiterOf(t, rule)
	if n := passes(l, write, 5) + passes(l, read, 7); n != 12 {
		t.Errorf("%d of 12 pass", n)
	}
	if s := statOf(t, l, "rule"); s.Admitted != 5 || s.Shadowed != 7 {
		t.Errorf("%+v", s)
	}
	rule.Shadow = false
	replace(t, l, rule) // what was counted was
	refused(t, l, read)
}

// Reads wait until the writes are done or have left their window; then all pass.
// Writes do not stand in line.
func TestReadsWaitUntilTheWritesAreDone(t *testing.T) {
	for _, limit := range []core.Limit{core.InFlight{N: 1}, core.Rate{N: 2, Per: time.Second}} {
		synctest.Test(t, func(t *testing.T) {
			rule := counting(limit)
			rule.Queue = core.Queue{Len: 10, Wait: time.Minute}
			l := limiterOf(t, rule)
			p, q := hold(t, l, write), hold(t, l, write)
			var askers []*asker
			for range 5 {
				askers = append(askers, arrive(t.Context(), l, read))
			}
			want(t, "waits, waits, waits, waits, waits", askers...)
			if s := statOf(t, l, "rule"); s.Waiting != 5 {
				t.Errorf("%+v", s)
			}
			w := arrive(t.Context(), l, write)
			want(t, "passed at 0s", w)
			time.Sleep(400 * ms)
			if _, is := limit.(core.InFlight); is {
				p.Release()
				q.Release()
				want(t, "waits, waits, waits, waits, waits", askers...)
				w.permit.Release()
				want(t, "passed at 400ms, passed at 400ms, passed at 400ms, passed at 400ms, passed at 400ms", askers...)
				return
			}
			hold(t, l, write) // 2 of 4 are kept: those at 0 and 400 ms
			time.Sleep(time.Second)
			want(t, "passed at 1s, passed at 1s, passed at 1s, passed at 1s, passed at 1s", askers...)
		})
	}
}

// A stream of writes keeps reads out for as long as it lasts: who cannot pass in
// time is told.
func TestReadsThatWaitInVainAreTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rule := counting(core.Rate{N: 1, Per: time.Second})
		rule.Queue = core.Queue{Len: 10, Wait: 2500 * ms}
		l := limiterOf(t, rule)
		hold(t, l, write)
		a := arrive(t.Context(), l, read)
		for range 6 {
			want(t, "waits", a)
			time.Sleep(500 * ms)
			hold(t, l, write)
			if time.Since(midnight) >= 2500*ms {
				break
			}
		}
		synctest.Wait()
		if a.String() == "waits" {
			t.Error("it waits for ever")
		}
		want(t, "queue_timeout at 2.5s", a)
	})
}

// With a Reserve, the reads that matter pass while there are more writes.
func TestReadsThatMatterSeeMore(t *testing.T) {
	rule := counting(core.Rate{N: 10, Per: time.Hour})
	rule.Reserve = core.Reserve{Default: 2, Critical: 3}
	l := limiterOf(t, rule)
	for writes := range 12 {
		for p, kept := range map[core.Priority]int{core.Sheddable: 5, core.Default: 3, core.Critical: 0} {
			r := read
			r.Priority = p
			if _, ok := l.Try(r); ok != (writes < 10-kept) {
				t.Errorf("after %d writes, a %v read: %v", writes, p, ok)
			}
		}
		w := write
		w.Priority = priorities[writes%3]
		hold(t, l, w)
	}
}

// Keys beyond MaxKeys: the writes of a rate share a count, and hold back all reads
// that share it. Those in flight pass uncounted, for a rule that counts refuses none; and
// as nobody can tell whether they are there, reads of further keys are refused.
func TestWritesBeyondMaxKeys(t *testing.T) {
	rule := counting(core.Rate{N: 3, Per: time.Hour})
	rule.By, rule.MaxKeys = "user", 2
	l := limiterOf(t, rule)
	by := func(r core.Request, user int) core.Request {
		r.Keys = []core.Key{{By: "user", Value: fmt.Sprint(user)}}
		return r
	}
	for user := range 2000 {
		if n := passes(l, by(write, user), 3); n != 3 {
			t.Fatalf("%d of 3 writes pass", n)
		}
	}
	for user := range 2000 {
		refused(t, l, by(read, user))
	}
	refused(t, l, by(read, 5000)) // it shares too
	if s := statOf(t, l, "rule"); s.Keys != 2 || s.Overflowed < 3*1998 {
		t.Errorf("%+v", s)
	}

	rule.Limit = core.InFlight{N: 1}
	l = limiterOf(t, rule)
	a, b := hold(t, l, by(write, 1)), hold(t, l, by(write, 2))
	c := hold(t, l, by(write, 3))
	refused(t, l, by(read, 1))
	refused(t, l, by(read, 2))
	for user := range 10 {
		if f := refused(t, l, by(read, 3+user)); f.Reason != core.ReasonKeys {
			t.Errorf("a read of a further key: %v; want %v", f, core.ReasonKeys)
		}
	}
	for _, p := range []core.Permit{a, b, c} {
		p.Release()
	}
	if s := statOf(t, l, "rule"); s.InFlight != 0 || s.Overflowed != 11 {
		t.Errorf("%+v", s)
	}
	d := hold(t, l, by(write, 3)) // there is a place
	refused(t, l, by(read, 3))
	d.Release()
}

// What is counted stays so when the rule counts something else.
func TestAReplaceOfCountKeepsTheCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rule := counting(core.Rate{N: 2, Per: time.Minute})
		l := limiterOf(t, rule)
		passes(l, write, 2)
		refused(t, l, read)
		rule.Count = "delete"
		replace(t, l, rule)
		refused(t, l, read)
		hold(t, l, write) // nothing to the rule
		if s := statOf(t, l, "rule"); s.Admitted != 2 {
			t.Errorf("%+v", s)
		}
		time.Sleep(30 * time.Second)
		hold(t, l, core.Request{On: "delete", Cost: 2})
		time.Sleep(30 * time.Second)
		refused(t, l, read)
		rule.Count = "" // the usual: reads are limited by themselves, and these count too
		replace(t, l, rule)
		refused(t, l, read)
		time.Sleep(30 * time.Second)
		if n := passes(l, read, 5); n != 2 {
			t.Errorf("%d reads pass; want 2", n)
		}
		rule.Count = "write"
		replace(t, l, rule)
		refused(t, l, read)
		hold(t, l, write)
	})
	rule := counting(core.InFlight{N: 1})
	l := limiterOf(t, rule)
	w := hold(t, l, write)
	rule.Count = ""
	replace(t, l, rule)
	refused(t, l, read)
	w.Release()
	r := hold(t, l, read)
	refused(t, l, read)
	rule.Count = "write"
	replace(t, l, rule)
	refused(t, l, read)
	r.Release()
	hold(t, l, read)
	if s := statOf(t, l, "rule"); s.InFlight != 0 {
		t.Errorf("%+v", s)
	}
}

// N can become less than what is counted, and more again.
func TestAReplaceOfNHoldsForWhatIsCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rule := counting(core.Rate{N: 10, Per: time.Minute})
		l := limiterOf(t, rule)
		for range 10 {
			hold(t, l, write)
			time.Sleep(time.Second)
		}
		rule.Limit = core.Rate{N: 3, Per: time.Minute}
		replace(t, l, rule)
		if d := refused(t, l, read).RetryAfter; d != 57*time.Second { // that of 7 s is the first of the latest 3
			t.Errorf("it opens in %v", d)
		}
		hold(t, l, write)
		if d := refused(t, l, read).RetryAfter; d != 58*time.Second {
			t.Errorf("it opens in %v", d)
		}
		rule.Limit = core.Rate{N: 4, Per: time.Minute}
		replace(t, l, rule)
		hold(t, l, read) // 3 are kept
	})
}

// However many writes there are, they cost no more than N.
func TestWritesCostBoundedMemory(t *testing.T) {
	l := limiterOf(t, counting(core.Rate{N: 1000, Per: time.Hour}))
	use := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	passes(l, write, 5000)
	before := use()
	passes(l, write, 1_000_000/slower)
	if after := use(); after > before+64<<10 {
		t.Errorf("%d bytes more", after-before)
	}
	refused(t, l, read)
	runtime.KeepAlive(l)
}

// Writes that cost below 0 are refused, as all are; by no rule, if none limits them.
func TestAWriteOfLessThanNothingIsRefused(t *testing.T) {
	l := limiterOf(t, counting(core.Rate{N: 10, Per: time.Hour}))
	if f := refused(t, l, core.Request{On: "write", Cost: -1}); f.Reason != core.ReasonNever || f.Rule != "" {
		t.Errorf("%+v", f)
	}
	if f := refused(t, l, core.Request{On: "read", Cost: -1}); f.Reason != core.ReasonNever || f.Rule != "rule" {
		t.Errorf("%+v", f)
	}
	if p := hold(t, l, core.Request{On: "read", Cost: 10}); p.Quota().Remaining != 10 {
		t.Errorf("%+v", p.Quota())
	}
	if q := hold(t, l, write).Quota(); q != (core.Quota{}) {
		t.Errorf("a write is told %+v, of a rule that does not limit it", q)
	}
}

// A write while a read decides: either comes first, and the read sees all or none.
func TestAWriteIsCountedAsAWhole(t *testing.T) {
	l := limiterOf(t, core.Rule{Name: "a", On: "read", Count: "write", Limit: core.Rate{N: 8, Per: time.Hour}},
		core.Rule{Name: "b", On: "look", Count: "write", By: "user", Limit: core.Rate{N: 8, Per: time.Hour}})
	var writes atomic.Int64
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 2 {
				writes.Add(1)
				hold(t, l, write)
			}
		})
		all.Go(func() {
			for range 500 {
				_, ok := l.Try(read)
				if !ok && writes.Load() < 8 {
					t.Error("held back before there are eight")
				}
			}
		})
	}
	all.Wait()
	refused(t, l, read)
	refused(t, l, core.Request{On: "look"})
}

// Where counting has no meaning the rule is wrong, and says what would be right.
func TestAWrongCountIsAnError(t *testing.T) {
	for _, limit := range []core.Limit{core.Pace{N: 1, Per: 1}, warm(1, 1, 1, 1), core.Pace{N: 2, Per: 1, From: 1, Over: 1}} {
		for _, rule := range []core.Rule{{Limit: limit}, {By: "user", Limit: core.Unlimited{}, For: map[string]core.Limit{"ann": limit}}} {
			rule.Name, rule.Count = "wrong", "write"
			l := limiterOf(t, counting(core.InFlight{N: 1}))
			for how, err := range map[string]error{"New": wrongOf(t, rule), "Replace": l.Replace(rule)} {
				if err == nil {
					t.Errorf("%s: %+v is right", how, rule)
					continue
				}
				for _, want := range []string{`rule "wrong"`, `Count is "write"`, "Rate", "InFlight"} {
					if !strings.Contains(err.Error(), want) {
						t.Errorf("%s: %q does not tell %q", how, err, want)
					}
				}
			}
			if hold(t, l, write); statOf(t, l, "rule").InFlight != 1 {
				t.Error("a wrong Replace changed the rules")
			}
		}
	}
	for _, c := range []struct{ on, count, by, want string }{
		{"", "*", "", `Count is "*"`},
		{"read", "**", "", `Count is "**"`},
		{"read", "read", "", `Count is "read", and On is "read"`},
		{"read", "write", "user,resource", `Count is "write", and By is "user,resource"`},
	} {
		err := wrongOf(t, core.Rule{Name: "wrong", On: c.on, Count: c.count, By: c.by, Limit: core.InFlight{N: 1}})
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), `rule "wrong"`) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	for _, limit := range []core.Limit{core.Rate{N: 0, Per: 1}, core.InFlight{}, core.Unlimited{}} {
		l := limiterOf(t, counting(limit))
		hold(t, l, write)
		if _, ok := l.Try(read); ok != (limit == core.Unlimited{}) {
			t.Errorf("%v: a read: %v", limit, ok)
		}
	}
}

// A charge where nothing may be in flight takes nothing, and its release harms nobody.
func TestAWriteThatTakesNothingIsReleasedInPeace(t *testing.T) {
	rule := counting(core.InFlight{})
	rule.By = "user"
	l := limiterOf(t, rule)
	w := of("user", "ann")
	w.On = "write"
	p := hold(t, l, w)
	l.Forget("rule")
	p.Release()
	hold(t, l, w)
}
