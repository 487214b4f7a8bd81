package core_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/exactflow/exactflow/core"
)

// climbing is a pace that warms up.
func climbing(n int, per time.Duration, from int, over time.Duration) core.Pace {
	return core.Pace{N: n, Per: per, From: from, Over: over}
}

// lineAt is L at so long after the first request, in plain arithmetic.
func lineAt(p core.Pace, gone time.Duration) float64 {
	return min(float64(p.N), float64(p.From)+float64(p.N-p.From)*float64(gone)/float64(p.Over))
}

// Whatever comes, and however: at no instant are more than L in the window, and no
// request of 1 is nearer to the one before than the gap of L, but for the slack. The
// history is enough to tell: costs here are at most From, so that a ramp begins with
// one that passes, when none did in 2·Per before.
func TestAPaceThatClimbsNeverHasMoreThanItsLine(t *testing.T) {
	random := rand.New(rand.NewPCG(41, 42))
	full, gaps, begins := 0, 0, 0
	for range 1500 / slower {
		synctest.Test(t, func(t *testing.T) {
			n := 1 + random.IntN(60)
			limit := climbing(n, time.Second, 1+random.IntN(n), time.Duration(1+random.Int64N(int64(20*time.Second))))
			l := limiterOf(t, core.Rule{Name: "rule", Limit: limit})
			start := time.Now()
			var log []admission
			var begun time.Duration
			for range 300 {
				cost := 1 + random.IntN(min(limit.From, 1+random.IntN(3)))
				p, ok := l.Try(core.Request{Cost: cost})
				if !ok {
					switch d := p.Refusal().RetryAfter; random.IntN(12) {
					case 0:
						time.Sleep(time.Duration(random.Int64N(int64(limit.Per) * 5 / 2)))
					case 1:
						time.Sleep(d / 2)
					case 2:
						time.Sleep(d + time.Duration(random.Int64N(int64(4*ms))))
					default:
						time.Sleep(d)
					}
					continue
				}
				now := time.Since(start)
				if len(log) == 0 || log[len(log)-1].at <= now-2*limit.Per {
					begun = now
					begins++
				} else if last := log[len(log)-1]; true {
					size := lineAt(limit, now-begun)
					need := min(float64(limit.Per), float64(max(cost, last.cost))*float64(limit.Per)/(size+1-float64(max(cost, last.cost))))
					if float64(now-last.at) < need-float64(slackOf(limit))-1 {
						t.Fatalf("%v: %d pass %v after %d, at L = %.2f", limit, cost, now-last.at, last.cost, size)
					} else if float64(now-last.at) < need*1.01+float64(slackOf(limit)) {
						gaps++
					}
				}
				log = append(log, admission{now, cost})
				sum := 0
				for _, a := range log {
					if a.at > now-limit.Per {
						sum += a.cost
					}
				}
				line := lineAt(limit, now-begun)
				if float64(sum) > line+1e-6 {
					t.Fatalf("%v: at %v, begun at %v, %d are in the window; want %.2f at most", limit, now, begun, sum, line)
				}
				if float64(sum) > line-2 {
					full++
				}
			}
		})
	}
	t.Logf("%d times about all of the line was used, %d gaps were the least, %d ramps began", full, gaps, begins)
	if min(full, gaps, begins) < 3000/slower {
		t.Error("this proves little")
	}
}

// The curve: more is asked for than passes, all the time, with a queue and without.
// What passes in each window is the mean of L over it, within one, but for the slack
// that a pace always has, 1/257 of it at most; and no more than L at its end.
func TestUnderDemandAPaceFollowsItsLine(t *testing.T) {
	for _, limit := range []core.Pace{
		climbing(100, time.Second, 10, 30*time.Second), climbing(20, time.Second, 1, 10*time.Second), climbing(7, time.Second, 3, 9*time.Second),
		climbing(50, time.Second, 50, time.Second), climbing(60, time.Minute, 2, time.Hour), climbing(200, time.Second, 20, 9*time.Second),
	} {
		for _, queue := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				end := limit.Over + 3*limit.Per
				rule := core.Rule{Name: "rule", Limit: limit}
				var log []admission
				begun := time.Now()
				if queue {
					rule.Queue = core.Queue{Len: 100_000, Wait: 10 * end}
					l := limiterOf(t, rule)
					var mu sync.Mutex
					var all sync.WaitGroup
					for range int(float64(limit.N)*float64(end)/float64(limit.Per)) + 1 {
						all.Go(func() {
							if _, err := l.Wait(t.Context(), core.Request{}); err != nil {
								t.Error(err)
							}
							mu.Lock()
							log = append(log, admission{time.Since(begun), 1})
							mu.Unlock()
						})
					}
					all.Wait()
				} else {
					log = demand(t, limiterOf(t, rule), begun, end)
				}
				slack := float64(limit.Per) / (float64(limit.Per) + float64(slackOf(limit)))
				for at := limit.Per; at <= end; at += limit.Per {
					passed := 0
					for _, a := range log {
						if a.at > at-limit.Per && a.at <= at {
							passed++
						}
					}
					middle := 0.0 // what L lets pass in the window, if that could be parts of requests
					for i := range 1000 {
						middle += math.Floor(lineAt(limit, at-limit.Per+time.Duration(i)*limit.Per/1000)) / 1000
					}
					middle *= slack
					if math.Abs(float64(passed)-middle) > 1 || float64(passed) > lineAt(limit, at) {
						t.Errorf("%v, queue %v: %d pass until %v; want %.2f", limit, queue, passed, at, middle)
					}
				}
			})
		}
	}
}

// Cold again 2·Per after the last that passed, not a moment before. One at a time is
// enough to stay warm.
func TestAPaceThatClimbsIsColdWhenItsWindowHasBeenEmptyForPer(t *testing.T) {
	limit := climbing(100, time.Second, 10, 10*time.Second)
	for _, pause := range []time.Duration{2*time.Second - 1, 2 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			l := limiterOf(t, core.Rule{Name: "rule", Limit: limit})
			begun := time.Now()
			for time.Since(begun) < 20*time.Second {
				hold(t, l, core.Request{})
				time.Sleep(2*time.Second - 1)
			}
			hold(t, l, core.Request{})
			refused(t, l, core.Request{}) // costs less than From: who is refused keeps nothing warm
			time.Sleep(pause)
			under := core.Pace{N: 10, Per: limit.Per}
			if pause < 2*time.Second {
				under.N = 100
			}
			hold(t, l, core.Request{})
			if f := refused(t, l, core.Request{}); int64(f.RetryAfter) > gapOf(under, 1)-slackOf(limit) || int64(f.RetryAfter) < gapOf(under, 1)*9/10-slackOf(limit) {
				t.Errorf("after %v the next passes in %v; want the gap of %d", pause, f.RetryAfter, under.N)
			}
		})
	}
}

// A request above From that comes alone starts the ramp, is told when that will be
// there, and passes then; also late, but not if it lets a whole window go by. Also
// where its key is new, and behind others.
func TestALoneRequestAboveFromStartsTheClimb(t *testing.T) {
	limit := climbing(100, time.Second, 10, 9*time.Second)
	other := core.Rule{Name: "other", By: "ip", Limit: core.Rate{N: 1000, Per: time.Second}}
	for _, rules := range [][]core.Rule{
		{{Name: "rule", Limit: limit}},
		{{Name: "rule", By: "key", Limit: limit}},
		{other, {Name: "rule", By: "key", Limit: limit, MaxKeys: 1}},
		{{Name: "rule", By: "key", Limit: core.Unlimited{}, For: map[string]core.Limit{"a": limit}}},
	} {
		for _, late := range []time.Duration{0, ms, time.Second - 1, time.Second} {
			synctest.Test(t, func(t *testing.T) {
				l := limiterOf(t, rules...)
				r := of("key", "a")
				r.Cost = 50
				f := refused(t, l, r)
				if f.Reason != core.ReasonRate || !f.Known || f.RetryAfter != 4*time.Second {
					t.Fatalf("%+v", f)
				}
				time.Sleep(f.RetryAfter - 1)
				if f := refused(t, l, r); f.RetryAfter != 1 {
					t.Fatalf("%+v; want 1ns", f)
				}
				time.Sleep(1 + late)
				if _, ok := l.Try(r); ok != (late < time.Second) {
					t.Errorf("%v late: %v", late, ok)
				}
			})
		}
	}
	// And nothing that is more than N.
	l := limiterOf(t, core.Rule{Name: "rule", Limit: limit})
	if f := refused(t, l, core.Request{Cost: 101}); f.Reason != core.ReasonNever {
		t.Errorf("%+v", f)
	}
	hold(t, l, core.Request{Cost: 10}) // it is cold still, and From is open
}

// Wait exactly as long as told, ask again, pass; a nanosecond before, be refused: at
// all heights of the ramp, with costs of all sizes.
func TestAPaceThatClimbsTellsExactlyWhen(t *testing.T) {
	random := rand.New(rand.NewPCG(43, 44))
	told := 0
	for range 500 / slower {
		synctest.Test(t, func(t *testing.T) {
			n := 1 + random.IntN(100)
			limit := climbing(n, []time.Duration{time.Second, time.Hour, 1000, 7}[random.IntN(4)], 1+random.IntN(n), time.Duration(1+random.Int64N(int64(20*time.Second))))
			l := limiterOf(t, core.Rule{Name: "rule", By: "key", Limit: limit})
			for range 60 {
				r := of("key", "a")
				r.Cost = 1 + random.IntN(1+random.IntN(n))
				p, ok := l.Try(r)
				if ok {
					if q := p.Quota(); q.Remaining < n && q.Reset > 0 {
						r.Cost = q.Remaining + 1
						if f := refused(t, l, r); f.RetryAfter != q.Reset {
							t.Fatalf("%v: %+v, then %+v", limit, q, f)
						}
					}
					continue
				}
				f := p.Refusal()
				if f.RetryAfter > 1 {
					time.Sleep(f.RetryAfter - 1)
					if f := refused(t, l, r); f.RetryAfter != 1 {
						t.Fatalf("%v: %d is told %+v; want 1ns", limit, r.Cost, f)
					}
					time.Sleep(1 * time.Nanosecond)
				} else {
					time.Sleep(f.RetryAfter)
				}
				hold(t, l, r)
				told++
			}
		})
	}
	if told < 5000/slower {
		t.Errorf("%d came back: this proves little", told)
	}
}

// With a queue who is large keeps the ramp going, and the others pass behind it, as
// the model of decisions says: each as soon as there is room for it.
func TestAQueueBeforeAPaceThatClimbsLeavesAlongItsLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limit := climbing(20, time.Second, 1, 19*time.Second)
		rule := core.Rule{Name: "rule", Limit: limit}
		m := newModel(rule)
		rule.Queue = core.Queue{Len: 500, Wait: 2 * time.Minute}
		l := limiterOf(t, rule)
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
		for i := range 200 {
			ask(1 + i%2)
		}
		all.Wait()
		if log[0] != (admission{9 * time.Second, 10}) {
			t.Errorf("the first passes at %v; want that of 10, when the ramp is there", log[0])
		}
		at := int64(0)
		for i, a := range log {
			r := core.Request{Cost: a.cost}
			for {
				said, _ := m.try(at, r)
				if said.ok {
					break
				}
				at += int64(said.refusal.RetryAfter)
			}
			if int64(a.at) != at {
				t.Fatalf("number %d passes at %v; want %v", i, a.at, time.Duration(at))
			}
		}
	})
}

// Who would pass too late is told at once, and nobody is turned away who would have
// passed: the line is counted by the ramp as it will be.
func TestWhoCannotClimbInTimeIsRefusedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, core.Rule{Name: "rule", Limit: climbing(100, time.Second, 10, 90*time.Second), Queue: core.Queue{Len: 10, Wait: 5 * time.Second}})
		want(t, "queue_timeout at 0s", arrive(t.Context(), l, core.Request{Cost: 16})) // L is 15 at 5 s
		want(t, "never at 0s", arrive(t.Context(), l, core.Request{Cost: 101}))
		a := arrive(t.Context(), l, core.Request{Cost: 15})
		time.Sleep(10 * time.Second)
		want(t, "passed at 5s", a)
	})
	random := rand.New(rand.NewPCG(45, 46))
	atOnce, inTime := 0, 0
	for range 200 / slower {
		synctest.Test(t, func(t *testing.T) {
			n := 2 + random.IntN(30)
			rule := core.Rule{Name: "rule", Limit: climbing(n, time.Second, 1+random.IntN(n), time.Duration(1+random.Int64N(int64(20*time.Second))))}
			m := newModel(rule) // to which those that wait come when it opens
			wait := time.Duration(1 + random.Int64N(int64(10*time.Second)))
			rule.Queue = core.Queue{Len: 1000, Wait: wait}
			l := limiterOf(t, rule)
			start := time.Now()
			for range random.IntN(20) {
				r := core.Request{Cost: 1 + random.IntN(n)}
				m.try(int64(time.Since(start)), r)
				l.Try(r)
				time.Sleep(time.Duration(random.Int64N(int64(time.Second))))
			}
			begun := time.Since(start)
			due, passed := begun, 0
			for range 150 {
				enforcing, _ := m.look(int64(due), core.Request{})
				next := time.Duration(enforcing[0].opens)
				a := arrive(t.Context(), l, core.Request{})
				switch refused := a.String() == fmt.Sprintf("queue_timeout at %v", begun); {
				case refused && next <= begun+wait:
					t.Errorf("%v, %v: refused, but would have passed at %v", rule.Limit, wait, next)
				case refused:
					atOnce++
				case next <= begun+wait: // else it was let in too kindly
					due = next
					m.try(int64(due), core.Request{})
					passed++
				}
			}
			before := statOf(t, l, "rule").Admitted
			time.Sleep(wait)
			synctest.Wait()
			inTime += passed
			if s := statOf(t, l, "rule"); s.Admitted != m.stats()[0].Admitted || s.Waiting != 0 {
				t.Errorf("%v: %+v, %d before the wait; want %d admitted", rule.Limit, s, before, m.stats()[0].Admitted)
			}
		})
	}
	t.Logf("%d refused at once, %d passed in time", atOnce, inTime)
	if min(atOnce, inTime) < 2000/slower {
		t.Error("too few to tell")
	}
}

// A reload leaves the ramp where it is in time; one that takes it away makes the
// pace N at once, and one that brings it begins at From.
func TestReplacingAPaceKeepsBringsAndTakesAwayItsRamp(t *testing.T) {
	rule := func(l core.Pace) core.Rule { return core.Rule{Name: "rule", Limit: l} }
	gapIs := func(t *testing.T, l *core.Limiter, under core.Pace) {
		t.Helper()
		time.Sleep(1500 * ms) // whoever comes is late
		hold(t, l, core.Request{})
		if got, want := refused(t, l, core.Request{}).RetryAfter, time.Duration(gapOf(under, 1)-slackOf(under)); got != want {
			t.Errorf("the next passes in %v; want %v, the gap of %d", got, want, under.N)
		}
	}
	flat := func(n int) core.Pace { return core.Pace{N: n, Per: time.Second} }
	slow := climbing(100, time.Second, 10, 100_000*time.Second) // so slow that it stands still here
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, rule(slow))
		gapIs(t, l, flat(10))
		replace(t, l, rule(flat(100)))
		gapIs(t, l, flat(100))
		replace(t, l, rule(slow))
		gapIs(t, l, flat(10))
		replace(t, l, rule(climbing(50, time.Second, 20, 100_000*time.Second)))
		gapIs(t, l, flat(20))
	})
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, rule(climbing(100, time.Second, 10, 9*time.Second)))
		for range 5 { // to 6 s
			hold(t, l, core.Request{})
			time.Sleep(1500 * ms)
		}
		for _, c := range []struct {
			limit core.Pace
			want  int // L at 7.5 s
		}{{climbing(100, time.Second, 10, 9*time.Second), 85}, {climbing(200, time.Second, 50, 10*time.Second), 162},
			{climbing(100, time.Second, 10, 7*time.Second), 100}, {climbing(100, time.Second, 10, 9*time.Second), 85}} {
			replace(t, l, rule(c.limit))
			if p, ok := l.Try(core.Request{Cost: c.want + 1}); ok || c.want == 100 != (p.Refusal().Reason == core.ReasonNever) || p.Quota().Remaining != c.want {
				t.Errorf("%v: a cost of %d: %v, %+v, %+v", c.limit, c.want+1, ok, p.Refusal(), p.Quota())
			}
		}
		hold(t, l, core.Request{Cost: 85})
	})
}

// The other way: a pace that warms up is one kind with a pace, not with a warm-up.
func TestAPaceThatClimbsIsAPace(t *testing.T) {
	l := limiterOf(t, core.Rule{Name: "rule", By: "key", Limit: core.Pace{N: 10, Per: time.Hour},
		For: map[string]core.Limit{"new": climbing(10, time.Hour, 2, time.Hour), "none": climbing(0, time.Hour, 0, 0)}})
	if n := passes(l, of("key", "new"), 5); n != 1 {
		t.Errorf("%d pass", n)
	}
	if f := refused(t, l, of("key", "none")); f.Reason != core.ReasonNever {
		t.Errorf("%+v", f)
	}
	if err := wrongOf(t, core.Rule{Name: "rule", By: "key", Limit: climbing(10, time.Hour, 2, time.Hour),
		For: map[string]core.Limit{"a": warm(10, time.Hour, 2, time.Hour)}}); err == nil || !strings.Contains(err.Error(), "pace") {
		t.Errorf("%v; want an error that names the kind", err)
	}
}

// Forget is a pardon: the next may pass at once, and what is warm stays so.
func TestForgettingLeavesAPaceWarm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, core.Rule{Name: "rule", Limit: climbing(100, time.Second, 10, 10*time.Second)})
		demand(t, l, time.Now(), 10*time.Second)
		sleepUntil(t, 10*time.Second)
		if err := l.Forget("rule"); err != nil {
			t.Fatal(err)
		}
		hold(t, l, core.Request{Cost: 100})
	})
}

// Large numbers do not overflow, and small ones do not vanish.
func TestAPaceThatClimbsOfAnySize(t *testing.T) {
	for _, limit := range []core.Pace{
		climbing(math.MaxInt, time.Second, 1, time.Hour), climbing(math.MaxInt, math.MaxInt64/2, math.MaxInt-1, math.MaxInt64),
		climbing(2, math.MaxInt64, 1, math.MaxInt64), climbing(1_000_000_000, 1, 1, 1), climbing(3, 1, 1, math.MaxInt64),
	} {
		synctest.Test(t, func(t *testing.T) {
			l := limiterOf(t, core.Rule{Name: "rule", Limit: limit})
			hold(t, l, core.Request{Cost: limit.From})
			for _, cost := range []int{1, 2, limit.N/2 + 1, limit.N} {
				p, ok := l.Try(core.Request{Cost: cost})
				if f, q := p.Refusal(), p.Quota(); !ok && (f.Reason != core.ReasonRate || f.RetryAfter <= 0) || q.Remaining < 0 || q.Remaining > limit.N || q.Reset < 0 {
					t.Errorf("%v: %d: %v, %+v, %+v", limit, cost, ok, f, q)
				}
			}
			for range 20 {
				if p, ok := l.Try(core.Request{}); !ok && p.Refusal().RetryAfter < time.Hour {
					time.Sleep(p.Refusal().RetryAfter)
					hold(t, l, core.Request{})
				}
			}
		})
	}
}

// Half a ramp is an error that names the rule, the number and what would be right.
func TestAWrongClimbIsAnError(t *testing.T) {
	for _, c := range []struct {
		limit core.Pace
		told  []string
	}{
		{climbing(10, time.Second, 0, time.Second), []string{"Pace.From is 0", "1 to N, 10"}},
		{climbing(10, time.Second, -1, time.Second), []string{"Pace.From is -1", "1 to N, 10"}},
		{climbing(10, time.Second, 11, time.Second), []string{"Pace.From is 11", "1 to N, 10"}},
		{climbing(10, time.Second, 5, 0), []string{"Pace.Over is 0s", "above 0"}},
		{climbing(10, time.Second, 5, -1), []string{"Pace.Over is -1ns", "above 0"}},
		{climbing(10, 0, 5, time.Second), []string{"Pace.Per is 0s", "above 0"}},
		{climbing(-1, time.Second, 1, time.Second), []string{"Pace.N is -1", "0"}},
	} {
		l := limiterOf(t, core.Rule{Name: "old", Limit: core.InFlight{N: 1}})
		for _, rule := range []core.Rule{{Limit: c.limit}, {By: "key", Limit: core.Pace{N: 1, Per: 1}, For: map[string]core.Limit{"a": c.limit}}} {
			rule.Name = "wrong"
			for how, err := range map[string]error{"New": wrongOf(t, rule), "Replace": l.Replace(rule)} {
				if err == nil {
					t.Errorf("%s: %+v is right", how, rule)
					continue
				}
				for _, want := range append(c.told, `rule "wrong"`) {
					if !strings.Contains(err.Error(), want) {
						t.Errorf("%s: %q does not tell %q", how, err, want)
					}
				}
			}
		}
	}
	if got := fmt.Sprint(climbing(20, time.Second, 2, time.Minute)); got != "20 per 1s, paced, from 2 over 1m0s" {
		t.Errorf("it is %q", got)
	}
}

// One an hour, and a reload that brings a ramp: the next comes a gap after the last.
func TestBringingARampToAPaceGivesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plain := core.Rule{Name: "rule", Limit: core.Pace{N: 1, Per: time.Hour}}
		ramp := core.Rule{Name: "rule", Limit: climbing(1, time.Hour, 1, time.Second)}
		l := limiterOf(t, plain)
		n := 0
		for range 10 {
			n += passes(l, core.Request{}, 1)
			replace(t, l, ramp)
			n += passes(l, core.Request{}, 1)
			replace(t, l, plain)
		}
		if n != 1 {
			t.Errorf("%d pass at one instant; want 1", n)
		}
	})
}
