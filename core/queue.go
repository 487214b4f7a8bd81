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
// anew, by all rules as they are then. Nobody overtakes: newcomers are behind who
// waits already, also where they are small and would fit, and a large request is
// not passed by. Who needs two rules that open in turn can wait long; Wait bounds
// that too. Waiting costs no goroutine, one timer, and some 300 bytes.
type Queue struct {
	// Len is how many may begin to wait for one key. 0 means no queue.
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
		return errors.New("Len is set and Wait is not; want both, or none to refuse at once")
	case q.Len == 0 && q.Wait > 0:
		return errors.New("Wait is set and Len is not; want both, or none to refuse at once")
	}
	return nil
}

// How waiting keeps its promises. A waiter stands at the door, an entry, that
// refused it last, and its place there is that of its ticket, which it keeps when
// it moves. An entry is closed to all who rank after its first waiter, and only to
// them. Whoever leaves the head, for whatever reason, wakes the next; and nobody is
// granted anything: who is woken decides. So a waiter that gives up takes nothing
// along, and there is always somebody awake, or a timer, for a door that opens.

// A waiter is a request that may wait, and does while door is not nil. All but wake
// and ticket needs the lock of the door's stripe, or, while there is none, is its
// own goroutine's.
type waiter struct {
	ticket  uint64 // 0: has not begun to wait
	n       int
	arrived int64
	until   int64 // when its context ends
	wake    chan struct{}

	door       *entry
	shard      *shard
	stripe     uint32
	next, prev *waiter

	look int64 // when to decide anew, if nobody wakes it before
}

// A line is those who stand at a door, by ticket.
type line struct {
	head, tail *waiter
	len        int
	units      int // at most 1<<40 each counted, so that they add up
}

// ahead reports that somebody in the line ranks before w; before one who has not
// begun to wait, everybody does.
func (q *line) ahead(w *waiter) bool {
	return q != nil && q.head != nil && q.head != w && (w == nil || w.ticket == 0 || q.head.ticket < w.ticket)
}

// waits reports that somebody stands at the entry. Needs the lock.
func (e *entry) waits() bool { return e.line != nil && e.line.head != nil }

// rouse makes the first who stands at the entry decide anew. Needs the lock.
func (e *entry) rouse() {
	if e.waits() {
		e.line.head.rouse()
	}
}

// rouse wakes the waiter, or lets it not fall asleep.
func (w *waiter) rouse() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// stand puts the waiter into the line of e, by its ticket. Needs the lock of e's
// stripe, and of that where it stands.
func (w *waiter) stand(e *entry, s *shard, stripe uint32) {
	if w.door == e {
		return
	}
	w.leave()
	if e.line == nil {
		e.line = new(line)
	}
	q := e.line
	if q.head == nil {
		s.open(e)
	}
	behind := q.tail
	for behind != nil && behind.ticket > w.ticket {
		behind = behind.prev
	}
	w.door, w.shard, w.stripe, w.prev = e, s, stripe, behind
	if behind == nil {
		w.next, q.head = q.head, w
	} else {
		w.next, behind.next = behind.next, w
	}
	if w.next == nil {
		q.tail = w
	} else {
		w.next.prev = w
	}
	q.len++
	q.units += min(w.n, 1<<40)
	s.waiting++
	e.tell(unsaid)
}

// leave takes the waiter out of its line, if it stands in one, and wakes who is
// first then. Needs the lock of its stripe.
func (w *waiter) leave() {
	if w.door == nil {
		return
	}
	e, q := w.door, w.door.line
	if w.prev == nil {
		q.head = w.next
	} else {
		w.prev.next = w.next
	}
	if w.next == nil {
		q.tail = w.prev
	} else {
		w.next.prev = w.prev
	}
	q.len--
	q.units -= min(w.n, 1<<40)
	w.shard.waiting--
	if q.head == nil {
		w.shard.close(e)
		e.vacate()
	} else if w.prev == nil {
		q.head.rouse()
	}
	w.door, w.shard, w.next, w.prev = nil, nil, nil, nil
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
		for w := e.line.head; w != nil; w = w.next {
			w.rouse()
		}
	}
}

// wait decides, and again whenever the waiter is woken or its time has come, until
// it is admitted, refused for good, or its context is done.
func (l *Limiter) wait(ctx context.Context, r *Request, p *Permit) error {
	w := &waiter{wake: make(chan struct{}, 1), until: latest}
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
	l.stripes[w.stripe].Lock()
	defer l.stripes[w.stripe].Unlock()
	e := w.door
	count(e.bound.Load().tally, l.now()).canceled.Add(1)
	w.leave()
}

// decideWaiting is decide for one who may wait, and stands in line or not.
func (l *Limiter) decideWaiting(r *Request, p *Permit, w *waiter) (ok bool) {
	for done := false; !done; {
		b := l.rules()
		var seen [few]sight
		ok, done = l.commit(b, b.plan(l, r.On).clauses, &seen, r, p, w)
	}
	return ok
}

// depart takes a waiter away for whom there is no rule any more.
func (l *Limiter) depart(w *waiter) {
	if w != nil && w.door != nil {
		l.stripes[w.stripe].Lock()
		w.leave()
		l.stripes[w.stripe].Unlock()
	}
}

// refuses reports that the step was found to be closed.
func (s *step) refuses(now int64) bool { return !s.shadow && s.at > now }

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
// to the queue. It is not done if the last place for the door's key was taken
// meanwhile. Needs the locks.
func (g *grant) stay(w *waiter, door *step, now int64) (done bool, late Reason) {
	if w.ticket == 0 {
		w.arrived, w.n = now, g.n
	}
	if g.shut(w, now) == nil {
		for i := range g.steps { // all, before one looks at the time: the order of rules decides nothing
			if s := &g.steps[i]; s.refuses(now) && !s.lets() {
				w.leave()
				return true, ReasonNone
			}
		}
	}
	for i := range g.steps {
		s := &g.steps[i]
		if !s.refuses(now) || w.ticket != 0 && s != door {
			continue
		}
		end := min(w.until, later(w.arrived, int64(s.clause.rule.Queue.Wait)))
		soonest := now
		if w.ticket == 0 {
			ahead := 0
			if s.entry.line != nil {
				ahead = s.entry.line.units
			}
			soonest = s.entry.meter.soonest(now, ahead+min(w.n, math.MaxInt-ahead))
		} else if now >= end {
			soonest = latest
		}
		if soonest > end {
			w.leave()
			return true, ReasonQueueTimeout
		}
	}
	if w.ticket == 0 {
		if door.entry.line != nil && door.entry.line.len >= door.clause.rule.Queue.Len {
			return true, ReasonQueueFull
		}
		w.ticket = g.limiter.tickets.Add(1)
	}
	if door.way == fresh {
		if door.seat && !reserve([]step{{clause: door.clause, seat: true}}) {
			return false, ReasonNone
		}
		door.shard.insert(door.clause, door.entry, now)
	}
	w.stand(door.entry, door.shard, door.stripe)
	w.look = later(w.arrived, int64(door.clause.rule.Queue.Wait))
	if door.entry.line.head == w {
		w.look = min(w.look, door.at)
	}
	return true, ReasonNone
}
