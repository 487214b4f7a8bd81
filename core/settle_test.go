package core_test

import (
	"context"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/exactflow/exactflow/core"
)

func FuzzPermits(f *testing.F) {
	for seed := range uint64(8) {
		f.Add(seed, uint64(1), uint8(60))
	}
	f.Fuzz(func(t *testing.T, a, b uint64, length uint8) {
		synctest.Test(t, func(t *testing.T) { runDesk(t, rand.New(rand.NewPCG(a, b)), int(length)) })
	})
}

// What a request did not use is there at once, and what it used is not.
func TestALowerCostGivesBackItsOwnUnits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, core.Rule{Name: "tokens", Limit: core.Rate{N: 10, Per: time.Second}})
		p := hold(t, l, core.Request{Cost: 8})
		sleepUntil(t, 100*time.Millisecond)
		passes(l, core.Request{}, 2)
		refused(t, l, core.Request{})
		if !p.Settle(3) {
			t.Fatal("Settle(3) of 8 is false")
		}
		if n := passes(l, core.Request{}, 10); n != 5 {
			t.Errorf("%d passed after 5 of 8 came back; want 5", n)
		}
		p.Release() // gives nothing back
		trace(t, l, core.Request{}, volley{999 * time.Millisecond, 0, 1}, volley{time.Second, 3, 10}, volley{1100 * time.Millisecond, 7, 10})
	})
}

// A request whose units have left the window has none to give back: those that are
// there are others'.
func TestAUnitIsGivenBackOnlyWhereItWasTaken(t *testing.T) {
	for name, n := range map[string]int{"exact": 4, "sliced": 5000} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := limiterOf(t, core.Rule{Name: "r", Limit: core.Rate{N: n, Per: time.Second}})
				p := hold(t, l, core.Request{Cost: n})
				sleepUntil(t, time.Second)
				hold(t, l, core.Request{Cost: n})
				if !p.Settle(0) {
					t.Fatal("Settle(0) is false")
				}
				refused(t, l, core.Request{})
			})
		})
	}
}

// After a pardon and after a change that dropped them, too.
func TestAUnitThatWasPardonedIsNotGivenBack(t *testing.T) {
	for name, n := range map[string]int{"exact": 4, "sliced": 5000} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rule := core.Rule{Name: "r", Limit: core.Rate{N: n, Per: time.Hour}}
				l := limiterOf(t, rule)
				p, p2 := hold(t, l, core.Request{Cost: n - 1}), hold(t, l, core.Request{})
				if err := l.Forget("r"); err != nil {
					t.Fatal(err)
				}
				if n > 4096 {
					time.Sleep(time.Nanosecond) // within a slice
				}
				q := hold(t, l, core.Request{Cost: n})
				for _, p := range []core.Permit{p2, p} {
					p.Settle(0)
					refused(t, l, core.Request{})
				}
				if n <= 4096 { // at one instant nobody can tell
					time.Sleep(time.Hour)
					q = hold(t, l, core.Request{Cost: n})
				}
				if q.Settle(n - 2); passes(l, core.Request{}, 5) != 2 {
					t.Error("what was taken after the pardon did not come back")
				}

				if err := l.Forget("r"); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Nanosecond)
				q = hold(t, l, core.Request{Cost: n})
				rule.Limit = core.Rate{N: n, Per: time.Nanosecond}
				replace(t, l, rule)
				rule.Limit = core.Rate{N: n, Per: time.Hour}
				time.Sleep(2 * time.Nanosecond)
				replace(t, l, rule)
				hold(t, l, core.Request{Cost: n})
				if !q.Settle(0) {
					t.Fatal("it cannot be settled")
				}
				refused(t, l, core.Request{})
			})
		})
	}
}

// Above 4096 units share entries. What comes back is counted apart.
func TestASlicedRateGivesBackExactly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, core.Rule{Name: "r", Limit: core.Rate{N: 10_000, Per: time.Second}})
		var all []core.Permit
		for range 100 {
			time.Sleep(50 * time.Microsecond) // a slice is about 244
			all = append(all, hold(t, l, core.Request{Cost: 100}))
		}
		refused(t, l, core.Request{})
		for i, p := range all {
			if !p.Settle(100 - i) {
				t.Fatal("it cannot be settled")
			}
		}
		if n := passes(l, core.Request{}, 10_000); n != 99*100/2 {
			t.Errorf("%d passed; want what came back, %d", n, 99*100/2)
		}
	})
}

// A higher cost is one more charge: by all rules or by none.
func TestAHigherCostIsChargedNowByAllOrNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t,
			core.Rule{Name: "rate", Limit: core.Rate{N: 5, Per: time.Second}},
			core.Rule{Name: "slots", Limit: core.InFlight{N: 4}},
		)
		p := hold(t, l, core.Request{})
		sleepUntil(t, 400*time.Millisecond)
		if p.Settle(5) {
			t.Fatal("5 fit into 4 slots")
		}
		if q, ok := l.Peek(core.Request{}); !ok || q.Quota().Remaining != 3 {
			t.Fatalf("after a Settle in vain the quota is %+v; want what it was, 3 of 4", q.Quota())
		}
		if !p.Settle(3) {
			t.Fatal("there is room for 3, after one in vain")
		}
		if p.Settle(1) || p.Settle(3) {
			t.Error("it was settled twice")
		}
		if s := statOf(t, l, "slots"); s.InFlight != 3 || s.Admitted != 1 {
			t.Errorf("%d in flight of %d admitted; want 3 of 1", s.InFlight, s.Admitted)
		}
		p.Release()
		if s := statOf(t, l, "slots"); s.InFlight != 0 {
			t.Errorf("%d in flight after the release; want 0", s.InFlight)
		}
		// 1 of them leaves at 1 s, 2 at 1.4 s.
		trace(t, l, core.Request{}, volley{900 * time.Millisecond, 2, 5}, volley{time.Second, 1, 5}, volley{1399 * time.Millisecond, 0, 5}, volley{1400 * time.Millisecond, 2, 5})
	})
}

// Who pays more does not pass those who wait, and who pays less opens for them.
func TestWhoWaitsIsServedBySettle(t *testing.T) {
	for name, limit := range map[string]core.Limit{
		"rate":      core.Rate{N: 4, Per: time.Hour},
		"in flight": core.InFlight{N: 4},
		"failed":    core.Rate{N: 4, Per: time.Hour, Charge: core.ChargeFailed},
		"warm-up":   core.WarmUp{Rate: core.Rate{N: 4, Per: time.Hour}, From: 4, Over: time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := limiterOf(t, core.Rule{Name: "r", Limit: limit, Queue: core.Queue{Len: 9, Wait: 2 * time.Hour}})
				p := hold(t, l, core.Request{Cost: 2})
				admitted := make(chan time.Duration, 1)
				go func() {
					_, err := l.Wait(context.Background(), core.Request{Cost: 4})
					if err != nil {
						t.Error(err)
					}
					admitted <- time.Since(midnight)
				}()
				synctest.Wait()
				if p.Settle(3) {
					t.Error("it passed who waits")
				}
				sleepUntil(t, time.Minute)
				if !p.Settle(0) {
					t.Error("it cannot be settled")
				}
				synctest.Wait()
				select {
				case at := <-admitted:
					if at != time.Minute {
						t.Errorf("admitted at %v", at)
					}
				default:
					t.Error("who waits was not woken")
					time.Sleep(3 * time.Hour)
				}
			})
		})
	}
}

// A pace gives back the gap of what was not used, while nobody has passed since.
func TestAPaceGivesBackWhileNobodyHasPassed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gap := func(p core.Permit) time.Duration {
			q, _ := p.Quota(), p
			return q.Reset
		}
		l := limiterOf(t, core.Rule{Name: "r", Limit: core.Pace{N: 100, Per: time.Minute}})
		one := gap(hold(t, l, core.Request{}))
		time.Sleep(time.Hour)
		p := hold(t, l, core.Request{Cost: 20})
		if !p.Settle(1) {
			t.Fatal("it cannot be settled")
		}
		time.Sleep(one - 1)
		refused(t, l, core.Request{})
		time.Sleep(time.Nanosecond)
		p = hold(t, l, core.Request{})

		p2 := func() core.Permit { time.Sleep(time.Hour); return hold(t, l, core.Request{Cost: 20}) }()
		time.Sleep(time.Minute)
		hold(t, l, core.Request{})
		if !p2.Settle(1) { // of no use to anybody: its gap is over
			t.Fatal("it cannot be settled")
		}
		if r := refused(t, l, core.Request{}); r.RetryAfter != one {
			t.Errorf("the next may pass in %v; want the gap %v: the undo of one is not another's", r.RetryAfter, one)
		}
		p.Release()
	})
}

// The undo of one request is not another's, in whatever order they end: a handler that
// is skipped afterwards gives back its own hit, and no hit of a request that came while
// it ran.
func TestTheUndoOfOneLeavesTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, core.Rule{Name: "r", Limit: core.Rate{N: 6, Per: time.Second, Charge: core.ChargeFailed}})
		var slow, quick []core.Permit
		for range 3 {
			slow = append(slow, hold(t, l, core.Request{}))
		}
		sleepUntil(t, 600*time.Millisecond)
		for range 3 {
			quick = append(quick, hold(t, l, core.Request{}))
		}
		for _, p := range quick {
			p.Fail()
			p.Release()
		}
		sleepUntil(t, 1200*time.Millisecond) // the slow ones have left the window
		if r := refused(t, l, core.Request{}); r.Reason != core.ReasonRate || r.RetryAfter != 400*time.Millisecond {
			t.Errorf("three tries go on, three have failed: %+v; want the rate's, for 400 ms", r)
		}
		for _, p := range slow {
			p.Release() // succeeded: they give back nothing that the quick have taken
		}
		trace(t, l, core.Request{}, volley{1200 * time.Millisecond, 6, 6})
	})
}

// What is not charged uses nothing, also in the long run: the count neither creeps up
// nor below zero.
func TestWhatIsSparedUsesNothing(t *testing.T) {
	for charge, fail := range map[core.Charge]bool{core.ChargeFailed: false, core.ChargeSucceeded: true} {
		synctest.Test(t, func(t *testing.T) {
			l := limiterOf(t, core.Rule{Name: "r", By: "k", Limit: core.Rate{N: 5, Per: 10 * time.Second, Charge: charge}})
			end := func(p core.Permit, fail bool) {
				if fail {
					p.Fail()
				}
				p.Release()
			}
			for range 1000 {
				time.Sleep(100 * time.Millisecond)
				end(hold(t, l, of("k", "a")), fail)
			}
			for range 5 {
				end(hold(t, l, of("k", "a")), !fail)
			}
			if r := refused(t, l, of("k", "a")); r.RetryAfter != 10*time.Second || !r.Known {
				t.Errorf("%v: after five that count %+v; want refused for 10 s", charge, r)
			}
		})
	}
}

// Whoever guesses passwords and does not wait for the answers tries no more than N at
// once, however long these take.
func TestNoMoreAreTriedAtOnceThanMayFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, core.Rule{Name: "r", Limit: core.Rate{N: 3, Per: time.Second, Charge: core.ChargeFailed}})
		var tries []core.Permit
		for range 3 {
			tries = append(tries, hold(t, l, core.Request{}))
		}
		for range 10 {
			time.Sleep(time.Second)
			if r := refused(t, l, core.Request{}); r.Reason != core.ReasonInFlight || r.Known {
				t.Fatalf("%+v; want in_flight, of no known end", r)
			}
		}
		tries[0].Fail()
		tries[0].Release() // older than the window: it is over
		tries = append(tries, hold(t, l, core.Request{}))
		tries[1].Release()
		tries = append(tries, hold(t, l, core.Request{}))
		refused(t, l, core.Request{})
		if s := statOf(t, l, "r"); s.InFlight != 3 {
			t.Errorf("%d undecided; want 3", s.InFlight)
		}
		for _, p := range tries {
			p.Release()
		}
		if s := statOf(t, l, "r"); s.InFlight != 0 {
			t.Errorf("%d undecided; want none", s.InFlight)
		}
	})
}

// A pardon clears what was decided on, and nothing of what is tried; also where more is
// tried at the very instant.
func TestAPardonLeavesWhatIsTried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, core.Rule{Name: "r", Limit: core.Rate{N: 2, Per: time.Hour, Charge: core.ChargeFailed}})
		hold(t, l, core.Request{})
		if err := l.Forget("r"); err != nil {
			t.Fatal(err)
		}
		p := hold(t, l, core.Request{})
		refused(t, l, core.Request{})
		p.Fail()
		p.Release()
		refused(t, l, core.Request{})
		time.Sleep(time.Hour)
		hold(t, l, core.Request{})
		refused(t, l, core.Request{})
	})
}

// Who could wait in vain for the window may wait for an outcome.
func TestWhoHopesForAnOutcomeMayWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, core.Rule{Name: "r", Limit: core.Rate{N: 3, Per: time.Hour, Charge: core.ChargeFailed}, Queue: core.Queue{Len: 9, Wait: time.Minute}})
		failed := hold(t, l, core.Request{})
		failed.Fail()
		failed.Release()
		for _, cost := range []int{1, 2} {
			p := hold(t, l, core.Request{Cost: 2})
			go func() {
				time.Sleep(time.Second)
				p.Release()
			}()
			q, err := l.Wait(context.Background(), core.Request{Cost: cost})
			if err != nil {
				t.Errorf("cost %d: %v, %v", cost, err, q.Refusal())
			}
			q.Release()
			time.Sleep(time.Second)
		}
	})
}

// An outcome opens for who waits: at once if it gives back, else when its unit leaves.
func TestAnOutcomeWakesWhoWaits(t *testing.T) {
	for _, fail := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			l := limiterOf(t, core.Rule{Name: "r", Limit: core.Rate{N: 1, Per: time.Minute, Charge: core.ChargeFailed}, Queue: core.Queue{Len: 1, Wait: time.Hour}})
			p := hold(t, l, core.Request{})
			go func() {
				time.Sleep(10 * time.Second)
				if fail {
					p.Fail()
				}
				p.Release()
			}()
			if _, err := l.Wait(context.Background(), core.Request{}); err != nil {
				t.Fatal(err)
			}
			want := 10 * time.Second
			if fail {
				want = time.Minute
			}
			if at := time.Since(midnight); at != want {
				t.Errorf("failed %v: admitted after %v; want %v", fail, at, want)
			}
		})
	}
}

// Keys beyond MaxKeys share a count, whose undecided units no newcomer leaves behind.
func TestInOverflowTheUndecidedCountToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, core.Rule{Name: "r", By: "k", MaxKeys: 1, Limit: core.Rate{N: 2, Per: time.Second, Charge: core.ChargeFailed}})
		first := hold(t, l, of("k", "first"))
		first.Fail()
		first.Release()
		tries := []core.Permit{hold(t, l, of("k", "b")), hold(t, l, of("k", "b"))}
		refused(t, l, of("k", "b"))
		time.Sleep(time.Hour) // the first is idle: there is a place
		refused(t, l, of("k", "b"))
		for _, p := range tries {
			p.Release()
		}
		for range 2 {
			hold(t, l, of("k", "b"))
		}
		refused(t, l, of("k", "b"))
	})
}

// The undecided are not forgotten, and those decided on are.
func TestAKeyLivesUntilItsOutcomesAreKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, core.Rule{Name: "r", By: "k", MaxKeys: 8, Limit: core.Rate{N: 1, Per: time.Second, Charge: core.ChargeFailed}})
		var tries []core.Permit
		for i := range 8 {
			tries = append(tries, hold(t, l, of("k", string(rune('a'+i)))))
		}
		time.Sleep(time.Hour)
		for i := range 1000 {
			p, ok := l.Try(of("k", "x"+string(rune('a'+i%26))))
			if ok {
				p.Release()
			}
		}
		for i := range 8 {
			refused(t, l, of("k", string(rune('a'+i))))
		}
		for _, p := range tries {
			p.Release()
		}
		time.Sleep(time.Hour)
		before := statOf(t, l, "r").Overflowed
		for i := range 8 {
			hold(t, l, of("k", "y"+string(rune('a'+i))))
		}
		if s := statOf(t, l, "r"); s.Keys != 8 || s.InFlight != 8 || s.Overflowed != before {
			t.Errorf("%d keys, %d in flight, %d of them in overflow; want 8, 8, 0: the places of the old came back", s.Keys, s.InFlight, s.Overflowed-before)
		}
	})
}

// What is given back may make a key idle, and its place is free for the next.
func TestWhoGivesBackGivesUpThePlaceInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, core.Rule{Name: "r", By: "k", MaxKeys: 1, Limit: core.Rate{N: 3, Per: time.Second}})
		hold(t, l, of("k", "a"))
		sleepUntil(t, 900*time.Millisecond)
		p := hold(t, l, of("k", "a"))
		hold(t, l, of("k", "b")) // finds no place, and that there will be none before 1.9 s
		if !p.Settle(0) {
			t.Fatal("it cannot be settled")
		}
		sleepUntil(t, time.Second)
		before := statOf(t, l, "r").Overflowed
		hold(t, l, of("k", "c"))
		if s := statOf(t, l, "r"); s.Overflowed != before {
			t.Error("the place of an idle key was not given to the next")
		}
	})
}

// What is only counted is settled too: as far as the limit of its decision can tell, and
// whatever the limit is by then, all that it held comes back.
func TestWhatIsOnlyCountedIsSettled(t *testing.T) {
	rule := func(limit core.Limit) core.Rule {
		return core.Rule{Name: "r", On: "read", Count: "write", By: "k", MaxKeys: 1, Limit: limit}
	}
	write := core.Request{On: "write", Keys: []core.Key{{By: "k", Value: "a"}}, Cost: 2}
	read := core.Request{On: "read", Keys: write.Keys}
	for _, limits := range [][2]core.Limit{
		{core.InFlight{N: 3}, core.InFlight{N: 3}},
		{core.InFlight{N: 3}, core.InFlight{N: 5}},
		{core.InFlight{N: 3}, core.InFlight{N: 1}},
		{core.InFlight{N: 0}, core.InFlight{N: 5}},
		{core.Rate{N: 3, Per: time.Hour}, core.Rate{N: 3, Per: time.Hour}},
		{core.Rate{N: 3, Per: time.Hour}, core.Rate{N: 5, Per: time.Hour}},
		{core.Rate{N: 5, Per: time.Hour}, core.Rate{N: 1, Per: time.Hour}},
		{core.Rate{N: 5, Per: time.Hour}, core.Rate{N: 0, Per: time.Hour}},
	} {
		for _, to := range []int{0, 1, 5, 9} {
			l := limiterOf(t, rule(limits[0]))
			p := hold(t, l, write)
			replace(t, l, rule(limits[1]))
			hold(t, l, core.Request{On: "write", Keys: []core.Key{{By: "k", Value: "b"}}}).Release()
			if !p.Settle(to) {
				t.Errorf("%v, then %v: what is only counted cannot be settled at %d", limits[0], limits[1], to)
			}
			if _, ok := l.Peek(read); to > 5 && limits[0] == limits[1] && ok {
				t.Errorf("%v: room for a read beside %d", limits[0], to)
			}
			p.Release()
			if s := statOf(t, l, "r"); s.InFlight != 0 {
				t.Errorf("%v, then %v, settled at %d: %d in flight at the end", limits[0], limits[1], to, s.InFlight)
			}
			if _, inFlight := limits[0].(core.InFlight); inFlight {
				if _, ok := l.Peek(read); !ok {
					t.Errorf("%v, then %v, settled at %d: no room for a read at the end", limits[0], limits[1], to)
				}
			}
		}
	}
}

// A pardon of one key takes nothing of another's outcome, nor of what comes after it.
func TestAPardonOfOneLeavesTheOthersTheirOutcome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, core.Rule{Name: "r", By: "k", Limit: core.Rate{N: 1, Per: time.Hour, Charge: core.ChargeFailed}})
		b := hold(t, l, of("k", "b"))
		time.Sleep(time.Second)
		if err := l.Forget("r", "a"); err != nil {
			t.Fatal(err)
		}
		b.Release()
		hold(t, l, of("k", "b")).Release()
		if err := l.Forget("r"); err != nil {
			t.Fatal(err)
		}
		for range 3 { // at the instant of the pardon, where nothing had been before
			hold(t, l, of("k", "c")).Release()
		}
	})
}

// A key that had to share a count, and has its own by now, is not charged twice as much
// as it may be by settling what it took before.
func TestWhoSharedACountHasNoRoomThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, core.Rule{Name: "r", By: "k", MaxKeys: 1, Limit: core.Rate{N: 5, Per: time.Second}})
		hold(t, l, of("k", "first"))
		x := hold(t, l, of("k", "x"))
		time.Sleep(time.Hour)
		hold(t, l, core.Request{Keys: of("k", "x").Keys, Cost: 5})
		if x.Settle(5) {
			t.Error("9 units at one instant")
		}
		if !x.Settle(0) {
			t.Error("it cannot be settled lower")
		}
	})
}

// What was only counted and is limited by now needs room like all others.
func TestWhatIsLimitedByNowNeedsRoom(t *testing.T) {
	for _, limit := range []core.Limit{core.InFlight{N: 3}, core.Rate{N: 3, Per: time.Hour}} {
		l := limiterOf(t, core.Rule{Name: "r", Count: "w", Limit: limit})
		p := hold(t, l, core.Request{On: "w"})
		replace(t, l, core.Rule{Name: "r", Limit: limit})
		q := hold(t, l, core.Request{On: "w", Cost: 2})
		if p.Settle(2) {
			t.Errorf("%v: 4 units", limit)
		}
		if q.Settle(1); !p.Settle(2) {
			t.Errorf("%v: there is room for 2 and 1", limit)
		}
		p.Release()
		q.Release()
		if s := statOf(t, l, "r"); s.InFlight != 0 {
			t.Errorf("%v: %d in flight at the end", limit, s.InFlight)
		}
	}
}

// Who cannot get in for an hour, whatever comes of anything, does not wait for it.
func TestNobodyWaitsForWhatIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, core.Rule{Name: "r", Limit: core.Rate{N: 2, Per: time.Hour, Charge: core.ChargeFailed}, Queue: core.Queue{Len: 9, Wait: 10 * time.Second}})
		for range 2 {
			p := hold(t, l, core.Request{})
			p.Fail()
			p.Release()
		}
		for _, cost := range []int{1, 2} {
			p, err := l.Wait(context.Background(), core.Request{Cost: cost})
			if r := p.Refusal(); err == nil || r.Reason != core.ReasonQueueTimeout || time.Since(midnight) != 0 {
				t.Errorf("cost %d: %v, %+v after %v; want queue_timeout at once", cost, err, r, time.Since(midnight))
			}
		}
	})
}

// A refusal without a lock does not promise a place where there is none.
func TestARefusalKnowsThatThereIsNoPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t,
			core.Rule{Name: "rate", Limit: core.Rate{N: 2, Per: time.Second}},
			core.Rule{Name: "slots", By: "k", MaxKeys: 1, Limit: core.InFlight{N: 1}})
		hold(t, l, of("k", "a")).Release() // its entry stays, without a place
		hold(t, l, of("k", "b"))
		if r := refused(t, l, of("k", "a")); r.Rule != "slots" || r.Reason != core.ReasonKeys || r.Known {
			t.Errorf("%+v; want keys, of no known end", r)
		}
	})
}

// Somebody who only looks starts no warm-up and takes no place.
func TestPeekStartsNothing(t *testing.T) {
	for _, limit := range []core.Limit{
		core.WarmUp{Rate: core.Rate{N: 10, Per: time.Second}, From: 2, Over: 10 * time.Second},
		core.Pace{N: 10, Per: time.Second, From: 2, Over: 10 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			l := limiterOf(t, core.Rule{Name: "r", By: "k", MaxKeys: 1, Limit: limit})
			for range 2 {
				r := of("k", "a")
				r.Cost = 5
				if p, ok := l.Peek(r); ok || p.Refusal().Reason != core.ReasonRate || !p.Refusal().Known {
					t.Errorf("%v: %v, %+v", limit, ok, p.Refusal())
				}
				if s := statOf(t, l, "r"); s.Keys != 0 || s.Overflowed != 0 {
					t.Errorf("%v: %d keys, %d in overflow after a look", limit, s.Keys, s.Overflowed)
				}
				time.Sleep(5 * time.Second)
				want := refused(t, limiterOf(t, core.Rule{Name: "r", Limit: limit}), core.Request{Cost: 5}).RetryAfter
				fresh := limiterOf(t, core.Rule{Name: "r", By: "k", Limit: limit})
				if got, ok := fresh.Peek(r); ok || got.Refusal().RetryAfter != want {
					t.Errorf("%v: told %v, want %v", limit, got.Refusal().RetryAfter, want)
				}
			}
			used := limiterOf(t, core.Rule{Name: "r", Limit: limit})
			hold(t, used, core.Request{})
			time.Sleep(time.Minute) // there is a count, and it is cold again
			before, _ := used.Peek(core.Request{Cost: 5})
			time.Sleep(time.Second)
			if again, _ := used.Peek(core.Request{Cost: 5}); before.Refusal() != again.Refusal() {
				t.Errorf("%v: told %+v, then %+v", limit, before.Refusal(), again.Refusal())
			}
		})
	}
}

// What a key holds that nobody counts any more takes no place of those that are counted.
func TestAKeyThatIsUnlimitedByNowGivesUpItsPlace(t *testing.T) {
	rule := core.Rule{Name: "r", By: "k", MaxKeys: 1, Limit: core.InFlight{N: 1}}
	l := limiterOf(t, rule)
	a := hold(t, l, of("k", "a"))
	free := rule
	free.For = map[string]core.Limit{"a": core.Unlimited{}}
	replace(t, l, free)
	b := hold(t, l, of("k", "b"))
	a.Release()
	if r := refused(t, l, of("k", "c")); r.Reason != core.ReasonKeys {
		t.Errorf("%+v; want keys", r)
	}
	replace(t, l, rule)
	b.Release()
	for range 3 {
		hold(t, l, of("k", "c")).Release()
		hold(t, l, of("k", "a")).Release()
	}
	if s := statOf(t, l, "r"); s.InFlight != 0 {
		t.Errorf("%d in flight", s.InFlight)
	}
}

// Do carries its own permit, also within another limiter's.
func TestDoCarriesItsPermit(t *testing.T) {
	outer := limiterOf(t, core.Rule{Name: "outer", Limit: core.Rate{N: 10, Per: time.Hour}})
	inner := limiterOf(t, core.Rule{Name: "inner", Limit: core.Rate{N: 10, Per: time.Hour}})
	err := outer.Do(t.Context(), core.Request{}, func(ctx context.Context) error {
		return inner.Do(ctx, core.Request{}, func(ctx context.Context) error {
			if p := core.PermitFrom(ctx); p.Quota().Rule != "inner" || !p.Settle(7) {
				t.Errorf("the permit is of %q", p.Quota().Rule)
			}
			return nil
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	if p, _ := inner.Peek(core.Request{}); p.Quota().Remaining != 3 {
		t.Errorf("%d left of the inner's; want 3", p.Quota().Remaining)
	}
	if p, _ := outer.Peek(core.Request{}); p.Quota().Remaining != 9 {
		t.Errorf("%d left of the outer's; want 9", p.Quota().Remaining)
	}
}

// Work that goes on after the handler has returned keeps its slot.
func TestADetachedPermitOutlivesItsHandler(t *testing.T) {
	l := limiterOf(t, core.Rule{Name: "r", Limit: core.InFlight{N: 1}})
	var kept core.Permit
	func() {
		p := hold(t, l, core.Request{})
		defer p.Release()
		defer p.Fail()
		kept = core.PermitFrom(core.WithPermit(context.Background(), p)).Detach()
		if kept == (core.Permit{}) || p.Detach() != (core.Permit{}) {
			t.Error("want a permit from the first Detach, none from the second")
		}
		if p.Quota().Rule != "r" || kept.Quota().Rule != "r" {
			t.Error("the quota is not told any more")
		}
	}()
	refused(t, l, core.Request{})
	kept.Release()
	if s := statOf(t, l, "r"); s.InFlight != 0 || s.Failed != 0 {
		t.Errorf("%d in flight, %d failed; want 0 and 0", s.InFlight, s.Failed)
	}
	if kept.Detach() != (core.Permit{}) {
		t.Error("a released permit can be detached")
	}
	if core.PermitFrom(context.Background()) != (core.Permit{}) || (core.Permit{}).Detach() != (core.Permit{}) {
		t.Error("without a permit there is another than the zero one")
	}
}

// A limit on what is being set up is free for the next when that is ready, and the
// limit on what is open is not.
func TestReadyEndsTheSetUpOnly(t *testing.T) {
	l := limiterOf(t,
		core.Rule{Name: "handshakes", Limit: core.InFlight{N: 1, SetUp: true}},
		core.Rule{Name: "connections", Limit: core.InFlight{N: 2}},
	)
	a := hold(t, l, core.Request{})
	if !a.Holds() || (core.Permit{}).Holds() {
		t.Error("the permit holds nothing, or the zero one does")
	}
	if r := refused(t, l, core.Request{}); r.Rule != "handshakes" {
		t.Fatalf("refused by %q", r.Rule)
	}
	a.Ready()
	a.Ready()
	b := hold(t, l, core.Request{})
	if r := refused(t, l, core.Request{}); r.Rule != "connections" {
		t.Fatalf("refused by %q", r.Rule)
	}
	a.Release()
	if h, c := statOf(t, l, "handshakes"), statOf(t, l, "connections"); h.InFlight != 1 || c.InFlight != 1 {
		t.Errorf("%d and %d in flight; want 1 and 1", h.InFlight, c.InFlight)
	}
	b.Release()
	if h, c := statOf(t, l, "handshakes"), statOf(t, l, "connections"); h.InFlight != 0 || c.InFlight != 0 {
		t.Errorf("%d and %d in flight; want none", h.InFlight, c.InFlight)
	}
}

// Whatever several goroutines do to one permit at once, all of it ends once.
func TestPermitsSurviveAllHandsAtOnce(t *testing.T) {
	l := limiterOf(t,
		core.Rule{Name: "set-up", Limit: core.InFlight{N: 40, SetUp: true}},
		core.Rule{Name: "open", By: "k", Limit: core.InFlight{N: 40}},
		core.Rule{Name: "failed", By: "k", Limit: core.Rate{N: 200, Per: time.Millisecond, Charge: core.ChargeFailed}},
		core.Rule{Name: "rate", Limit: core.Rate{N: 1 << 20, Per: time.Millisecond}},
	)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			random := rand.New(rand.NewPCG(uint64(i), 3))
			for range 2000 {
				p, ok := l.Try(core.Request{Keys: []core.Key{{By: "k", Value: string(rune('a' + random.IntN(2)))}}, Cost: 1 + random.IntN(4)})
				if !ok {
					if why := p.Refusal().Reason; why == core.ReasonNever || why == core.ReasonNone {
						t.Errorf("refused: %v", why)
					}
					continue
				}
				n := random.IntN(8)
				var hands sync.WaitGroup
				for _, do := range []func(){p.Ready, func() { p.Settle(n) }, p.Release, p.Fail, func() { p.Detach().Release() }, func() { p.Settle(0) }} {
					if random.IntN(3) > 0 {
						hands.Go(do)
					}
				}
				hands.Wait()
				p.Release()
				p.Ready()
				p.Settle(7)
			}
		}()
	}
	wg.Wait()
	for _, s := range l.Stats() {
		if s.InFlight != 0 {
			t.Errorf("rule %q: %d in flight at the end; want 0", s.Rule, s.InFlight)
		}
	}
	time.Sleep(2 * time.Millisecond)
	for range 40 {
		hold(t, l, of("k", "a"))
	}
}

// Settle and its like are harmless where there is nothing to do.
func TestNothingComesOfPermitsThatHoldNothing(t *testing.T) {
	l := limiterOf(t, core.Rule{Name: "r", Limit: core.InFlight{N: 0}})
	p, _ := l.Try(core.Request{})
	p.Ready()
	if p.Settle(1) || p.Settle(0) || p.Detach() != (core.Permit{}) {
		t.Error("a refused permit could be settled or detached")
	}
	if zero := (core.Permit{}); !zero.Settle(5) || zero.Settle(-1) {
		t.Error("the zero permit settles for anything but a cost below 0")
	}
	replace(t, l, core.Rule{Name: "r", Limit: core.Rate{N: math.MaxInt, Per: time.Hour}})
	p = hold(t, l, core.Request{Cost: 5})
	if p.Settle(-1) || p.Settle(math.MinInt) {
		t.Error("a cost below 0 was settled")
	}
	if !p.Settle(math.MaxInt) {
		t.Error("all of N cannot be settled for")
	}
	refused(t, l, core.Request{})
	p.Release()
	if p.Settle(1) {
		t.Error("a released permit could be settled")
	}
}

// A charge by outcome that cannot work is told when the rules are made.
func TestAWrongChargeIsAnError(t *testing.T) {
	for want, limit := range map[string]core.Limit{
		"Rate.Charge is 3; want ChargeAll, ChargeFailed or ChargeSucceeded":            core.Rate{N: 1, Per: 1, Charge: 3},
		"Rate.N is 4097, and Rate.Charge is failed; want N 4096 at most, or ChargeAll": core.Rate{N: 4097, Per: 1, Charge: core.ChargeFailed},
		"WarmUp.Rate.Charge is succeeded; want ChargeAll: what warms up charges all":   core.WarmUp{Rate: core.Rate{N: 1, Per: 1, Charge: core.ChargeSucceeded}, From: 1, Over: 1},
	} {
		_, err := core.New(core.Rule{Name: "r", Limit: limit})
		if err == nil || err.Error() != `core: rule "r" (number 1): Limit: `+want {
			t.Errorf("%v: %v; want %s", limit, err, want)
		}
	}
}

// Who looks is told what Wait would do, takes nothing, and leaves no key behind.
func TestPeekTakesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rules := []core.Rule{
			{Name: "rate", By: "k", Limit: core.Rate{N: 3, Per: time.Second}},
			{Name: "slots", Limit: core.InFlight{N: 2}},
			{Name: "shadow", Limit: core.Rate{N: 1, Per: time.Hour}, Shadow: true},
		}
		l := limiterOf(t, rules...)
		for range 100 {
			p, ok := l.Peek(of("k", "a"))
			if q := p.Quota(); !ok || q.Remaining != 2 && q.Remaining != 3 || q.Rule == "" {
				t.Fatalf("%v, %+v", ok, q)
			}
			p.Fail()
			p.Release()
		}
		for _, s := range l.Stats() {
			if s.Admitted != 0 || s.InFlight != 0 || s.Keys != 0 && s.Rule == "rate" || s.Shadowed != 0 || s.Failed != 0 {
				t.Errorf("%+v; want nothing counted", s)
			}
		}
		for _, cost := range []int{1, 2} { // without a lock, and with it
			hold := hold(t, l, core.Request{Keys: []core.Key{{By: "k", Value: "a"}}, Cost: 2})
			before := statOf(t, l, "slots").Refused[core.ReasonInFlight]
			p, ok := l.Peek(core.Request{Cost: cost})
			if r := p.Refusal(); ok || r.Rule != "slots" || r.Reason != core.ReasonInFlight {
				t.Errorf("%v, %+v; want refused by slots", ok, r)
			}
			if n := statOf(t, l, "slots").Refused[core.ReasonInFlight]; n != before+1 {
				t.Errorf("%d refusals counted; want 1", n-before)
			}
			hold.Release()
			time.Sleep(time.Second)
		}
		if p, ok := l.Peek(core.Request{Cost: 9}); ok || p.Refusal().Reason != core.ReasonNever {
			t.Errorf("%v, %+v; want never", ok, p.Refusal())
		}
		for i := range rules {
			rules[i].Queue = core.Queue{Len: 1, Wait: time.Hour}
			rules[i].Shadow = false
		}
		replace(t, l, rules...)
		hold(t, l, core.Request{Cost: 1}) // shadow is spent, and has a queue
		if p, ok := l.Peek(core.Request{}); !ok || p.Quota().Rule != "shadow" || p.Quota().Remaining != 0 || p.Settle(0) {
			t.Errorf("%v, %+v; want true and what is left, nothing, for who may wait", ok, p.Quota())
		}
		if s := statOf(t, l, "shadow"); s.Waiting != 0 {
			t.Error("who looks waits")
		}
	})
}

// The rules can be read, as they are in force, and are not changed by who reads them.
func TestTheRulesInForceAreTold(t *testing.T) {
	l := limiterOf(t,
		core.Rule{Name: "a", By: "k", Limit: core.Rate{N: 1, Per: time.Second}, For: map[string]core.Limit{"x": core.Unlimited{}}},
		core.Rule{Name: "b", Limit: core.InFlight{N: 2}},
	)
	got := l.Rules()
	if len(got) != 2 || got[0].Name != "a" || got[1].Limit != (core.InFlight{N: 2}) || got[0].MaxKeys != 1<<20 {
		t.Fatalf("%+v", got)
	}
	got[0].For["y"], got[1].Limit = core.Unlimited{}, core.InFlight{}
	if again := l.Rules(); len(again[0].For) != 1 || again[1].Limit != (core.InFlight{N: 2}) {
		t.Errorf("%+v: who reads the rules has changed them", again)
	}
	replace(t, l, l.Rules()...) // they are good as they are
	replace(t, l)
	if n := len(l.Rules()); n != 0 {
		t.Errorf("%d rules after all were taken away", n)
	}
}

// Of what is only counted the latest N units are kept; nobody's undo takes those.
func TestAnUndoTakesNothingOfWhatIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, core.Rule{Name: "r", On: "read", Count: "write", Limit: core.Rate{N: 5, Per: time.Hour}})
		a := hold(t, l, core.Request{On: "write", Cost: 3})
		hold(t, l, core.Request{On: "write", Cost: 3}) // at the same instant: one of the first 3 is dropped
		a.Settle(0)
		if p, ok := l.Peek(core.Request{On: "read", Cost: 3}); ok {
			t.Errorf("%+v: a read of 3 fits beside the latest 3 of 5", p.Quota())
		}
	})
}

// Somebody who only looks at what would have to wait stands nowhere, whatever there is.
func TestPeekAtAQueueOfNobody(t *testing.T) {
	for _, limit := range []core.Limit{
		core.WarmUp{Rate: core.Rate{N: 10, Per: time.Second}, From: 2, Over: 10 * time.Second},
		core.Pace{N: 10, Per: time.Second, From: 2, Over: 10 * time.Second},
	} {
		for _, r := range []core.Request{{Cost: 5}, {Cost: 1, Priority: core.Default}} {
			for _, maxKeys := range []int{0, 1} {
				l := limiterOf(t, core.Rule{Name: "r", By: "k", MaxKeys: maxKeys, Limit: limit, Queue: core.Queue{Len: 5, Wait: time.Minute}, Reserve: core.Reserve{Critical: 2}})
				if maxKeys == 1 {
					hold(t, l, core.Request{Keys: of("k", "first").Keys, Priority: core.Critical})
				}
				r.Keys = of("k", "x").Keys
				if p, ok := l.Peek(r); !ok || p.Quota().Rule != "r" {
					t.Errorf("%v, %+v: %v, %+v; want true, it may wait", limit, r, ok, p.Refusal())
				}
			}
		}
	}
}

// A key that shared its count is not forgiven it when it is named in For, whatever becomes
// of the others then.
func TestWhoIsNamedBringsWhatItShared(t *testing.T) {
	hour := core.Rate{N: 3, Per: time.Hour}
	for name, limit := range map[string]core.Limit{
		"others unlimited": core.Unlimited{},
		"others shorter":   core.Rate{N: 3, Per: time.Second},
		"others alike":     hour,
	} {
		synctest.Test(t, func(t *testing.T) {
			rule := core.Rule{Name: "r", By: "k", MaxKeys: 1, Limit: hour}
			l := limiterOf(t, rule)
			hold(t, l, of("k", "first"))
			for range 3 {
				hold(t, l, of("k", "x"))
			}
			time.Sleep(2 * time.Second)
			rule.Limit, rule.For = limit, map[string]core.Limit{"x": hour}
			replace(t, l, rule)
			if r := func() core.Refusal { p, _ := l.Try(of("k", "x")); return p.Refusal() }(); r.RetryAfter != time.Hour-2*time.Second {
				t.Errorf("%s: %+v; want refused for the rest of the hour", name, r)
			}
		})
	}
}

// At the instant of pardons nobody knows whose outcome is whose: no more are let in than
// N, and all of it ends.
func TestOutcomesAtTheInstantOfPardons(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, core.Rule{Name: "r", By: "k", MaxKeys: 1, Limit: core.Rate{N: 3, Per: time.Hour, Charge: core.ChargeFailed}})
		forget := func() {
			if err := l.Forget("r"); err != nil {
				t.Fatal(err)
			}
		}
		a := hold(t, l, of("k", "x"))
		forget()
		b := hold(t, l, of("k", "x"))
		forget()
		c := hold(t, l, of("k", "x"))
		c.Fail()
		c.Release()
		refused(t, l, of("k", "x")) // a and b are tried, c is kept
		a.Release()
		b.Release()

		time.Sleep(time.Hour)
		a = hold(t, l, core.Request{Keys: of("k", "x").Keys, Cost: 2})
		forget()
		b = hold(t, l, of("k", "x"))
		for _, p := range []core.Permit{a, b} {
			p.Fail()
			p.Release()
		}
		time.Sleep(24 * time.Hour)
		before := statOf(t, l, "r").Overflowed
		hold(t, l, of("k", "y")).Release()
		if s := statOf(t, l, "r"); s.Overflowed != before || s.InFlight != 0 {
			t.Errorf("%d in overflow, %d in flight: the key never went idle", s.Overflowed-before, s.InFlight)
		}
	})
}

// What Count has dropped is not given back by whoever is counted otherwise by now.
func TestWhatCountDroppedStaysDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rule := core.Rule{Name: "r", Count: "w", Limit: core.Rate{N: 2, Per: time.Minute}}
		l := limiterOf(t, rule)
		a := hold(t, l, core.Request{On: "w", Cost: 2})
		hold(t, l, core.Request{On: "w", Cost: 2})
		rule.Count = ""
		replace(t, l, rule)
		a.Settle(0)
		refused(t, l, core.Request{})
	})
}

// Who has no count of its own may be about to find one that it shared: a refusal without
// a lock does not overlook it.
func TestARefusalKnowsWhatIsShared(t *testing.T) {
	for _, charge := range []core.Charge{core.ChargeAll, core.ChargeFailed} {
		synctest.Test(t, func(t *testing.T) {
			rules := []core.Rule{
				{Name: "all", Limit: core.Rate{N: 2, Per: 3 * time.Second}},
				{Name: "each", By: "k", MaxKeys: 1, Limit: core.Rate{N: 1, Per: 10 * time.Second, Charge: charge}},
			}
			l := limiterOf(t, rules...)
			hold(t, l, of("k", "first"))
			sleepUntil(t, time.Second)
			x := hold(t, l, of("k", "x"))
			x.Fail()
			x.Release()
			rules[1].MaxKeys = 5
			replace(t, l, rules...)
			refused(t, l, core.Request{Keys: of("k", "other").Keys, Cost: 1}) // all has told its hint
			if r := refused(t, l, of("k", "x")); r.Rule != "each" || r.RetryAfter != 10*time.Second {
				t.Errorf("%v: %+v; want each, for 10 s", charge, r)
			}
		})
	}
}
