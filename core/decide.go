package core

import "slices"

// The decision. What it keeps, each with a test of its name:
//
//  1. One instant. One clock reading per decision, after the last lock, before
//     the first look. No meter sees time go back.
//  2. All or nothing. No meter changes before every meter has agreed. No
//     take-and-put-back: others would see it.
//  3. Order. Stripes are locked in ascending order, each once, in releases too.
//     No foreign code runs under a lock; nobody sleeps under one.
//  4. Early, never late. A meter's opens is at most now exactly when n fit; what
//     it says else may be early, never late. Of a Rate up to 4096 it is exact.
//  5. Hint before clock. The lock-free refusal loads the hints first, the clock
//     last: a hint loaded after the clock could be of an admission that came
//     after it.
//  6. The hint is written under the lock only, with the bound it speaks for, and
//     believed only for the reader's own book. The book is checked after the
//     clock is read. So a decider that slept through a Replace neither admits by
//     the old rules nor leaves an old hint behind.
//  7. Forgetting is invisible. Only idle entries leave, under their lock; an
//     entry found without the lock is found again, or seen not to be gone, under
//     it; a release always reaches the entry it took from.

// A step is one clause of a decision.
type step struct {
	hash     uint64
	empty    bool // the request lacks a key
	clause   *clause
	bound    *bound
	shard    *shard
	entry    *entry // nil: the key has none
	overflow *entry // counts too, or alone
	stripe   uint32
	way      way
}

// A way is how a step is counted.
type way uint8

const (
	own   way = iota // in the key's entry
	fresh            // in an entry to be made
	over             // in overflow only
	full             // not at all: MaxKeys
	pass             // not at all: a shadow rule without room
)

// few is how many rules may apply to a request before a decision allocates.
const few = 4

// decide is Try.
func (l *Limiter) decide(r *Request) (Permit, bool) {
	for {
		if p, ok, done := l.attempt(r); done {
			return p, ok
		}
	}
}

// attempt decides by the present book, or is not done because that changed.
func (l *Limiter) attempt(r *Request) (p Permit, ok, done bool) {
	n := r.Cost
	if n == 0 {
		n = 1
	}
	b := l.rules()
	plan := b.plan(l.seed, r.On)

	var room [few]step
	steps := room[:0]
	no := verdict{at: open}
	enforced, sure := false, n == 1
	for _, c := range plan.clauses {
		steps = append(steps, step{})
		s := &steps[len(steps)-1]
		if !l.find(s, c, r) {
			steps = steps[:len(steps)-1]
			continue
		}
		if c.rule.Shadow {
			continue
		}
		enforced = true
		if sure {
			var t int64
			t, sure = s.hint()
			no.hear(s.bound, t, reasonOf(t))
		}
	}
	if n < 0 && !enforced {
		return Permit{why: ReasonNever}, false, true // no rule to name
	}
	if len(steps) == 0 {
		return Permit{}, true, true
	}
	if sure && no.at != open {
		if now := l.now(); no.at > now && l.book.Load() == b {
			note(steps)
			return l.refuse(&no, now), false, true
		}
	}
	return l.commit(b, r, n, steps)
}

// find fills a step without a lock. It reports false where the key is exempt.
func (l *Limiter) find(s *step, c *clause, r *Request) bool {
	g := c.ledger
	s.clause = c
	if g.solo != nil {
		s.bound, s.entry, s.stripe = c.bound, g.solo, g.home
		s.shard = g.shard(0, 1)
		return !s.bound.free
	}
	v := c.single(r)
	s.hash, s.empty = l.place(c, v, r)
	s.bound = c.bound
	if c.special != nil {
		s.bound = c.boundOf(v)
	}
	if s.bound.free {
		return false
	}
	s.stripe = l.stripe(s.hash)
	s.shard = g.shard(s.stripe, len(l.stripes))
	s.entry = s.shard.find(c, s.hash, v, r)
	return true
}

// hint is what can be known without the lock: when 1 unit could pass at the
// earliest. It is not sure where only the lock knows.
func (s *step) hint() (t int64, sure bool) {
	switch {
	case s.bound.n == 0:
		return never, true
	case s.entry != nil:
		return s.entry.told(s.bound)
	}
	return open, s.bound.named || s.clause.ledger.seats.Load() < int64(s.clause.rule.MaxKeys)
}

// commit decides under the locks of all steps.
func (l *Limiter) commit(b *book, r *Request, n int, steps []step) (p Permit, ok, done bool) {
	var room [few]uint32
	locks := room[:0]
	for i := range steps {
		at, found := slices.BinarySearch(locks, steps[i].stripe)
		if !found {
			locks = slices.Insert(locks, at, steps[i].stripe)
		}
	}
	for _, i := range locks {
		l.stripes[i].Lock()
	}
	now := l.now() // the one reading
	p, ok, done = l.locked(b, r, n, steps, now)
	for _, i := range locks {
		l.stripes[i].Unlock()
	}
	if !done {
		return
	}
	if ok {
		p.grant, p.turn = l.hold(steps, n)
	}
	note(steps)
	for i := range steps {
		switch s := &steps[i]; s.way {
		case pass:
			if ok {
				s.clause.ledger.count().shadowed.Add(1)
			}
		case over, full:
			l.sweep(s.clause)
		}
	}
	return
}

// locked is the decision itself. Needs all locks.
func (l *Limiter) locked(b *book, r *Request, n int, steps []step, now int64) (p Permit, ok, done bool) {
	if l.book.Load() != b {
		return p, false, false
	}
	no := verdict{at: open}
	for i := range steps {
		s := &steps[i]
		t, why := s.opens(r, now, n)
		switch {
		case t <= now:
		case s.clause.rule.Shadow:
			s.way = pass
		default:
			no.hear(s.bound, t, why)
		}
	}
	if no.at != open {
		for i := range steps {
			steps[i].tell(now)
		}
		p = l.refuse(&no, now)
		for i := range steps { // what a refusal leaves of the request's size is still free
			if s := &steps[i]; s.bound == no.bound {
				p.left = s.left(now)
			}
		}
		return p, false, true
	}
	if !reserve(steps, now) {
		return p, false, false
	}
	for i := range steps {
		s := &steps[i]
		if s.way == pass {
			continue
		}
		s.take(r, now, n) // the commit
		if !s.clause.rule.Shadow {
			p.tighten(s, now)
		}
	}
	return p, true, true
}

// opens looks, under the lock, how the step is counted, and from when n more
// could pass. No meter changes, except that the entry comes under the present
// bound and forgets what has left its window.
func (s *step) opens(r *Request, now int64, n int) (int64, Reason) {
	if s.entry == nil || s.entry.bound.Load() == nil {
		s.entry = s.shard.find(s.clause, s.hash, s.clause.single(r), r)
	}
	b := s.bound
	s.way, s.overflow = own, nil
	switch {
	case s.entry != nil:
		s.entry.settle(b)
		if s.entry.twice(now) {
			s.overflow = s.shard.overflow
		}
		if b.holds && !b.named && s.entry.meter.idle(now) && s.crowded() {
			s.way = full
		}
	case b.named || !s.crowded():
		s.way = fresh
		if s.shard.overflow != nil && now < later(s.shard.last, b.per) {
			s.overflow = s.shard.overflow
		}
	case b.holds:
		s.way = full
	default:
		s.way, s.overflow = over, s.shard.overflow
	}

	if n < 0 || n > b.n {
		return never, ReasonNever
	}
	if s.way == full {
		return unknown, ReasonKeys
	}
	t := int64(open)
	if s.entry != nil {
		t = s.entry.meter.opens(now, n)
	}
	if s.overflow != nil {
		s.overflow.settle(s.clause.bound)
		t = max(t, s.overflow.meter.opens(now, n))
	}
	return t, reasonOf(t)
}

// left is how many units are free for the step.
func (s *step) left(now int64) int {
	left := s.bound.n
	if s.entry != nil {
		left = s.entry.meter.left(now)
	}
	if s.overflow != nil {
		left = min(left, s.overflow.meter.left(now))
	}
	return left
}

// crowded reports that MaxKeys leaves no room for a further key.
func (s *step) crowded() bool {
	return s.clause.ledger.seats.Load() >= int64(s.clause.rule.MaxKeys)
}

// reserve counts the keys that are about to become live against MaxKeys. If
// another stripe took the last place since we looked, nothing is reserved, and
// the decision starts over.
func reserve(steps []step, now int64) bool {
	for i := range steps {
		s := &steps[i]
		if !s.seats(now) {
			continue
		}
		g := s.clause.ledger
		if g.seats.Add(1) <= int64(s.clause.rule.MaxKeys) {
			continue
		}
		g.seats.Add(-1)
		for j := range steps[:i] {
			if steps[j].seats(now) {
				steps[j].clause.ledger.seats.Add(-1)
			}
		}
		return false
	}
	return true
}

// seats reports that the step makes a key live.
func (s *step) seats(now int64) bool {
	if s.bound.named || s.clause.ledger.solo != nil {
		return false
	}
	return s.way == fresh || s.way == own && s.bound.holds && s.entry.meter.idle(now)
}

// take counts n units, as the step was found to be counted.
func (s *step) take(r *Request, now int64, n int) {
	switch s.way {
	case fresh:
		s.entry = newEntry(s.bound, s.clause.kept(r), s.hash)
		s.shard.mark(s.entry, now)
		s.shard.insert(s.clause, s.entry, now)
	case over:
		if s.overflow == nil {
			s.overflow = newEntry(s.clause.bound, "", 0)
			s.shard.overflow = s.overflow
		}
		s.shard.last = now
	}
	if s.entry != nil {
		s.entry.meter.take(now, n)
	}
	if s.overflow != nil {
		s.overflow.meter.take(now, n)
	}
	s.tell(now)
	s.shard.admitted++
	if s.bound.holds {
		s.shard.held += n
	}
}

// tell publishes what the entry's meter says, unless overflow has a say too.
func (s *step) tell(now int64) {
	switch {
	case s.entry == nil:
	case s.overflow != nil:
		s.entry.tell(unsaid)
	default:
		s.entry.tell(hint(s.entry.meter.opens(now, 1), now))
	}
}

// hint turns the answer of opens at now into one that holds later on too.
func hint(t, now int64) int64 {
	if t <= now {
		return open
	}
	return t
}

func newEntry(b *bound, key string, hash uint64) *entry {
	e := &entry{key: key, hash: hash, meter: b.limit.meter(b)}
	e.opens.Store(open)
	e.bound.Store(b)
	return e
}

// A verdict gathers what the rules say, and keeps the one that tells most: the
// sentinels are such that never > unknown > any instant > open.
type verdict struct {
	at    int64
	wait  int64 // the latest instant
	bound *bound
	why   Reason
}

func (v *verdict) hear(b *bound, t int64, why Reason) {
	if t < unknown {
		v.wait = max(v.wait, t)
	}
	if t > v.at || t == v.at && t != open && b.clause.rule.Name < v.bound.clause.rule.Name {
		v.at, v.bound, v.why = t, b, why
	}
}

// reasonOf says why a meter that opens at t is closed before.
func reasonOf(t int64) Reason {
	switch t {
	case never:
		return ReasonNever
	case unknown:
		return ReasonInFlight
	}
	return ReasonRate
}

// refuse makes the permit of a refusal, and counts it.
func (l *Limiter) refuse(no *verdict, now int64) Permit {
	p := Permit{bound: no.bound, why: no.why, known: no.at < unknown}
	if no.wait > now {
		p.wait = no.wait - now
	}
	if no.bound != nil {
		no.bound.clause.ledger.count().refused[no.why].Add(1)
	}
	return p
}

// note counts what is rare.
func note(steps []step) {
	for i := range steps {
		s := &steps[i]
		if s.empty {
			s.clause.ledger.count().empty.Add(1)
		}
		switch s.way {
		case over, full:
			s.clause.ledger.count().overflowed.Add(1)
		}
	}
}
