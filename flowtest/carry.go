package flowtest

import (
	"context"
	"sync/atomic"
	"testing/synctest"
	"time"

	"github.com/exactflow/exactflow/core"
)

// The promises about permits that travel in the handler's context.

func carriedWhereAsked(x *exam) {
	for _, carry := range []bool{false, true} {
		l := x.limiter(core.Rule{Name: "r", Limit: core.Rate{N: 9, Per: time.Hour}})
		var got core.Permit
		s := x.serve(l, Options{Carry: carry}, func(ctx context.Context, _ Header) Outcome {
			got = core.PermitFrom(ctx)
			return OK
		})
		x.want("a call", x.call(s, Call{}), OK)
		want := core.Quota{}
		if carry {
			want = core.Quota{Rule: "r", Limit: 9, Window: time.Hour, Remaining: 8}
		}
		q := got.Quota()
		q.Reset = 0 // of a permit that was released
		if q != want || !carry && got != (core.Permit{}) {
			x.Errorf("Carry is %v, and the handler's permit tells %+v; want %+v", carry, q, want)
		}
	}
}

func carriedFails(x *exam) {
	l := x.limiter(core.Rule{Name: "r", Limit: core.InFlight{N: 1}})
	var fails atomic.Bool
	s := x.serve(l, Options{Carry: true}, func(ctx context.Context, _ Header) Outcome {
		if fails.Load() {
			core.PermitFrom(ctx).Fail()
		}
		return OK
	})
	x.want("a call", x.call(s, Call{}), OK)
	fails.Store(true)
	x.want("a call that marks itself failed", x.call(s, Call{}), OK)
	if st := x.stat(l, "r"); st.Failed != 1 || st.InFlight != 0 {
		x.Errorf("one of two has called Fail: %d failed, %d in flight; want 1 and 0", st.Failed, st.InFlight)
	}
}

func carriedSettles(x *exam) {
	l := x.limiter(core.Rule{Name: "r", Limit: core.Rate{N: 10, Per: time.Hour}})
	var settled atomic.Bool
	s := x.serve(l, Options{Carry: true, Cost: costs}, func(ctx context.Context, h Header) Outcome {
		if h(costHeader) == "9" {
			settled.Store(core.PermitFrom(ctx).Settle(2) && core.PermitFrom(ctx) != core.Permit{})
		}
		return OK
	})
	x.want("a call of 9 of 10", x.call(s, with(costHeader, "9")), OK)
	if !settled.Load() {
		x.Errorf("the handler could not settle its cost")
	}
	x.want("a call of 8 beside one that was settled as 2 of 10", x.call(s, with(costHeader, "8")), OK)
	x.want("one more", x.call(s, Call{}), Refused)
}

// Work that goes on when the handler has returned holds its unit.
func detachedHolds(x *exam) { detached(x, func() Outcome { return OK }, OK) }
func detachedOutlivesPanic(x *exam) {
	detached(x, func() Outcome { panic("flowtest: this panic is meant") }, Broken, ServerError)
}

func detached(x *exam, end func() Outcome, want ...Outcome) {
	l := x.limiter(core.Rule{Name: "one", Limit: core.InFlight{N: 1}})
	var first atomic.Bool
	var goesOn core.Permit
	first.Store(true)
	s := x.serve(l, Options{Carry: true}, func(ctx context.Context, _ Header) Outcome {
		if first.Swap(false) {
			goesOn = core.PermitFrom(ctx).Detach()
			return end()
		}
		return OK
	})
	a := x.call(s, Call{})
	ended := false
	for _, o := range want {
		ended = ended || a.Outcome == o
	}
	if !ended {
		x.Errorf("the call: %v; want %v", a, want[0])
	}
	if n := x.stat(l, "one").InFlight; n != 1 {
		x.Errorf("the handler has ended and its work goes on: %d in flight; want 1", n)
	}
	x.wantRefused("a call beside work that goes on", x.call(s, Call{}), "one", unknown)
	goesOn.Release()
	if st := x.stat(l, "one"); st.InFlight != 0 || st.Failed != 0 {
		x.Errorf("when the work is done: %d in flight, %d failed; want none", st.InFlight, st.Failed)
	}
	x.want("the next call", x.call(s, Call{}), OK)
}

// A handler that releases before it returns lets the next in; what the adapter
// releases then is not the next's.
func releasedOnce(x *exam) {
	l := x.limiter(core.Rule{Name: "one", Limit: core.InFlight{N: 1}})
	w := x.work()
	s := x.serve(l, Options{Carry: true}, func(ctx context.Context, h Header) Outcome {
		if h(nameHeader) == "early" {
			core.PermitFrom(ctx).Release()
		}
		return w.handle(ctx, h)
	})
	early := x.begin(s, with(nameHeader, "early"))
	if n := x.stat(l, "one").InFlight; n != 0 {
		x.Errorf("released, and %d in flight", n)
	}
	next := x.begin(s, Call{})
	if n := w.running.Load(); n != 2 {
		x.Fatalf("%d run; want the one that has released, and the next", n)
	}
	// They wait for their end in the order in which they came.
	w.let(OK)
	x.want("the one that has released", <-early, OK)
	synctest.Wait()
	if n := x.stat(l, "one").InFlight; n != 1 {
		x.Errorf("the next runs, and %d in flight", n)
	}
	x.want("a third beside the next", x.call(s, Call{}), Refused)
	w.let(OK)
	x.want("the next", <-next, OK)
}
