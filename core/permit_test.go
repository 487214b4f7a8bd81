package core_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/exactflow/exactflow/core"
)

// ends are the ways a handler ends other than by returning.
var ends = map[string]func(){
	"panic":                     func() { panic("broken") },
	"panic of an error":         func() { panic(errBroken) },
	"panic(ErrAbortHandler)":    func() { panic(http.ErrAbortHandler) },
	"an error of the runtime":   func() { var none []int; _ = none[len(none)] },
	"runtime.Goexit":            runtime.Goexit,
	"Goexit out of a recovery":  func() { defer func() { recover(); runtime.Goexit() }(); panic("first") },
	"a panic that replaces one": func() { defer func() { panic("second") }(); panic("first") },
}

var errBroken = errors.New("broken")

// A permit is released twice, and its copies, too. One slot is freed: what the
// later releases would free belongs to somebody else.
func TestOnlyTheFirstReleaseCounts(t *testing.T) {
	l := limiterOf(t, inFlight(3))
	a := hold(t, l, core.Request{})
	hold(t, l, core.Request{})
	hold(t, l, core.Request{})
	b := a
	func(c core.Permit) { c.Release(); c.Release() }(a)
	b.Release()
	a.Release()
	hold(t, l, core.Request{})
	refused(t, l, core.Request{})
	if n := statOf(t, l, "inflight").InFlight; n != 3 {
		t.Errorf("%d in flight; want 3", n)
	}
}

// The same, by many goroutines at once.
func TestOnlyTheFirstReleaseCountsInARace(t *testing.T) {
	l := limiterOf(t, inFlight(2))
	hold(t, l, core.Request{})
	for range 200 {
		p := hold(t, l, core.Request{})
		var all sync.WaitGroup
		for range 8 {
			all.Go(p.Release)
		}
		all.Wait()
		if n := statOf(t, l, "inflight").InFlight; n != 1 {
			t.Fatalf("%d in flight; want 1", n)
		}
	}
}

// A permit is released once more when others have come meanwhile, some of which
// may use what it has left behind. Their slots are not its to free.
func TestALateReleaseFreesNobodyElse(t *testing.T) {
	rules := []core.Rule{ // one that needs no look-up, one that does, and a rate beside
		inFlight(1),
		{Name: "user", By: "user", Limit: core.InFlight{N: 1}},
		rate(1<<20, time.Hour),
	}
	l := limiterOf(t, rules...)
	var gone []core.Permit
	for round := range 200 {
		p := hold(t, l, of("user", "ann"))
		for _, g := range gone {
			g.Release()
		}
		if n := statOf(t, l, "inflight").InFlight; n != 1 {
			t.Fatalf("round %d: late releases left %d in flight; want 1", round, n)
		}
		refused(t, l, of("user", "ann"))
		p.Release()
		gone = append(gone, p)
	}
}

// The same in a race: late releases of the old while the new come and go.
func TestALateReleaseFreesNobodyElseInARace(t *testing.T) {
	const n = 3
	l := limiterOf(t, inFlight(n))
	var in atomic.Int32
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 2000 {
				p, ok := l.Try(core.Request{})
				if !ok {
					continue
				}
				if now := in.Add(1); now > n {
					t.Errorf("%d in; want %d at most", now, n)
				}
				in.Add(-1)
				p.Release()
				p.Release()
			}
		})
	}
	all.Wait()
	hold(t, l, core.Request{Cost: n})
}

// An outcome is told after the request is done, and others use what it has left
// behind. It lands on nobody.
func TestALateFailureLandsOnNobody(t *testing.T) {
	l := limiterOf(t, inFlight(1), rate(1<<20, time.Hour))
	var gone []core.Permit
	for range 200 {
		p := hold(t, l, core.Request{})
		for _, g := range gone {
			g.Fail()
		}
		p.Release()
		p.Fail()
		gone = append(gone, p)
	}
	for _, s := range l.Stats() {
		if s.Failed != 0 || s.Admitted != 200 {
			t.Errorf("rule %s: %d of %d failed; want none of 200", s.Rule, s.Failed, s.Admitted)
		}
	}
}

// A request has failed once, however often and on whichever copy it is said, and
// for each rule that admitted it; in one without rules or refused nobody has.
func TestAFailureIsCountedOnce(t *testing.T) {
	l := limiterOf(t, inFlight(1),
		core.Rule{Name: "orders", On: "orders", Limit: core.Rate{N: 2, Per: time.Hour}},
		core.Rule{Name: "other", On: "other", Limit: core.Rate{N: 2, Per: time.Hour}})
	p := hold(t, l, core.Request{On: "orders"})
	q := p
	q.Fail()
	p.Fail()

	no, ok := l.Try(core.Request{On: "other"})
	if ok {
		t.Fatal("admitted; want refused")
	}
	no.Fail()
	no.Release()

	p.Release()
	q.Release()
	hold(t, l, core.Request{On: "orders"}).Release()
	for rule, want := range map[string]uint64{"inflight": 1, "orders": 1, "other": 0} {
		if n := statOf(t, l, rule).Failed; n != want {
			t.Errorf("rule %s: %d failed; want %d", rule, n, want)
		}
	}
}

// A rate, too, hears of the failure, though it holds nothing.
func TestAFailureIsCountedWhereNothingIsHeld(t *testing.T) {
	l := limiterOf(t, rate(5, time.Hour))
	p := hold(t, l, core.Request{})
	p.Fail()
	p.Release()
	p.Release()
	hold(t, l, core.Request{}).Release()
	if s := statOf(t, l, "rate"); s.Failed != 1 || s.Admitted != 2 {
		t.Errorf("%d of %d failed; want 1 of 2", s.Failed, s.Admitted)
	}
}

// The zero Permit, and one that was refused, have nothing to give.
func TestAPermitWithoutSlotsIsHarmless(t *testing.T) {
	var zero core.Permit
	zero.Fail()
	zero.Release()
	zero.Release()
	if r := zero.Refusal(); r != (core.Refusal{}) {
		t.Errorf("refusal %+v; want none", r)
	}
	if q := zero.Quota(); q != (core.Quota{}) {
		t.Errorf("quota %+v; want none", q)
	}

	l := limiterOf(t, inFlight(1))
	hold(t, l, core.Request{})
	no, _ := l.Try(core.Request{})
	no.Fail()
	no.Release()
	no.Release()
	refused(t, l, core.Request{})
	if s := statOf(t, l, "inflight"); s.Failed != 0 || s.InFlight != 1 {
		t.Errorf("%d failed, %d in flight; want 0 and 1", s.Failed, s.InFlight)
	}
}

// A Limiter that nobody made has no rules. To let everything pass would be worse
// than to stop, so it stops, and says what is missing.
func TestTheZeroLimiterSaysWhatIsMissing(t *testing.T) {
	for name, ask := range map[string]func(l *core.Limiter){
		"Try":     func(l *core.Limiter) { l.Try(core.Request{}) },
		"Wait":    func(l *core.Limiter) { l.Wait(context.Background(), core.Request{}) },
		"Do":      func(l *core.Limiter) { l.Do(context.Background(), core.Request{}, nothing) },
		"Replace": func(l *core.Limiter) { l.Replace() },
		"Forget":  func(l *core.Limiter) { l.Forget("rule") },
		"Stats":   func(l *core.Limiter) { l.Stats() },
	} {
		var l core.Limiter
		said := func() (said any) {
			defer func() { said = recover() }()
			ask(&l)
			return nil
		}()
		if text := fmt.Sprint(said); !strings.HasPrefix(text, "core: ") || !strings.Contains(text, "New") {
			t.Errorf("%s: panic %q; want one that begins with the package and names New", name, text)
		}
	}
}

func nothing(context.Context) error { return nil }

// What is refused is told in full by the permit, and nothing is told by one that
// was admitted.
func TestARefusalIsToldInFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, core.Rule{Name: "per-ip", By: "ip", Limit: core.Rate{N: 1, Per: time.Minute}})
		p := hold(t, l, of("ip", "192.0.2.7"))
		if r := p.Refusal(); r != (core.Refusal{}) {
			t.Errorf("refusal %+v of an admitted request; want none", r)
		}
		time.Sleep(time.Second)
		want := core.Refusal{Rule: "per-ip", By: "ip", Reason: core.ReasonRate, RetryAfter: 59 * time.Second, Known: true}
		r := refused(t, l, of("ip", "192.0.2.7"))
		if r != want {
			t.Errorf("refusal %+v; want %+v", r, want)
		}
		if text := r.Error(); text != `core: refused by rule "per-ip": rate, retry after 59s` {
			t.Errorf("error %q", text)
		}
		hold(t, l, of("ip", "192.0.2.8"))
	})
}

// A refusal's text has no key in it: what a client sends is not what its
// neighbours' logs should hold.
func TestARefusalDoesNotTellTheKey(t *testing.T) {
	l := limiterOf(t, core.Rule{Name: "per-user", By: "user", Limit: core.InFlight{N: 0}})
	if text := fmt.Sprintf("%v %+v", refused(t, l, of("user", "secret")), refused(t, l, of("user", "secret"))); strings.Contains(text, "secret") {
		t.Errorf("%q has the key in it", text)
	}
}

// The quota is what the decision itself saw: the rule that has the smallest part
// of its limit left, and how long until it has more.
func TestTheQuotaIsThatOfTheTightestRule(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t,
			core.Rule{Name: "minute", Limit: core.Rate{N: 100, Per: time.Minute}},
			core.Rule{Name: "second", On: "orders", Limit: core.Rate{N: 4, Per: time.Second}},
			core.Rule{Name: "inflight", On: "uploads", Limit: core.InFlight{N: 8}},
		)
		check := func(what string, p core.Permit, want core.Quota) {
			t.Helper()
			if q := p.Quota(); q != want {
				t.Errorf("%s: quota %+v; want %+v", what, q, want)
			}
		}
		check("99 of 100", hold(t, l, core.Request{}),
			core.Quota{Rule: "minute", Limit: 100, Window: time.Minute, Remaining: 99, Reset: time.Minute})
		check("3 of 4 before 98 of 100", hold(t, l, core.Request{On: "orders"}),
			core.Quota{Rule: "second", Limit: 4, Window: time.Second, Remaining: 3, Reset: time.Second})
		time.Sleep(400 * ms)
		check("more is free when the oldest leaves", hold(t, l, core.Request{On: "orders", Cost: 2}),
			core.Quota{Rule: "second", Limit: 4, Window: time.Second, Remaining: 1, Reset: 600 * ms})
		p := hold(t, l, core.Request{On: "uploads", Cost: 6})
		check("a slot has no time", p,
			core.Quota{Rule: "inflight", Limit: 8, Remaining: 2})
		p.Release()
		check("what was seen stays seen", p,
			core.Quota{Rule: "inflight", Limit: 8, Remaining: 2})

		hold(t, l, core.Request{On: "orders"})
		no, ok := l.Try(core.Request{On: "orders"})
		if ok {
			t.Fatal("the fifth is admitted")
		}
		check("of a refusal, that of the refusing rule", no,
			core.Quota{Rule: "second", Limit: 4, Window: time.Second, Remaining: 0, Reset: 600 * ms})

		replace(t, l, core.Rule{Name: "elsewhere", On: "elsewhere", Limit: core.InFlight{N: 1}})
		check("no rule, no quota", hold(t, l, core.Request{}), core.Quota{})
	})
}

// At the instant when a unit leaves, it is no longer in the quota.
func TestTheQuotaForgetsWhatHasLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, rate(4, time.Second))
		trace(t, l, core.Request{}, volley{0, 1, 1}, volley{400 * ms, 2, 2})
		sleepUntil(t, time.Second)
		want := core.Quota{Rule: "rate", Limit: 4, Window: time.Second, Remaining: 1, Reset: 400 * ms}
		if q := hold(t, l, core.Request{}).Quota(); q != want {
			t.Errorf("quota %+v; want %+v", q, want)
		}
	})
}

// A quota is seen in the decision, and looking at it changes nothing.
func TestLookingAtTheQuotaTakesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, rate(3, time.Second))
		p := hold(t, l, core.Request{})
		for range 10 {
			p.Quota()
		}
		trace(t, l, core.Request{}, volley{0, 2, 3})
	})
}

// The context has ended before the request asks. It gets the context's error, and
// takes nothing: neither a unit nor a slot, nor is it counted as refused.
func TestAContextThatHasEndedTakesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, rate(1, time.Hour), inFlight(1))
		canceled, cancel := context.WithCancelCause(t.Context())
		cancel(errBroken)
		late, cancel2 := context.WithTimeout(t.Context(), time.Second)
		defer cancel2()
		<-late.Done()
		ask := func() {
			for ctx, want := range map[context.Context]error{canceled: context.Canceled, late: context.DeadlineExceeded} {
				p, err := l.Wait(ctx, core.Request{})
				if err != want {
					t.Errorf("Wait: error %v; want %v", err, want)
				}
				if r := p.Refusal(); r != (core.Refusal{}) {
					t.Errorf("Wait: refusal %+v; want none", r)
				}
				p.Fail()
				p.Release()
				err = l.Do(ctx, core.Request{}, func(context.Context) error {
					t.Error("Do calls its function")
					return nil
				})
				if err != want {
					t.Errorf("Do: error %v; want %v", err, want)
				}
			}
		}
		ask()
		if n := statOf(t, l, "rate").Admitted; n != 0 {
			t.Errorf("%d were admitted; want none", n)
		}
		p, err := l.Wait(t.Context(), core.Request{})
		if err != nil {
			t.Errorf("Wait: %v; want the unit that nobody took", err)
		}
		ask() // while the rules would refuse
		p.Release()
		for _, s := range l.Stats() {
			if s.Admitted != 1 || len(s.Refused) != 0 || s.InFlight != 0 || s.Failed != 0 {
				t.Errorf("%+v; want one admitted, and nothing else", s)
			}
		}
	})
}

// Wait's error is the bare ErrRefused, and the permit tells why.
func TestWaitTellsTheRefusalInThePermit(t *testing.T) {
	l := limiterOf(t, inFlight(0))
	p, err := l.Wait(t.Context(), core.Request{})
	if err != core.ErrRefused {
		t.Errorf("error %v; want %v", err, core.ErrRefused)
	}
	if r := p.Refusal(); r.Rule != "inflight" || r.Reason != core.ReasonNever {
		t.Errorf("refusal %+v", r)
	}
	p.Release()
}

// Do's function runs with the caller's context while the slot is held, and what
// it returns comes back as it is.
func TestDoReturnsWhatItsFunctionReturns(t *testing.T) {
	l := limiterOf(t, inFlight(1))
	type key struct{}
	ctx := context.WithValue(t.Context(), key{}, "value")
	for _, want := range []error{nil, errBroken, fmt.Errorf("wrapped: %w", errBroken), core.ErrRefused, context.Canceled} {
		err := l.Do(ctx, core.Request{}, func(ctx context.Context) error {
			if ctx.Value(key{}) != "value" {
				t.Error("the function has another context")
			}
			refused(t, l, core.Request{})
			return want
		})
		if err != want {
			t.Errorf("error %v; want %v unchanged", err, want)
		}
	}
	if s := statOf(t, l, "inflight"); s.Failed != 4 || s.Admitted != 5 || s.InFlight != 0 {
		t.Errorf("%d of %d failed, %d in flight; want 4 of 5, none", s.Failed, s.Admitted, s.InFlight)
	}
}

// A refusal by Do is an error like others: it can be asked what it is and why.
func TestDoReturnsARefusalAsAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, core.Rule{Name: "orders", By: "resource", Limit: core.Rate{N: 1, Per: time.Minute}})
		r := core.Request{On: "orders"}
		hold(t, l, r)
		err := l.Do(t.Context(), r, func(context.Context) error {
			t.Error("the function is called")
			return nil
		})
		if !errors.Is(err, core.ErrRefused) {
			t.Errorf("errors.Is(%v, ErrRefused) is false", err)
		}
		if errors.Is(err, context.Canceled) {
			t.Errorf("errors.Is(%v, Canceled) is true", err)
		}
		var refusal core.Refusal
		want := core.Refusal{Rule: "orders", By: "resource", Reason: core.ReasonRate, RetryAfter: time.Minute, Known: true}
		if !errors.As(fmt.Errorf("wrapped: %w", err), &refusal) || refusal != want {
			t.Errorf("errors.As gives %+v; want %+v", refusal, want)
		}
		if s := statOf(t, l, "orders"); s.Failed != 0 {
			t.Errorf("%d failed; want none: it did not run", s.Failed)
		}
	})
}

// However Do's function ends, the slot comes back, once, the request counts as
// failed, and the end goes on its way: a panic is neither swallowed nor changed.
func TestDoReleasesHoweverItsFunctionEnds(t *testing.T) {
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			l := limiterOf(t, inFlight(1), core.Rule{Name: "user", By: "user", Limit: core.InFlight{N: 1}})
			bare, withDo := ending(end), ending(func() {
				l.Do(t.Context(), of("user", "ann"), func(context.Context) error { end(); return nil })
			})
			if fmt.Sprint(bare) != fmt.Sprint(withDo) {
				t.Errorf("the function ends with %v; within Do with %v", bare, withDo)
			}
			for _, s := range l.Stats() {
				if s.InFlight != 0 || s.Failed != 1 || s.Admitted != 1 {
					t.Errorf("%s: %d in flight, %d of %d failed; want 0, 1 of 1", s.Rule, s.InFlight, s.Failed, s.Admitted)
				}
			}
			p := hold(t, l, of("user", "ann"))
			refused(t, l, of("user", "ann"))
			p.Release()
		})
	}
}

// ending tells how f ends: what it panics with, "exit" for Goexit, "return".
func ending(f func()) any {
	done := make(chan any)
	go func() {
		how := any("exit")
		defer func() { done <- how }()
		defer func() {
			if r := recover(); r != nil {
				how = r
			}
		}()
		f()
		how = "return"
	}()
	return <-done
}

// A panic's value is the same one, not one that prints alike.
func TestDoPassesThePanicOnUnchanged(t *testing.T) {
	l := limiterOf(t, inFlight(1))
	for _, value := range []any{http.ErrAbortHandler, errBroken, &struct{ n int }{1}, "text", 7} {
		got := ending(func() {
			l.Do(t.Context(), core.Request{}, func(context.Context) error { panic(value) })
		})
		if got != value {
			t.Errorf("panic %v comes out as %v", value, got)
		}
	}
}

// A function that has its own way to the permits of others, a nested Do, holds
// two slots while it runs, and none when it is done.
func TestANestedDoHoldsTwo(t *testing.T) {
	l := limiterOf(t, inFlight(2))
	err := l.Do(t.Context(), core.Request{}, func(ctx context.Context) error {
		return l.Do(ctx, core.Request{}, func(context.Context) error {
			refused(t, l, core.Request{})
			return nil
		})
	})
	if err != nil {
		t.Error(err)
	}
	hold(t, l, core.Request{Cost: 2})
}

// Reasons are words in statistics and messages, and each has one of its own.
func TestReasonsAreWords(t *testing.T) {
	for reason, want := range map[core.Reason]string{
		core.ReasonNone: "", core.ReasonNever: "never", core.ReasonInFlight: "in_flight",
		core.ReasonRate: "rate", core.ReasonKeys: "keys",
	} {
		text, err := reason.MarshalText()
		if reason.String() != want || string(text) != want || err != nil {
			t.Errorf("reason %d is %q, in JSON %q (%v); want %q", uint8(reason), reason, text, err, want)
		}
	}
}

// Statistics and refusals are read back from JSON as they were written, and text
// that is no reason is an error.
func TestReasonsAreReadBack(t *testing.T) {
	for r := core.ReasonNone; r <= core.ReasonKeys; r++ {
		text, err := json.Marshal(core.Stat{Rule: "a", Refused: map[core.Reason]uint64{r: 7}})
		var back core.Stat
		if err != nil || json.Unmarshal(text, &back) != nil || back.Refused[r] != 7 {
			t.Errorf("%v: %s, %v, %+v", r, text, err, back)
		}
	}
	var r core.Reason
	if err := r.UnmarshalText([]byte("whim")); err == nil || !strings.Contains(err.Error(), "whim") {
		t.Errorf("a reason that there is not: %v", err)
	}
	if s := core.Reason(77).String(); s != "reason(77)" {
		t.Errorf("a number that is no reason: %q", s)
	}
}

// The refusal of an admitted request is none, whoever asks.
func TestTheZeroRefusalRefusesNothing(t *testing.T) {
	if r := (core.Refusal{}); errors.Is(r, core.ErrRefused) || strings.Contains(r.Error(), "by rule") {
		t.Errorf("%v", r)
	}
}

// Of two rules with as small a part left, the quota names one whichever stands
// first.
func TestAmongEqualsTheQuotaGoesByName(t *testing.T) {
	a, b := core.Rule{Name: "a", Limit: core.InFlight{N: 4}}, core.Rule{Name: "b", Limit: core.InFlight{N: 2}}
	for _, rules := range [][]core.Rule{{a, b}, {b, a}} {
		l := limiterOf(t, rules...)
		hold(t, l, core.Request{}) // 3/4 and 1/2
		p := hold(t, l, core.Request{})
		if q := p.Quota(); q.Rule != "b" { // 2/4 and 0/2
			t.Errorf("quota of %q", q.Rule)
		}
	}
	b.Limit = core.InFlight{N: 4}
	for _, rules := range [][]core.Rule{{a, b}, {b, a}} {
		if q := hold(t, limiterOf(t, rules...), core.Request{}).Quota(); q.Rule != "a" {
			t.Errorf("of equals the quota is of %q", q.Rule)
		}
	}
}
