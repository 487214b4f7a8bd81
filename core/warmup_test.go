package core_test

import (
	"fmt"
	"math/big"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/exactflow/exactflow/core"
)

// warmed is what a WarmUp promises, in its obvious form.
type warmed struct {
	limit core.WarmUp
	log   []admission
	begun int64
	kept  []int64 // when all that passed did so, and Per before others were told to come
}

// cold: the window has been empty for Per, and nobody was told to come in that.
func (w *warmed) cold(now int64) bool {
	return !slices.ContainsFunc(w.kept, func(at int64) bool { return at+2*int64(w.limit.Rate.Per) > now })
}

// ideal is From + ⌊(N-From)·gone/Over⌋, and N in the end.
func ideal(l core.WarmUp, gone int64) int {
	if gone >= int64(l.Over) {
		return l.Rate.N
	}
	rise := new(big.Int).Mul(big.NewInt(int64(l.Rate.N-l.From)), big.NewInt(gone))
	return l.From + int(rise.Div(rise, big.NewInt(int64(l.Over))).Int64())
}

// reaches is when a ramp begun then is at x.
func (w *warmed) reaches(begun int64, x int) int64 {
	gone, over := int64(-1), int64(w.limit.Over) // there it is not, and there it is
	for over-gone > 1 {
		if half := gone + (over-gone)/2; ideal(w.limit, half) >= x {
			over = half
		} else {
			gone = half
		}
	}
	return begun + over
}

func (w *warmed) within(now int64) (sum int) {
	for _, a := range w.log {
		if int64(a.at) > now-int64(w.limit.Rate.Per) {
			sum += a.cost
		}
	}
	return sum
}

// when tries all instants at which something changes for n.
func (w *warmed) when(now int64, n int) int64 {
	if n > w.limit.Rate.N {
		return never
	}
	cold, begun := w.cold(now), w.begun
	if cold {
		if n <= w.limit.From {
			return now
		}
		begun = now
	}
	at := []int64{now}
	for _, a := range w.log {
		at = append(at, int64(a.at)+int64(w.limit.Rate.Per))
	}
	for _, t := range slices.Clone(at) {
		if x := n + w.within(t); x <= w.limit.Rate.N {
			at = append(at, w.reaches(begun, x))
		}
	}
	slices.Sort(at)
	for _, t := range at {
		if t >= now && n <= ideal(w.limit, t-begun)-w.within(t) {
			return t
		}
	}
	panic("n fits when the ramp is over and the window empty")
}

func (w *warmed) admit(now int64, n int) {
	if w.cold(now) {
		w.begun = now
	}
	w.log = append(w.log, admission{time.Duration(now), n})
	w.kept = append(w.kept, now)
}

func (w *warmed) told(now, at int64, n int) {
	if n <= w.limit.From {
		return
	}
	if w.cold(now) {
		w.begun = now
	}
	w.kept = append(w.kept, at-int64(w.limit.Rate.Per))
}

func (w *warmed) change(now int64, to core.Limit) {
	gone := now - int64(w.limit.Rate.Per)
	w.log = slices.DeleteFunc(w.log, func(a admission) bool { return int64(a.at) <= gone })
	w.kept = slices.DeleteFunc(w.kept, func(at int64) bool { return at <= gone })
	w.limit = to.(core.WarmUp)
}

func (w *warmed) forget()             { w.log = nil }
func (w *warmed) bound() (int, int64) { return w.limit.Rate.N, int64(w.limit.Rate.Per) }

func warm(n int, per time.Duration, from int, over time.Duration) core.WarmUp {
	return core.WarmUp{Rate: core.Rate{N: n, Per: per}, From: from, Over: over}
}

var warmUps = []core.Limit{
	warm(10, time.Second, 2, 10*time.Second), warm(5, time.Second, 2, 10*time.Second), warm(10, time.Second, 2, 10*time.Second),
	warm(100, time.Second, 1, time.Minute), warm(20, time.Second, 20, time.Second), warm(20, time.Second, 3, time.Nanosecond),
	warm(10, time.Minute, 1, time.Second), warm(7, 3, 2, 50), warm(40, 1000, 1, 333), warm(1, time.Hour, 1, time.Hour),
	warm(0, time.Second, 0, 0), warm(4096, time.Second, 10, 30*time.Second), warm(3, 30*time.Second, 1, 24*time.Hour),
}

func newWarmed(l core.Limit) sole { return &warmed{limit: l.(core.WarmUp)} }

func TestWarmUpsAreThoseOfTheModel(t *testing.T) { playDuets(t, 300, warmUps, newWarmed) }

func FuzzWarmUp(f *testing.F) { fuzzDuets(f, warmUps, newWarmed) }

// The curve: more is asked for than passes, all the time. What passes in each
// second is what the ideal line says at its end, within one.
func TestUnderDemandAWarmUpFollowsItsLine(t *testing.T) {
	for _, limit := range []core.WarmUp{
		warm(100, time.Second, 10, 30*time.Second), warm(1000, time.Second, 1, 10*time.Second), warm(7, time.Second, 3, 9*time.Second),
		warm(50, time.Second, 50, time.Second), warm(3000, time.Second, 300, 3*time.Second), warm(60, time.Minute, 2, time.Hour),
	} {
		synctest.Test(t, func(t *testing.T) {
			l := limiterOf(t, core.Rule{Name: "rule", Limit: limit})
			begun := time.Now()
			per := limit.Rate.Per
			log := demand(t, l, begun, limit.Over+3*per)
			n, from := float64(limit.Rate.N), float64(limit.From)
			for end := per; end <= limit.Over+3*per; end += per {
				passed := 0
				for _, a := range log {
					if a.at > end-per && a.at <= end {
						passed += a.cost
					}
				}
				line := min(n, from+(n-from)*float64(end)/float64(limit.Over))
				if float64(passed) > line || float64(passed) < line-1 {
					t.Errorf("%v: %d pass until %v; want %.2f", limit, passed, end, line)
				}
			}
		})
	}
}

// demand asks for all that can pass until the end, and says what did.
func demand(t *testing.T, l *core.Limiter, begun time.Time, end time.Duration) (log []admission) {
	for {
		for passes(l, core.Request{}, 1) > 0 {
			log = append(log, admission{time.Since(begun), 1})
		}
		d := refused(t, l, core.Request{}).RetryAfter
		if time.Since(begun)+d > end {
			return log
		}
		time.Sleep(d)
	}
}

// At no instant is more in the window than the ramp lets, whatever came before. The
// history is enough to tell: a ramp begins when nothing passed in 2·Per before.
func TestAWarmUpNeverHasMoreThanItsRamp(t *testing.T) {
	random := rand.New(rand.NewPCG(9, 10))
	full := 0
	for range 1000 / slower {
		synctest.Test(t, func(t *testing.T) {
			n := 1 + random.IntN(60)
			limit := warm(n, time.Second, 1+random.IntN(n), time.Duration(1+random.Int64N(int64(20*time.Second))))
			if random.IntN(20) == 0 {
				limit.Rate.N = 5000 // in slices
			}
			l := limiterOf(t, core.Rule{Name: "rule", Limit: limit})
			start := time.Now()
			var log []admission
			var begun time.Duration
			for range 300 {
				cost := 1 + random.IntN(min(limit.From, 1+random.IntN(5))) // none starts the ramp without passing
				p, ok := l.Try(core.Request{Cost: cost})
				if !ok {
					switch d := p.Refusal().RetryAfter; random.IntN(10) {
					case 0:
						time.Sleep(time.Duration(random.Int64N(int64(limit.Rate.Per) * 5 / 2)))
					case 1:
						time.Sleep(d / 2)
					default:
						time.Sleep(d)
					}
					continue
				}
				now := time.Since(start)
				if len(log) == 0 || log[len(log)-1].at <= now-2*limit.Rate.Per {
					begun = now
				}
				log = append(log, admission{now, cost})
				sum := 0
				for _, a := range log {
					if a.at > now-limit.Rate.Per {
						sum += a.cost
					}
				}
				most := ideal(limit, int64(now-begun))
				if sum > most {
					t.Fatalf("%v: at %v, begun at %v, %d are in the window; want at most %d", limit, now, begun, sum, most)
				}
				if sum == most && now > begun {
					full++
				}
			}
		})
	}
	t.Logf("%d times all that the ramp lets was used", full)
	if full < 1000/slower {
		t.Error("this proves little")
	}
}

// A request that costs more than From and comes alone starts the ramp, comes back
// when it was told, and passes then; also a millisecond late, but not if it lets a
// whole window go by. Also where its key is new, and behind other rules.
func TestALoneRequestAboveFromStartsTheRamp(t *testing.T) {
	limit := warm(100, time.Second, 10, 9*time.Second)
	other := core.Rule{Name: "other", By: "ip", Limit: core.Rate{N: 1000, Per: time.Second}}
	for _, rules := range [][]core.Rule{
		{{Name: "rule", Limit: limit}},
		{{Name: "rule", By: "key", Limit: limit}},
		{other, {Name: "rule", By: "key", Limit: limit}},
		{{Name: "rule", By: "key", Limit: limit, MaxKeys: 1}, other},
		{{Name: "rule", By: "key", Limit: core.Unlimited{}, For: map[string]core.Limit{"a": limit}}},
		{{Name: "rule", By: "key", Limit: core.Rate{N: 1000, Per: time.Second}}, {Name: "shadow", By: "key", Limit: limit, Shadow: true},
			{Name: "z", By: "key", Limit: limit}},
	} {
		for _, late := range []time.Duration{0, time.Millisecond, 999 * time.Millisecond, time.Second} {
			synctest.Test(t, func(t *testing.T) {
				l := limiterOf(t, rules...)
				r := of("key", "a")
				r.Cost = 50
				f := refused(t, l, r)
				if f.Reason != core.ReasonRate || !f.Known || f.RetryAfter != 4*time.Second {
					t.Fatalf("%+v", f)
				}
				time.Sleep(f.RetryAfter + late)
				_, ok := l.Try(r)
				if ok != (late < time.Second) {
					t.Errorf("%v late: %v", late, ok)
				}
				if s := l.Stats(); ok && rules[len(rules)-1].Name == "z" && s[1].Admitted != 1 {
					t.Errorf("the shadow: %+v", s[1])
				}
			})
		}
	}
}

// Cold again: when the window has been empty for Per, not a moment before. One at a
// time is enough to become warm, and to stay so.
func TestAWarmUpIsColdWhenItsWindowHasBeenEmptyForPer(t *testing.T) {
	for _, pause := range []time.Duration{2*time.Second - 1, 2 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			l := limiterOf(t, core.Rule{Name: "rule", Limit: warm(100, time.Second, 10, 10*time.Second)})
			begun := time.Now()
			for time.Since(begun) < 20*time.Second {
				if passes(l, core.Request{}, 1) != 1 {
					t.Fatal("refused")
				}
				time.Sleep(2*time.Second - 1)
			}
			passes(l, core.Request{}, 1)
			time.Sleep(pause)
			want := 10
			if pause < 2*time.Second {
				want = 100
			}
			if n := passes(l, core.Request{}, 200); n != want {
				t.Errorf("%d pass after %v; want %d", n, pause, want)
			}
		})
	}
}

// With a queue, who waits passes along the line; and a large request in it keeps
// the ramp going, though nobody else comes.
func TestAQueueBeforeAWarmUpLeavesAlongItsLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limit := warm(20, time.Second, 1, 19*time.Second)
		l := limiterOf(t, core.Rule{Name: "rule", Limit: limit, Queue: core.Queue{Len: 500, Wait: time.Minute}})
		begun := time.Now()
		var mu sync.Mutex
		var log []admission
		var all sync.WaitGroup
		ask := func(cost int) {
			all.Go(func() {
				if _, err := l.Wait(t.Context(), core.Request{Cost: cost}); err != nil {
					t.Error(err)
				}
				mu.Lock()
				log = append(log, admission{time.Since(begun), cost})
				mu.Unlock()
			})
			synctest.Wait()
		}
		ask(10)
		for range 200 {
			ask(1)
		}
		all.Wait()
		if log[0] != (admission{9 * time.Second, 10}) {
			t.Errorf("the first passes at %v; want that of 10, when the ramp is there", log[0])
		}
		// Each passes as soon as the line lets it: before, there was no room.
		model := &warmed{limit: limit}
		at := model.when(0, 10)
		model.told(0, at, 10)
		for i, a := range log {
			if i > 0 {
				at = model.when(at, a.cost)
			}
			if int64(a.at) != at {
				t.Fatalf("number %d passes at %v; want %v", i, a.at, time.Duration(at))
			}
			model.admit(at, a.cost)
		}
	})
}

// Who cannot pass in time is told at once: the line is counted by the ramp as it
// will be, and nobody is turned away who would have passed.
func TestWhoCannotWarmUpInTimeIsRefusedAtOnce(t *testing.T) {
	random := rand.New(rand.NewPCG(11, 12))
	atOnce, inTime := 0, 0
	for range 200 / slower {
		synctest.Test(t, func(t *testing.T) {
			n := 2 + random.IntN(30)
			limit := warm(n, time.Second, 1+random.IntN(n), time.Duration(1+random.Int64N(int64(20*time.Second))))
			wait := time.Duration(1 + random.Int64N(int64(10*time.Second)))
			l := limiterOf(t, core.Rule{Name: "rule", Limit: limit, Queue: core.Queue{Len: 1000, Wait: wait}})
			model := &warmed{limit: limit} // to which all come that came
			start := time.Now()
			for range random.IntN(20) {
				now, cost := int64(time.Since(start)), 1+random.IntN(n)
				if at := model.when(now, cost); at > now {
					model.told(now, at, cost)
				} else {
					model.admit(now, cost)
				}
				l.Try(core.Request{Cost: cost})
				time.Sleep(time.Duration(random.Int64N(int64(time.Second))))
			}
			begun := time.Now()
			begins := int64(begun.Sub(start))
			before := len(model.log)
			at := begins
			for range 150 {
				due := model.when(at, 1)
				var turned atomic.Bool
				go func() {
					_, err := l.Wait(t.Context(), core.Request{})
					turned.Store(err == core.ErrRefused && time.Since(begun) == 0)
				}()
				synctest.Wait()
				refused := turned.Load()
				if refused && due <= begins+int64(wait) {
					t.Errorf("%v, %v: refused, but would have passed at %v", limit, wait, time.Duration(due))
				}
				if refused {
					atOnce++
					continue
				}
				if due > begins+int64(wait) {
					continue // let in too kindly
				}
				at = due
				model.admit(at, 1)
			}
			time.Sleep(wait)
			synctest.Wait()
			inTime += len(model.log) - before
			if s := statOf(t, l, "rule"); int(s.Admitted) != len(model.log) || s.Waiting != 0 {
				t.Errorf("%v: %+v; want %d admitted", limit, s, len(model.log))
			}
		})
	}
	t.Logf("%d refused at once, %d passed in time", atOnce, inTime)
	if min(atOnce, inTime) < 2000/slower {
		t.Error("too few to tell")
	}
}

// Replace leaves the ramp where it is in time.
func TestReplacingAWarmUpKeepsItsRamp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rule := func(n, from int, over time.Duration) core.Rule {
			return core.Rule{Name: "rule", Limit: warm(n, time.Second, from, over)}
		}
		l := limiterOf(t, rule(100, 10, 10*time.Second))
		begun := time.Now()
		demand(t, l, begun, 5*time.Second)
		for _, c := range []struct {
			rule core.Rule
			want int // how many may be in the window after 5 seconds
		}{
			{rule(100, 10, 10*time.Second), 55},
			{rule(200, 10, 10*time.Second), 105},
			{rule(100, 10, 20*time.Second), 32},
			{rule(300, 10, 5*time.Second), 300},
			{rule(100, 10, 10*time.Second), 55},
		} {
			replace(t, l, c.rule)
			largest := core.Request{Cost: max(1, c.want-55+1)}
			if p, ok := l.Try(largest); ok {
				t.Errorf("%v: %d more pass", c.rule.Limit, largest.Cost)
			} else if q := p.Quota(); q.Remaining != max(0, c.want-55) {
				t.Errorf("%v: %+v; want %d", c.rule.Limit, q, max(0, c.want-55))
			}
		}
	})
}

// A pardon is no punishment: what was warm stays so.
func TestForgettingLeavesAWarmUpWarm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, core.Rule{Name: "rule", Limit: warm(100, time.Second, 10, 10*time.Second)})
		demand(t, l, time.Now(), 10*time.Second)
		if err := l.Forget("rule"); err != nil {
			t.Fatal(err)
		}
		if n := passes(l, core.Request{}, 200); n != 100 {
			t.Errorf("%d pass; want 100", n)
		}
	})
}

// Keys beyond MaxKeys share a ramp, and stay under it when they leave.
func TestKeysBeyondMaxKeysShareRamps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limit := warm(12, time.Second, 3, 5*time.Second)
		l := limiterOf(t, core.Rule{Name: "rule", By: "key", Limit: limit, MaxKeys: 2})
		random := rand.New(rand.NewPCG(13, 14))
		logs := map[string][]admission{}
		begun := time.Now()
		for i := range 40_000 {
			key := fmt.Sprint((i/1000 + random.IntN(3)) % 5) // two at a time have a rest, and leave their place
			cost := max(1, random.IntN(8)-3)
			p, ok := l.Try(core.Request{Keys: []core.Key{{By: "key", Value: key}}, Cost: cost})
			if ok {
				logs[key] = append(logs[key], admission{time.Since(begun), cost})
			} else if random.IntN(3) == 0 {
				time.Sleep(p.Refusal().RetryAfter / time.Duration(1+random.IntN(3)))
			}
		}
		for key, log := range logs {
			if most := mostIn(limit.Rate.Per, log); most > limit.Rate.N || most < limit.Rate.N/2 {
				t.Errorf("key %s: %d in a stretch", key, most)
			}
		}
		if s := statOf(t, l, "rule"); s.Overflowed < 1000 || s.Admitted < 1000 {
			t.Errorf("%+v: this proves nothing", s)
		}

		// No place is lost.
		time.Sleep(time.Minute)
		before := statOf(t, l, "rule").Overflowed
		if n := passes(l, of("key", "0"), 1) + passes(l, of("key", "1"), 1); n != 2 || statOf(t, l, "rule").Overflowed != before {
			t.Errorf("%d pass, %d in overflow", n, statOf(t, l, "rule").Overflowed-before)
		}
	})
}

func TestAWrongWarmUpIsAnError(t *testing.T) {
	for _, wrong := range []core.Limit{
		warm(-1, time.Second, 1, time.Second), warm(10, 0, 1, time.Second), warm(10, time.Second, 0, time.Second),
		warm(10, time.Second, -1, time.Second), warm(10, time.Second, 11, time.Second), warm(10, time.Second, 1, 0), warm(10, time.Second, 1, -1),
	} {
		if _, err := core.New(core.Rule{Name: "rule", Limit: wrong}); err == nil {
			t.Errorf("%v makes a limiter", wrong)
		}
		if _, err := core.New(core.Rule{Name: "rule", By: "key", Limit: core.Rate{N: 1, Per: 1}, For: map[string]core.Limit{"a": wrong}}); err == nil {
			t.Errorf("%v makes a limiter", wrong)
		}
	}
	l := limiterOf(t, core.Rule{Name: "rule", By: "key", Limit: warm(5, time.Second, 1, time.Second),
		For: map[string]core.Limit{"blocked": core.InFlight{}, "too": warm(0, 1, 0, 0)}})
	for _, key := range []string{"blocked", "too"} {
		if f := refused(t, l, of("key", key)); f.Reason != core.ReasonNever {
			t.Errorf("%+v", f)
		}
	}
	replace(t, l, core.Rule{Name: "rule", By: "key", Limit: warm(5, time.Second, 1, time.Second),
		For: map[string]core.Limit{"blocked": warm(5, time.Hour, 2, time.Hour), "mixed": core.Unlimited{}}})
	if n := passes(l, of("key", "blocked"), 10); n != 2 {
		t.Errorf("%d pass; want 2", n)
	}
}

// What was Unlimited starts cold.
func TestAKeyThatWasUnlimitedIsCold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limit := warm(100, time.Minute, 10, time.Second)
		rule := core.Rule{Name: "rule", By: "key", Limit: core.Unlimited{}, For: map[string]core.Limit{"a": limit}}
		l := limiterOf(t, rule)
		hold(t, l, of("key", "a"))
		rule.For = nil
		rule.For = map[string]core.Limit{"b": limit}
		replace(t, l, rule)
		time.Sleep(time.Second)
		rule.For = map[string]core.Limit{"a": limit}
		replace(t, l, rule)
		if n := passes(l, of("key", "a"), 200); n != 10 {
			t.Errorf("%d pass; want 10: it is cold", n)
		}
	})
}
