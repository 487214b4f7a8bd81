package core

import (
	"fmt"
	"math/bits"
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
// beyond ten million requests a second. A key costs 32 bytes, whatever N is.
//
// [Limiter.Replace] keeps when the last request passed, and its cost: the next
// comes a gap of the new pace after it, as if the pace had always been the new one.
type Pace struct {
	N   int
	Per time.Duration
}

func (p Pace) check() error {
	if p.Per <= 0 {
		return fmt.Errorf("Pace.Per is %v; want a duration above 0, such as time.Second", p.Per)
	}
	return checkN("Pace", p.N)
}

func (p Pace) kind() string               { return "pace" }
func (p Pace) size() (int, time.Duration) { return p.N, p.Per }
func (p Pace) meter(b *bound) meter       { return &schedule{bound: b} }

// String is "20 per 1s, paced".
func (p Pace) String() string { return fmt.Sprintf("%d per %v, paced", p.N, p.Per) }

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
type schedule struct {
	bound *bound
	at    int64 // t of the last request
	lag   int64 // its t-v, for the largest s that it may have come under
	n     int   // its cost; 0: there is none
}

// slack is s for a window.
func slack(per int64) int64 { return min(per/256, int64(4*time.Millisecond)) }

// span is Per+s.
func (s *schedule) span() int64 { return later(s.bound.per, slack(s.bound.per)) }

// gap is what a request of cost n keeps from its neighbours. It grows with n.
func (s *schedule) gap(n int) int64 {
	if n > s.bound.n-n {
		return s.span()
	}
	return mulUp(n, s.span(), s.bound.n-n+1)
}

// v is that of the last request. A shorter Per may have made s smaller.
func (s *schedule) v() int64 { return s.at - min(s.lag, slack(s.bound.per)) }

// after is the first instant at which n may follow the last request.
func (s *schedule) after(n int) int64 { return later(s.v(), s.gap(max(n, s.n))) }

func (s *schedule) opens(now int64, n int) int64 {
	switch {
	case n > s.bound.n:
		return never
	case s.n == 0:
		return now
	}
	return max(now, s.after(n))
}

func (s *schedule) take(now int64, n int) (int, int64) {
	lag := slack(s.bound.per)
	if s.n > 0 {
		lag = min(lag, now-s.after(n))
	}
	s.at, s.lag, s.n = now, lag, n
	return s.left(now)
}

// left is the largest cost that may pass now: its gap fits what has gone by since v.
func (s *schedule) left(now int64) (int, int64) {
	if s.n == 0 || s.bound.n == 0 {
		return s.bound.n, never
	}
	gone, span := now-s.v(), s.span()
	switch {
	case gone >= span:
		return s.bound.n, never
	case gone < s.gap(s.n):
		return 0, s.after(s.n)
	}
	// n·span/(N+1-n) <= gone, solved for n. It is below (N+1)/2.
	hi, lo := bits.Mul64(uint64(gone), uint64(s.bound.n)+1)
	n, _ := bits.Div64(hi, lo, uint64(span)+uint64(gone))
	return int(n), s.after(int(n) + 1)
}

func (s *schedule) soonest(now int64, k int) int64 {
	switch {
	case s.bound.n == 0:
		return never
	case s.n == 0:
		return now
	}
	return max(now, s.after(1), later(s.v(), mulUp(k, s.span(), s.bound.n)))
}

// idles is when even a request of cost N could pass, and would not be early by any
// part of s.
func (s *schedule) idles() int64 {
	if s.n == 0 {
		return open
	}
	return later(later(s.v(), s.span()), slack(s.bound.per))
}

func (s *schedule) copy() meter {
	c := *s
	return &c
}

func (s *schedule) change(b *bound, floor int64) {
	if s.at <= floor {
		s.forget()
	}
	s.bound = b
}

func (s *schedule) forget() { s.n = 0 }
