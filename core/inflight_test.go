package core_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/exactflow/exactflow/core"
)

// inFlight is a rule that counts all requests together.
func inFlight(n int) core.Rule {
	return core.Rule{Name: "inflight", Limit: core.InFlight{N: n}}
}

// A hundred goroutines ask, and who is admitted stays until all have had their
// answer. Exactly ten are in: a counter that is looked at first and raised later
// lets some more in.
func TestOfACrowdExactlyTheLimitIsIn(t *testing.T) {
	l := limiterOf(t, inFlight(10))
	for range 100 {
		var in atomic.Int32
		var asked, all sync.WaitGroup
		asked.Add(100)
		for range 100 {
			all.Go(func() {
				p, ok := l.Try(core.Request{})
				if ok {
					in.Add(1)
				}
				asked.Done()
				asked.Wait()
				p.Release()
			})
		}
		all.Wait()
		if n := in.Load(); n != 10 {
			t.Fatalf("%d were in; want 10", n)
		}
	}
}

// A hundred goroutines come and go all the time. There are never more than ten
// in, and ten are reached.
func TestThePeakIsTheLimit(t *testing.T) {
	const n = 10
	l := limiterOf(t, inFlight(n))
	var in, peak atomic.Int32
	full := make(chan struct{})
	var all sync.WaitGroup
	for range 100 {
		all.Go(func() {
			for range 200 {
				p, ok := l.Try(core.Request{})
				if !ok {
					continue
				}
				now := in.Add(1)
				for old := peak.Load(); now > old && !peak.CompareAndSwap(old, now); old = peak.Load() {
				}
				if now == n {
					select {
					case <-full:
					default:
						close(full) // only one of those inside is the tenth for the first time
					}
				}
				<-full // so that the first ten wait for each other
				in.Add(-1)
				p.Release()
			}
		})
	}
	all.Wait()
	if p := peak.Load(); p != n {
		t.Errorf("the peak was %d; want %d", p, n)
	}
	if got := passes(l, core.Request{Cost: n}, 1); got != 1 {
		t.Errorf("after all have gone, %d units do not fit", n)
	}
}

// A request of cost four holds four, gives back four, and meanwhile leaves what
// it does not hold.
func TestCostIsHeldAndGivenBack(t *testing.T) {
	l := limiterOf(t, inFlight(10))
	four := core.Request{Cost: 4}
	a, b := hold(t, l, four), hold(t, l, four)
	refused(t, l, four)
	c, d := hold(t, l, core.Request{}), hold(t, l, core.Request{Cost: 0})
	refused(t, l, core.Request{})
	a.Release()
	refused(t, l, core.Request{Cost: 5})
	hold(t, l, four).Release()
	b.Release()
	c.Release()
	d.Release()
	hold(t, l, core.Request{Cost: 10})
	refused(t, l, core.Request{})
}

// When a holder will be done nobody knows, so no time is told, and none is made
// up.
func TestAFullHouseTellsNoTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, inFlight(1))
		p := hold(t, l, core.Request{})
		for range 3 {
			want := core.Refusal{Rule: "inflight", Reason: core.ReasonInFlight}
			if r := refused(t, l, core.Request{}); r != want {
				t.Errorf("refusal %+v; want %+v", r, want)
			}
			time.Sleep(time.Hour) // nobody is put out for staying long
		}
		p.Release()
		hold(t, l, core.Request{})
	})
}

// A request whose permit is released in a defer gives its slot back however its
// handler ends.
func TestADeferredReleaseSurvivesEveryEnd(t *testing.T) {
	l := limiterOf(t, inFlight(1))
	for name, end := range ends {
		var done sync.WaitGroup
		done.Go(func() {
			defer func() { recover() }()
			p, ok := l.Try(core.Request{})
			if !ok {
				t.Errorf("%s: refused; want the slot back", name)
			}
			defer p.Release()
			end()
		})
		done.Wait()
	}
	hold(t, l, core.Request{})
}

// An operator forgets a key while a request of its is running. What is held stays
// held: the key has no second slot, and the release is not one too many.
func TestForgettingAKeyKeepsWhatItHolds(t *testing.T) {
	l := limiterOf(t, core.Rule{Name: "user", By: "user", Limit: core.InFlight{N: 1}})
	ann := of("user", "ann")
	p := hold(t, l, ann)
	for _, key := range [][]string{{"ann"}, nil} {
		if err := l.Forget("user", key...); err != nil {
			t.Fatal(err)
		}
		refused(t, l, ann)
	}
	p.Release()
	p = hold(t, l, ann)
	refused(t, l, ann)
	if n := statOf(t, l, "user").InFlight; n != 1 {
		t.Errorf("%d in flight; want 1", n)
	}
	p.Release()
	if n := statOf(t, l, "user").InFlight; n != 0 {
		t.Errorf("%d in flight; want 0", n)
	}
}

// A key's request is running while other keys come and go, many more than are
// kept. Its count is found again at the release, and never falls below zero.
func TestAHeldKeyOutlivesTheOthers(t *testing.T) {
	l := limiterOf(t, core.Rule{Name: "user", By: "user", Limit: core.InFlight{N: 2}, MaxKeys: 4})
	ann := of("user", "ann")
	for round := range 50 {
		a, b := hold(t, l, ann), hold(t, l, ann)
		for i := range 100 {
			passes(l, of("user", string(rune('0'+i))), 1)
		}
		refused(t, l, ann)
		a.Release()
		b.Release()
		if n := statOf(t, l, "user").InFlight; n != 0 {
			t.Fatalf("round %d: %d in flight after all have gone", round, n)
		}
		for i := range 100 { // ann may be forgotten now
			passes(l, of("user", string(rune('0'+i))), 1)
		}
	}
}

// A rule is taken away and put back while a request of its first life is running.
// The new rule starts empty, and the old request gives it nothing.
func TestAnOldPermitGivesNothingToANewRule(t *testing.T) {
	l := limiterOf(t, inFlight(1))
	old := hold(t, l, core.Request{})
	replace(t, l)
	replace(t, l, inFlight(1))
	young := hold(t, l, core.Request{})
	old.Release()
	refused(t, l, core.Request{})
	if n := statOf(t, l, "inflight").InFlight; n != 1 {
		t.Errorf("%d in flight; want 1", n)
	}
	young.Release()
	if n := statOf(t, l, "inflight").InFlight; n != 0 {
		t.Errorf("%d in flight; want 0", n)
	}
	hold(t, l, core.Request{})
	refused(t, l, core.Request{})
}

// The limit is lowered below what is in flight: nobody is put out, and nobody
// comes in until enough have gone. Raised again, it lets the difference in at
// once.
func TestALimitBelowWhatIsInWaitsForThemToGo(t *testing.T) {
	l := limiterOf(t, inFlight(10))
	var in []core.Permit
	for range 8 {
		in = append(in, hold(t, l, core.Request{}))
	}
	leave := func() {
		in[0].Release()
		in = in[1:]
	}

	replace(t, l, inFlight(5))
	for len(in) > 5 {
		if r := refused(t, l, core.Request{}); r.Reason != core.ReasonInFlight {
			t.Errorf("with %d of 5 in, refused as %q; want %q", len(in), r.Reason, core.ReasonInFlight)
		}
		leave()
	}
	refused(t, l, core.Request{})
	leave()
	in = append(in, hold(t, l, core.Request{}))
	refused(t, l, core.Request{})

	replace(t, l, inFlight(10))
	for range 5 {
		in = append(in, hold(t, l, core.Request{}))
	}
	refused(t, l, core.Request{})

	replace(t, l, inFlight(0))
	if r := refused(t, l, core.Request{}); r.Reason != core.ReasonNever {
		t.Errorf("with a limit of nothing, refused as %q; want %q", r.Reason, core.ReasonNever)
	}
	for len(in) > 0 {
		leave()
	}
	replace(t, l, inFlight(10))
	hold(t, l, core.Request{Cost: 10})
}

// The limit goes up and down while a crowd comes and goes. Afterwards all is free:
// nothing was lost on the way, nothing gained.
func TestSlotsSurviveChangesUnderLoad(t *testing.T) {
	l := limiterOf(t, inFlight(4))
	stop := make(chan struct{})
	var all sync.WaitGroup
	var in atomic.Int32
	for range 8 {
		all.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if p, ok := l.Try(core.Request{}); ok {
					if n := in.Add(1); n > 6 {
						t.Errorf("%d in; want 6 at most, whatever the limit was", n)
					}
					in.Add(-1)
					p.Release()
				}
			}
		})
	}
	for i := range 300 {
		replace(t, l, inFlight(1+i%6))
	}
	close(stop)
	all.Wait()
	replace(t, l, inFlight(6))
	hold(t, l, core.Request{Cost: 6})
	refused(t, l, core.Request{})
}
