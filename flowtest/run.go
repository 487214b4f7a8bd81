package flowtest

import (
	"context"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/exactflow/exactflow/core"
)

// Run examines the adapter: one subtest for each promise. Call it from a test that
// is called TestConformance, so that
//
//	go test ./... -run Conformance
//
// shows all adapters.
func Run(t *testing.T, a Adapter) {
	t.Helper()
	if a.Serve == nil {
		t.Fatal("flowtest: Adapter.Serve is nil")
	}
	for _, p := range promises() {
		t.Run(p.name, func(t *testing.T) { p.put(t, a, HTTP{}) })
	}
}

// promises are those of every adapter.
func promises() []promise {
	return []promise{
		{"an admitted call runs once and its answer comes back", answersComeBack},
		{"a refused call does not run and is told why", refusedIsNotRun},
		{"a call after exactly RetryAfter passes", retryAfterIsExact},
		{"a slot is held until the handler returns", heldWhileRunning},
		{"whatever ends the handler gives its slot back", everyEndGivesBack},
		{"what failed counts as failed and nothing else", failedIsCounted},
		{"a client that has gone ends the context and not the hold", goneClientStillHolds},
		{"a nil limiter panics at once", nilLimiterPanics},
		{"many at once stay within the limit", manyAtOnce},

		{"keys are counted apart", keysAreApart},
		{"a rule limits the route that it is on", routesAreApart},
		{"a resource of ones own reaches the rules", ownResource},
		{"cost is taken", costIsTaken},
		{"priority reaches the rules", priorityReaches},
		{"a skipped call is not asked", skippedIsNotAsked},
		{"a shadow rule refuses nobody", shadowRefusesNobody},

		{"who waits passes in turn", waitersPassInTurn},
		{"a queue refuses when it is full or too slow", queueRefuses},
		{"who may not wait is not let past those who do", othersAreFirst},
		{"who goes away while waiting leaves the line", goneWaiterLeaves},
		{"a deadline before the wait can end refuses at once", hopelessWaitIsRefused},
		{"a shutdown ends with the last who waits", shutdownEnds},

		{"a permit is in the context where it is carried", carriedWhereAsked},
		{"a carried permit that is failed counts as failed", carriedFails},
		{"a carried permit can be settled", carriedSettles},
		{"a detached permit is held until its own release", detachedHolds},
		{"a panic does not release a detached permit", detachedOutlivesPanic},
		{"a release by the handler is the only one", releasedOnce},
	}
}

// A promise is a sentence and its examination.
type promise struct {
	name string
	keep func(*exam)
}

// put examines one promise, and reports to t.
func (p promise) put(t *testing.T, a Adapter, h HTTP) {
	t.Helper()
	p.examine(t, a, h, func(t testing.TB, what string) { t.Helper(); t.Error(what) })
}

// examine does it in a bubble within t, and in a goroutine of its own, which Fatalf
// can end without ending t.
func (p promise) examine(t *testing.T, a Adapter, h HTTP, report func(testing.TB, string)) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		x := &exam{t: t, adapter: a, http: h, report: report, ctx: ctx, over: make(chan struct{})}
		done := make(chan struct{})
		go func() {
			defer close(done)
			defer cancel()
			defer close(x.over)
			p.keep(x)
		}()
		<-done
	})
}

// patience is how long a call may take that nobody cancels. It is the bubble's time:
// what would hang for ever ends at once.
const patience = 1000 * time.Hour

// An exam is one promise put to one adapter.
type exam struct {
	t       testing.TB // the bubble's; what is found goes to report
	adapter Adapter
	http    HTTP // of RunHTTP
	report  func(testing.TB, string)
	ctx     context.Context
	over    chan struct{} // closed at the end: nobody works on
}

// Errorf reports what is wrong.
func (x *exam) Errorf(format string, args ...any) {
	x.t.Helper()
	x.report(x.t, fmt.Sprintf(format, args...))
}

// Fatalf reports what is wrong, and ends the examination.
func (x *exam) Fatalf(format string, args ...any) {
	x.t.Helper()
	x.report(x.t, fmt.Sprintf(format, args...))
	runtime.Goexit()
}

// limiter makes one. When its server has ended nothing may be left in it: so make
// it before the server.
func (x *exam) limiter(rules ...core.Rule) *core.Limiter {
	l, err := core.New(rules...)
	if err != nil {
		x.t.Fatal(err)
	}
	x.t.Cleanup(func() {
		synctest.Wait()
		for _, s := range l.Stats() {
			if s.InFlight != 0 || s.Waiting != 0 {
				x.Errorf("at the end rule %q has %d units in flight, and %d calls wait; want none", s.Rule, s.InFlight, s.Waiting)
			}
		}
	})
	return l
}

// serve starts a server.
func (x *exam) serve(l *core.Limiter, o Options, h Handler) Server {
	s := x.adapter.Serve(x.t, l, o, h)
	if s.Call == nil || s.Shutdown == nil {
		x.Fatalf("Serve has returned a Server that lacks its Call or its Shutdown")
	}
	return s
}

// stat is what a rule has counted, when all is quiet.
func (x *exam) stat(l *core.Limiter, rule string) core.Stat {
	synctest.Wait()
	for _, s := range l.Stats() {
		if s.Rule == rule {
			return s
		}
	}
	panic("flowtest: there is no rule " + rule)
}

// call is one call to its end: also of what the server does when it has answered.
func (x *exam) call(s Server, c Call) Answer {
	a := s.Call(x.ctx, c)
	synctest.Wait()
	return a
}

// begin begins a call, and returns when it can get no further by itself.
func (x *exam) begin(s Server, c Call) <-chan Answer { return x.beginIn(x.ctx, s, c) }

func (x *exam) beginIn(ctx context.Context, s Server, c Call) <-chan Answer {
	answer := make(chan Answer, 1)
	go func() { answer <- s.Call(ctx, c) }()
	synctest.Wait()
	return answer
}

// want is right if the call has ended so.
func (x *exam) want(what string, got Answer, want Outcome) {
	x.t.Helper()
	if got.Outcome != want {
		x.Errorf("%s: %v; want %v", what, got, want)
	}
}

// unknown is the wait of a refusal that tells none.
const unknown = -1

// wantRefused is right if the rule has refused the call and has told the wait.
func (x *exam) wantRefused(what string, got Answer, rule string, after time.Duration) {
	x.t.Helper()
	want := Answer{Outcome: Refused, Rule: rule}
	if after != unknown {
		want.RetryAfter, want.Known = after, true
	}
	if got != want {
		x.Errorf("%s: %v; want %v", what, got, want)
	}
}

// A work is a handler that returns when it is told to.
type work struct {
	over    <-chan struct{}
	end     chan Outcome // lets one return
	ran     atomic.Int32 // how often
	running atomic.Int32 // now
}

func (x *exam) work() *work { return &work{over: x.over, end: make(chan Outcome)} }

func (w *work) handle(context.Context, Header) Outcome {
	w.ran.Add(1)
	w.running.Add(1)
	defer w.running.Add(-1)
	select {
	case o := <-w.end:
		return o
	case <-w.over:
		return OK
	}
}

// returns is a handler that returns that at once, and counts how often it runs.
func returns(o Outcome, ran *atomic.Int32) Handler {
	return func(context.Context, Header) Outcome {
		ran.Add(1)
		return o
	}
}
