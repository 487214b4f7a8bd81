package core

// What happens to the keys of a rate beyond MaxKeys. They share one strict count
// a stripe, under the rule's own limit: a flood of invented keys can lock out
// newcomers, but costs no memory, and forgives nobody.
//
// A key that then gets an entry of its own may have units in the shared count,
// which nobody can tell apart any more. So it starts with a copy of all of that,
// as if it were its own: at least what it has used, and gone when that has left.

// shared is the count of a key that comes under b and was counted in overflow, or nil if
// nothing of that is left. Needs the lock.
func (s *shard) shared(b *bound, now int64) meter {
	if s.overflow == nil {
		return nil
	}
	if !b.named {
		s.overflow.settle(b)
		if s.overflow.meter.idles() <= now {
			return nil
		}
	}
	m := s.overflow.meter.copy()
	m.change(b, b.clause.floorOf(s.overflow.bound.Load()))
	if m.idles() <= now { // a value in For has a window of its own
		return nil
	}
	return m
}

// spill is the stripe's count of those that share one, which comes into being with the
// first. From then on who has no entry may find one there. Needs the lock.
func (s *shard) spill(b *bound) *entry {
	if s.overflow == nil {
		s.overflow = newEntry(b, "", 0)
		b.clause.ledger.spilled.Store(true)
	}
	return s.overflow
}

// stretch is how many slots a sweep looks at for one newcomer. A stripe is looked
// at only when one of its keys may have gone idle since it was last looked
// through, so nearly all looks find one. Where MaxKeys is no larger than a
// thousand, no newcomer is turned away while a place is idle; else one may share
// its count meanwhile.
const stretch = 4096

// small is a table that is looked through from the start each time.
const small = 64

// sweep makes places for a newcomer who found all of MaxKeys taken: it forgets
// idle entries until there is one. It locks one stripe after the other, so it must
// be called without a lock.
func (l *Limiter) sweep(c *clause) {
	shards := c.ledger.open(len(l.stripes))
	first := c.ledger.swept.Add(1)
	for looks, k := 0, uint32(0); int(k) < len(shards) && looks < stretch && c.crowded(); k++ {
		i := (first + k) % uint32(len(shards))
		if shards[i].soonest.Load() <= l.now() {
			looks += l.clean(c, i, stretch-looks, c.crowded)
		}
	}
}

// clean forgets idle entries of a stripe, as long as more are wanted, and looks at
// so many slots at most.
func (l *Limiter) clean(c *clause, stripe uint32, most int, wanted func() bool) (looks int) {
	s := &c.ledger.open(len(l.stripes))[stripe]
	l.stripes[stripe].Lock()
	defer l.stripes[stripe].Unlock()
	if l.book.Load().named[c.rule.Name] != c || s.table.Load() == nil {
		return 0
	}
	now, t := l.now(), *s.table.Load()
	if len(t) <= small { // one look through it tells all, where to go on could take two
		s.look, s.seen = 0, latest
	}
	for looks < most && wanted() {
		if s.look >= len(t) {
			s.soonest.Store(s.seen) // who came since the look began has been noted too
			s.look, s.seen = 0, latest
			if s.soonest.Load() > now {
				break
			}
		}
		looks++
		if e := t[s.look].Load(); e != nil {
			at := e.idles(c)
			if at <= now {
				s.remove(c, t, s.look) // another may have moved here: look again
				continue
			}
			s.seen = min(s.seen, at)
		}
		s.look++
	}
	s.shrink()
	return looks
}

// cleanAll forgets all idle entries, a few at a time, after MaxKeys was lowered:
// newcomers need not do it.
func (l *Limiter) cleanAll(c *clause) {
	for i := range c.ledger.open(len(l.stripes)) {
		for l.clean(c, uint32(i), stretch, c.exceeded) == stretch {
		}
	}
}

// exceeded reports that more keys than MaxKeys have entries.
func (c *clause) exceeded() bool { return c.ledger.seats.Load() > int64(c.rule.MaxKeys) }

// unknownIdle makes sweeps look at the shard, after a change that may have made
// entries idle. Needs the lock.
func (s *shard) unknownIdle() {
	s.soonest.Store(open)
	s.look, s.seen = 0, latest
}
