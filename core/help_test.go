package core_test

import (
	"errors"
	"testing"
	"time"

	"github.com/exactflow/exactflow/core"
)

// A bubble of testing/synctest begins here.
var midnight = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// sleepUntil sleeps until a time since the bubble began.
func sleepUntil(t testing.TB, at time.Duration) {
	t.Helper()
	d := at - time.Since(midnight)
	if d < 0 {
		t.Fatalf("the script goes back from %v to %v", time.Since(midnight), at)
	}
	time.Sleep(d)
}

// limiterOf makes a limiter of rules that are right.
func limiterOf(t testing.TB, rules ...core.Rule) *core.Limiter {
	t.Helper()
	l, err := core.New(rules...)
	if err != nil {
		t.Fatalf("New: %v", err)
	}
	return l
}

// replace puts other rules, which are right, in place.
func replace(t testing.TB, l *core.Limiter, rules ...core.Rule) {
	t.Helper()
	if err := l.Replace(rules...); err != nil {
		t.Fatalf("Replace: %v", err)
	}
}

// passes asks for m such requests now and counts those that pass. Each is done
// at once, which gives nothing back to a rate.
func passes(l *core.Limiter, r core.Request, m int) (n int) {
	for range m {
		p, ok := l.Try(r)
		if ok {
			n++
		}
		p.Release()
	}
	return n
}

// A volley is one line of a trace: at this time since the bubble began, so many
// pass of so many asked for.
type volley struct {
	at    time.Duration
	n, of int
}

// trace plays volleys of one request.
func trace(t testing.TB, l *core.Limiter, r core.Request, volleys ...volley) {
	t.Helper()
	for _, v := range volleys {
		sleepUntil(t, v.at)
		if n := passes(l, r, v.of); n != v.n {
			t.Errorf("at %v: %d of %d passed; want %d", v.at, n, v.of, v.n)
		}
	}
}

// hold asks for a request that must pass, and keeps it.
func hold(t testing.TB, l *core.Limiter, r core.Request) core.Permit {
	t.Helper()
	p, ok := l.Try(r)
	if !ok {
		t.Fatalf("%+v is refused (%v); want admitted", r, p.Refusal())
	}
	return p
}

// refused asks for a request that must not pass, and tells why.
func refused(t testing.TB, l *core.Limiter, r core.Request) core.Refusal {
	t.Helper()
	p, ok := l.Try(r)
	if ok {
		t.Fatalf("%+v is admitted; want refused", r)
	}
	return p.Refusal()
}

// of is a request known by one key.
func of(by, value string) core.Request {
	return core.Request{Keys: []core.Key{{By: by, Value: value}}}
}

// statOf is the named rule's.
func statOf(t testing.TB, l *core.Limiter, rule string) core.Stat {
	t.Helper()
	for _, s := range l.Stats() {
		if s.Rule == rule {
			return s
		}
	}
	t.Fatalf("Stats has no rule %q", rule)
	return core.Stat{}
}

// An admission is what passed, and when.
type admission struct {
	at   time.Duration
	cost int
}

// mostIn is the most that was admitted in any half-open stretch (t-per, t]. The
// log is in the order of time.
func mostIn(per time.Duration, log []admission) (most int) {
	sum, oldest := 0, 0
	for _, a := range log {
		sum += a.cost
		for log[oldest].at <= a.at-per {
			sum -= log[oldest].cost
			oldest++
		}
		most = max(most, sum)
	}
	return most
}

// errorsIn takes a joined error apart.
func errorsIn(err error) []error {
	var joined interface{ Unwrap() []error }
	if errors.As(err, &joined) {
		return joined.Unwrap()
	}
	return []error{err}
}
