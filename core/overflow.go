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
// which nobody can tell apart any more. So it is counted by both, and must have
// room in both, until those units have left: Per after the last instant, as
// known when the entry was made, at which something was counted in overflow
// only. That instant is fixed then, so moving out always ends; and what is
// counted by both does not move it for others.

// twice reports that the entry is counted in overflow too. Needs the lock.
func (e *entry) twice(now int64) bool {
	if e.after == nil {
		return false
	}
	if now < later(*e.after, e.bound.Load().per) {
		return true
	}
	e.after = nil
	return false
}

// An overflow is the shared count of one stripe. Its entry is in no table.
type overflow struct {
	*entry
	last  naming // the last instant at which something was counted here only
	first int    // the change of the rule by which what is here only began
}

// shared is the entry of the overflow, if there is one. Needs the lock.
func (s *shard) shared() *entry {
	if s.overflow == nil {
		return nil
	}
	return s.overflow.entry
}

// share is shared for one who is about to be counted there only.
func (s *shard) share(c *clause, now int64) *entry {
	if s.overflow == nil {
		s.overflow = &overflow{entry: newEntry(c.bound, "", 0)}
	}
	o := s.overflow
	if o.meter.idles() <= now {
		o.first = c.change
	}
	o.last = naming{c.change, now}
	return o.entry
}

// lately reports that overflow may have units of a key that had no entry, and the
// last instant at which it may have been counted there. A value in For never is,
// from the time on at which it was named. Needs the lock.
func (s *shard) lately(b *bound, now int64) (after int64, lately bool) {
	if s.overflow == nil {
		return 0, false
	}
	last := s.overflow.last
	if b.named != nil && last.change >= b.named.change {
		last = *b.named
		if s.overflow.first >= b.named.change {
			return 0, false
		}
	}
	return last.at, now < later(last.at, b.per)
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
