package core

import (
	"hash/maphash"
	"math"
	"strings"
)

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
	sight
	clause *clause
	shard  *shard
	stripe uint32
	how
	kept int   // how much of N is not for the request
	at   int64 // from when it is open
}

// A how is how a step is counted. It is copied as a whole from the plan, where all
// but the first four are zero.
type how struct {
	role   role
	shadow bool
	mute   bool // it refuses nobody
	alone  bool // the rule has one entry for all
	way    way
	seat   bool // the key is about to become live
	behind bool // it would fit, but others wait
	raised bool // Settle has added to it
}

// A way is how a step is counted.
type way uint8

const (
	own   way = iota // in the key's entry
	fresh            // in an entry to be made, or made but not yet in its table
	over             // in overflow
	full             // not at all: MaxKeys
	pass             // not at all: a shadow rule without room
)

// few is how many rules may apply to a request before a decision allocates.
const few = 4

// A mode is what a decision does with who is neither refused nor admitted at once.
type mode uint8

const (
	patient mode = 1 << iota // refuses only who cannot begin to wait: of one who can, p says neither
	looking                  // takes nothing: only looks whether it would
)

// decide is Try: it fills in p. It starts over when Replace came in between.
//
// Here and below, what is decided is filled in where it will stay: to return
// structs of this size costs more than the locks.
func (l *Limiter) decide(r *Request, p *Permit, m mode) (ok bool) {
	for done := false; !done; {
		b := l.rules()
		plan := b.plan(l, r.On)
		if !plan.queues {
			m &^= patient
		}
		var seen [few]sight
		// The hints are for 1 unit, and for those from whom nothing is kept.
		if (r.Cost == 0 || r.Cost == 1) && (!plan.keeps || r.Priority >= Critical) && l.glance(b, plan, &seen, r, p, m) {
			return false
		}
		ok, done = l.commit(b, plan, &seen, r, p, nil, m)
	}
	return ok
}

// A sight is what can be seen of a clause without a lock.
type sight struct {
	bound *bound
	entry *entry // nil: the key has none
	hash  uint64
	empty bool // the request lacks a key
}

// see finds the bound and the entry for a request.
func (l *Limiter) see(c *planned, r *Request) (b *bound, e *entry, hash uint64, empty bool) {
	if c.solo != nil {
		return c.bound, c.solo, 0, false
	}
	if c.by == "" {
		hash, empty = l.hashAll(c.ledger.parts, r)
		return c.bound, c.shards[l.stripe(hash)].findAll(hash, c.ledger.parts, r), hash, empty
	}
	// What part, hash and boundOf do, without the calls for a short text: a tenth of
	// a clock.
	text := r.text(c.by)
	hash = maphash.String(l.seed, text) &^ 1
	if len(text) > longest {
		v := digest(text)
		text, hash = v.text, l.hash(v)
	}
	b = c.bound
	if c.special != nil {
		b = c.boundOf(value{text, hash & 1})
	}
	return b, c.shards[l.stripe(hash)].find(hash, text), hash, text == ""
}

// glance refuses without a lock, if the hints for 1 unit are all known, and one
// of them is closed still when the clock is read after all: for the patient, one
// without a queue, or for longer than its queue lets wait. What it has seen spares
// commit another look.
func (l *Limiter) glance(b *book, plan *plan, seen *[few]sight, r *Request, p *Permit, m mode) (refused bool) {
	no := verdict{at: open}
	lacks, clauses := false, plan.clauses
	for i := range clauses {
		c := &clauses[i]
		bound, e, hash, empty := c.bound, c.solo, uint64(0), false
		if e == nil {
			bound, e, hash, empty = l.see(c, r)
		}
		if i < few {
			s := &seen[i]
			s.bound, s.entry, s.hash, s.empty = bound, e, hash, empty
		}
		if c.mute || bound.free {
			continue
		}
		lacks = lacks || empty
		t, sure := int64(never), true
		switch {
		case bound.n == 0:
		case e != nil:
			t, sure = e.told(bound)
		default:
			t, sure = open, (bound.named || !c.crowded()) && !c.ledger.spilled.Load()
		}
		if !sure || t == open && bound.holds && !bound.named && c.solo == nil && c.crowded() {
			return false // the entry may be there and have no place
		}
		if t > open {
			no = no.hear(bound, t)
		}
	}
	if no.at == open {
		return false
	}
	final, late := no.at, int64(open)
	if m&patient != 0 {
		final, late = l.final(plan, r)
	}
	now, why := l.now(), no.why()
	if final <= now {
		why = ReasonQueueTimeout
	}
	if max(final, late) <= now || l.book.Load() != b {
		return false
	}
	if lacks {
		l.lacking(clauses, r, now)
	}
	no.refuse(l, why, 0, now, p)
	return true
}

// final is the instants up to which no wait is of use: the latest hint of the rules
// that let nobody wait, and the latest before which one with a queue, where nobody
// stands, opens too late. It looks anew, and so before the clock too.
func (l *Limiter) final(plan *plan, r *Request) (final, late int64) {
	final, late = open, open
	for i := range plan.clauses {
		c := &plan.clauses[i]
		bound, e, _, _ := l.see(c, r)
		if c.mute || bound.free {
			continue
		}
		t, sure := int64(never), bound.n == 0
		if !sure && e != nil {
			t, sure = e.told(bound)
		}
		switch q := &c.clause.rule.Queue; {
		case !sure:
		case q.Len == 0 || t == never:
			final = max(final, t)
		case t > open && t < unknown && !bound.tries:
			late = max(late, t-int64(q.Wait))
		}
	}
	return final, late
}

// lacking counts the rules whose key a refused request lacks.
func (l *Limiter) lacking(clauses []planned, r *Request, now int64) {
	for i := range clauses {
		c := &clauses[i]
		if b, _, _, empty := l.see(c, r); empty && !b.free && !c.shadow {
			count(b.tally, now).empty.Add(1)
		}
	}
}

// commit decides under the locks of all steps, and of the door where w stands. It
// is not done if the book has changed, or if the last place for a key was taken
// meanwhile. With w, a request that is neither admitted nor refused stands at a door.
func (l *Limiter) commit(b *book, plan *plan, seen *[few]sight, r *Request, p *Permit, w *waiter, m mode) (ok, done bool) {
	n := r.Cost
	if n == 0 {
		n = 1
	}
	clauses := plan.clauses
	if len(clauses) == 0 && n > 0 {
		l.depart(w)
		*p = Permit{}
		return true, true
	}
	g := l.borrow(len(clauses))
	steps := g.steps[:0]
	enforced, level := false, r.Priority.level()
	g.owes, g.rare, g.waits, g.level = false, false, false, level
	for i := range clauses {
		c := &clauses[i]
		s := &steps[:len(steps)+1][len(steps)]
		if i < few && seen[i].bound != nil {
			s.bound, s.entry, s.hash, s.empty = seen[i].bound, seen[i].entry, seen[i].hash, seen[i].empty
		} else {
			s.bound, s.entry, s.hash, s.empty = l.see(c, r)
		}
		if s.bound.free {
			continue
		}
		steps = steps[:len(steps)+1]
		s.clause, s.how, s.kept = c.clause, c.how, s.bound.kept[level]
		if c.solo != nil {
			s.shard, s.stripe = &c.ledger.only, c.ledger.home
		} else {
			s.stripe = l.stripe(s.hash)
			s.shard = &c.shards[s.stripe]
			if s.entry == nil && !s.bound.named && !s.bound.holds && c.crowded() {
				l.sweep(c.clause) // a newcomer may get the place of an idle key
			}
		}
		enforced = enforced || !c.mute
		g.owes = g.owes || s.bound.owes && c.role != watches
		g.rare = g.rare || s.empty || s.shadow || s.entry == nil || s.bound.holds && c.solo == nil
	}
	g.steps, g.n = steps, n
	if len(steps) == 0 || n < 0 && !enforced {
		l.depart(w)
		*p = Permit{}
		if n < 0 {
			p.grant = &l.refusals[ReasonNever] // no rule to name
		}
		l.grants.Put(g)
		return n > 0, true
	}

	var now int64
	if len(steps) == 1 && w == nil {
		mu := &l.stripes[steps[0].stripe]
		mu.Lock()
		if now = l.now(); l.book.Load() == b {
			ok, done = g.locked(r, now, p, w, m)
		}
		mu.Unlock()
	} else {
		var room [few]uint32
		locks := ascending(room[:0], steps)
		if w != nil && w.door != nil {
			locks = include(locks, w.stripe)
		}
		for _, i := range locks {
			l.stripes[i].Lock()
		}
		if now = l.now(); l.book.Load() == b { // the one reading
			ok, done = g.locked(r, now, p, w, m)
		}
		for _, i := range locks {
			l.stripes[i].Unlock()
		}
	}
	if done && g.rare && !g.waits && (m&looking == 0 || !ok) {
		note(steps, ok, now)
	}
	if !ok || m&looking != 0 {
		l.grants.Put(g)
	}
	return ok, done
}

// find finds the entry under the lock: it may have come or gone since.
func (s *step) find(r *Request) {
	if by := s.clause.single(); by != "" {
		s.entry = s.shard.find(s.hash, r.part(by).text)
	} else {
		s.entry = s.shard.findAll(s.hash, s.clause.ledger.parts, r)
	}
}

// key is the key to keep in an entry.
func (s *step) key(r *Request) string {
	if by := s.clause.single(); by != "" {
		return strings.Clone(r.part(by).text)
	}
	return join(s.clause.ledger.parts, r)
}

// ascending appends the stripes of the steps, each once.
func ascending(locks []uint32, steps []step) []uint32 {
	for i := range steps {
		locks = include(locks, steps[i].stripe)
	}
	return locks
}

// include puts a stripe into its place, unless it is there.
func include(locks []uint32, stripe uint32) []uint32 {
	locks = append(locks, stripe)
	for j := len(locks) - 1; j > 0 && locks[j] <= locks[j-1]; j-- {
		if locks[j] == locks[j-1] {
			return append(locks[:j], locks[j+1:]...)
		}
		locks[j], locks[j-1] = locks[j-1], locks[j]
	}
	return locks
}

// locked is the decision itself. Needs all locks, and that the book is still the
// same.
func (g *grant) locked(r *Request, now int64, p *Permit, w *waiter, m mode) (ok, done bool) {
	n, steps := g.n, g.steps
	no := verdict{at: open}
	seats := false
	for i := range steps {
		s := &steps[i]
		t := s.opens(r, now, n, m)
		if t <= now && s.entry != nil && s.entry.line != nil && !s.mute && s.closed(r, w, now) {
			t, s.behind = unknown, true
		}
		s.at = t
		switch {
		case t <= now:
			seats = seats || s.seat
		case s.shadow:
			s.way, s.seat = pass, false
		default:
			no = no.hear(s.bound, t)
		}
	}
	if no.at > open {
		return false, g.refused(r, now, p, w, m, no)
	}
	if m&looking != 0 {
		g.seen(now, p)
		return true, true
	}
	if seats && !reserve(steps) {
		return false, false
	}
	var q quota
	for i := range steps {
		s := &steps[i]
		if s.way == pass {
			continue
		}
		left, more := s.take(r, now, n) // the commit
		s.tell(left, more)
		if s.kept > 0 {
			left, more = s.left(now, s.kept)
		}
		if !s.mute {
			q = q.tighten(s.bound, left, more)
		}
	}
	if w != nil {
		w.leave() // not before: the key's place stays its own
	}
	g.at = now
	p.grant, p.bound, p.turn, p.left = g, q.bound, g.state.Load()>>flags, q.left
	if reset := q.reset(now); g.reset.Load() != reset {
		g.reset.Store(reset)
	}
	return true, true
}

// seen ends a decision that only looks, and would admit.
func (g *grant) seen(now int64, p *Permit) {
	var q quota
	for i := range g.steps {
		if s := &g.steps[i]; !s.mute {
			left, more := s.left(now, s.kept)
			q = q.tighten(s.bound, left, more)
		}
	}
	if *p = (Permit{}); q.bound != nil {
		*p = Permit{&g.limiter.refusals[looked], q.bound, uint64(q.reset(now)), q.left}
	}
}

// refused ends a decision that some rule refuses: the request stands at its door, or
// is told why it does not. It is not done if it is to be decided anew. Needs what
// locked does.
func (g *grant) refused(r *Request, now int64, p *Permit, w *waiter, m mode, no verdict) (done bool) {
	steps := g.steps
	if w != nil {
		if s := g.shut(w, now); s != nil {
			no = verdict{at: open}.hear(s.bound, s.at)
		}
	}
	why, left := no.why(), 0
	var door *step
	for i := range steps {
		if s := &steps[i]; s.bound == no.bound {
			door = s
			left, _ = s.left(now, s.kept)
			switch {
			case s.way == full && no.at == unknown:
				why = ReasonKeys
			case s.behind:
				why = ReasonQueued
			}
		}
	}
	done = true
	if m&patient != 0 {
		var late Reason
		if done, late = g.stay(r, w, door, now); late != ReasonNone {
			why = late
		}
	}
	for i := range steps {
		if s := &steps[i]; s.entry != nil && s.entry.opens.Load() == unsaid { // else nobody has taken since it was said
			s.tell(s.left(now, 0))
		}
	}
	if done && !g.waits {
		no.refuse(g.limiter, why, left, now, p)
	} else if m&looking != 0 {
		g.seen(now, p)
	}
	return done
}

// opens looks, under the lock, how the step is counted, and from when n more
// could pass. No meter changes, except that the entry comes under the present
// bound, forgets what has left its window, and notes that somebody waits for more
// than an empty count has: who does so gets an entry, though it is refused. Who only
// looks leaves nothing behind.
func (s *step) opens(r *Request, now int64, n int, m mode) int64 {
	b := s.bound
	if s.unsettled() {
		s.settle(r, now)
	}
	switch {
	case s.role == counts:
		return open
	case n < 0 || n > b.n-s.kept:
		return never
	case s.way == full:
		return unknown
	case n > b.cold-s.kept && m&looking != 0:
		return s.looks().opens(now, n, s.kept)
	case n > b.cold-s.kept && s.way != own:
		s.begin(r, now)
	case s.entry == nil:
		return open
	}
	return s.entry.meter.opens(now, n, s.kept)
}

// looks is a count that answers as the step's, for who changes it by the question.
func (s *step) looks() meter {
	if s.entry == nil {
		return s.count()
	}
	return s.entry.meter.copy()
}

// count is the step's, an empty one if there is none.
func (s *step) count() meter {
	if s.entry == nil {
		return s.bound.limit.meter(s.bound)
	}
	return s.entry.meter
}

// unsettled reports that it is not plain how the step is counted.
func (s *step) unsettled() bool {
	return s.entry == nil || s.bound.holds && !s.alone || s.entry.bound.Load() != s.bound
}

// begin makes the entry of a newcomer before the decision. If the last place for a
// key was taken meanwhile, that does not last beyond it.
func (s *step) begin(r *Request, now int64) {
	if s.way == fresh && s.seat && !reserve([]step{{clause: s.clause, how: how{seat: true}}}) {
		if s.entry == nil {
			s.entry = newEntry(s.bound, s.key(r), s.hash)
		}
		return
	}
	s.enter(r, now)
	if s.way == fresh {
		s.way, s.seat = own, false
	}
}

// settle finds out how the step is counted, where that is not plain.
func (s *step) settle(r *Request, now int64) {
	if s.entry == nil || s.entry.bound.Load() == nil {
		s.find(r)
	}
	b := s.bound
	switch {
	case s.entry != nil:
		s.entry.settle(b)
		if b.holds && !b.named && s.clause.ledger.solo == nil && !s.entry.seated() {
			if s.seat = !s.clause.crowded(); !s.seat {
				s.way = full
			}
		}
	case b.named || !s.clause.crowded() && !(b.tries && s.shard.tries()):
		s.way, s.seat = fresh, !b.named
		if s.seat || b.added && !s.clause.settled.Load() {
			if m := s.shard.shared(b, now); m != nil {
				s.entry = entryWith(b, s.key(r), s.hash, m)
			}
		}
	case b.holds:
		s.way = full
	default:
		s.way = over
		if s.entry = s.shard.overflow; s.entry != nil {
			s.entry.settle(b)
		}
	}
	if s.role == watches || s.role == counts && b.holds && b.n == 0 {
		s.seat = false // who only looks takes no place, nor does a charge of nothing
	}
}

// left is how many units are free for the step, and from when more are.
func (s *step) left(now int64, kept int) (left int, more int64) {
	if s.entry == nil {
		return max(0, s.bound.cold-kept), never
	}
	return s.entry.meter.left(now, kept)
}

// tell publishes the hint: what is left.
func (s *step) tell(left int, more int64) {
	e := s.entry
	if e == nil {
		return
	}
	if left > 0 {
		more = open
	}
	if e.line != nil && e.waits() {
		more = unsaid
	}
	e.tell(more)
}

// crowded reports that MaxKeys leaves no room for a further key.
func (c *clause) crowded() bool { return c.ledger.seats.Load() >= int64(c.rule.MaxKeys) }

// reserve counts the keys that are about to become live against MaxKeys. If
// another stripe took the last place since we looked, nothing is reserved. Where a
// request needs places of two rules, one may be taken and put back then: no unit
// is, but a newcomer of that rule who looks in between finds it full.
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

// take counts n units, as the step was found to be counted, and tells what is left.
func (s *step) take(r *Request, now int64, n int) (left int, more int64) {
	s.shard.admitted++
	if s.role != limits {
		return s.charge(r, now, n)
	}
	if s.bound.owes {
		s.shard.held += n
	}
	if s.way != own {
		s.enter(r, now)
	}
	return s.entry.meter.take(now, n, s.kept)
}

// charge counts n units whether there is room or not, but none of who only looks.
func (s *step) charge(r *Request, now int64, n int) (left int, more int64) {
	if s.role == counts && s.way != full {
		n = s.units(n)
		if s.bound.holds {
			s.shard.held += n
		}
		if s.way != own {
			s.enter(r, now)
		}
		s.entry.meter.(charger).charge(now, n)
	}
	return s.left(now, 0)
}

// units is how many of n units the step counts: of a charge, what N can tell.
func (s *step) units(n int) int {
	if s.role == counts {
		return min(n, s.bound.n, math.MaxInt>>8) // so that what is held adds up
	}
	return n
}

// enter makes the entry of a newcomer, or the one that it shares.
func (s *step) enter(r *Request, now int64) {
	switch {
	case s.way == fresh:
		if s.entry == nil {
			s.entry = newEntry(s.bound, s.key(r), s.hash)
		}
		s.shard.insert(s.clause, s.entry, now)
	case s.entry == nil:
		s.entry = s.shard.spill(s.bound)
	}
}

// A verdict gathers what the rules say, and keeps the one that tells most: the
// sentinels are such that never > unknown > any instant > open.
type verdict struct {
	at    int64
	wait  int64 // the latest instant
	bound *bound
}

func (v verdict) hear(b *bound, t int64) verdict {
	if t < unknown {
		v.wait = max(v.wait, t)
	}
	if t > v.at || t == v.at && b.clause.rule.Name < v.bound.clause.rule.Name {
		v.at, v.bound = t, b
	}
	return v
}

// why is the reason, unless an unknown instant is due to MaxKeys.
func (v verdict) why() Reason {
	switch v.at {
	case never:
		return ReasonNever
	case unknown:
		return ReasonInFlight
	}
	return ReasonRate
}

// refuse fills in the permit of a refusal, and counts it.
func (v verdict) refuse(l *Limiter, why Reason, left int, now int64, p *Permit) {
	count(v.bound.tally, now).refused[why].Add(1)
	if why >= ReasonQueued && v.at >= unknown {
		v.wait = 0
	}
	p.grant, p.bound, p.turn, p.left = &l.refusals[why], v.bound, uint64(max(0, v.wait-now)), left
}

// note counts what is rare. Shadow rules judge only what the others admit.
func note(steps []step, admitted bool, now int64) {
	for i := range steps {
		s := &steps[i]
		if s.shadow && !admitted {
			continue
		}
		if s.empty {
			count(s.bound.tally, now).empty.Add(1)
		}
		switch {
		case s.way == over || s.way == full || s.way == fresh && s.role != watches && s.entry != nil && !admitted:
			count(s.bound.tally, now).overflowed.Add(1)
		case s.way == pass:
			count(s.bound.tally, now).shadowed.Add(1)
		}
	}
}
