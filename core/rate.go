package core

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"sort"
	"time"
)

// Rate admits at most N units in any half-open stretch of time (t-Per, t], for
// every t: an exact sliding window, whatever the arrival pattern. Units pass at
// the instant of the decision, and a unit leaves the window exactly Per later.
//
// Up to N = 4096 this is exact to the nanosecond. Above, admissions that fall
// into the same slice of ⌈Per/4095⌉ leave together, with the latest of them: a
// unit may come back one slice late, never early.
//
// N = 0 blocks; Per is above 0 also then, from nanoseconds to years. A key costs
// 16 bytes for each admission in its window, in a ring that grows by doubling and
// shrinks again, 64 KiB at most.
type Rate struct {
	N   int
	Per time.Duration
	// Charge says which requests are charged, by their outcome.
	Charge Charge
}

// exact is the largest N whose every admission has an entry of its own. A window
// overlaps at most exact slices of ⌈Per/(exact-1)⌉, so the ring is bounded above
// exact too.
const exact = 4096

func (r Rate) check() error {
	return errors.Join(append(all(checkRate("Rate", r.N, r.Per)), r.Charge.check(r.N))...)
}
func (r Rate) kind() string               { return "rate" + r.Charge.suffix() }
func (r Rate) size() (int, time.Duration) { return r.N, r.Per }
func (r Rate) meter(b *bound) meter {
	if r.Charge != ChargeAll {
		return &trial{window: window{bound: b}}
	}
	return &window{bound: b}
}

// String is "20 per 1s", and "5 failed per 15m0s".
func (r Rate) String() string {
	if r.Charge != ChargeAll {
		return fmt.Sprintf("%d %v per %v", r.N, r.Charge, r.Per)
	}
	return fmt.Sprintf("%d per %v", r.N, r.Per)
}

// A window is the meter of a Rate: a ring of admissions, oldest first, grown
// from nothing as needed.
type window struct {
	bound *bound
	ring  []admit // its length is the room; the admissions are count from head on
	head  uint32
	count uint32
	sum   int // units in the ring
}

// An admit is n units that leave the window together, Per after at.
type admit struct {
	at int64
	n  int
}

// nth is the i-th admission from the oldest on.
func (w *window) nth(i uint32) *admit {
	i += w.head
	if room := uint32(len(w.ring)); i >= room {
		i -= room
	}
	return &w.ring[i]
}

// slide forgets what has left the window: at exactly at+Per it has.
func (w *window) slide(now int64) { w.dropThrough(now - w.bound.per) }

// dropThrough forgets what was admitted at or before t.
func (w *window) dropThrough(t int64) {
	for w.count > 0 {
		if w.ring[w.head].at > t {
			return
		}
		w.drop()
	}
}

func (w *window) opens(now int64, n, kept int) int64 {
	if n > w.bound.n-kept {
		return never
	}
	w.slide(now)
	if excess := n - (w.bound.n - kept - w.sum); excess > 0 { // no overflow: n+kept is at most MaxInt, and so is sum
		return w.gone(excess)
	}
	return now
}

// gone is when that many of the units in the ring have left; there are as many.
func (w *window) gone(n int) int64 {
	for i := uint32(0); ; i++ {
		a := w.nth(i)
		if n -= a.n; n <= 0 {
			return later(a.at, w.bound.per)
		}
	}
}

func (w *window) take(now int64, n, _ int) (int, int64) {
	w.add(now, n)
	oldest := &w.ring[w.head]
	if oldest.n == 0 { // see forget
		return w.bound.n - w.sum, w.gone(1)
	}
	return w.bound.n - w.sum, later(oldest.at, w.bound.per)
}

// charge drops the oldest of what is more than N.
func (w *window) charge(now int64, n int) {
	if n == 0 {
		return
	}
	w.slide(now)
	for w.sum > w.bound.n-n {
		oldest := w.nth(0)
		if more := w.sum - (w.bound.n - n); more < oldest.n {
			oldest.n -= more
			w.sum -= more
			break
		}
		w.drop()
	}
	w.add(now, n)
}

// drop forgets the oldest entry.
func (w *window) drop() {
	w.sum -= w.ring[w.head].n
	w.count--
	if w.head++; w.head == uint32(len(w.ring)) {
		w.head = 0
	}
}

// add appends to the ring.
func (w *window) add(now int64, n int) {
	w.sum += n
	if w.count > 0 {
		newest := w.nth(w.count - 1)
		if w.together(newest.at, now) && newest.n > 0 {
			newest.at = now
			newest.n += n
			return
		}
	}
	switch room := len(w.ring); {
	case int(w.count) == room:
		w.resize(max(1, min(2*room, max(exact, room+1)))) // above exact only what a higher N has left
	case room > roomy && int(w.count) < room/8:
		w.resize(room / 2)
	}
	w.count++
	*w.nth(w.count - 1) = admit{now, n}
}

// roomy is the size of a ring that is not worth shrinking. A larger one shrinks
// when less than an eighth of it is used: a client that was busy once does not
// hold its memory by one request in each window.
const roomy = 64

// together reports that what was admitted at a and at b, a <= b, leaves together:
// at one instant, or in one slice.
func (w *window) together(a, b int64) bool {
	return a == b || w.bound.slice > 0 && b < (a/w.bound.slice+1)*w.bound.slice
}

// slice is the width of the slices of a rate: 0 where each instant stands alone.
func slice(n int, per int64) int64 {
	if n <= exact || per == 0 {
		return 0
	}
	return (per-1)/(exact-1) + 1
}

func (w *window) resize(room int) {
	ring := make([]admit, room)
	for i := range w.count {
		ring[i] = *w.nth(i)
	}
	w.ring, w.head = ring, 0
}

// undo finds the units by their instant. Where admissions have entries of their own,
// that is the instant of the entry; in a slice, one that is not earlier: but then a
// change since may have dropped ours and left those of others. So may Count, and
// nobody knows whose units of the oldest entry it has dropped.
func (w *window) undo(at int64, _, n int) {
	i := uint32(sort.Search(int(w.count), func(i int) bool { return w.nth(uint32(i)).at >= at }))
	if i == w.count {
		return
	}
	a := w.nth(i)
	c := w.bound.clause
	if a.at != at && (!w.together(at, a.at) || at < c.since) || i == 0 && c.dropped || a.n == 0 {
		return
	}
	n = min(n, a.n)
	w.sum -= n
	if a.n -= n; a.n == 0 {
		for ; i+1 < w.count; i++ { // mostly few came since
			*w.nth(i) = *w.nth(i + 1)
		}
		w.count--
	}
}

func (w *window) left(now int64, kept int) (int, int64) {
	w.slide(now)
	n := w.bound.n - kept
	if n == 0 || w.sum == 0 {
		return n, never
	}
	return max(0, n-w.sum), w.gone(1 - min(0, n-w.sum))
}

// soonest: what is kept could pass too when n do; and for the alike N is smaller by it.
func (w *window) soonest(now int64, ahead, alike, n, kept int) int64 {
	if w.bound.n == 0 {
		return never
	}
	w.slide(now)
	t := w.kth(now, sum(ahead, n+kept), 0)
	if kept > 0 {
		t = max(t, w.kth(now, sum(alike, n), kept))
	}
	return t
}

// sum is a + b, saturating: neither is negative.
func sum(a, b int) int { return a + min(b, math.MaxInt-a) }

// kth counts k future units as if they passed as early as they can: each no sooner than
// Per after the one so many before it as are not kept.
func (w *window) kth(now int64, k, kept int) int64 {
	size := w.bound.n - kept
	rounds := int64(k-1) / int64(size)
	t := now
	if excess := (k-1)%size + 1 - (size - w.sum); excess > 0 {
		t = w.gone(min(excess, w.sum))
	}
	if rounds > 0 && w.bound.per > (latest-t)/rounds {
		return latest
	}
	return t + rounds*w.bound.per
}

func (w *window) idles() int64 {
	if w.count == 0 {
		return open
	}
	return later(w.nth(w.count-1).at, w.bound.per)
}

func (w *window) copy() meter {
	c := *w
	c.ring = slices.Clone(w.ring)
	return &c
}

// change keeps each admission, at its instant. Where the new limit is sliced,
// those of one slice come together.
func (w *window) change(b *bound, floor int64) {
	w.dropThrough(floor)
	w.bound = b
	if b.slice == 0 {
		return
	}
	old := *w
	w.ring, w.head, w.count, w.sum = nil, 0, 0, 0
	for i := range old.count {
		a := old.nth(i)
		w.add(a.at, a.n)
	}
}

// forget leaves an entry of no units where more may pass that leave together with what
// it forgets: so that undo does not take the ones for the others.
func (w *window) forget(now int64) {
	mark := w.count > 0 && w.together(w.nth(w.count-1).at, now)
	if mark {
		w.ring[0] = admit{at: w.nth(w.count - 1).at}
	}
	w.head, w.count, w.sum = 0, 0, 0
	if mark {
		w.count = 1
	}
}
