package core

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
	clause   *clause
	bound    *bound
	shard    *shard
	entry    *entry // nil: the key has none
	overflow *entry // counts too, or alone
	hash     uint64
	stripe   uint32
	way      way
	seat     bool // the key is about to become live
	empty    bool // the request lacks a key
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

// decide is Try. It starts over when Replace came in between.
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
	clauses := b.plan(l.seed, r.On).clauses

	var room [few]step
	steps := room[:0]
	if len(clauses) > few {
		steps = make([]step, 0, len(clauses))
	}
	no := verdict{at: open}
	enforced, sure := false, n == 1
	for _, c := range clauses {
		s := &steps[:len(steps)+1][len(steps)]
		if !l.find(s, c, r) {
			continue
		}
		steps = steps[:len(steps)+1]
		if c.rule.Shadow {
			continue
		}
		enforced = true
		if sure {
			var t int64
			if t, sure = s.hint(); t > open {
				no.hear(s.bound, t)
			}
		}
	}
	if sure && no.at > open {
		if now := l.now(); no.at > now && l.book.Load() == b {
			note(steps, now)
			return l.refuse(&no, now), false, true
		}
	}
	if n < 0 && !enforced {
		return Permit{why: ReasonNever}, false, true // no rule to name
	}
	if len(steps) == 0 {
		return Permit{}, true, true
	}
	return l.commit(b, r, n, steps)
}

// find fills a step without a lock. It reports false where the key is exempt.
func (l *Limiter) find(s *step, c *clause, r *Request) bool {
	g := c.ledger
	s.clause, s.bound = c, c.bound
	if g.solo != nil {
		s.entry, s.shard, s.stripe = g.solo, &g.only, g.home
		return !s.bound.free
	}
	v := c.single(r)
	s.hash, s.empty = l.place(c, v, r)
	if c.special != nil {
		s.bound = c.boundOf(v)
	}
	if s.bound.free {
		return false
	}
	s.stripe = l.stripe(s.hash)
	s.shard = g.shard(s.stripe, len(l.stripes))
	if s.entry = s.shard.find(c, s.hash, v, r); s.entry == nil && !s.bound.named && !s.bound.holds && s.crowded() {
		l.sweep(c)
	}
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
	return open, s.bound.named || !s.crowded()
}

// commit decides under the locks of all steps.
func (l *Limiter) commit(b *book, r *Request, n int, steps []step) (p Permit, ok, done bool) {
	var room [few]uint32
	locks := ascending(room[:0], steps)
	for _, i := range locks {
		l.stripes[i].Lock()
	}
	now := l.now() // the one reading
	if l.book.Load() == b {
		p, ok, done = l.locked(r, n, steps, now)
	}
	for _, i := range locks {
		l.stripes[i].Unlock()
	}
	if !done {
		return
	}
	if ok {
		p.grant, p.turn = l.hold(steps, n)
	}
	note(steps, now)
	for i := range steps {
		if s := &steps[i]; s.way == pass && ok {
			s.clause.ledger.count(now).shadowed.Add(1)
		}
	}
	return
}

// ascending appends the stripes of the steps, each once.
func ascending(locks []uint32, steps []step) []uint32 {
next:
	for i := range steps {
		locks = append(locks, steps[i].stripe)
		for j := len(locks) - 1; j > 0 && locks[j] <= locks[j-1]; j-- {
			if locks[j] == locks[j-1] {
				locks = append(locks[:j], locks[j+1:]...)
				continue next
			}
			locks[j], locks[j-1] = locks[j-1], locks[j]
		}
	}
	return locks
}

// locked is the decision itself. Needs all locks, and that the book is still the
// same. It is not done if the last place for a key was taken meanwhile.
func (l *Limiter) locked(r *Request, n int, steps []step, now int64) (p Permit, ok, done bool) {
	no := verdict{at: open}
	seats := false
	for i := range steps {
		s := &steps[i]
		t := s.opens(r, now, n)
		switch {
		case t <= now:
			seats = seats || s.seat
		case s.clause.rule.Shadow:
			s.way, s.seat = pass, false
		default:
			no.hear(s.bound, t)
		}
	}
	if no.at > open {
		for i := range steps {
			s := &steps[i]
			left, more := s.left(now)
			s.tell(left, more)
			if s.bound == no.bound {
				no.left, no.full = left, s.way == full
			}
		}
		return l.refuse(&no, now), false, true
	}
	if seats && !reserve(steps) {
		return p, false, false
	}
	for i := range steps {
		s := &steps[i]
		if s.way == pass {
			continue
		}
		s.take(r, now, n) // the commit
		left, more := s.left(now)
		s.tell(left, more)
		if !s.clause.rule.Shadow {
			p.tighten(s.bound, left, more)
		}
	}
	if p.wait > 0 {
		p.wait -= now
	}
	return p, true, true
}

// opens looks, under the lock, how the step is counted, and from when n more
// could pass. No meter changes, except that the entry comes under the present
// bound and forgets what has left its window.
func (s *step) opens(r *Request, now int64, n int) int64 {
	if s.entry == nil || s.entry.bound.Load() == nil {
		s.entry = s.shard.find(s.clause, s.hash, s.clause.single(r), r)
	}
	b := s.bound
	s.way, s.overflow, s.seat = own, nil, false
	switch {
	case s.entry != nil:
		s.entry.settle(b)
		if s.entry.after != nil && s.entry.twice(now) {
			s.overflow = s.shard.overflow
		}
		if b.holds && !b.named && s.clause.ledger.solo == nil && s.entry.meter.idles() == open {
			if s.seat = !s.crowded(); !s.seat {
				s.way = full
			}
		}
	case b.named || !s.crowded():
		s.way, s.seat = fresh, !b.named
		if s.seat && s.shard.lately(b, now) {
			s.overflow = s.shard.overflow
		}
	case b.holds:
		s.way = full
	default:
		s.way, s.overflow = over, s.shard.overflow
	}

	switch {
	case n < 0 || n > b.n:
		return never
	case s.way == full:
		return unknown
	}
	t := int64(open)
	if s.entry != nil {
		t = s.entry.meter.opens(now, n)
	}
	if s.overflow != nil {
		s.overflow.settle(s.clause.bound)
		t = max(t, s.overflow.meter.opens(now, n))
	}
	return t
}

// left is how many units are free for the step, and from when more are.
func (s *step) left(now int64) (left int, more int64) {
	left, more = s.bound.n, never
	if s.entry != nil {
		left, more = s.entry.meter.left(now)
	}
	if s.overflow != nil {
		switch l, m := s.overflow.meter.left(now); {
		case l < left:
			left, more = l, m
		case l == left:
			more = max(more, m)
		}
	}
	return left, more
}

// tell publishes the hint: what is left, unless overflow has a say too.
func (s *step) tell(left int, more int64) {
	switch {
	case s.entry == nil:
	case s.overflow != nil:
		s.entry.tell(unsaid)
	case left > 0:
		s.entry.tell(open)
	default:
		s.entry.tell(more)
	}
}

// crowded reports that MaxKeys leaves no room for a further key.
func (s *step) crowded() bool {
	return s.clause.ledger.seats.Load() >= int64(s.clause.rule.MaxKeys)
}

// reserve counts the keys that are about to become live against MaxKeys. If
// another stripe took the last place since we looked, nothing is reserved.
func reserve(steps []step) bool {
	for i := range steps {
		if s := &steps[i]; !s.seat || s.clause.ledger.seats.Add(1) <= int64(s.clause.rule.MaxKeys) {
			continue
		}
		for j := range steps[:i+1] {
			if s := &steps[j]; s.seat {
				s.clause.ledger.seats.Add(-1)
			}
		}
		return false
	}
	return true
}

// take counts n units, as the step was found to be counted.
func (s *step) take(r *Request, now int64, n int) {
	switch s.way {
	case fresh:
		s.entry = newEntry(s.bound, s.clause.kept(r), s.hash)
		if s.overflow != nil {
			after := s.shard.last
			s.entry.after = &after
		}
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
	s.shard.admitted++
	if s.bound.holds {
		s.shard.held += n
	}
}

func newEntry(b *bound, key string, hash uint64) *entry {
	e := &entry{key: key, hash: hash, meter: b.limit.meter(b)}
	e.opens.Store(unsaid)
	e.bound.Store(b)
	return e
}

// A verdict gathers what the rules say, and keeps the one that tells most: the
// sentinels are such that never > unknown > any instant > open.
type verdict struct {
	at    int64
	wait  int64 // the latest instant
	bound *bound
	left  int
	full  bool // unknown because of MaxKeys
}

func (v *verdict) hear(b *bound, t int64) {
	if t < unknown {
		v.wait = max(v.wait, t)
	}
	if t > v.at || t == v.at && b.clause.rule.Name < v.bound.clause.rule.Name {
		v.at, v.bound = t, b
	}
}

// refuse makes the permit of a refusal, and counts it.
func (l *Limiter) refuse(no *verdict, now int64) Permit {
	p := Permit{bound: no.bound, left: no.left, why: ReasonRate, known: true}
	if no.at >= unknown {
		p.known = false
		switch {
		case no.at == never:
			p.why = ReasonNever
		case no.full:
			p.why = ReasonKeys
		default:
			p.why = ReasonInFlight
		}
	}
	if no.wait > now {
		p.wait = no.wait - now
	}
	no.bound.clause.ledger.count(now).refused[p.why].Add(1)
	return p
}

// note counts what is rare.
func note(steps []step, now int64) {
	for i := range steps {
		s := &steps[i]
		if s.empty {
			s.clause.ledger.count(now).empty.Add(1)
		}
		if s.way == over || s.way == full {
			s.clause.ledger.count(now).overflowed.Add(1)
		}
	}
}
