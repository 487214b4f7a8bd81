package core

import (
	"context"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// The invariants at the top of decide.go, one test each. They look from inside:
// with a stripe's lock in the test's hand, a decision stands still at a known
// place. What the right code does here depends on no timing; only how surely a
// wrong one is caught does.

// Of two clients of one key the second to get the lock could bring the older
// instant: the same stretch of time would be paid out twice. Or a decision could
// count at one instant what it has judged at another.
func TestOneInstant(t *testing.T) {
	t.Run("behind the last lock", func(t *testing.T) {
		l, events := spyOn(t,
			Rule{Name: "low", By: "low", Limit: Rate{N: 1000, Per: time.Hour}},
			Rule{Name: "high", On: "*high", By: "high", Limit: Rate{N: 1000, Per: time.Hour}})
		r := lowAndHigh(l)
		low, high := stripeOf(l, r.Keys[0].Value), stripeOf(l, r.Keys[1].Value)
		for i := range 6 {
			last := low
			if r.On = ""; i%2 == 0 {
				r.On, last = "low high", high
			}
			l.stripes[last].Lock()
			decided := started(func() { l.Try(r) })
			if last == high {
				await(t, "the decision to lock its first stripe", func() bool { return isHeld(l, low) })
			}
			time.Sleep(2 * time.Millisecond) // time to read a clock too early
			earliest := l.now()
			events.list = nil
			l.stripes[last].Unlock()
			<-decided
			if len(events.list) == 0 {
				t.Fatal("no meter was asked")
			}
			for _, e := range events.list {
				if e.now < earliest {
					t.Fatalf("%s of %q at %d; want no instant before %d, when a lock lacked", e.asked, e.rule, e.now, earliest)
				}
			}
		}
	})

	t.Run("for all meters", func(t *testing.T) {
		l, events := spyOn(t, medley...)
		crowd(8, func(random *rand.Rand) {
			for range 1500 {
				p, _ := l.Try(anyone(random))
				p.Release()
			}
		})
		last := map[*spy]int64{}
		for _, d := range events.decisions() {
			for _, e := range d {
				if e.now != d[0].now {
					t.Fatalf("one decision has two instants, %d and %d: %+v", d[0].now, e.now, d)
				}
				if e.now < last[e.spy] {
					t.Fatalf("%s of %q at %d, after %d: time went back", e.asked, e.rule, e.now, last[e.spy])
				}
				last[e.spy] = e.now
			}
		}
	})

	t.Run("for the caller too", func(t *testing.T) {
		l, events := spyOn(t, Rule{Name: "all", Limit: Rate{N: 20, Per: time.Hour}})
		for range 30 {
			events.list = nil
			p, ok := l.Try(Request{Cost: 2}) // 1 may be refused without the lock
			e := events.list[0]
			if wait := e.told - e.now; !ok && int64(p.Refusal().RetryAfter) != wait {
				t.Fatalf("RetryAfter is %d; the meter said %d at %d, which is in %d", p.Refusal().RetryAfter, e.told, e.now, wait)
			}
			_, more := e.spy.left(e.now, 0)
			if reset := more - e.now; ok && int64(p.Quota().Reset) != reset {
				t.Fatalf("Quota.Reset is %d; the meter has more at %d, which at %d is in %d", p.Quota().Reset, more, e.now, reset)
			}
		}
	})
}

// A request that its tenant's rule refuses would spend the budget of its address,
// and of all. Taken first and put back later, it would be in the way of others
// meanwhile.
func TestAllOrNothing(t *testing.T) {
	l, events := spyOn(t, append(slices.Clone(medley),
		Rule{Name: "newcomers", By: "id", Limit: Rate{N: 3, Per: time.Hour}},
		Rule{Name: "shadow", Limit: Rate{N: 1 << 30, Per: time.Hour}, Shadow: true})...)
	events.moody = true
	var ids, admitted atomic.Int64
	crowd(8, func(random *rand.Rand) {
		for range 1500 {
			r := anyone(random)
			r.Keys = append(r.Keys, Key{"id", strconv.FormatInt(ids.Add(1), 10)})
			p, ok := l.Try(r)
			if ok {
				admitted.Add(1)
			}
			p.Release()
		}
	})

	counted := 0
	for _, d := range events.decisions() {
		refused := false
		pass := map[string]bool{}
		takes := map[string]int{}
		for _, e := range d {
			closed := e.told > e.now
			switch {
			case e.asked == "opens" && len(takes) > 0:
				t.Fatalf("%q was asked after another had taken: %+v", e.rule, d)
			case e.asked == "opens" && e.rule == "shadow":
				pass[e.rule] = closed
			case e.asked == "opens":
				refused = refused || closed
			case e.asked == "take":
				if takes[e.rule]++; takes[e.rule] > 1 || pass[e.rule] || e.n != d[0].n {
					t.Fatalf("%q took %d, of a request of %d: %+v", e.rule, e.n, d[0].n, d)
				}
			}
		}
		if refused && len(takes) > 0 {
			t.Fatalf("a refusal spent %v: %+v", takes, d)
		}
		if !refused {
			counted++
			for _, rule := range []string{"all", "newcomers"} {
				if takes[rule] != 1 {
					t.Fatalf("%q took nothing of an admitted request: %+v", rule, d)
				}
			}
		}
	}
	if n := int(admitted.Load()); counted != n {
		t.Errorf("the meters admitted %d; the callers saw %d", counted, n)
	}
	for i, s := range l.Stats() {
		seats := int(l.rules().clauses[i].ledger.seats.Load())
		if n := int(admitted.Load()); s.Rule == "newcomers" && (s.Keys != n || seats != n || s.Admitted != uint64(n)) {
			t.Errorf("%d admitted newcomers have %d entries and %d places, and count as %d", n, s.Keys, seats, s.Admitted)
		}
		if s.Rule == "user" && seats != 0 {
			t.Errorf("after all have gone they have %d places", seats)
		}
		if s.InFlight != 0 {
			t.Errorf("%d of %q are in flight after all have gone", s.InFlight, s.Rule)
		}
	}
}

// Two requests that each hold what the other waits for would stand for ever, and
// soon all others behind them. Foreign code under a lock, or a sleep, would make
// strangers wait for it.
func TestOrder(t *testing.T) {
	free := Rate{N: 1 << 30, Per: time.Hour}
	rules := []Rule{
		{Name: "all", Limit: free},
		{Name: "hold all", Limit: InFlight{N: 1 << 30}},
		{Name: "d", By: "d", Limit: free},
		{Name: "c", By: "c", Limit: InFlight{N: 1 << 30}},
		{Name: "b", By: "b", Limit: InFlight{N: 1 << 30}},
		{Name: "a", By: "a", Limit: free},
		{Name: "again", By: "a", Limit: free}, // on the stripe of the one before
		{Name: "both", By: "c,d", Limit: InFlight{N: 1 << 30}},
	}
	l := limiter(t, rules...)
	var r Request
	for _, by := range []string{"a", "b", "c", "d"} {
		r.Keys = append(r.Keys, Key{by, strconv.Itoa(rand.Int())})
	}
	var needs, holds, every []uint32
	for _, c := range l.rules().clauses {
		i := c.ledger.home
		if c.ledger.solo == nil {
			at := c.planned(len(l.stripes))
			_, _, hash, _ := l.see(&at, &r)
			i = l.stripe(hash)
		}
		needs = append(needs, i)
		if c.bound.holds {
			holds = append(holds, i)
		}
	}
	for i := range l.stripes {
		every = append(every, uint32(i))
	}

	decision := func() func() { return func() { l.Try(r) } }
	release := func() func() {
		p, _ := l.Try(r)
		return p.Release
	}
	reload := func() func() { return func() { l.Replace(rules...) } }
	if !t.Run("of a decision", func(t *testing.T) { inOrder(t, l, needs, decision) }) ||
		!t.Run("of a release", func(t *testing.T) { inOrder(t, l, holds, release) }) ||
		!t.Run("of Replace", func(t *testing.T) { inOrder(t, l, every, reload) }) {
		return // with locks that nobody gives back
	}

	t.Run("of all at once", func(t *testing.T) {
		all := started(func() {
			crowd(8, func(random *rand.Rand) {
				for i := range 1000 {
					var r Request
					for _, by := range random.Perm(4) {
						r.Keys = append(r.Keys, Key{string(rune('a' + by)), strconv.Itoa(random.IntN(100))})
					}
					p, _ := l.Try(r)
					switch i % 100 {
					case 0:
						l.Replace(rules[random.IntN(2):]...)
					case 1:
						l.Stats()
					case 2:
						l.Forget("a")
					case 3:
						l.Forget("both", "1", "2")
					}
					p.Release()
				}
			})
		})
		awaitEnd(t, "all to get through", all)
	})

	// Who looks in all stripes for an idle key to forget has none of them locked.
	t.Run("with the sweep", func(t *testing.T) {
		l := limiter(t, Rule{Name: "all", Limit: free}, Rule{Name: "k", By: "k", Limit: free, MaxKeys: 1})
		l.Try(keyed("k", "first"))
		l.stripes[0].Lock()
		decided := started(func() { l.Try(keyed("k", valueIn(l, func(i uint32) bool { return i == 0 }))) })
		time.Sleep(5 * time.Millisecond) // time to take a lock too early
		nothingHeld(t, l, 1)
		l.stripes[0].Unlock()
		awaitEnd(t, "the newcomer", decided)
	})

	t.Run("with the caller's code", func(t *testing.T) {
		l := limiter(t, rules...)
		l.Do(context.Background(), r, func(context.Context) error {
			nothingHeld(t, l, 0)
			return nil
		})
		nothingHeld(t, l, 0)
	})

	// In a bubble time passes only for those who sleep.
	t.Run("without a sleep", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			one := Rule{Name: "a", By: "a", Limit: Rate{N: 2, Per: time.Hour}, MaxKeys: 1}
			for _, rules := range [][]Rule{{one}, append(rules[:5:5], one)} {
				l := limiter(t, rules...)
				for i := range 100 {
					r := keyed("a", strconv.Itoa(i%5))
					p, _ := l.Try(r)
					p.Release()
					l.Do(context.Background(), r, func(context.Context) error { return nil })
				}
				l.Replace(rules...)
				l.Forget("a")
				l.Stats()
			}
			if d := time.Since(began); d > 0 {
				t.Errorf("somebody slept %v", d)
			}
		})
	})
}

// A meter that opens late turns away who had room, and one that says a late
// instant makes clients wait for nothing. One that opens early breaks the limit.
func TestEarlyNeverLate(t *testing.T) {
	t.Run("Rate", func(t *testing.T) {
		random := rand.New(rand.NewPCG(1, 4))
		for range 200 {
			now := random.Int64N(50)
			p := past{limit: Rate{N: random.IntN(6), Per: time.Duration(1 + random.IntN(20))}, slice: 1}
			w := p.limit.meter(newBound(nil, p.limit, false))
			for range 60 {
				now += random.Int64N(5)
				p.compare(t, w, now)
				if n := 1 + random.IntN(4); p.opens(now, n) <= now {
					p.take(t, w, now, n)
				}
				if random.IntN(20) > 0 {
					continue
				}
				floor := now - int64(p.limit.Per)
				p.log = slices.DeleteFunc(p.log, func(a admit) bool { return a.at <= floor })
				p.limit = Rate{N: random.IntN(6), Per: time.Duration(1 + random.IntN(20))}
				w.change(newBound(nil, p.limit, false), floor)
			}
		}
	})

	t.Run("Rate above 4096", func(t *testing.T) {
		random := rand.New(rand.NewPCG(2, 4))
		for range 50 {
			n := exact + 1 + random.IntN(3)
			per := 1 + random.Int64N(100_000)
			p := past{limit: Rate{N: n, Per: time.Duration(per)}, slice: (per + exact - 2) / (exact - 1)}
			w := p.limit.meter(newBound(nil, p.limit, false))
			now := random.Int64N(per)
			for range 60 {
				now += random.Int64N(1 + []int64{p.slice, per / 8}[random.IntN(2)])
				p.compare(t, w, now)
				if n := 1 + random.IntN(n/3); p.opens(now, n) <= now {
					p.take(t, w, now, n)
				}
			}
		}
	})

	t.Run("InFlight", func(t *testing.T) {
		random := rand.New(rand.NewPCG(3, 4))
		for range 200 {
			limit := InFlight{N: random.IntN(6)}
			s := limit.meter(newBound(nil, limit, false)).(holder)
			held := 0
			opens := func(n int) int64 {
				switch {
				case n > limit.N:
					return never
				case held+n > limit.N:
					return unknown
				}
				return open
			}
			for now := range int64(60) {
				for n := 1; n <= limit.N+1; n++ {
					if got := min(s.opens(now, n, 0), max(now+1, opens(n))); got > now != (opens(n) > now) || got > now && got != opens(n) {
						t.Fatalf("%v, %d held: opens(%d) is %d; want %d", limit, held, n, got, opens(n))
					}
				}
				left, more := max(0, limit.N-held), int64(unknown)
				if held == 0 || limit.N == 0 {
					more = never
				}
				if n, m := s.left(now, 0); n != left || m != more {
					t.Fatalf("%v, %d held: left is %d, more at %d; want %d, %d", limit, held, n, m, left, more)
				}
				if at := s.idles(); at <= now != (held == 0) {
					t.Fatalf("%v, %d held: idles at %d", limit, held, at)
				}
				switch n := 1 + random.IntN(3); {
				case random.IntN(10) == 0:
					limit.N = random.IntN(6)
					s.change(newBound(nil, limit, false), now)
				case random.IntN(2) == 0 && opens(n) == open:
					s.take(now, n, 0)
					held += n
				case held >= n:
					held -= n
					if got := s.give(n); got != opens(1) {
						t.Fatalf("%v, %d held: give says %d; want %d", limit, held, got, opens(1))
					}
				}
			}
		}
	})
}

// A refusal that reads the clock and then finds the hint of an admission that
// came after would tell to wait longer than the window is. Asked when the hint
// opens between the two, it would refuse who had room.
func TestHintBeforeClock(t *testing.T) {
	const per = time.Millisecond
	l := limiter(t,
		Rule{Name: "blob", On: "slow", By: "blob", Limit: Rate{N: 1 << 30, Per: time.Hour}},
		Rule{Name: "gate", Limit: Rate{N: 1, Per: per}})

	// To look at a key of megabytes takes longer than the window: a clock read
	// before that is late by more than one admission.
	r := slow()
	var stop atomic.Bool
	others := started(func() {
		for !stop.Load() {
			l.Try(Request{})
		}
	})
	for refused := 0; refused < 8; {
		if p, ok := l.Try(r); !ok {
			refused++
			if wait := p.Refusal().RetryAfter; wait > per {
				t.Errorf("wait %v for one of 1 per %v: the hint is younger than the clock", wait, per)
				break
			}
		}
	}
	stop.Store(true)
	<-others

	t.Run("without a lock", func(t *testing.T) {
		l := limiter(t, Rule{Name: "gate", Limit: Rate{N: 1, Per: time.Hour}})
		l.Try(Request{})
		home := l.rules().named["gate"].ledger.home
		l.stripes[home].Lock()
		awaitEnd(t, "a refusal", started(func() {
			if _, ok := l.Try(Request{}); ok {
				t.Error("two of 1 per hour passed")
			}
		}))
		l.stripes[home].Unlock()
	})
}

// A hint that outlives the count it was taken from refuses who has room, as long
// as it says so, or sends all to the lock. One that is believed for other rules
// than those it was written for undoes a Replace.
func TestTheHintIsWrittenUnderTheLockOnly(t *testing.T) {
	// With the lock in hand the hints say what the meters say, and stay.
	t.Run("only there", func(t *testing.T) {
		rules := func(n int) []Rule {
			return []Rule{
				{Name: "rate", By: "k", Limit: Rate{N: n, Per: 200 * time.Microsecond}},
				{Name: "hold", By: "k", Limit: InFlight{N: n}},
			}
		}
		l := limiter(t, rules(2)...)
		r := keyed("k", "v")
		i := stripeOf(l, "v")
		var stop atomic.Bool
		others := started(func() {
			crowd(6, func(random *rand.Rand) {
				for turn := 0; !stop.Load(); turn++ {
					r := r
					r.Cost = random.IntN(3)
					p, _ := l.Try(r)
					if random.IntN(4) == 0 {
						runtime.Gosched()
					}
					switch turn % 200 {
					case 0:
						l.Replace(rules(1 + random.IntN(3))...)
					case 100:
						l.Forget("rate", "v")
					}
					p.Release()
				}
			})
		})
		for seen := 0; seen < 2000; time.Sleep(20 * time.Microsecond) {
			l.stripes[i].Lock()
			for _, c := range l.rules().clauses {
				e := entryOf(l, c, "v")
				if e == nil {
					continue
				}
				seen++
				hint, b := e.opens.Load(), e.bound.Load()
				if now := l.now(); !honest(e, now) {
					t.Errorf("%q: at %d the hint says %d; the meter says %d", c.rule.Name, now, hint, e.meter.opens(now, 1, 0))
				}
				runtime.Gosched()
				if hint2, b2 := e.opens.Load(), e.bound.Load(); hint != hint2 || b != b2 {
					t.Errorf("%q: with the lock in hand the hint goes from %d (%p) to %d (%p)", c.rule.Name, hint, b, hint2, b2)
				}
			}
			l.stripes[i].Unlock()
			if t.Failed() {
				break
			}
		}
		stop.Store(true)
		<-others
	})

	// Who reads while an entry comes under one bound after the other gets the
	// hint of the bound that is asked for, or none.
	t.Run("with its bound", func(t *testing.T) {
		l := limiter(t, Rule{Name: "k", By: "k", Limit: Rate{N: 1, Per: time.Hour}})
		l.Try(keyed("k", "v"))
		c := l.rules().named["k"]
		i := stripeOf(l, "v")
		e := entryOf(l, c, "v")
		next := e.bound.Load()
		var asked atomic.Pointer[bound] // by who reads: the bound to come, or that which is there
		turn := func(n int) {
			was := next
			next = newBound(c, Rate{N: n, Per: time.Hour}, false)
			asked.Store(next)
			l.stripes[i].Lock()
			defer l.stripes[i].Unlock()
			e.settle(next)
			for _, b := range []*bound{was, next} {
				if hint, ok := e.told(b); ok {
					t.Errorf("under a bound that has no hint yet, %d is believed", hint)
				}
			}
			e.tell(int64(n))
		}
		turn(1)
		var stop atomic.Bool
		var believed atomic.Int64
		readers := started(func() {
			crowd(4, func(*rand.Rand) {
				for !stop.Load() {
					b := asked.Load()
					if hint, ok := e.told(b); ok {
						if hint != int64(b.n) {
							t.Errorf("asked for the hint of bound %d, told %d", b.n, hint)
							stop.Store(true)
						}
						believed.Add(1)
					}
				}
			})
		})
		for n, began := 2, time.Now(); time.Since(began) < 300*time.Millisecond && !stop.Load(); n++ {
			turn(n)
		}
		stop.Store(true)
		<-readers
		if believed.Load() == 0 {
			t.Error("no hint was ever believed")
		}
	})

	// What is written late is never put right: behind a hint that says closed
	// nobody looks. Requests of many rules have a long way from the first lock to
	// the last, in which another can come and go.
	t.Run("not after it", func(t *testing.T) {
		rules := []Rule{
			{Name: "hold", On: "*hold*", By: "k", Limit: InFlight{N: 2}},
			{Name: "rate", On: "*rate*", By: "k", Limit: Rate{N: 1, Per: time.Hour}},
			{Name: "shut", On: "*shut*", Limit: InFlight{N: 0}},
		}
		for i := range 20 {
			rules = append(rules, Rule{Name: strconv.Itoa(i), On: "*wide*", By: strconv.Itoa(i), Limit: InFlight{N: 1 << 30}})
		}
		l := limiter(t, rules...)
		v := valueIn(l, func(i uint32) bool { return i < 10 })
		i := stripeOf(l, v)
		wide := keyed("k", v)
		for n := range 20 {
			wide.Keys = append(wide.Keys, Key{strconv.Itoa(n), valueIn(l, func(at uint32) bool { return at > i })})
		}
		on := func(on string, cost int) (Permit, bool) {
			r := wide
			r.On, r.Cost = on, cost
			return l.Try(r)
		}
		var next Permit
		for began := time.Now(); time.Since(began) < 400*time.Millisecond; {
			held, _ := on("wide hold", 2)
			all := []<-chan struct{}{
				started(held.Release),
				started(func() {
					for range 10 {
						if p, ok := on("hold", 2); ok {
							next = p
							return
						}
					}
				}),
				started(func() { on("wide hold shut", 2) }),
				started(func() { on("wide rate", 1) }),
				started(func() {
					for range 10 {
						l.Forget("rate", v)
					}
				}),
			}
			for _, done := range all {
				<-done
			}
			for _, c := range l.rules().clauses[:2] {
				if e := entryOf(l, c, v); !honest(e, l.now()) {
					t.Fatalf("%q: the hint says %d long after its count was taken", c.rule.Name, e.opens.Load())
				}
			}
			next.Release()
			l.Forget("rate", v)
		}
	})

	t.Run("not for another book", func(t *testing.T) {
		l := limiter(t, Rule{Name: "k", By: "k", Limit: Rate{N: 1, Per: time.Hour}})
		r := keyed("k", "v")
		l.Try(r)
		l.Try(r)
		l.Replace(Rule{Name: "k", By: "k", Limit: Rate{N: 2, Per: time.Hour}})
		if p, ok := l.Try(r); !ok {
			t.Errorf("the second of 2 is refused, by the hint of the first of 1: %v", p.Refusal())
		}
	})

	// Replace stands before the last stripe, and whoever has taken up the old
	// rules before one that it has locked: they must wake to the new ones.
	t.Run("who sleeps through Replace", func(t *testing.T) {
		rules := func(n int) []Rule {
			return []Rule{
				{Name: "k", By: "k", Limit: Rate{N: n, Per: time.Hour}},
				{Name: "both", On: "both", By: "k", Limit: Rate{N: n, Per: time.Minute}},
			}
		}
		l := limiter(t, rules(1000)...)
		last := uint32(len(l.stripes) - 1)
		l.stripes[last].Lock()
		replaced := started(func() { l.Replace(rules(0)...) })
		await(t, "Replace to lock all others", func() bool { return isHeld(l, last-1) })
		asked := started(func() {
			crowd(8, func(random *rand.Rand) {
				r := keyed("k", valueIn(l, func(i uint32) bool { return i < last }))
				r.On = []string{"", "both"}[random.IntN(2)]
				p, ok := l.Try(r)
				if ok || p.Refusal().Reason != ReasonNever {
					t.Errorf("admitted %t, %v; want refused for ever", ok, p.Refusal())
				}
			})
		})
		time.Sleep(5 * time.Millisecond) // time to take up the old rules
		l.stripes[last].Unlock()
		<-replaced
		<-asked
		for _, s := range l.Stats() {
			if s.Admitted != 0 || s.Keys != 0 {
				t.Errorf("%q: the old rules admitted %d and left %d entries", s.Rule, s.Admitted, s.Keys)
			}
		}
	})

	// The same without a lock: no refusal by old rules is later than the new.
	t.Run("who looks through Replace", func(t *testing.T) {
		blob := Rule{Name: "blob", On: "slow", By: "blob", Limit: Rate{N: 1 << 30, Per: time.Hour}}
		for range 5 {
			l := limiter(t, Rule{Name: "gate", Limit: Rate{N: 1, Per: time.Hour}}, blob)
			l.Try(Request{})
			opens := l.rules().named["gate"].ledger.solo.opens.Load()
			var p Permit
			var ok bool
			r := slow()
			decided := started(func() { p, ok = l.Try(r) })
			time.Sleep(time.Millisecond) // time to be amid the look
			l.Replace(Rule{Name: "gate", Limit: Rate{N: 2, Per: time.Hour}}, blob)
			replaced := l.now()
			<-decided
			if at := opens - int64(p.Refusal().RetryAfter); !ok && at > replaced {
				t.Fatalf("refused by the old rules at %d; the new ones held from %d", at, replaced)
			}
		}
	})
}

// A key that is forgotten while its units are in the window is forgiven, and a
// flood of others would do that on purpose. A release that finds another entry
// than it took from leaves a slot that never comes back.
func TestForgettingIsInvisible(t *testing.T) {
	// Two limiters hear the same: one never forgets, the other all it can, after
	// each request. Nobody can tell them apart.
	t.Run("to all who ask", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(5, 4))
			ms := time.Millisecond
			rules := func() []Rule {
				return []Rule{
					{Name: "rate", On: "*rate*", By: "k", Limit: Rate{N: 2 + random.IntN(2), Per: []time.Duration{10 * ms, 25 * ms}[random.IntN(2)]}},
					{Name: "hold", On: "*hold*", By: "k", Limit: InFlight{N: 1 + random.IntN(3)}},
					{Name: "large", On: "large", By: "k", Limit: Rate{N: 5000, Per: 20 * ms}},
				}
			}
			first := rules()
			keeps, forgets := limiter(t, first...), limiter(t, first...)
			forgets.seed = keeps.seed // the same stripes
			immortal(keeps)
			var values []string // in two stripes, so that tables are crowded
			for len(values) < 30 {
				values = append(values, valueIn(keeps, func(i uint32) bool { return i < 2 }))
			}
			type held struct{ a, b Permit }
			var out []held
			gone := 0
			for step := range 6000 {
				time.Sleep([]time.Duration{0, 0, 0, ms, 3 * ms, ms - 1, 3*ms + 1}[random.IntN(7)])
				r := keyed("k", values[random.IntN(len(values))])
				r.On = []string{"rate", "hold", "rate hold", "large"}[random.IntN(4)]
				if r.Cost = random.IntN(3); r.On == "large" {
					r.Cost = random.IntN(3000)
				}
				p, ok := keeps.Try(r)
				q, also := forgets.Try(r)
				if ok != also || p.Refusal() != q.Refusal() || p.Quota() != q.Quota() {
					t.Fatalf("step %d: %+v\nby who keeps all: %t %+v %+v\nby who forgets: %t %+v %+v",
						step, r, ok, p.Refusal(), p.Quota(), also, q.Refusal(), q.Quota())
				}
				if out = append(out, held{p, q}); len(out) > 15 {
					i := random.IntN(len(out))
					out[i].a.Release()
					out[i].b.Release()
					out = slices.Delete(out, i, i+1)
				}
				if random.IntN(200) == 0 {
					next := rules()
					keeps.Replace(next...)
					forgets.Replace(next...)
					immortal(keeps)
				}
				gone += forgetAll(forgets)
			}
			if gone < 1000 {
				t.Errorf("only %d were forgotten: too few to tell", gone)
			}
			for _, h := range out {
				h.a.Release()
				h.b.Release()
			}
			forgetAll(forgets)
			if n := forgets.Stats()[1].Keys; n != 0 {
				t.Errorf("%d keys are held after all have gone", n)
			}
		})
	})

	// The entry goes after a decision has found it, and before it has the lock.
	t.Run("to who has found it", func(t *testing.T) {
		l := limiter(t,
			Rule{Name: "low", By: "low", Limit: Rate{N: 1000, Per: time.Hour}},
			Rule{Name: "high", By: "high", Limit: InFlight{N: 1}})
		r := lowAndHigh(l)
		low, high := stripeOf(l, r.Keys[0].Value), stripeOf(l, r.Keys[1].Value)
		p, _ := l.Try(r)
		p.Release()

		l.stripes[high].Lock()
		ok := false
		decided := started(func() { p, ok = l.Try(r) })
		await(t, "the decision to lock its first stripe", func() bool { return isHeld(l, low) })
		c := l.rules().named["high"]
		if n := forget(l, c, high); n != 1 {
			t.Errorf("%d entries were forgotten; want 1", n)
		}
		l.stripes[high].Unlock()
		<-decided
		if !ok {
			t.Fatalf("refused: %v", p.Refusal())
		}
		if _, ok := l.Try(r); ok {
			t.Error("two hold a slot of 1: the first took it from an entry that nobody finds")
		}
		p.Release()
		if _, ok := l.Try(r); !ok {
			t.Error("the slot has not come back")
		}
	})

	// A held entry stays, however the table around it changes: the release finds
	// it, and leaves nothing.
	t.Run("to who holds it", func(t *testing.T) {
		l := limiter(t, Rule{Name: "k", By: "k", Limit: InFlight{N: 1}, MaxKeys: 40})
		crowd(4, func(random *rand.Rand) {
			for range 1500 {
				p, ok := l.Try(keyed("k", valueIn(l, func(i uint32) bool { return i == 7 })))
				q, also := l.Try(keyed("k", strconv.Itoa(random.IntN(20))))
				if ok && random.IntN(2) == 0 {
					p.Release()
				}
				q.Release()
				if also && random.IntN(50) == 0 {
					forgetAll(l)
				}
				p.Release()
			}
		})
		forgetAll(l)
		if s := l.Stats()[0]; s.InFlight != 0 || s.Keys != 0 {
			t.Errorf("%d units and %d keys are left after all have gone", s.InFlight, s.Keys)
		}
		if n := l.rules().named["k"].ledger.seats.Load(); n != 0 {
			t.Errorf("%d places of MaxKeys have not come back", n)
		}
	})
}

// A spied limit makes meters that write down what they are asked.
type spied struct {
	Limit
	rule   string
	events *diary
}

func (s spied) meter(b *bound) meter { return &spy{s.Limit.meter(b), s.rule, s.events} }

type spy struct {
	meter
	rule   string
	events *diary
}

func (s *spy) opens(now int64, n, kept int) int64 {
	t := s.meter.opens(now, n, kept)
	if s.events.moody && t <= now && rand.IntN(8) == 0 {
		t = []int64{now + 1000, unknown, never}[rand.IntN(3)]
	}
	s.events.add(event{s, s.rule, "opens", now, n, t})
	return t
}

func (s *spy) take(now int64, n, kept int) (int, int64) {
	s.events.add(event{s, s.rule, "take", now, n, open})
	return s.meter.take(now, n, kept)
}

func (s *spy) left(now int64, kept int) (int, int64) {
	s.events.add(event{s, s.rule, "left", now, 0, open})
	return s.meter.left(now, kept)
}

func (s *spy) give(n int) int64 { return s.meter.(holder).give(n) }

// An event is one question to a meter, or an order.
type event struct {
	spy   *spy
	rule  string
	asked string
	now   int64
	n     int
	told  int64
}

// A diary has the events of one limiter, decision by decision: the first rule
// must be for all, so that its lock guards the diary too. Moody meters refuse
// now and then.
type diary struct {
	list  []event
	moody bool
}

func (d *diary) add(e event) { d.list = append(d.list, e) }

// decisions cuts the list where "all" is asked, which is first in each.
func (d *diary) decisions() (all [][]event) {
	from := 0
	for i, e := range d.list {
		if i > 0 && e.rule == "all" && e.asked == "opens" {
			all, from = append(all, d.list[from:i]), i
		}
	}
	return append(all, d.list[from:])
}

// spyOn makes a limiter whose meters are spied on.
func spyOn(t *testing.T, rules ...Rule) (*Limiter, *diary) {
	l, events := limiter(t, rules...), new(diary)
	wrap(l, func(limit Limit, rule string) Limit { return spied{limit, rule, events} })
	return l, events
}

// wrap puts other limits in place, for the meters that are yet to be made.
func wrap(l *Limiter, f func(limit Limit, rule string) Limit) {
	for _, c := range l.rules().clauses {
		c.bound.limit = f(c.bound.limit, c.rule.Name)
		if e := c.ledger.solo; e != nil {
			e.meter = c.bound.limit.meter(c.bound)
		}
	}
}

// A kept limit makes meters that are never idle, so that none is forgotten.
type kept struct{ Limit }

func (k kept) meter(b *bound) meter { return alive{k.Limit.meter(b)} }

type alive struct{ meter }

func (a alive) idles() int64     { return unknown }
func (a alive) give(n int) int64 { return a.meter.(holder).give(n) }

// immortal makes the limiter keep all that it makes from now on.
func immortal(l *Limiter) {
	wrap(l, func(limit Limit, _ string) Limit {
		if k, already := limit.(kept); already {
			return k
		}
		return kept{limit}
	})
}

// forgetAll forgets whatever is idle now.
func forgetAll(l *Limiter) (n int) {
	for i := range l.stripes {
		l.stripes[i].Lock()
		for _, c := range l.rules().clauses {
			n += forget(l, c, uint32(i))
		}
		l.stripes[i].Unlock()
	}
	return n
}

// forget is forgetAll for one stripe of one rule. Needs its lock.
func forget(l *Limiter, c *clause, i uint32) int {
	s := c.ledger.peek(i)
	if s == nil || s.table.Load() == nil {
		return 0
	}
	before := s.keys
	for range len(*s.table.Load()) {
		s.tidy(c, l.now())
	}
	return before - s.keys
}

// A past is what a rate has admitted, and says what it ought to answer:
// admissions in one slice leave with the latest of them.
type past struct {
	limit Rate
	slice int64
	log   []admit
}

// leaves is when the i-th leaves.
func (p *past) leaves(i int) int64 {
	last := p.log[i].at
	for _, a := range p.log[i:] {
		if a.at/p.slice == last/p.slice {
			last = a.at
		}
	}
	return last + int64(p.limit.Per)
}

// free is how many units are free at t, if nobody takes before.
func (p *past) free(t int64) int {
	n := p.limit.N
	for i, a := range p.log {
		if p.leaves(i) > t {
			n -= a.n
		}
	}
	return n
}

// truly is free without slices.
func (p *past) truly(t int64) int {
	n := p.limit.N
	for _, a := range p.log {
		if a.at+int64(p.limit.Per) > t {
			n -= a.n
		}
	}
	return n
}

// opens tries all instants at which something leaves.
func (p *past) opens(now int64, n int) int64 {
	if n > p.limit.N {
		return never
	}
	if p.free(now) >= n {
		return now
	}
	for i := range p.log {
		if t := p.leaves(i); p.free(t) >= n && p.free(t-1) < n && t > now {
			return t
		}
	}
	panic("nothing is for ever")
}

func (p *past) take(t *testing.T, w meter, now int64, n int) {
	p.log = append(p.log, admit{now, n})
	left, more := w.take(now, n, 0)
	p.sameLeft(t, now, left, more)
}

func (p *past) sameLeft(t *testing.T, now int64, left int, more int64) {
	t.Helper()
	want, wantMore := max(0, p.free(now)), int64(never)
	if want < p.limit.N {
		wantMore = p.opens(now, want+1)
	}
	if left != want || more != wantMore {
		t.Fatalf("%v, %v: at %d %d are left, more from %d on; want %d, %d", p.limit, p.log, now, left, more, want, wantMore)
	}
}

// compare asks the meter all there is to ask at now.
func (p *past) compare(t *testing.T, w meter, now int64) {
	t.Helper()
	costs := []int{1, 2, 3, 4, 5, 6, 7}
	if p.limit.N > exact {
		costs = []int{1, 2, p.limit.N / 4, p.limit.N / 2, p.limit.N - 1, p.limit.N, p.limit.N + 1}
	}
	for _, n := range costs {
		got, want := w.opens(now, n, 0), p.opens(now, n)
		if (got <= now) != (want <= now) || got > now && got != want {
			t.Fatalf("%v, %v: at %d opens(%d) is %d; want %d", p.limit, p.log, now, n, got, want)
		}
		for _, kept := range []int{1, 2, p.limit.N / 2, p.limit.N} { // as if it cost that much more
			want := int64(never)
			if n <= p.limit.N-kept {
				want = p.opens(now, n+kept)
			}
			if got := w.opens(now, n, kept); kept <= p.limit.N && ((got <= now) != (want <= now) || got > now && got != want) {
				t.Fatalf("%v, %v: at %d opens(%d) with %d kept is %d; want %d", p.limit, p.log, now, n, kept, got, want)
			}
		}
		if got <= now || got == never {
			continue
		}
		if p.truly(got) < n || p.truly(got-p.slice) >= n {
			t.Fatalf("%v, %v: at %d opens(%d) is %d, which is early, or late by a slice of %d", p.limit, p.log, now, n, got, p.slice)
		}
		if before := w.copy().opens(got-1, n, 0); before != got {
			t.Fatalf("%v, %v: opens(%d) is %d at %d, but %d at %d", p.limit, p.log, n, got, now, before, got-1)
		}
		if w.copy().opens(got, n, 0) > got {
			t.Fatalf("%v, %v: opens(%d) is %d at %d, and then it is not", p.limit, p.log, n, got, now)
		}
	}
	left, more := w.left(now, 0)
	p.sameLeft(t, now, left, more)
	idles := w.idles()
	if used := len(p.log) > 0 && p.leaves(len(p.log)-1) > now; (idles > now) != used || used && idles != p.leaves(len(p.log)-1) {
		t.Fatalf("%v, %v: at %d it idles from %d on", p.limit, p.log, now, idles)
	}
}

// medley is rules of which some apply to a request, the first always.
var medley = []Rule{
	{Name: "all", Limit: Rate{N: 1 << 30, Per: time.Hour}},
	{Name: "x", On: "*x*", Limit: Rate{N: 30, Per: time.Millisecond}},
	{Name: "y", On: "*y*", Limit: InFlight{N: 6}},
	{Name: "ip", By: "ip", Limit: Rate{N: 10, Per: time.Millisecond}},
	{Name: "user", On: "*x*", By: "user", Limit: InFlight{N: 3}},
	{Name: "pair", On: "*y*", By: "ip,user", Limit: Rate{N: 5, Per: 100 * time.Microsecond}},
}

// anyone is some request to medley.
func anyone(random *rand.Rand) Request {
	return Request{
		On:   []string{"", "x", "y", "xy"}[random.IntN(4)],
		Keys: []Key{{"ip", strconv.Itoa(random.IntN(20))}, {"user", strconv.Itoa(random.IntN(20))}},
		Cost: random.IntN(4),
	}
}

// lowAndHigh is a request whose first key has a lower stripe than its second.
func lowAndHigh(l *Limiter) Request {
	low := valueIn(l, func(i uint32) bool { return int(i) < len(l.stripes)-1 })
	high := valueIn(l, func(i uint32) bool { return i > stripeOf(l, low) })
	return Request{Keys: []Key{{"low", low}, {"high", high}}}
}

// slow is a request that takes milliseconds to look at: of a value that long
// the digest is kept.
func slow() Request {
	r := keyed("blob", strings.Repeat("x", 4<<20))
	r.On = "slow"
	return r
}

func keyed(by, value string) Request { return Request{Keys: []Key{{by, value}}} }

func limiter(t *testing.T, rules ...Rule) *Limiter {
	t.Helper()
	l, err := New(rules...)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// stripeOf is the stripe of a value that is a key alone.
func stripeOf(l *Limiter, value string) uint32 { return l.stripe(l.hash(keep(value))) }

// entryOf is the entry of a value, if it has one.
func entryOf(l *Limiter, c *clause, value string) *entry {
	return c.ledger.open(len(l.stripes))[stripeOf(l, value)].find(l.hash(keep(value)), value)
}

// honest reports that the hint says what the meter says. Needs the lock, or that
// nobody is there.
func honest(e *entry, now int64) bool {
	hint, t := e.opens.Load(), e.meter.opens(now, 1, 0)
	return hint == unsaid || hint <= now && t <= now || hint == t
}

// valueIn is some value that has such a stripe.
func valueIn(l *Limiter, ok func(stripe uint32) bool) string {
	for {
		if v := strconv.Itoa(rand.IntN(1 << 30)); ok(stripeOf(l, v)) {
			return v
		}
	}
}

// isHeld reports that somebody has the stripe's lock.
func isHeld(l *Limiter, i uint32) bool {
	if l.stripes[i].TryLock() {
		l.stripes[i].Unlock()
		return false
	}
	return true
}

func nothingHeld(t *testing.T, l *Limiter, from int) {
	t.Helper()
	for i := from; i < len(l.stripes); i++ {
		if isHeld(l, uint32(i)) {
			t.Errorf("stripe %d is held", i)
		}
	}
}

// inOrder has what prepare returns run into a lock, for each of the stripes that
// it needs. There it must hold all stripes below, and none above.
func inOrder(t *testing.T, l *Limiter, needs []uint32, prepare func() func()) {
	needs = slices.Clone(needs)
	slices.Sort(needs)
	needs = slices.Compact(needs)
	held := func(i uint32) bool { return isHeld(l, i) }
	for n, i := range needs {
		do := prepare()
		l.stripes[i].Lock()
		done := started(do)
		await(t, "all locks below", func() bool {
			if slices.ContainsFunc(needs[n+1:], held) {
				t.Fatalf("of the stripes %d, one above %d is held before it", needs, i)
			}
			return !slices.ContainsFunc(needs[:n], func(i uint32) bool { return !held(i) })
		})
		if slices.ContainsFunc(needs[n+1:], held) {
			t.Fatalf("of the stripes %d, one above %d is held before it", needs, i)
		}
		l.stripes[i].Unlock()
		awaitEnd(t, "who has got its last lock", done)
	}
}

// crowd runs f in many goroutines, and waits for all.
func crowd(goroutines int, f func(random *rand.Rand)) {
	var all sync.WaitGroup
	for i := range goroutines {
		all.Go(func() { f(rand.New(rand.NewPCG(uint64(i), 7))) })
	}
	all.Wait()
}

// started runs f in a goroutine, and closes done at its end.
func started(f func()) (done <-chan struct{}) {
	end := make(chan struct{})
	go func() {
		defer close(end)
		f()
	}()
	return end
}

// patience is more than any machine needs: only what is stuck exceeds it.
const patience = 10 * time.Second

func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for began := time.Now(); !ok(); time.Sleep(20 * time.Microsecond) {
		if time.Since(began) > patience {
			t.Fatalf("waited %v in vain for %s", patience, what)
		}
	}
}

func awaitEnd(t *testing.T, what string, done <-chan struct{}) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatalf("waited %v in vain for %s", patience, what)
	}
}
