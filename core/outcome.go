package core

import (
	"fmt"
	"slices"
	"sort"
)

// A Charge says which requests a [Rate] charges, by their outcome: failed are those
// for which [Permit.Fail] was called before Release. The zero value charges all.
//
// Of others, the units are taken on entry, so that nobody slips by while the outcome
// is not known, and decided on at Release: kept, at the instant of the admission, or
// given back. So, by the instants of the admissions, and for every t,
//
//	units kept in (t-Per, t]                         <=  N
//	units kept in (t-Per, t], and undecided at t     <=  N
//
// where the undecided count however long they take: no more than N try at once. A unit
// given back is the very one that was taken; if it has left the window meanwhile,
// nothing is. A throttle for logins is
//
//	core.Rule{Name: "wrong-passwords", By: "account", Limit: core.Rate{N: 5, Per: 15 * time.Minute, Charge: core.ChargeFailed}}
//
// with Fail for a wrong password. A permit that nobody releases is never decided on,
// and holds its units for ever.
//
// What refuses is [ReasonInFlight] where only an outcome can make room. Else a
// [Refusal]'s RetryAfter is when there is room for sure: an outcome may make some
// before. N is 4096 at most; a key costs some 60 bytes more than that of another Rate,
// and an undecided admission 16 bytes more. To change Charge by Replace starts the rule
// afresh.
//
// Beyond MaxKeys, while some of those that share a count are undecided, newcomers share
// it too. If Replace names one of them in For meanwhile, its new count does not know what
// it has been trying for longer than Per.
type Charge uint8

const (
	ChargeAll       Charge = iota // every admitted request
	ChargeFailed                  // what succeeds is given back
	ChargeSucceeded               // what fails is given back
)

var charges = [...]string{"all", "failed", "succeeded"}

// String is "all", "failed" or "succeeded".
func (c Charge) String() string {
	if int(c) < len(charges) {
		return charges[c]
	}
	return fmt.Sprintf("charge(%d)", uint8(c))
}

// suffix makes kinds of limits that share no counts.
func (c Charge) suffix() string {
	if c == ChargeAll {
		return ""
	}
	return " that charges " + c.String()
}

func (c Charge) check(n int) error {
	switch {
	case int(c) >= len(charges):
		return fmt.Errorf("Rate.Charge is %d; want ChargeAll, ChargeFailed or ChargeSucceeded", uint8(c))
	case c != ChargeAll && n > exact:
		return fmt.Errorf("Rate.N is %d, and Rate.Charge is %v; want N %d at most, or ChargeAll", n, c, exact)
	}
	return nil
}

// spares reports that a request of that outcome is given back what it took.
func (c Charge) spares(failed bool) bool { return (c == ChargeFailed) != failed }

// A trial is the meter of a Rate that charges by outcome: a window of what is kept or
// undecided, and beside it the undecided, which count also when the window has moved.
type trial struct {
	window
	undecided []admit // by instant
	stale     int     // how many of these have left the window,
	older     int     // and their units
}

// age notes who of the undecided was in the window at t and before, and is no more.
func (m *trial) age(t int64) {
	for m.stale < len(m.undecided) && m.undecided[m.stale].at <= t {
		m.older += m.undecided[m.stale].n
		m.stale++
	}
}

// free is how many units are.
func (m *trial) free(now int64) int {
	m.slide(now)
	m.age(now - m.bound.per)
	return m.bound.n - m.sum - m.older
}

func (m *trial) opens(now int64, n, kept int) int64 {
	if n > m.bound.n-kept {
		return never
	}
	if excess := n - (m.free(now) - kept); excess > 0 {
		return m.frees(excess)
	}
	return now
}

// frees is when that many more units are free, if the outcomes make none: when what is
// kept has left. Without enough of that it is unknown.
func (m *trial) frees(n int) int64 {
	waits := m.undecided[m.stale:]
	for i := range m.count {
		a := m.nth(i)
		n -= a.n
		if len(waits) > 0 && waits[0].at == a.at {
			n += waits[0].n
			waits = waits[1:]
		}
		if n <= 0 {
			return later(a.at, m.bound.per)
		}
	}
	return unknown
}

func (m *trial) take(now int64, n, _ int) (int, int64) {
	m.add(now, n)
	if last := len(m.undecided) - 1; last >= m.stale && m.undecided[last].at == now {
		m.undecided[last].n += n
	} else {
		m.undecided = append(m.undecided, admit{now, n})
	}
	return m.left(now, 0)
}

func (m *trial) left(now int64, kept int) (int, int64) {
	n := m.bound.n - kept
	free := m.free(now) - kept
	if free == n || n == 0 {
		return n, never
	}
	return max(0, free), m.frees(1 - min(0, free))
}

// soonest is when there is room if all that is undecided is given back, and if those
// ahead are too.
func (m *trial) soonest(now int64, _, _, n, kept int) int64 {
	if m.bound.n == 0 {
		return never
	}
	m.free(now)
	sum := m.sum
	for _, a := range m.undecided[m.stale:] {
		sum -= a.n
	}
	if excess := n - (m.bound.n - kept - sum); excess > 0 {
		return m.frees(excess)
	}
	return now
}

func (m *trial) idles() int64 {
	if len(m.undecided) > 0 {
		return unknown
	}
	return m.window.idles()
}

// copy keeps all that is in the window: who takes the copy has no outcome to tell.
func (m *trial) copy() meter { return &trial{window: *m.window.copy().(*window)} }

func (m *trial) change(b *bound, floor int64) {
	m.window.change(b, floor)
	m.age(floor)
}

func (m *trial) forget(now int64) {
	m.window.forget(now)
	m.age(latest)
}

// decide ends the trial of n units that passed at that instant: they stay, or are
// given back.
func (m *trial) decide(at int64, n int, spared bool) {
	if n == 0 {
		return
	}
	first := sort.Search(len(m.undecided), func(i int) bool { return m.undecided[i].at >= at })
	last := first - 1
	for last+1 < len(m.undecided) && m.undecided[last+1].at == at {
		last++
	}
	// There may be several at the instant of pardons: what is stale, and then what came
	// after. Which of them these are cannot be told, so let those go that leave more counted.
	for ; n > 0 && first <= last; last-- {
		i := last
		if spared {
			i = first
		}
		a := &m.undecided[i]
		k := min(n, a.n)
		n -= k
		a.n -= k
		if i < m.stale {
			m.older -= k
		} else if spared {
			m.window.undo(at, k, k)
		}
		if a.n > 0 {
			break
		}
		m.undecided = slices.Delete(m.undecided, i, i+1)
		if i < m.stale {
			m.stale--
		}
	}
	if len(m.undecided) == 0 && cap(m.undecided) > roomy {
		m.undecided = nil // as with a ring: who was busy once holds no memory for it
	}
}

func (m *trial) undo(at int64, _, n int) { m.decide(at, n, true) }

// tries reports that units in overflow are undecided. Needs the lock.
func (s *shard) tries() bool {
	return s.overflow != nil && len(s.overflow.meter.(*trial).undecided) > 0
}
