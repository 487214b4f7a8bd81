package core

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

// mark remembers, in an entry just made, that its key may have units in overflow.
func (s *shard) mark(e *entry, now int64) {
	if s.overflow != nil && now < later(s.last, e.bound.Load().per) {
		last := s.last
		e.after = &last
	}
}

// sweep makes room for newcomers who found all of MaxKeys taken: it forgets the
// idle among a few slots of one stripe, another at each call. Takes a lock, so it
// must be called without one.
func (l *Limiter) sweep(c *clause) {
	g := c.ledger
	i := g.sweep.Add(1) % uint32(len(l.stripes))
	s := g.shard(i, len(l.stripes))
	l.stripes[i].Lock()
	defer l.stripes[i].Unlock()
	if now := l.now(); l.book.Load().named[c.rule.Name] == c {
		s.tidy(c, now)
	}
}
