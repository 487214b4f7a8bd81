package core

import (
	"sync"
	"sync/atomic"
)

// What happens to the keys of a rate beyond MaxKeys. They share one strict count
// a stripe, under the rule's own limit: a flood of invented keys can lock out
// newcomers, but costs no memory, and forgives nobody.
//
// A key that then gets an entry of its own may have units in the shared count,
// which nobody can tell apart any more. So it starts with a copy of all of that,
// as if it were its own: at least what it has used, and gone when that has left.

// shares reports that units are in overflow. Needs the lock.
func (s *shard) shares(c *clause, now int64) bool {
	if s.overflow == nil || c.bound.free {
		return false
	}
	s.overflow.settle(c.bound)
	return s.overflow.meter.idles() > now
}

// emerge makes an entry of a key that was counted in overflow. Needs the lock.
func (s *shard) emerge(b *bound, key string, hash uint64) *entry {
	e := &entry{key: key, hash: hash, meter: s.overflow.meter.copy()}
	was := s.overflow.bound.Load()
	e.meter.change(b, b.clause.floorOf(was))
	e.opens.Store(unsaid)
	e.bound.Store(b)
	return e
}

// A sweep goes round all stripes of a ledger, again and again, some slots at a
// time, to find idle entries whose place a newcomer can have.
type sweep struct {
	next  atomic.Int64  // nothing is idle before this instant
	moved atomic.Uint64 // entries may have moved: a round may have missed one

	mu      sync.Mutex // guards what follows; taken before any stripe
	stripe  uint32     // where the round is,
	slot    int
	since   int64  // when it began,
	began   uint64 // and what moved was then
	soonest int64  // when the first of those seen idles
}

// again makes the next newcomer look once more, after a change that may have made
// entries idle.
func (g *sweep) again() {
	g.moved.Add(1)
	g.next.Store(0)
}

// stretch is how many slots a sweep looks at for one newcomer. Where MaxKeys is
// no larger than a few hundred that is a whole round, so that no newcomer is
// turned away while a place is idle; else one may share its count meanwhile.
const stretch = 1024

// sweep makes a place for a newcomer who found all of MaxKeys taken: it forgets
// an idle entry, if it finds one. It locks one stripe after the other, so it must
// be called without a lock.
func (l *Limiter) sweep(c *clause) {
	g := &c.ledger.sweep
	if l.now() < g.next.Load() {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for looks := 0; looks < stretch && c.crowded(); {
		if g.stripe == 0 && g.slot == 0 {
			g.since, g.began, g.soonest = l.now(), g.moved.Load(), latest
		}
		l.stripes[g.stripe].Lock()
		n, current := c.sweep(g.stripe, stretch-looks, l.now(), l.book.Load())
		l.stripes[g.stripe].Unlock()
		if !current {
			return
		}
		looks += n + 1
		if g.slot > 0 {
			continue
		}
		if g.stripe++; int(g.stripe) < len(l.stripes) {
			continue
		}
		g.stripe = 0
		if g.moved.Load() == g.began {
			// Who came since the round began idles no sooner than this.
			g.next.Store(min(g.soonest, later(g.since, c.bound.per)))
			if g.moved.Load() != g.began {
				g.next.Store(0)
			}
			return
		}
	}
}

// sweep looks at some slots of a stripe, until it has forgotten an entry or come
// to the end, where slot is 0 again. Needs the lock of the stripe.
func (c *clause) sweep(stripe uint32, most int, now int64, b *book) (looks int, current bool) {
	if b.named[c.rule.Name] != c {
		return 0, false
	}
	g := &c.ledger.sweep
	s := c.ledger.peek(stripe)
	var t table
	if s != nil && s.table.Load() != nil {
		t = *s.table.Load()
	}
	for ; looks < most; looks++ {
		if g.slot >= len(t) {
			g.slot = 0
			break
		}
		if e := t[g.slot].Load(); e != nil {
			at := e.idles(c)
			switch {
			case at <= now:
				s.remove(c, t, g.slot) // another may have moved here: look again
				return looks + 1, true
			case e.seated():
				g.soonest = min(g.soonest, at)
			}
		}
		g.slot++
	}
	return looks, true
}
