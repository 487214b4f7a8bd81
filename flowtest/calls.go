package flowtest

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"testing/synctest"
	"time"

	"github.com/exactflow/exactflow/core"
)

// The promises about one call: it is admitted or refused, and what it holds comes
// back.

func answersComeBack(x *exam) {
	l := x.limiter(core.Rule{Name: "r", Limit: core.Rate{N: 9, Per: time.Hour}})
	var ran atomic.Int32
	for i, o := range []Outcome{OK, ClientError, ServerError} {
		s := x.serve(l, Options{}, returns(o, &ran))
		x.want("an admitted call", x.call(s, Call{}), o)
		if n := ran.Load(); n != int32(i)+1 {
			x.Errorf("%d calls have run their handlers %d times", i+1, n)
		}
		if n := x.stat(l, "r").Admitted; n != uint64(i)+1 {
			x.Errorf("%d calls have asked the limiter %d times", i+1, n)
		}
	}
}

// A refusal is an answer of the limiter's: the handler is not touched, no rule is
// charged, and the client is told which rule it was, and the wait if it is known.
func refusedIsNotRun(x *exam) {
	for _, c := range []struct {
		limit core.Limit
		after time.Duration
	}{
		{core.Rate{N: 1, Per: time.Minute}, 50 * time.Second},
		{core.Rate{N: 1, Per: 24 * time.Hour}, 24*time.Hour - 10*time.Second},
		{core.InFlight{N: 1}, unknown},
	} {
		l := x.limiter(
			core.Rule{Name: "before", Limit: core.Rate{N: 2, Per: time.Hour}},
			core.Rule{Name: "closed", Limit: c.limit},
			core.Rule{Name: "later", Limit: core.Rate{N: 2, Per: time.Hour}})
		w := x.work()
		s := x.serve(l, Options{}, w.handle)
		first := x.begin(s, Call{})
		time.Sleep(10 * time.Second)
		for range 3 {
			x.wantRefused("a call beyond "+describe(c.limit), x.call(s, Call{}), "closed", c.after)
		}
		if n := w.ran.Load(); n != 1 {
			x.Errorf("%d handlers have run; want the one of the admitted call", n)
		}
		for _, rule := range []string{"before", "later"} {
			if n := x.stat(l, rule).Admitted; n != 1 {
				x.Errorf("rule %q has admitted %d calls; want 1: what another rule refuses takes nothing", rule, n)
			}
		}
		if n := x.stat(l, "closed").Refused; len(n) != 1 || n[core.ReasonRate]+n[core.ReasonInFlight] != 3 {
			x.Errorf("the rule has counted as refused %v; want 3", n)
		}
		w.let(OK)
		x.want("the admitted call", <-first, OK)
	}

	l := x.limiter(core.Rule{Name: "never", Limit: core.InFlight{N: 0}})
	var ran atomic.Int32
	s := x.serve(l, Options{}, returns(OK, &ran))
	x.wantRefused("a call that can never pass", x.call(s, Call{}), "never", unknown)
	if ran.Load() != 0 {
		x.Errorf("a call that can never pass has run")
	}
}

func describe(l core.Limit) string { return l.(interface{ String() string }).String() }

// let lets one handler return. If none runs that is no error of its own.
func (w *work) let(o Outcome) {
	select {
	case w.end <- o:
	case <-time.After(time.Nanosecond):
	}
	synctest.Wait()
}

// A client that is told to wait, and does so, gets in, and no earlier.
func retryAfterIsExact(x *exam) {
	l := x.limiter(core.Rule{Name: "r", Limit: core.Rate{N: 2, Per: 90 * time.Second}})
	var ran atomic.Int32
	s := x.serve(l, Options{}, returns(OK, &ran))
	for range 3 {
		x.want("the first of two", x.call(s, Call{}), OK)
		time.Sleep(30 * time.Second)
		x.want("the second of two", x.call(s, Call{}), OK)
		a := x.call(s, Call{})
		x.wantRefused("the third of two", a, "r", time.Minute)
		if !a.Known || a.RetryAfter <= 0 {
			return
		}
		time.Sleep(a.RetryAfter - 1)
		x.want("a nanosecond before RetryAfter", x.call(s, Call{}), Refused)
		time.Sleep(time.Nanosecond)
		x.want("after RetryAfter", x.call(s, Call{}), OK)
		time.Sleep(90 * time.Second)
	}
}

// Many come at once. One runs; the others are refused while it does, however long
// that is.
func heldWhileRunning(x *exam) {
	l := x.limiter(core.Rule{Name: "one", Limit: core.InFlight{N: 1}})
	w := x.work()
	s := x.serve(l, Options{}, w.handle)
	for round := range 2 {
		var answers []<-chan Answer
		for range 12 {
			answers = append(answers, x.begin(s, Call{}))
		}
		time.Sleep(time.Hour)
		x.wantRefused("a call beside one that runs for an hour", x.call(s, Call{}), "one", unknown)
		if n := w.running.Load(); n != 1 {
			x.Errorf("round %d: %d run; want 1", round, n)
		}
		if n := x.stat(l, "one").InFlight; n != 1 {
			x.Errorf("round %d: %d in flight while one runs", round, n)
		}
		for range w.running.Load() {
			w.let(OK)
		}
		passed := 0
		for _, a := range answers {
			if (<-a).Outcome == OK {
				passed++
			}
		}
		if n := x.stat(l, "one").InFlight; n != 0 || passed != 1 {
			x.Errorf("round %d: afterwards %d in flight, and %d have passed; want 0 and 1", round, n, passed)
		}
	}
}

// ends are the ways in which a handler ends.
func ends() []end {
	return []end{
		{"returns", func() Outcome { return OK }, false},
		{"returns a client's error", func() Outcome { return ClientError }, false},
		{"returns a server's error", func() Outcome { return ServerError }, true},
		{"panics", func() Outcome { panic("flowtest: this panic is meant") }, true},
		{"calls runtime.Goexit", func() Outcome { runtime.Goexit(); return OK }, true},
	}
}

type end struct {
	name   string
	do     func() Outcome
	failed bool
}

// once calls a server whose handler ends so. Of a goroutine that has gone, some
// frameworks say nothing: so the client has a deadline.
func (x *exam) once(l *core.Limiter, e end) Answer {
	s := x.serve(l, Options{}, func(context.Context, Header) Outcome { return e.do() })
	ctx, cancel := context.WithTimeout(x.ctx, time.Second)
	defer cancel()
	return s.Call(ctx, Call{})
}

func everyEndGivesBack(x *exam) {
	l := x.limiter(core.Rule{Name: "one", Limit: core.InFlight{N: 1}})
	for _, e := range ends() {
		for i := range 2 { // the second has the slot of the first
			a := x.once(l, e)
			switch {
			case a.Outcome == Refused:
				x.Errorf("call %d of a handler that %s: %v; the one before has not given its slot back", i, e.name, a)
			case (a.Outcome == OK) != (e.name == "returns"):
				x.Errorf("a handler that %s: %v", e.name, a)
			}
			if n := x.stat(l, "one").InFlight; n != 0 {
				x.Fatalf("after a handler that %s: %d in flight", e.name, n)
			}
		}
	}
}

func failedIsCounted(x *exam) {
	l := x.limiter(core.Rule{Name: "all", Limit: core.Rate{N: 99, Per: time.Hour}})
	for _, e := range ends() {
		before := x.stat(l, "all").Failed
		x.once(l, e)
		want := uint64(0)
		if e.failed && !(x.adapter.Blind && e.name == "returns a server's error") {
			want = 1
		}
		if n := x.stat(l, "all").Failed - before; n != want {
			x.Errorf("a handler that %s: %d counted as failed; want %d", e.name, n, want)
		}
	}
}

// The client goes away and the work goes on: the handler is told by its context, and
// holds its slot until it returns, else the limit would not hold.
func goneClientStillHolds(x *exam) {
	l := x.limiter(core.Rule{Name: "one", Limit: core.InFlight{N: 1}})
	var told atomic.Bool
	s := x.serve(l, Options{}, func(ctx context.Context, _ Header) Outcome {
		select {
		case <-ctx.Done():
			told.Store(true)
		case <-x.over:
			return OK
		}
		time.Sleep(time.Minute) // cleans up
		return OK
	})
	ctx, hangUp := context.WithCancel(x.ctx)
	defer hangUp()
	answer := x.beginIn(ctx, s, Call{})
	time.Sleep(time.Second)
	hangUp()
	x.want("a client that hangs up", <-answer, Canceled)
	time.Sleep(time.Minute - 1)
	if n := x.stat(l, "one").InFlight; n != 1 {
		x.Errorf("while the handler cleans up: %d in flight; want 1", n)
	}
	if !told.Load() {
		x.Fatalf("the handler's context has not ended with the client")
	}
	time.Sleep(time.Nanosecond)
	if s := x.stat(l, "one"); s.InFlight != 0 || s.Failed != 0 {
		x.Errorf("when it has returned: %d in flight, %d failed; want none", s.InFlight, s.Failed)
	}
}

func nilLimiterPanics(x *exam) {
	defer func() {
		if recover() == nil {
			x.Errorf("a nil limiter was accepted")
		}
	}()
	var ran atomic.Int32
	x.adapter.Serve(x.t, nil, Options{}, returns(OK, &ran))
}

// What a handler sees is what the rule says, on all routes together. That is for the
// race detector too.
func manyAtOnce(x *exam) {
	const limit, callers, calls = 3, 8, 10
	l := x.limiter(core.Rule{Name: "few", Limit: core.InFlight{N: limit}})
	var running, most, ran atomic.Int32
	s := x.serve(l, Options{}, func(context.Context, Header) Outcome {
		ran.Add(1)
		n := running.Add(1)
		for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
		}
		runtime.Gosched()
		running.Add(-1)
		return OK
	})
	var passed, refused, other atomic.Int32
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for i := range calls {
				switch s.Call(x.ctx, Call{Route: i % 2}).Outcome {
				case OK:
					passed.Add(1)
				case Refused:
					refused.Add(1)
				default:
					other.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if n := most.Load(); n > limit {
		x.Errorf("%d have run at once; the limit is %d", n, limit)
	}
	st := x.stat(l, "few")
	if passed.Load() != ran.Load() || other.Load() != 0 ||
		st.Admitted != uint64(passed.Load()) || st.Refused[core.ReasonInFlight] != uint64(refused.Load()) {
		x.Errorf("of %d calls %d ran, %d were told ok, %d refused, %d neither; the limiter has admitted %d and refused %v",
			callers*calls, ran.Load(), passed.Load(), refused.Load(), other.Load(), st.Admitted, st.Refused)
	}
}
