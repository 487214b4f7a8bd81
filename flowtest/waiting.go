package flowtest

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"testing/synctest"
	"time"

	"github.com/exactflow/exactflow/core"
)

// The promises about calls that wait, where the rules let them.

// hold takes the one unit until the test is over, or the result is called.
func (x *exam) hold(l *core.Limiter) (release func()) {
	p, ok := l.Try(core.Request{})
	if !ok {
		x.Fatalf("the unit is taken already")
	}
	release = sync.OnceFunc(p.Release)
	x.t.Cleanup(release)
	return release
}

// Who comes while the slot is taken gets it when it is free, one after the other,
// and holds it as any other does.
func waitersPassInTurn(x *exam) {
	l := x.limiter(core.Rule{Name: "one", Limit: core.InFlight{N: 1}, Queue: core.Queue{Len: 4, Wait: time.Hour}})
	var running, most atomic.Int32
	var mu sync.Mutex
	var order []string
	s := x.serve(l, Options{}, func(_ context.Context, h Header) Outcome {
		n := running.Add(1)
		mu.Lock()
		most.Store(max(most.Load(), n))
		order = append(order, h(nameHeader))
		mu.Unlock()
		time.Sleep(3 * time.Second)
		running.Add(-1)
		return OK
	})
	begin := time.Now()
	var wg sync.WaitGroup
	for i := range 5 {
		wg.Go(func() {
			x.want("a call that may wait", s.Call(x.ctx, with(nameHeader, strconv.Itoa(i))), OK)
			if took, want := time.Since(begin), time.Duration(i+1)*3*time.Second; took != want {
				x.Errorf("call %d of 3 s each: answered after %v; want %v", i, took, want)
			}
		})
		synctest.Wait()
	}
	time.Sleep(time.Second)
	if s := x.stat(l, "one"); s.Waiting != 4 || s.InFlight != 1 {
		x.Errorf("of five calls %d wait and %d are in flight; want 4 and 1", s.Waiting, s.InFlight)
	}
	time.Sleep(13*time.Second + 999*time.Millisecond)
	if s := x.stat(l, "one"); s.Waiting != 0 || s.InFlight != 1 {
		x.Errorf("just before the last, which has waited, ends: %d wait and %d are in flight; want 0 and 1", s.Waiting, s.InFlight)
	}
	wg.Wait()
	if n := most.Load(); n != 1 {
		x.Errorf("%d have run at once; want 1", n)
	}
	for i, name := range order {
		if name != strconv.Itoa(i) {
			x.Errorf("they ran in the order %v; want that in which they came", order)
			break
		}
	}
}

// What a queue refuses is refused as by its rule: at once when it is full, or when
// the wait is known to be too long; else when it has been.
func queueRefuses(x *exam) {
	l := x.limiter(core.Rule{Name: "one", Limit: core.InFlight{N: 1}, Queue: core.Queue{Len: 1, Wait: time.Minute}})
	var ran atomic.Int32
	s := x.serve(l, Options{}, returns(OK, &ran))
	release := x.hold(l)
	begin := time.Now()
	waits := x.begin(s, Call{})
	if n := x.stat(l, "one").Waiting; n != 1 {
		x.Errorf("the rule has room for one who waits, and %d wait", n)
	}
	x.wantRefused("one more than may wait", x.call(s, Call{}), "one", unknown)
	if took := time.Since(begin); took != 0 {
		x.Errorf("one more than may wait: refused after %v; want at once", took)
	}
	x.wantRefused("one who has waited for too long", <-waits, "one", unknown)
	if took := time.Since(begin); took != time.Minute {
		x.Errorf("one who has waited for too long: refused after %v; want a minute", took)
	}
	if n := x.stat(l, "one").Refused; len(n) != 2 || n[core.ReasonQueueFull] != 1 || n[core.ReasonQueueTimeout] != 1 || ran.Load() != 0 {
		x.Errorf("refused: %v, and %d have run; want one for each reason, and none", n, ran.Load())
	}
	release()

	l = x.limiter(core.Rule{Name: "slow", Limit: core.Rate{N: 1, Per: time.Minute}, Queue: core.Queue{Len: 9, Wait: 59 * time.Second}})
	s = x.serve(l, Options{}, returns(OK, &ran))
	x.want("the first", x.call(s, Call{}), OK)
	begin = time.Now()
	x.wantRefused("one who would wait for too long", x.call(s, Call{}), "slow", time.Minute)
	if took := time.Since(begin); took != 0 {
		x.Errorf("one who would wait for too long: refused after %v; want at once", took)
	}
}

// Who would fit, but not before those who wait, and may not wait because of another
// rule, is refused by the rule where they do.
func othersAreFirst(x *exam) {
	l := x.limiter(
		core.Rule{Name: "service", Limit: core.InFlight{N: 2}, Queue: core.Queue{Len: 1, Wait: time.Hour}},
		core.Rule{Name: "exports", On: "export", Limit: core.Rate{N: 1, Per: time.Minute}})
	w := x.work()
	s := x.serve(l, Options{Resource: func(h Header) string { return h(nameHeader) }, Cost: costs}, w.handle)
	export := x.begin(s, with(nameHeader, "export"))
	large := x.begin(s, with(costHeader, "2"))
	x.wantRefused("one that would fit if nobody waited", <-x.begin(s, with(nameHeader, "export")), "service", unknown)
	if n := x.stat(l, "service").Refused; len(n) != 1 || n[core.ReasonQueued] != 1 {
		x.Errorf("refused %v; want one because others wait", n)
	}
	w.let(OK)
	x.want("the one before", <-export, OK)
	w.let(OK)
	x.want("the one that waits", <-large, OK)
}

// A client that hangs up while it waits leaves the line at once. It takes nothing,
// its handler never runs, and nobody is refused.
func goneWaiterLeaves(x *exam) {
	l := x.limiter(core.Rule{Name: "one", Limit: core.InFlight{N: 1}, Queue: core.Queue{Len: 1, Wait: time.Hour}})
	var ran atomic.Int32
	s := x.serve(l, Options{}, returns(OK, &ran))
	for name, end := range map[string]func() (context.Context, context.CancelFunc){
		"hangs up":         func() (context.Context, context.CancelFunc) { return context.WithCancel(x.ctx) },
		"has had its time": func() (context.Context, context.CancelFunc) { return context.WithTimeout(x.ctx, 5*time.Second) },
	} {
		before := x.stat(l, "one")
		ran.Store(0)
		release := x.hold(l)
		ctx, cancel := end()
		begin := time.Now()
		answer := x.beginIn(ctx, s, Call{})
		if n := x.stat(l, "one").Waiting; n != 1 {
			x.Errorf("a client that %s later: %d wait", name, n)
		}
		if name == "hangs up" {
			time.AfterFunc(5*time.Second, cancel)
		}
		x.want("a client that "+name+" while it waits", <-answer, Canceled)
		cancel()
		st := x.stat(l, "one")
		if took := time.Since(begin); took != 5*time.Second {
			x.Errorf("a client that %s after 5 s: answered after %v", name, took)
		}
		if st.Waiting != 0 || st.Canceled != before.Canceled+1 || st.Admitted != before.Admitted+1 || len(st.Refused) != 0 || ran.Load() != 0 {
			x.Errorf("when a client that waits %s: %d wait, %d canceled, refused %v, %d have run; want one canceled and nothing else",
				name, st.Waiting, st.Canceled-before.Canceled, st.Refused, ran.Load())
		}
		release()
		x.want("the next", x.call(s, Call{}), OK)
		if n := ran.Load(); n != 1 {
			x.Errorf("%d handlers have run; want the next's", n)
		}
	}
}

// Who would have to wait beyond its deadline is told so while there is time to do
// something else.
func hopelessWaitIsRefused(x *exam) {
	l := x.limiter(core.Rule{Name: "r", Limit: core.Rate{N: 1, Per: time.Minute}, Queue: core.Queue{Len: 9, Wait: time.Hour}})
	var ran atomic.Int32
	s := x.serve(l, Options{}, returns(OK, &ran))
	x.want("the first", x.call(s, Call{}), OK)
	for _, c := range []struct {
		within, takes time.Duration
		want          Outcome
	}{{59 * time.Second, 0, Refused}, {61 * time.Second, time.Minute, OK}} {
		ctx, cancel := context.WithTimeout(x.ctx, c.within)
		begin := time.Now()
		x.want("one who has "+c.within.String()+" for a wait of a minute", s.Call(ctx, Call{}), c.want)
		if took := time.Since(begin); took != c.takes {
			x.Errorf("one who has %v for a wait of a minute: answered after %v; want %v", c.within, took, c.takes)
		}
		cancel()
	}
	if s := x.stat(l, "r"); s.Refused[core.ReasonQueueTimeout] != 1 || s.Canceled != 0 {
		x.Errorf("refused %v, canceled %d; want one whose wait was too long, and 0", s.Refused, s.Canceled)
	}
}

// A server that is shut down answers all who wait, each in its turn or when its time
// is over, and is done when the last of them is.
func shutdownEnds(x *exam) {
	l := x.limiter(core.Rule{Name: "one", Limit: core.InFlight{N: 1}, Queue: core.Queue{Len: 9, Wait: 10 * time.Second}})
	s := x.serve(l, Options{}, func(context.Context, Header) Outcome { time.Sleep(4 * time.Second); return OK })
	var answers []<-chan Answer
	for i := range 10 {
		answers = append(answers, x.begin(s, Call{Route: i % 2}))
	}
	time.Sleep(time.Second)
	if n := x.stat(l, "one").Waiting; n != 9 {
		x.Errorf("%d wait; want 9", n)
	}
	begin := time.Now()
	s.Shutdown()
	// The third begins after 8 s and ends after 12, of which one is over.
	if took := time.Since(begin); took < 11*time.Second || took > 12*time.Second {
		x.Errorf("the shutdown took %v; want 11 s, and at most one more", took)
	}
	got := map[Outcome]int{}
	for _, a := range answers {
		got[(<-a).Outcome]++
	}
	if len(got) != 2 || got[OK] != 3 || got[Refused] != 7 {
		x.Errorf("the ten who came before the shutdown: %v; want 3 ok and 7 refused", got)
	}
	if s := x.stat(l, "one"); s.Waiting != 0 || s.InFlight != 0 || s.Canceled != 0 {
		x.Errorf("afterwards %d wait, %d are in flight, %d were canceled; want none", s.Waiting, s.InFlight, s.Canceled)
	}
}
