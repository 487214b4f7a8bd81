package core

import (
	"context"
	"errors"
	"math"
	"time"
)

// A Queue lets requests that a rule refuses wait: in [Limiter.Wait] and
// [Limiter.Do], which adapters call; [Limiter.Try] never waits. The zero Queue
// refuses at once.
//
// A request begins to wait only if every rule that refuses it has a queue, if
// there is a place, and if the wait can end in time, those ahead counted in. It
// holds nothing while it waits: when it is first and the rule opens, it is decided
// anew, by all rules as they are then. The more important are first, and of equal
// [Priority] who came first: newcomers are behind, also where they are small and
// would fit, and a large request is not passed by. Who needs two rules that open in
// turn can wait long; Wait bounds that too. Waiting costs no goroutine beside the
// caller's, one timer, and some 700 bytes; who need not wait, or cannot, costs nothing.
//
// That a wait can end in time is judged as if nobody ahead gave up.
//
// Nobody is overtaken without end: who has waited for half of Wait stands among the
// [Critical], by the time at which it came, so that no newcomer passes it any more.
// The exception is a [Reserve]: who may not use what is kept stays behind those for
// whom it is, as long as it waits.
type Queue struct {
	// Len is how many may begin to wait for one key. Who stands after the newcomer,
	// being less important, is not counted: so three times Len can wait. 0 means no
	// queue.
	Len int
	// Wait is how long a request waits at most, from its arrival on. Above 0 where
	// Len is.
	Wait time.Duration
}

// check says what is wrong.
func (q Queue) check() error {
	switch {
	case q.Len < 0 || q.Wait < 0:
		return errors.New("neither Len nor Wait can be below 0")
	case q.Len > 0 && q.Wait == 0:
		return errors.New("there is Len and no Wait; want both, or none to refuse at once")
	case q.Len == 0 && q.Wait > 0:
		return errors.New("there is Wait and no Len; want both, or none to refuse at once")
	}
	return nil
}

// How waiting keeps its promises. A waiter stands at the door, an entry, that
// refused it last, and its place there is that of its level and its ticket, which
// it keeps when it moves. Levels only rise, and only with the time: so that of two
// who wait at several doors one ranks first at all of them, in the end. An entry is closed to all who rank after its first waiter, and only to
// them. Whoever leaves the head, for whatever reason, wakes the next; and nobody is
// granted anything: who is woken decides. So a waiter that gives up takes nothing
// along, and there is always somebody awake, or a timer, for a door that opens.

// A waiter is a request that may wait, and does while door is not nil. All but wake
// and ticket needs the lock of the door's stripe, or, while there is none, is its
// own goroutine's.
type waiter struct {
	ticket  uint64 // 0: has not begun to wait
	n       int
	own     int // its level
	arrived int64
	until   int64 // when its context ends
	wake    chan struct{}

	door       *entry
	shard      *shard
	stripe     uint32
	level      int // among whom it stands there
	next, prev *waiter

	look int64 // when to decide anew, if nobody wakes it before
}

// A line is those who stand at a door, by level.
type line [levels]file

// A file is those of one level, by ticket.
type file struct {
	head, tail *waiter
	last       *waiter // who came in last: the next is mostly near
	len        int
	units      int64 // see waiter.units
}

// units is what the waiter adds to those of its file, so that they add up.
func (w *waiter) units() int64 { return int64(min(w.n, math.MaxInt32)) }

// first is who ranks before all others; nil if nobody waits.
func (q *line) first() *waiter {
	for level := levels - 1; level >= 0; level-- {
		if w := q[level].head; w != nil {
			return w
		}
	}
	return nil
}

// ahead is how many rank before one of that level who has not begun to wait.
func (q *line) ahead(level int) (n int) {
	for ; q != nil && level < levels; level++ {
		n += q[level].len
	}
	return n
}

// rise lets those who have waited for half of their time stand as high as they can.
func (q *line) rise(now int64, b *bound) {
	for level := range levels - 1 {
		to := b.kept.top(level)
		for w := q[level].head; to > level && w != nil && w.aged(now, b); w = q[level].head {
			q.move(w, to)
		}
	}
}

// aged reports that the waiter has waited for half of its time.
func (w *waiter) aged(now int64, b *bound) bool {
	wait := int64(b.clause.rule.Queue.Wait)
	return now-w.arrived >= wait-wait/2
}

// rank is the waiter's level at a door of b.
func (w *waiter) rank(now int64, b *bound) int {
	if w.aged(now, b) {
		return b.kept.top(w.own)
	}
	return w.own
}

// in puts the waiter into a file, by its ticket. Newcomers are the last; those who move
// or rise together come in order, and so each finds its place beside the one before.
func (q *line) in(w *waiter, level int) {
	f := &q[level]
	behind := f.tail
	if behind != nil && behind.ticket > w.ticket && f.last != nil {
		for behind = f.last; behind.next != nil && behind.next.ticket < w.ticket; {
			behind = behind.next
		}
	}
	for behind != nil && behind.ticket > w.ticket {
		behind = behind.prev
	}
	f.last = w
	w.level, w.prev = level, behind
	if behind == nil {
		w.next, f.head = f.head, w
	} else {
		w.next, behind.next = behind.next, w
	}
	if w.next == nil {
		f.tail = w
	} else {
		w.next.prev = w
	}
	f.len++
	f.units += w.units()
}

// out takes it out.
func (q *line) out(w *waiter) {
	f := &q[w.level]
	if f.last == w {
		f.last = w.prev
	}
	if w.prev == nil {
		f.head = w.next
	} else {
		w.prev.next = w.next
	}
	if w.next == nil {
		f.tail = w.prev
	} else {
		w.next.prev = w.prev
	}
	f.len--
	f.units -= w.units()
	w.next, w.prev = nil, nil
}

// move lets the waiter stand where it ranks by now, which a change of the rule may
// have lowered, and wakes who has become the first by that.
func (q *line) move(w *waiter, level int) {
	if w.level == level {
		return
	}
	first := q.first()
	q.out(w)
	q.in(w, level)
	if now := q.first(); now != first {
		now.rouse()
	}
}

// waits reports that somebody stands at the entry. Needs the lock.
func (e *entry) waits() bool { return e.line != nil && e.line.first() != nil }

// line is who waits at the step's door, as they rank by now. Needs the lock.
func (s *step) line(now int64) *line {
	if s.entry == nil { // as for who only looks
		return nil
	}
	q := s.entry.line
	if q != nil {
		q.rise(now, s.bound)
	}
	return q
}

// closed reports that somebody at the step's door ranks before w or, without one or
// if that has not begun to wait, before the request r. Needs the lock.
func (s *step) closed(r *Request, w *waiter, now int64) bool {
	q := s.line(now)
	if w == nil || w.ticket == 0 {
		return q.ahead(r.Priority.level()) > 0
	}
	level := w.rank(now, s.bound)
	if w.door == s.entry {
		q.move(w, level)
	}
	first := q[level].head
	return q.ahead(level+1) > 0 || first != nil && first.ticket < w.ticket
}

// rouse makes the first who stands at the entry decide anew. Needs the lock.
func (e *entry) rouse() {
	if e.waits() {
		e.line.first().rouse()
	}
}

// rouse wakes the waiter, or lets it not fall asleep.
func (w *waiter) rouse() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// stand puts the waiter into the line of the step's door. Needs the lock of that, and
// of where it stands.
func (w *waiter) stand(s *step, now int64) {
	e, level := s.entry, w.rank(now, s.bound)
	if w.door == e {
		e.line.move(w, level)
		return
	}
	w.leave()
	if e.line == nil {
		e.line = new(line)
	}
	if !e.waits() {
		s.shard.open(e)
	}
	w.door, w.shard, w.stripe = e, s.shard, s.stripe
	e.line.in(w, level)
	s.shard.waiting++
	e.tell(unsaid)
}

// leave takes the waiter out of its line, if it stands in one, and wakes who is
// first then. Needs the lock of its stripe.
func (w *waiter) leave() {
	if w == nil || w.door == nil {
		return
	}
	e, q := w.door, w.door.line
	was := q.first()
	q.out(w)
	w.shard.waiting--
	switch first := q.first(); {
	case first == nil:
		w.shard.close(e)
		e.vacate()
	case first != was:
		first.rouse()
	}
	w.door, w.shard = nil, nil
}

// open notes that somebody stands at e. Needs the lock.
func (s *shard) open(e *entry) {
	if s.doors == nil {
		s.doors = make(map[*entry]struct{})
	}
	s.doors[e] = struct{}{}
}

// close is its end.
func (s *shard) close(e *entry) { delete(s.doors, e) }

// rouse makes all who stand at the shard's doors decide anew. Needs the lock.
func (s *shard) rouse() {
	for e := range s.doors {
		for level := range e.line {
			for w := e.line[level].head; w != nil; w = w.next {
				w.rouse()
			}
		}
	}
}

// wait decides, and again whenever the waiter is woken or its time has come, until
// it is admitted, refused for good, or its context is done.
func (l *Limiter) wait(ctx context.Context, r *Request, p *Permit) error {
	w := &waiter{wake: make(chan struct{}, 1), until: latest, own: r.Priority.level()}
	if end, ok := ctx.Deadline(); ok {
		w.until = later(l.now(), int64(max(0, time.Until(end))))
	}
	var timer *time.Timer
	for {
		if l.decideWaiting(r, p, w) {
			return nil
		}
		if w.door == nil {
			return ErrRefused
		}
		// Only its own decisions take it from its door, so look stays what it was.
		if d := time.Duration(w.look - l.now()); timer == nil {
			timer = time.NewTimer(d)
			defer timer.Stop()
		} else {
			timer.Reset(d)
		}
		select {
		case <-w.wake:
		case <-timer.C:
		case <-ctx.Done():
		}
		if err := ctx.Err(); err != nil {
			l.giveUp(w)
			*p = Permit{}
			return err
		}
	}
}

// giveUp takes a waiter away whose context is done.
func (l *Limiter) giveUp(w *waiter) {
	count(w.door.bound.Load().tally, l.now()).canceled.Add(1) // not forgotten while it waits
	l.depart(w)
}

// decideWaiting is decide for one who may wait, and stands in line or not.
func (l *Limiter) decideWaiting(r *Request, p *Permit, w *waiter) (ok bool) {
	for done := false; !done; {
		b := l.rules()
		var seen [few]sight
		ok, done = l.commit(b, b.plan(l, r.On), &seen, r, p, w, patient)
	}
	return ok
}

// depart takes a waiter away, if it stands in line, for whom there is no rule any
// more, or no use.
func (l *Limiter) depart(w *waiter) {
	if w != nil && w.door != nil {
		l.stripes[w.stripe].Lock()
		w.leave()
		l.stripes[w.stripe].Unlock()
	}
}

// refuses reports that the step was found to be closed.
func (s *step) refuses(now int64) bool { return !s.shadow && s.at > now }

// behind reports that the waiter stands at the step's door, where others rank before
// it. Then it stays until these have left, also if nobody may wait there any more.
func (w *waiter) behind(s *step) bool { return w != nil && s.behind && w.door == s.entry }

// lets reports that who is refused by the step may wait.
func (s *step) lets() bool { return s.clause.rule.Queue.Len > 0 && s.at != never && s.way != full }

// shut is the step of the door where w stands, if that is still closed to it and
// lets it wait: then what the other rules say is not asked yet. It can be, if w
// has become the first, or the rules have changed.
func (g *grant) shut(w *waiter, now int64) *step {
	if w == nil || w.door == nil {
		return nil
	}
	for i := range g.steps {
		if s := &g.steps[i]; s.entry == w.door && s.refuses(now) && s.lets() {
			return s
		}
	}
	return nil
}

// stay lets a refused request stand at the door that refuses it, if all that
// refuse let it wait; else it stands nowhere, and late is the reason if that is due
// to the queue. Without w it only says whether one could stand. It is not done if the
// last place for the door's key was taken meanwhile. Needs the locks.
func (g *grant) stay(r *Request, w *waiter, door *step, now int64) (done bool, late Reason) {
	begins, level := w == nil || w.ticket == 0, r.Priority.level()
	arrived, until := now, int64(latest)
	switch {
	case w == nil:
	case begins:
		w.arrived, w.n = now, g.n
		until = max(now, w.until) // if that is over, its context says so in a moment
	default:
		arrived = w.arrived
	}
	if g.shut(w, now) == nil {
		for i := range g.steps { // all, before one looks at the time: the order of rules decides nothing
			if s := &g.steps[i]; s.refuses(now) && !s.lets() && !w.behind(s) {
				w.leave()
				return true, ReasonNone
			}
		}
	}
	if begins {
		if door.line(now).ahead(level) >= door.clause.rule.Queue.Len {
			return true, ReasonQueueFull
		}
	}
	for i := range g.steps {
		s := &g.steps[i]
		if !s.refuses(now) || !begins && s != door {
			continue
		}
		end := min(until, later(arrived, int64(s.clause.rule.Queue.Wait)))
		tooLate := now >= end && (s.clause.rule.Queue.Len > 0 || !w.behind(s))
		if begins {
			tooLate = s.soonest(level, g.n, now) > end
		}
		if tooLate {
			w.leave()
			return true, ReasonQueueTimeout
		}
	}
	if begins {
		g.waits = true
		if w == nil {
			return true, ReasonNone
		}
		w.ticket = g.limiter.tickets.Add(1)
	}
	if door.way == fresh {
		if !door.bound.named && !reserve([]step{{clause: door.clause, how: how{seat: true}}}) {
			return false, ReasonNone
		}
		door.shard.insert(door.clause, door.entry, now)
	}
	g.waits = true
	w.stand(door, now)
	wait := int64(door.clause.rule.Queue.Wait)
	if w.look = later(w.arrived, wait); wait == 0 {
		w.look = latest // those before it have been woken too
	}
	if door.entry.line.first() == w {
		w.look = min(w.look, door.at)
	}
	if wait > 0 && w.level < door.bound.kept.top(w.level) {
		w.look = min(w.look, later(w.arrived, wait-wait/2)) // it may be first then
	}
	return true, ReasonNone
}

// atMost is n as an int.
func atMost(n int64) int { return int(min(n, math.MaxInt)) }

// soonest is an instant before which a newcomer cannot pass the step: those who rank
// before it pass first, and take units if they do not only look.
func (s *step) soonest(level, n int, now int64) int64 {
	var ahead, alike int64 // of those, what is kept from the alike is so too
	if q := s.line(now); q != nil && s.role != watches {
		for l := level; l < levels; l++ {
			ahead += q[l].units
			if s.bound.kept[l] == s.kept {
				alike += q[l].units
			}
		}
	}
	t := s.count().soonest(now, atMost(ahead), atMost(alike), n, s.kept)
	if s.at < unknown && !s.bound.tries {
		t = max(t, s.at)
	}
	return t
}
