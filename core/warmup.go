package core

import (
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
// always been the new one. What has an empty window then, and nobody told to come,
// is cold. [Limiter.Forget] leaves b alone, and what is warm so.
type WarmUp struct {
	Rate Rate
	From int
	Over time.Duration
}

func (w WarmUp) check() error {
	err := w.Rate.check()
	switch {
	case err != nil:
		return fmt.Errorf("WarmUp: %w", err)
	case w.Rate.N == 0:
	case w.From < 1 || w.From > w.Rate.N:
		return fmt.Errorf("WarmUp.From is %d; want 1 to Rate.N, %d", w.From, w.Rate.N)
	case w.Over <= 0:
		return fmt.Errorf("WarmUp.Over is %v; want a duration above 0, such as time.Minute", w.Over)
	}
	return nil
}

func (w WarmUp) kind() string               { return "warm_up" }
func (w WarmUp) size() (int, time.Duration) { return w.Rate.size() }
func (w WarmUp) meter(b *bound) meter       { return &ramp{window: window{bound: b}, last: open} }

// String is "20 per 1s, from 2 over 1m0s".
func (w WarmUp) String() string { return fmt.Sprintf("%v, from %d over %v", w.Rate, w.From, w.Over) }

// A ramp is the meter of a WarmUp: a window whose limit rises.
type ramp struct {
	window
	begun int64 // b, unless cold
	last  int64 // when a request passed, or Per before one was told to come: the latest
}

// words are the limit's.
func (r *ramp) words() (n, from int, over int64) {
	w := r.bound.limit.(WarmUp)
	return w.Rate.N, w.From, int64(w.Over)
}

// cold reports that the ramp has to start anew.
func (r *ramp) cold(now int64) bool { return now >= r.idles() }

// limit is L of a ramp begun at b.
func (r *ramp) limit(b, t int64) int {
	n, from, over := r.words()
	if t-b >= over {
		return n
	}
	hi, lo := bits.Mul64(uint64(n-from), uint64(t-b))
	rise, _ := bits.Div64(hi, lo, uint64(over))
	return from + int(rise)
}

// reaches is the first instant at which L is at least x, or one before b.
func (r *ramp) reaches(x int) int64 {
	n, from, over := r.words()
	if x <= from {
		return open
	}
	return later(r.begun, mulUp(x-from, over, n-from))
}

// free is how much of L is left, which Replace may have made less than nothing.
func (r *ramp) free(now int64) int {
	r.slide(now)
	if r.cold(now) {
		_, from, _ := r.words()
		return from
	}
	return r.limit(r.begun, now) - r.sum
}

// when is the first instant from now on at which a ramp that goes on has room for n,
// if nobody else comes: L has risen far enough for n and what is still there.
func (r *ramp) when(now int64, n int) int64 {
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
func (r *ramp) opens(now int64, n int) int64 {
	size, from, _ := r.words()
	if n > size {
		return never
	}
	if n <= r.free(now) {
		return now
	}
	if n <= from {
		return r.when(now, n)
	}
	if r.cold(now) {
		r.begun = now
	}
	t := r.when(now, n)
	r.last = max(r.last, t-r.bound.per)
	return t
}

func (r *ramp) take(now int64, n int) (int, int64) {
	if r.cold(now) {
		r.begun = now
	}
	r.last = max(r.last, now)
	r.add(now, n)
	return r.left(now)
}

func (r *ramp) left(now int64) (int, int64) {
	if r.bound.n == 0 {
		return 0, never
	}
	left := max(0, r.free(now))
	if left == r.bound.n || r.cold(now) {
		return left, never
	}
	return left, r.when(now, left+1)
}

// soonest goes by L, which is no larger if the ramp starts anew in between. The k
// units are at most L(now+m·Per) in each of the m windows that they need. If they
// need one, they are in it together.
func (r *ramp) soonest(now int64, k int) int64 {
	t := r.window.soonest(now, k)
	if r.bound.n == 0 || r.cold(now) {
		return t
	}
	_, from, _ := r.words()
	ends := func(m int) int64 {
		if int64(m) > (latest-now)/r.bound.per {
			return latest
		}
		return now + int64(m)*r.bound.per
	}
	m := sort.Search(k/from, func(m int) bool { // m windows are too few, m+1 are not
		return r.limit(r.begun, ends(m+1)) > (k-1)/(m+1)
	})
	if m == 0 { // L is k or more then, so N is
		return max(t, min(r.when(now, k), ends(1)))
	}
	return max(t, ends(m))
}

func (r *ramp) idles() int64 {
	if r.last == open {
		return open
	}
	return later(later(r.last, r.bound.per), r.bound.per)
}

func (r *ramp) copy() meter {
	return &ramp{*r.window.copy().(*window), r.begun, r.last}
}

func (r *ramp) change(b *bound, floor int64) {
	r.window.change(b, floor)
	if r.last <= floor {
		r.last = open
	}
}
