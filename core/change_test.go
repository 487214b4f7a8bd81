package core_test

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/exactflow/exactflow/core"
)

// Fifty reloads, each of which changes a rule for something else. Who starts all
// counts afresh on a reload gives out the budget fifty times.
func TestAReloadOfOtherRulesGivesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		user := core.Rule{Name: "user", By: "user", Limit: core.Rate{N: 5, Per: time.Hour}}
		slots := core.Rule{Name: "slots", On: "slots", Limit: core.InFlight{N: 1}}
		l := limiterOf(t, rate(5, time.Hour), user, slots)
		ann := of("user", "ann")
		total := passes(l, ann, 3)
		hold(t, l, core.Request{On: "slots"})
		total++ // which the rate counts too
		for i := range 50 {
			other := core.Rule{Name: "other", On: "other", Limit: core.Rate{N: 1 + i, Per: time.Second}}
			rules := []core.Rule{rate(5, time.Hour), user, slots, other}
			if i%2 == 0 {
				rules = []core.Rule{other, slots, user, rate(5, time.Hour)}
			}
			replace(t, l, rules...)
			total += passes(l, ann, 10)
			if r := refused(t, l, core.Request{On: "slots"}); r.Rule != "slots" {
				t.Fatalf("reload %d: the slot is free", i)
			}
		}
		if total != 5 {
			t.Errorf("%d passed within the hour; want 5", total)
		}
		sleepUntil(t, time.Hour)
		if n := passes(l, ann, 10); n != 5 {
			t.Errorf("%d passed after the hour; want 5", n)
		}
	})
}

// Fifty reloads that move the limit itself up and down: within the hour pass as
// many as its highest value allows.
func TestAMovingThresholdGivesNothing(t *testing.T) {
	for _, r := range []core.Request{{}, of("user", "ann")} {
		synctest.Test(t, func(t *testing.T) {
			rule := rate(5, time.Hour)
			if len(r.Keys) > 0 {
				rule.By = "user"
			}
			l := limiterOf(t, rule)
			total := passes(l, r, 20)
			for i := range 50 {
				time.Sleep(time.Minute / 2)
				rule.Limit = core.Rate{N: 5 + 5*(i%2), Per: time.Hour}
				replace(t, l, rule)
				total += passes(l, r, 20)
			}
			if total != 10 {
				t.Errorf("%d passed within the hour; want 10", total)
			}
			sleepUntil(t, time.Hour+time.Minute) // N is 10, the first 5 and those of the first raise have left
			if n := passes(l, r, 20); n != 10 {
				t.Errorf("%d passed after the hour; want 10", n)
			}
		})
	}
}

// Five of five are used. Raised to ten, the limit lets five more in at once.
func TestARaisedLimitHoldsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, rate(5, time.Hour))
		trace(t, l, core.Request{}, volley{time.Minute, 5, 6})
		replace(t, l, rate(10, time.Hour))
		trace(t, l, core.Request{},
			volley{time.Minute, 5, 6},
			volley{time.Hour + time.Minute - 1, 0, 1},
			volley{time.Hour + time.Minute, 10, 11})
	})
}

// Three of ten are used. Lowered to five, the limit lets two more in.
func TestALoweredLimitHoldsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, rate(10, time.Hour))
		trace(t, l, core.Request{}, volley{0, 3, 3})
		replace(t, l, rate(5, time.Hour))
		trace(t, l, core.Request{}, volley{0, 2, 9}, volley{time.Hour - 1, 0, 9}, volley{time.Hour, 5, 9})
	})
}

// Ten of ten are used, one each tenth of a second. Lowered to five, none passes
// until only four are left, and who is refused is told when that is. Put back to
// ten, nothing was gained.
func TestALimitBelowWhatIsUsedWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const s = time.Second
		l := limiterOf(t, rate(10, 10*s))
		for i := range time.Duration(10) {
			trace(t, l, core.Request{}, volley{i * 100 * ms, 1, 1})
		}
		sleepUntil(t, s)
		replace(t, l, rate(5, 10*s))
		for range 2 {
			if r := refused(t, l, core.Request{}); r.RetryAfter != 9500*ms {
				t.Errorf("retry after %v; want 9.5s, when the sixth leaves", r.RetryAfter)
			}
		}
		replace(t, l, rate(10, 10*s))
		trace(t, l, core.Request{}, volley{s, 0, 10})
		replace(t, l, rate(5, 10*s))
		trace(t, l, core.Request{},
			volley{10*s + 500*ms - 1, 0, 10},
			volley{10*s + 500*ms, 1, 10},
			volley{10*s + 600*ms, 1, 10})
	})
}

// A longer window starts from what is remembered: what the shorter one had not
// forgotten yet.
func TestALongerWindowRemembersWhatIsThere(t *testing.T) {
	for _, by := range []string{"", "user"} {
		synctest.Test(t, func(t *testing.T) {
			const s = time.Second
			rule := func(n int, per time.Duration) core.Rule {
				r := rate(n, per)
				r.By = by
				return r
			}
			l := limiterOf(t, rule(4, s))
			r := of("user", "ann")
			trace(t, l, r, volley{0, 1, 1}, volley{500 * ms, 1, 1}, volley{900 * ms, 1, 1})
			sleepUntil(t, 1200*ms) // the first has left
			replace(t, l, rule(4, 10*s))
			trace(t, l, r,
				volley{1200 * ms, 2, 9},
				volley{10*s + 500*ms - 1, 0, 9},
				volley{10*s + 500*ms, 1, 9},
				volley{10*s + 900*ms, 1, 9},
				volley{11*s + 200*ms, 2, 9})
		})
	}
}

// A shorter window holds at once, and what it forgets no longer one brings back.
func TestAShorterWindowForgets(t *testing.T) {
	for _, by := range []string{"", "user"} {
		synctest.Test(t, func(t *testing.T) {
			rule := func(per time.Duration) core.Rule {
				r := rate(5, per)
				r.By = by
				return r
			}
			l := limiterOf(t, rule(time.Hour))
			ann, bob := of("user", "ann"), of("user", "bob")
			if by == "" {
				bob = ann
			}
			trace(t, l, ann, volley{0, 2, 2})
			trace(t, l, bob,
				volley{10*time.Minute - time.Second, 1, 1}, // leaves in the instant of the change
				volley{10*time.Minute - time.Second/2, 2, 2})
			sleepUntil(t, 10*time.Minute)
			replace(t, l, rule(time.Second))
			if by == "" {
				trace(t, l, ann, volley{10 * time.Minute, 3, 9}) // beside two of half a second ago
			}
			replace(t, l, rule(time.Hour))
			if by == "" {
				trace(t, l, ann, volley{10 * time.Minute, 0, 9})
			} else {
				trace(t, l, ann, volley{10 * time.Minute, 5, 9}) // though nobody asked under the second
				trace(t, l, bob, volley{10 * time.Minute, 3, 9})
			}
		})
	}
}

// A value's own window is one that can be shorter or longer, too. Ann's hour is
// taken away for a moment, and what the second of the others forgets is forgotten.
func TestAValueForgetsWithTheRule(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plain := core.Rule{Name: "user", By: "user", Limit: core.Rate{N: 5, Per: time.Second}}
		named := plain
		named.For = map[string]core.Limit{"ann": core.Rate{N: 5, Per: time.Hour}}
		l := limiterOf(t, named)
		ann := of("user", "ann")
		trace(t, l, ann, volley{0, 4, 4}, volley{10*time.Minute - time.Second/2, 1, 9})
		sleepUntil(t, 10*time.Minute)
		replace(t, l, plain)
		replace(t, l, named)
		trace(t, l, ann, volley{10 * time.Minute, 4, 9}, volley{time.Hour, 0, 9})
	})
}

// Between a limit that is exact and one that has slices, either way, nothing is
// gained.
func TestCrossingTheExactLimitGivesNothing(t *testing.T) {
	for _, by := range []string{"", "user"} {
		synctest.Test(t, func(t *testing.T) {
			const s = time.Second
			slice := s/4095 + 1
			rule := func(n int) core.Rule {
				r := rate(n, s)
				r.By = by
				return r
			}
			r := of("user", "ann")
			l := limiterOf(t, rule(4096))
			trace(t, l, r, volley{0, 2000, 2000}, volley{100 * ms, 2096, 3000})
			sleepUntil(t, 500*ms)
			replace(t, l, rule(5000))
			trace(t, l, r, volley{500 * ms, 904, 2000})
			replace(t, l, rule(4096))
			trace(t, l, r, volley{600 * ms, 0, 10})
			replace(t, l, rule(5000))
			trace(t, l, r, volley{700 * ms, 0, 10}, volley{s - 1, 0, 10}, volley{s + slice, 2000, 2001})
			replace(t, l, rule(4096)) // with 2096, 904, 2000 in use
			trace(t, l, r, volley{1100*ms - 1, 0, 10}, volley{1100*ms + slice, 1192, 2000})
		})
	}
}

// What is changed about a rule beside its limit does not touch its counts.
func TestARuleKeepsItsCountsThroughOtherChanges(t *testing.T) {
	base := core.Rule{Name: "rule", By: "user", Limit: core.Rate{N: 3, Per: time.Hour}}
	for name, change := range map[string]func(r *core.Rule){
		"nothing":       func(r *core.Rule) {},
		"On":            func(r *core.Rule) { r.On = "ord*" },
		"MaxKeys":       func(r *core.Rule) { r.MaxKeys = 1 },
		"Shadow":        func(r *core.Rule) { r.Shadow = true },
		"For others":    func(r *core.Rule) { r.For = map[string]core.Limit{"bob": core.Rate{N: 9, Per: time.Hour}} },
		"For the key":   func(r *core.Rule) { r.For = map[string]core.Limit{"ann": core.Rate{N: 2, Per: time.Hour}} },
		"all but Limit": func(r *core.Rule) { r.On, r.MaxKeys, r.Shadow = "o*", 7, true },
	} {
		synctest.Test(t, func(t *testing.T) {
			l := limiterOf(t, base)
			ann := of("user", "ann")
			ann.On = "orders"
			passes(l, ann, 3)
			other := base
			change(&other)
			replace(t, l, other)
			n := passes(l, ann, 1)
			if want := 0; !other.Shadow && n != want {
				t.Errorf("%s changed: %d passed; want %d", name, n, want)
			}
			replace(t, l, base)
			if n := passes(l, ann, 5); n != 0 {
				t.Errorf("%s changed and put back: %d passed; want none", name, n)
			}
		})
	}
}

// Keys that are there stay limited when MaxKeys falls below their number.
func TestALowerMaxKeysForgivesNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rule := core.Rule{Name: "user", By: "user", Limit: core.Rate{N: 1, Per: time.Hour}}
		l := limiterOf(t, rule)
		for i := range 500 {
			hold(t, l, of("user", fmt.Sprint(i)))
		}
		rule.MaxKeys = 10
		replace(t, l, rule)
		for i := range 500 {
			passes(l, of("user", fmt.Sprint("new-", i)), 1)
			if n := passes(l, of("user", fmt.Sprint(i)), 2); n != 0 {
				t.Fatalf("key %d passes again", i)
			}
		}
	})
}

// Another name, kind of limit, or By is another rule, and one that was away is
// new. It starts from nothing.
func TestAnotherRuleStartsFresh(t *testing.T) {
	base := core.Rule{Name: "rule", By: "user", Limit: core.Rate{N: 3, Per: time.Hour}}
	for name, change := range map[string]func(l *core.Limiter){
		"By": func(l *core.Limiter) {
			r := base
			r.By = "user,resource"
			replace(t, l, r)
		},
		"Name": func(l *core.Limiter) {
			r := base
			r.Name = "other"
			replace(t, l, r)
		},
		"kind": func(l *core.Limiter) {
			r := base
			r.Limit = core.InFlight{N: 3}
			replace(t, l, r)
			replace(t, l, base)
		},
		"away": func(l *core.Limiter) {
			replace(t, l)
			replace(t, l, base)
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			l := limiterOf(t, base)
			ann := of("user", "ann")
			passes(l, ann, 3)
			change(l)
			if n := passes(l, ann, 5); n != 3 {
				t.Errorf("%s changed: %d passed; want 3", name, n)
			}
			if s := l.Stats()[0]; s.Admitted != 3 || s.Refused[core.ReasonRate] != 2 {
				t.Errorf("%s changed: statistics go on with %d admitted, %v refused; want 3 and 2", name, s.Admitted, s.Refused)
			}
		})
	}
}

// A value gets a limit of its own, and loses it again. What it has used stays
// used.
func TestAValueKeepsItsCountsWhenItsLimitChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rule := func(ann int) core.Rule {
			r := core.Rule{Name: "user", By: "user", Limit: core.Rate{N: 5, Per: time.Hour}}
			if ann > 0 {
				r.For = map[string]core.Limit{"ann": core.Rate{N: ann, Per: time.Hour}}
			}
			return r
		}
		ann, bob := of("user", "ann"), of("user", "bob")
		l := limiterOf(t, rule(0))
		passes(l, ann, 9)
		passes(l, bob, 9)
		replace(t, l, rule(8))
		trace(t, l, ann, volley{0, 3, 9})
		trace(t, l, bob, volley{0, 0, 9})
		replace(t, l, rule(2))
		trace(t, l, ann, volley{0, 0, 9})
		replace(t, l, rule(10))
		trace(t, l, ann, volley{0, 2, 9})
		replace(t, l, rule(0))
		trace(t, l, ann, volley{0, 0, 9}, volley{time.Hour, 5, 9})
		trace(t, l, bob, volley{time.Hour, 5, 9})
	})
}

// One rule among many is wrong. None is taken over, not even the right ones, and
// the old rules go on with what they have counted.
func TestAWrongRuleChangesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, rate(5, time.Hour), inFlight(9))
		passes(l, core.Request{}, 3)
		right := rate(1000, time.Hour)
		for _, wrong := range []core.Rule{
			{Name: "wrong", Limit: core.Rate{N: -1, Per: time.Second}},
			{Name: "rate", Limit: core.Rate{N: 1000, Per: time.Hour}},
			{},
		} {
			if err := l.Replace(right, wrong, inFlight(1000)); err == nil {
				t.Fatalf("%+v: no error", wrong)
			}
			if s := l.Stats(); len(s) != 2 || s[0].Rule != "rate" || s[1].Rule != "inflight" {
				t.Errorf("%+v: the rules are %+v; want the old ones", wrong, s)
			}
		}
		if n := passes(l, core.Request{}, 1000); n != 2 {
			t.Errorf("%d more passed; want the 2 that the old rule had left", n)
		}
	})
}

// The caller goes on using what it gave: its list of rules and their maps. The
// limiter has copies, and a reload sees what has changed.
func TestRulesAreCopied(t *testing.T) {
	for _, how := range []string{"New", "Replace"} {
		synctest.Test(t, func(t *testing.T) {
			rules := []core.Rule{{
				Name: "user", By: "user", Limit: core.Rate{N: 2, Per: time.Hour},
				For: map[string]core.Limit{"ann": core.Rate{N: 4, Per: time.Hour}},
			}}
			l := limiterOf(t)
			if how == "New" {
				l = limiterOf(t, rules...)
			} else {
				replace(t, l, rules...)
			}
			rules[0].Limit = core.Rate{N: 100, Per: time.Second}
			rules[0].For["ann"] = core.Unlimited{}
			rules[0].For["bob"] = core.Unlimited{}
			for user, want := range map[string]int{"ann": 4, "bob": 2, "cat": 2} {
				if n := passes(l, of("user", user), 10); n != want {
					t.Errorf("%s: %s passed %d times; want %d", how, user, n, want)
				}
			}
			delete(rules[0].For, "ann")
			replace(t, l, rules...)
			for user, want := range map[string]int{"ann": 96, "bob": 200, "cat": 98} {
				if n := passes(l, of("user", user), 200); n != want {
					t.Errorf("%s, changed: %s passed %d times; want %d", how, user, n, want)
				}
			}
		})
	}
}

// The caller changes nothing but the map that it gave, and gives it again. These
// are not the same rules, though it is the same map.
func TestAReloadSeesAChangedMap(t *testing.T) {
	rule := core.Rule{Name: "user", By: "user", Limit: core.InFlight{}, For: map[string]core.Limit{"ann": core.InFlight{N: 1}}}
	l := limiterOf(t, rule)
	for n := range 5 {
		rule.For["ann"] = core.InFlight{N: 1 + n}
		replace(t, l, rule)
		hold(t, l, of("user", "ann"))
		refused(t, l, of("user", "ann"))
	}
}

// Requests that are running keep their permits, and give back what they hold to
// the rule that counts it still.
func TestPermitsOutliveAReplace(t *testing.T) {
	rule := core.Rule{Name: "user", By: "user", Limit: core.InFlight{N: 2}}
	l := limiterOf(t, rule)
	ann := of("user", "ann")
	a, b := hold(t, l, ann), hold(t, l, ann)
	rule.Limit, rule.On = core.InFlight{N: 3}, "*"
	rule.For = map[string]core.Limit{"ann": core.InFlight{N: 4}}
	replace(t, l, rule)
	hold(t, l, ann)
	hold(t, l, ann)
	refused(t, l, ann)
	a.Release()
	hold(t, l, ann)
	refused(t, l, ann)
	replace(t, l)
	b.Release()
	hold(t, l, ann)
}

// Two change the rules at the same time as many ask. The budget of a rule that
// stays is given out once.
func TestReloadsUnderLoadGiveNothing(t *testing.T) {
	const n = 2000
	user := core.Rule{Name: "user", By: "user", Limit: core.Rate{N: n, Per: time.Hour}}
	l := limiterOf(t, rate(n, time.Hour), user)
	var passed atomic.Int64
	var askers, reloaders sync.WaitGroup
	for range 8 {
		askers.Go(func() {
			for {
				p, ok := l.Try(of("user", "ann"))
				p.Release()
				if ok {
					passed.Add(1)
				} else if passed.Load() >= n {
					return
				}
			}
		})
	}
	stop := make(chan struct{})
	for i := range 2 {
		reloaders.Go(func() {
			for j := 0; ; j++ {
				select {
				case <-stop:
					return
				default:
				}
				other := core.Rule{Name: "other", Limit: core.InFlight{N: 100 + i + j%7}}
				if err := l.Replace(rate(n-j%2, time.Hour), other, user); err != nil {
					t.Error(err)
				}
			}
		})
	}
	askers.Wait()
	close(stop)
	reloaders.Wait()
	if got := passed.Load(); got != n {
		t.Errorf("%d passed; want %d", got, n)
	}
}

// The door is closed while a crowd pushes. Some have read the old rules and wait
// for their turn to decide, but once Replace has returned nobody is admitted by
// what was before.
func TestAfterReplaceNobodyPassesByTheOldRules(t *testing.T) {
	for _, others := range [][]core.Rule{
		nil, // one lock for a decision
		{rate(1<<30, time.Hour), {Name: "user", By: "user", Limit: core.InFlight{N: 100}}}, // several
	} {
		door := func(n int) []core.Rule { return append([]core.Rule{inFlight(n)}, others...) }
		l := limiterOf(t, door(0)...)
		stop := make(chan struct{})
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
						p, ok := l.Try(of("user", "ann"))
						p.Release()
						if !ok {
							runtime.Gosched() // a loop without a lock would have the processor to itself
						}
					}
				}
			})
		}
		for range 200 {
			before := statOf(t, l, "inflight").Admitted
			replace(t, l, door(8)...)
			for statOf(t, l, "inflight").Admitted == before {
				runtime.Gosched()
			}
			replace(t, l, door(0)...)
			closed := statOf(t, l, "inflight").Admitted
			for range 20 {
				runtime.Gosched()
			}
			if n := statOf(t, l, "inflight").Admitted - closed; n != 0 {
				t.Errorf("beside %d others: %d were admitted after the door had been closed", len(others), n)
				break
			}
		}
		close(stop)
		all.Wait()
	}
}

// No rules, no limits: and from the next decision on.
func TestWithoutRulesAllPass(t *testing.T) {
	l := limiterOf(t, inFlight(0))
	refused(t, l, core.Request{})
	replace(t, l)
	if n := passes(l, core.Request{Cost: 1 << 30}, 100); n != 100 {
		t.Errorf("%d of 100 passed", n)
	}
	if s := l.Stats(); len(s) != 0 {
		t.Errorf("statistics of %+v; want none", s)
	}
}
