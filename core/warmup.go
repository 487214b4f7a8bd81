package core

import (
	"errors"
	"fmt"
	"math/bits"
	"sort"
	"time"
)

// WarmUp is a [Rate] that starts low: cold, it admits From units per window, and
// from its first request on this rises evenly to N, over Over. It is for what is
// slow until caches are full and connections open.
//
// With b for the instant of that first request, and for every t,
//
//	units in (t-Per, t]  <=  L(t) = From + ⌊(N-From)·(t-b)/Over⌋, and N from b+Over on
//
// It is cold again when its window has been empty for Per, which is 2·Per after the
// last request that passed: who was refused comes back when the window opens, and
// finds it warm. Until then the ramp goes on, also if less passes than it lets. A
// request that costs more than From is not refused as never: it starts the ramp, if
// that is cold, is told when the ramp will have room for it, and until Per after that
// instant the ramp goes on for its sake.
//
// From is 1 to N, Over above 0. N = 0 blocks, whatever From and Over are. A key costs
// what it costs a Rate, and 16 bytes; a request above From makes a key live though it
// is refused.
//
// [Limiter.Replace] keeps what a Rate keeps, and b: L is from then on as if it had
// always been the new one. A key whose window is empty then, and for which nobody was
// told a time to come, is cold. [Limiter.Forget] leaves b alone, so what is warm stays
// warm.
type WarmUp struct {
	Rate Rate
	From int
	Over time.Duration
}

func (w WarmUp) check() error {
	if err := w.Rate.check(); err != nil {
		return fmt.Errorf("WarmUp: %w", err)
	}
	if w.Rate.Charge != ChargeAll {
		return fmt.Errorf("WarmUp.Rate.Charge is %v; want ChargeAll: what warms up charges all", w.Rate.Charge)
	}
	return checkRamp("WarmUp", w.Rate.N, w.From, w.Over)
}

// checkRamp is the rule for what warms up.
func checkRamp(kind string, n, from int, over time.Duration) error {
	var wrong error
	if n > 0 && (from < 1 || from > n) {
		wrong = fmt.Errorf("%s.From is %d; want 1 to N, %d", kind, from, n)
	}
	if n > 0 && over <= 0 {
		wrong = errors.Join(wrong, fmt.Errorf("%s.Over is %v; want a duration above 0, such as time.Minute", kind, over))
	}
	return wrong
}

func (w WarmUp) kind() string               { return "warm_up" }
func (w WarmUp) size() (int, time.Duration) { return w.Rate.size() }
func (w WarmUp) ramp() (int, time.Duration) { return w.From, w.Over }
func (w WarmUp) meter(b *bound) meter       { return &rising{window{bound: b}, ramp{last: open}} }

// String is "20 per 1s, from 2 over 1m0s".
func (w WarmUp) String() string { return fmt.Sprintf("%v, from %d over %v", w.Rate, w.From, w.Over) }

// A ramp is when a limit warms up.
type ramp struct {
	begun int64 // b, unless cold
	last  int64 // when a request passed, or Per before one was told to come: the latest
}

// cools is from when the ramp has to start anew.
func (r *ramp) cools(b *bound) int64 {
	if r.last == open {
		return open
	}
	return later(later(r.last, b.per), b.per)
}

func (r *ramp) cold(b *bound, now int64) bool { return now >= r.cools(b) }

// start notes that a request passes.
func (r *ramp) start(b *bound, now int64) {
	if r.cold(b, now) {
		r.begun = now
	}
	r.last = max(r.last, now)
}

// level is L of a ramp that goes on: N where nothing warms up.
func (r *ramp) level(b *bound, t int64) int {
	if t-r.begun >= b.over {
		return b.n
	}
	hi, lo := bits.Mul64(uint64(b.n-b.cold), uint64(t-r.begun))
	rise, _ := bits.Div64(hi, lo, uint64(b.over))
	return b.cold + int(rise)
}

// reaches is the first instant at which L is at least x, or one before b.
func (r *ramp) reaches(b *bound, x int) int64 {
	if x <= b.cold {
		return open
	}
	return later(r.begun, mulUp(x-b.cold, b.over, b.n-b.cold))
}

func (r *ramp) change(floor int64) {
	if r.last <= floor {
		r.last = open
	}
}

// A rising is the meter of a WarmUp: a window whose limit rises.
type rising struct {
	window
	ramp
}

// cold, level and reaches are the ramp's, under the present bound.
func (r *rising) cold(now int64) bool { return r.ramp.cold(r.bound, now) }
func (r *rising) level(t int64) int   { return r.ramp.level(r.bound, t) }
func (r *rising) reaches(x int) int64 { return r.ramp.reaches(r.bound, x) }

// free is how much of L is left, which Replace may have made less than nothing.
func (r *rising) free(now int64) int {
	r.slide(now)
	if r.cold(now) {
		return r.bound.cold
	}
	return r.level(now) - r.sum
}

// when is the first instant from now on at which a ramp that goes on has room for n,
// if nobody else comes: L has risen far enough for n and what is still there.
func (r *rising) when(now int64, n int) int64 {
	sum := r.sum
	for i := uint32(0); ; i++ {
		leaves := int64(latest)
		if i < r.count {
			leaves = later(r.nth(i).at, r.bound.per)
		}
		if n <= r.bound.n-sum {
			if t := max(now, r.reaches(n+sum)); t < leaves || i == r.count {
				return t
			}
		}
		sum -= r.nth(i).n
		now = leaves
	}
}

// opens notes, if n is above From and has to wait, that somebody waits. It spends
// nothing; without it the ramp would be cold when the wait is over, or never start.
//
// What when says for others is before the ramp is cold: n fits the empty window.
func (r *rising) opens(now int64, n, kept int) int64 {
	if n > r.bound.n-kept {
		return never
	}
	if n += kept; n <= r.free(now) {
		return now
	}
	if n <= r.bound.cold {
		return r.when(now, n)
	}
	if r.cold(now) {
		r.begun = now
	}
	t := r.when(now, n)
	r.last = max(r.last, t-r.bound.per)
	return t
}

func (r *rising) take(now int64, n, _ int) (int, int64) {
	r.start(r.bound, now)
	r.add(now, n)
	return r.left(now, 0)
}

func (r *rising) left(now int64, kept int) (int, int64) {
	if r.bound.n == kept {
		return 0, never
	}
	left := max(0, r.free(now)-kept)
	if left == r.bound.n-kept || r.cold(now) {
		return left, never
	}
	return left, r.when(now, left+kept+1)
}

// soonest goes by L, which is no larger if the ramp starts anew in between. The
// units are at most L(now+m·Per) in each of the m windows that they need. If they
// need one, they are in it together.
func (r *rising) soonest(now int64, ahead, alike, n, kept int) int64 {
	t := r.window.soonest(now, ahead, alike, n, kept)
	if r.bound.n == 0 || r.cold(now) {
		return t
	}
	k := sum(ahead, n+kept)
	ends := func(m int) int64 {
		if int64(m) > (latest-now)/r.bound.per {
			return latest
		}
		return now + int64(m)*r.bound.per
	}
	m := sort.Search(k/r.bound.cold, func(m int) bool { // m windows are too few, m+1 are not
		return r.level(ends(m+1)) > (k-1)/(m+1)
	})
	if m == 0 { // L is k or more then, so N is
		return max(t, min(r.when(now, k), ends(1)))
	}
	return max(t, ends(m))
}

func (r *rising) idles() int64 { return r.cools(r.bound) }

func (r *rising) copy() meter { return &rising{*r.window.copy().(*window), r.ramp} }

func (r *rising) change(b *bound, floor int64) {
	r.window.change(b, floor)
	r.ramp.change(floor)
}
