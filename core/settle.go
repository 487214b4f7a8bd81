package core

// What may happen to a permit between its decision and its release.

// Detach moves what the request holds to another permit. From then on Release, Fail,
// Ready and Settle of p, on whichever copy, do nothing; those of the returned permit
// count. So a handler whose work goes on after it has returned keeps its units: the
// adapter that called it releases p in vain. What p has been told, such as Fail, stays.
//
// It is the zero Permit if p is refused, or was released or detached.
func (p Permit) Detach() Permit {
	if !p.admitted() || !p.grant.detach(p.turn) {
		return Permit{}
	}
	p.turn++
	return p
}

// Holds reports that something is held until Release, or is to be decided on: units of
// an [InFlight], or of a rate that charges by outcome, by a rule that enforces. Where
// nobody is told when a request ends, such a permit must not be taken for an admission.
func (p Permit) Holds() bool { return p.admitted() && p.grant.holds(p.turn) }

// Ready says that the request has been set up: what limits with [InFlight].SetUp hold
// for it is given back. The first call counts, before Release.
func (p Permit) Ready() {
	if p.admitted() {
		p.grant.beReady(p.turn)
	}
}

// Settle tells the true cost, n units, of a request whose cost was not known on entry.
// It is true if the cost is n from then on, and false, with nothing changed, if there
// is no room; then another Settle may succeed. The first that is true is the last:
// later ones are false, as they are when p is refused or was released, and for n
// below 0. The zero Permit, to which no rule applied, settles for anything.
//
// A lower cost gives units back, now, and opens for who waits: those of this request,
// as far as they are still in their windows. A [Pace] can only give back while nobody
// has passed since and Forget was not called for the rule, and not the last unit; a
// [Rate] above 4096 only what it has admitted since a Replace changed it.
//
// A higher cost is charged now, as a request for what is missing would be, by all rules
// that had admitted the request and are still there, or by none: it does not wait, and
// does not pass those who do. A key that shares its count beyond MaxKeys has no room for
// more. A rule that only counts the request (see Rule.Count) counts what the limit of
// the decision can tell.
func (p Permit) Settle(n int) bool {
	if !p.admitted() {
		return p.grant == nil && n >= 0
	}
	return n >= 0 && p.grant.settle(p.turn, n)
}

// detach makes the turn another, with all its flags.
func (g *grant) detach(turn uint64) bool {
	for {
		s := g.state.Load()
		if s>>flags != turn || s&ended != 0 {
			return false
		}
		if g.state.CompareAndSwap(s, s+1<<flags) {
			return true
		}
	}
}

func (g *grant) holds(turn uint64) bool {
	if !g.enter(turn) {
		return false
	}
	defer g.leave()
	for i := range g.steps {
		if s := &g.steps[i]; s.bound.owes && s.counted() && !s.shadow && !g.readied(s) && g.owed(s) > 0 {
			return true
		}
	}
	return false
}

func (g *grant) beReady(turn uint64) {
	if !g.enter(turn) {
		return
	}
	defer g.leave()
	if !g.ready {
		g.give(false, true)
		g.ready = true
	}
}

func (g *grant) settle(turn uint64, n int) (ok bool) {
	if !g.enter(turn) {
		return false
	}
	defer g.leave()
	if g.settled {
		return false
	}
	switch {
	case n < g.n:
		g.lower(n)
	case n > g.n:
		for done := false; !done; {
			ok, done = g.raise(n - g.n)
		}
		if !ok {
			return false
		}
	}
	g.settled = true
	return true
}

// lower gives back what is more than n.
func (g *grant) lower(n int) {
	var room [few]uint32
	locks := ascending(room[:0], g.steps)
	l := g.limiter
	l.lock(locks)
	defer l.unlock(locks)
	b, now := l.rules(), l.now()
	for i := range g.steps {
		s := &g.steps[i]
		took := s.units(g.n)
		if back := took - s.units(n); back > 0 && s.counted() && !g.readied(s) {
			s.undo(b, g.at, took, back, now)
		}
	}
	g.n = n
}

// lock takes the locks of stripes in ascending order. A decision spells this out: it is
// not inlined.
func (l *Limiter) lock(stripes []uint32) {
	for _, i := range stripes {
		l.stripes[i].Lock()
	}
}

func (l *Limiter) unlock(stripes []uint32) {
	for _, i := range stripes {
		l.stripes[i].Unlock()
	}
}

// counted reports that the step took units.
func (s *step) counted() bool { return s.way != pass && s.way != full && s.role != watches }

// readied reports that what the step took has been given back by Ready.
func (g *grant) readied(s *step) bool { return g.ready && s.bound.setup }

// undo takes back units. Needs the lock.
func (s *step) undo(b *book, at int64, took, n int, now int64) {
	if s.bound.owes {
		s.shard.held -= n
	}
	e := s.entry
	if !s.present(b) {
		return
	}
	e.meter.undo(at, took, n)
	e.announce(now)
	s.shard.idlesBy(e.meter.idles())
	if s.bound.holds && !s.alone {
		e.vacate()
	}
}

// present brings the entry under the rule of today. It is false if that is gone, or the
// entry forgotten, because nothing of it had been in its window. Needs the lock.
func (s *step) present(b *book) bool {
	c := s.today(b)
	switch {
	case c == nil || s.entry.bound.Load() == nil:
		return false
	case s.way != over:
		s.entry.comply(c)
	case !c.bound.free:
		s.entry.settle(c.bound)
	}
	return true
}

// today is the step's rule in the book b, or nil if that is gone.
func (s *step) today(b *book) *clause {
	if c := b.named[s.clause.rule.Name]; c != nil && c.ledger == s.clause.ledger {
		return c
	}
	return nil
}

// announce tells who comes next what the entry says now. Needs the lock.
func (e *entry) announce(now int64) {
	if e.waits() {
		e.rouse()
		return
	}
	t := e.meter.opens(now, 1, 0)
	if t <= now {
		t = open
	}
	e.tell(t)
}

// raise charges n more units, by all rules or by none. It is not done if the last place
// for a key was taken meanwhile.
func (g *grant) raise(n int) (ok, done bool) {
	var room [few]uint32
	locks := ascending(room[:0], g.steps)
	l := g.limiter
	l.lock(locks)
	defer l.unlock(locks)
	b, now := l.rules(), l.now() // no book comes in while a stripe is locked
	var space [few]step
	steps := space[:0]
	seats := false
	for i := range g.steps {
		s := step{how: how{way: pass}, at: now}
		if was := &g.steps[i]; g.missing(was, n) > 0 && !g.readied(was) {
			s = was.anew(b, g.level, now)
		}
		switch {
		case s.way == pass || s.role == counts:
		case s.way == over || s.entry.waits():
			s.at = unknown
		default:
			s.at = s.entry.meter.opens(now, n, s.kept)
		}
		if s.at > now && !s.shadow {
			return false, true
		}
		if s.at > now {
			s.way = pass
		}
		seats = seats || s.way != pass && s.seat
		steps = append(steps, s)
	}
	if seats && !reserve(steps) {
		return false, false
	}
	for i := range steps {
		if s, was := &steps[i], &g.steps[i]; s.way != pass {
			s.raise(g.missing(was, n), now)
			was.entry, was.raised = s.entry, true
		}
	}
	g.more, g.again = n, now
	return true, true
}

// missing is how much more the step takes if n units are added: as far as the limit of
// its decision can tell, by which it brings back.
func (g *grant) missing(s *step, n int) int {
	if !s.counted() {
		return 0
	}
	return s.units(sum(g.n, n)) - s.units(g.n)
}

// anew is the step as another decision for the same key would have it, by the book b:
// one that passes if the rule is gone. Needs the lock.
func (s *step) anew(b *book, level int, now int64) step {
	t := step{sight: s.sight, clause: s.today(b), shard: s.shard, stripe: s.stripe, at: now}
	c := t.clause
	if c == nil {
		t.way = pass
		return t
	}
	if t.role, t.shadow, t.alone = s.role, c.rule.Shadow, s.alone; c.rule.Count != s.clause.rule.Count {
		t.role = limits // whether it still is only counted nobody knows
	}
	if s.way == over { // the key may have a count of its own by now
		if t.way = over; t.role == counts && c.bound.free {
			t.way = pass
		} else if t.role == counts {
			t.bound = c.bound
			t.entry.settle(c.bound)
		}
		return t
	}
	if t.bound = c.bound; !s.alone {
		t.bound = c.boundOf(value{s.entry.key, s.entry.hash & 1})
	}
	if t.bound.free {
		t.way = pass
		return t
	}
	t.kept = t.bound.kept[level]
	if s.entry.bound.Load() == nil { // forgotten
		t.newcomer(now)
	} else {
		t.entry.settle(t.bound)
	}
	return t
}

// newcomer finds out how a step whose entry was forgotten, because it held nothing, is
// counted; see settle.
func (s *step) newcomer(now int64) {
	c, key, hash := s.clause, s.entry.key, s.entry.hash
	switch s.entry = s.shard.find(hash, key); {
	case s.entry != nil:
		s.entry.settle(s.bound)
	case !s.bound.named && (c.crowded() || s.bound.tries && s.shard.tries()):
		s.way, s.entry = over, s.shard.spill(s.bound)
		s.entry.settle(s.bound)
	default:
		s.way, s.seat = fresh, !s.bound.named
		m := s.shard.shared(s.bound, now)
		if m == nil {
			m = s.bound.limit.meter(s.bound)
		}
		s.entry = entryWith(s.bound, key, hash, m)
	}
}

// raise counts n more units.
func (s *step) raise(n int, now int64) {
	if s.way == fresh {
		s.shard.insert(s.clause, s.entry, now)
	}
	if s.bound.owes {
		s.shard.held += n
	}
	if s.role != counts {
		s.tell(s.entry.meter.take(now, n, s.kept))
		return
	}
	if !s.bound.holds {
		n = min(n, s.bound.n)
	}
	s.entry.meter.(charger).charge(now, n)
	s.tell(s.left(now, 0))
}
