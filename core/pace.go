package core

import (
	"errors"
	"fmt"
	"math/bits"
	"sort"
	"time"
)

// Pace admits requests one by one, evenly spaced: N units in a stretch of Per, and
// never all at once. With a [Queue], a burst of arrivals leaves as a steady flow.
//
// Between requests of cost 1 lies a gap of (Per+s)/N. The slack s is 1/256 of Per
// and 4 ms at most: a request that comes late, as all do that a timer wakes, leaves
// the next ones where they were, as long as that is not more than s. So late timers
// cost no throughput, 256/257 of N or more pass in the long run, and, for any w,
//
//	units of cost 1 in (t-w, t]  <=  ⌊(w+s)/gap⌋ + 1
//	units in (t-Per, t]          <=  N
//
// At one instant pass ⌊s/gap⌋+1, if the ones before came late or long ago: 1 of up
// to 256 per second, 39 of 10 000 per second, 2 of 20 000 per minute.
//
// A request of cost n passes whole, and so needs room on both sides: from the one
// before, and to the next, it keeps n·(Per+s)/(N+1-n), and Per+s at most. That is
// its share of N if n is small, and for n above N/2 all of it.
//
// N = 0 blocks. Per is above 0. Gaps are rounded up to the nanosecond, which counts
// beyond ten million requests a second. A key costs 48 bytes, whatever N is.
//
// With From and Over, the pace warms up as a [WarmUp] does: gaps are those of L
// instead of N (see there for L, for when the ramp starts, and for when it is cold
// again); and no (t-Per, t] has more units than L(t). Both are zero, or From is 1 to N
// and Over above 0.
//
// [Limiter.Replace] keeps when the last request passed, and its cost: the next
// comes a gap of the new pace after it, as if the pace had always been the new one.
// A warm-up that there was not before begins with that last request.
type Pace struct {
	N    int
	Per  time.Duration
	From int           // units in the first window of a warm-up; 0: there is none
	Over time.Duration // how long it takes
}

func (p Pace) check() error {
	var ramp error
	if p.From != 0 || p.Over != 0 {
		if ramp = checkRamp("Pace", p.N, p.From, p.Over); ramp != nil {
			ramp = fmt.Errorf("%w; or From and Over 0, for no warm-up", ramp)
		}
	}
	return errors.Join(append(all(checkRate("Pace", p.N, p.Per)), ramp)...)
}

func (p Pace) kind() string               { return "pace" }
func (p Pace) size() (int, time.Duration) { return p.N, p.Per }
func (p Pace) ramp() (int, time.Duration) { return p.From, p.Over }
func (p Pace) meter(b *bound) meter       { return &schedule{bound: b, ramp: ramp{last: open}} }

// String is "20 per 1s, paced", and "20 per 1s, paced, from 2 over 1m0s".
func (p Pace) String() string {
	if p.Over == 0 {
		return fmt.Sprintf("%d per %v, paced", p.N, p.Per)
	}
	return fmt.Sprintf("%d per %v, paced, from %d over %v", p.N, p.Per, p.From, p.Over)
}

// A schedule is the meter of a Pace.
//
// Each request has a time in the schedule, v: the one before it plus the gap, which
// is that of the larger cost of the two; but never more than s before the instant t
// at which it passed, and it passes no sooner than at v. So v <= t <= v+s.
//
// That holds N. Let a run of requests have costs that add up to N+1 or more, and m
// be the smallest of them. Charge each gap before that one to the request at the
// gap's left, each gap after it to that at its right: so the gaps are at least
// gap(c) for all costs c but m. If one of these is Per+s, the run takes that. Else
// each is at least c·(Per+s)/(N+1-m), for m <= c, and these c add up to N+1-m or
// more: the run takes Per+s again. It is the v that lie so far apart; of the t, the
// first is at most s after its v, and the last not before it. So they are Per apart,
// and no (t-Per, t] has both.
//
// The same sum is why k units of cost 1 within less than w have (k-1)·gap < w+s, and
// why k units need k·(Per+s)/N from the v before them: soonest.
//
// While it warms up, gaps shrink: all that end at t or before are at least those of
// L(t), so the same holds with L(t) for N.
type schedule struct {
	bound *bound
	at    int64 // t of the last request
	lag   int64 // its t-v, for the largest s that it may have come under
	n     int   // its cost; 0: there is none
	ramp
}

// slack is s for a window.
func slack(per int64) int64 { return min(per/256, int64(4*time.Millisecond)) }

// span is Per+s.
func (s *schedule) span() int64 { return later(s.bound.per, slack(s.bound.per)) }

// gap is what a request of cost n keeps from its neighbours, when size units fit a
// window. It grows with n, and shrinks with size.
func (s *schedule) gap(n, size int) int64 {
	if n > size-n {
		return s.span()
	}
	return mulUp(n, s.span(), size-n+1)
}

// v is that of the last request. A shorter Per may have made s smaller.
func (s *schedule) v() int64 { return s.at - min(s.lag, slack(s.bound.per)) }

// after is the first instant at which n may follow the last request.
func (s *schedule) after(n, size int) int64 { return later(s.v(), s.gap(max(n, s.n), size)) }

func (s *schedule) opens(now int64, n, kept int) int64 {
	b := s.bound
	switch {
	case n > b.n-kept:
		return never
	case b.over > 0:
		return s.warms(now, n, kept)
	case s.n == 0:
		return now
	}
	return max(now, s.after(n, b.n-kept))
}

// warms is opens while there is a warm-up. As that of [WarmUp], it notes who has to
// wait for the ramp.
func (s *schedule) warms(now int64, n, kept int) int64 {
	b := s.bound
	if s.cold(b, now) {
		if n+kept <= b.cold {
			return now
		}
		s.begun = now
	}
	t := s.when(now, n, kept)
	if t > now && n+kept > b.cold {
		s.last = max(s.last, t-b.per)
	}
	return t
}

// when is the first instant from now on at which n may pass, if nobody else comes
// and the ramp goes on.
func (s *schedule) when(now int64, n, kept int) int64 {
	now = max(now, s.reaches(s.bound, n+kept))
	if s.n == 0 {
		return now
	}
	return s.meets(now, func(size int) int64 { return s.after(n, size-kept) })
}

// meets is the first t from now on that is not before f(L(t)); f falls.
func (s *schedule) meets(now int64, f func(size int) int64) int64 {
	b := s.bound
	low := s.level(b, now)
	t := f(low)
	if t <= now {
		return now
	}
	x := low + sort.Search(s.level(b, t)-low, func(i int) bool { // L is x when f(x) comes
		return f(low+i) < s.reaches(b, low+i+1)
	})
	return max(now, f(x), s.reaches(b, x))
}

func (s *schedule) take(now int64, n, kept int) (int, int64) {
	size := s.bound.n
	if s.bound.over > 0 {
		s.start(s.bound, now)
		size = s.level(s.bound, now)
	}
	lag := slack(s.bound.per)
	if s.n > 0 {
		lag = min(lag, now-s.after(n, size-kept))
	}
	s.at, s.lag, s.n = now, lag, n
	return s.left(now, 0)
}

// left is the largest cost that may pass now: its gap fits what has gone by since v.
func (s *schedule) left(now int64, kept int) (int, int64) {
	b := s.bound
	size := b.n - kept
	if size == 0 {
		return 0, never
	}
	if b.over > 0 {
		if s.cold(b, now) {
			return max(0, b.cold-kept), never
		}
		size = max(0, s.level(b, now)-kept)
	}
	n, span := size, s.span()
	if s.n > 0 && size > 0 {
		switch gone := now - s.v(); {
		case gone >= span:
		case gone < s.gap(s.n, size):
			n = 0
		default: // n·span/(size+1-n) <= gone, solved for n. It is below (size+1)/2.
			hi, lo := bits.Mul64(uint64(gone), uint64(size)+1)
			most, _ := bits.Div64(hi, lo, uint64(span)+uint64(gone))
			n = int(most)
		}
	}
	switch {
	case n == b.n-kept:
		return n, never
	case b.over > 0:
		return n, s.when(now, n+1, kept)
	}
	return n, s.after(n+1, size)
}

func (s *schedule) soonest(now int64, ahead, alike, n, kept int) int64 {
	b := s.bound
	// Each unit takes a part of the span, and those of the alike a larger one.
	line := func(size int) int64 {
		t := later(s.v(), mulUp(sum(ahead, n), s.span(), size))
		if size > kept {
			t = max(t, later(s.v(), mulUp(sum(alike, n), s.span(), size-kept)))
		}
		return t
	}
	switch {
	case b.n == 0:
		return never
	case s.n == 0 || b.over > 0 && s.cold(b, now):
		return now
	case b.over > 0:
		return s.meets(now, line)
	}
	return max(now, later(s.v(), max(s.gap(s.n, b.n), s.gap(n, b.n-kept))), line(b.n))
}

// idles is when even a request of cost N could pass, and would not be early by any
// part of s; and the ramp is cold.
func (s *schedule) idles() int64 {
	switch {
	case s.bound.over > 0:
		return s.cools(s.bound)
	case s.n == 0:
		return open
	}
	return later(later(s.v(), s.span()), slack(s.bound.per))
}

func (s *schedule) copy() meter {
	c := *s
	return &c
}

// change begins a ramp that there was not with the last request.
func (s *schedule) change(b *bound, floor int64) {
	if s.at <= floor {
		s.n = 0
	}
	if s.ramp.change(floor); s.bound.over == 0 || b.over == 0 {
		s.last = open
		if s.n > 0 {
			s.begun, s.last = s.at, s.at
		}
	}
	s.bound = b
}

func (s *schedule) forget(int64) { s.n = 0 }

// undo lowers the cost of the last request; those before have been made up for by the
// one that followed. If others of the same cost passed at that instant, it makes no
// difference which of them was the last, but if a pardon came between.
func (s *schedule) undo(at int64, took, n int) {
	if s.at == at && s.n == took && at > s.bound.clause.ledger.pardoned.Load() {
		s.n = max(1, took-n)
	}
}
