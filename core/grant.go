package core

import (
	"sync"
	"sync/atomic"
	"time"
)

// A grant is what an admitted request took: the steps of its decision. Grants are
// used again; each use is a turn, and a permit of an earlier turn reaches nobody.
type grant struct {
	limiter *Limiter
	state   atomic.Uint64 // turn<<flags, and the flags
	reset   atomic.Int64  // of the quota, in nanoseconds
	n       int           // units, of each step
	at      int64         // when they were taken
	more    int           // units that Settle added, to the raised steps,
	again   int64         // and when
	level   int           // of the priority
	owes    bool          // some units come back, or are decided on, at the end
	settled bool          // Settle has been
	ready   bool          // Ready has been
	why     Reason        // of those that stand for refusals: see Limiter.refusals
	rare    bool          // there may be something to note
	waits   bool          // neither admitted nor refused: it waits, or can
	steps   []step        // as of the decision
	room    [few]step

	midway sync.Mutex // held by those who are busy: Settle and Ready
}

// The flags of a turn.
const (
	failed uint64 = 1 << iota
	busy          // somebody changes what is held: who ends the turn now leaves it to them
	ended         // the turn was ended meanwhile
	flags  = iota
)

// borrow is a grant with room for so many steps.
func (l *Limiter) borrow(steps int) *grant {
	g, _ := l.grants.Get().(*grant)
	if g == nil {
		g = &grant{limiter: l}
		g.steps = g.room[:0]
	}
	if cap(g.steps) < steps {
		g.steps = make([]step, 0, steps)
	}
	return g
}

// quotaReset is the reset of the turn's quota, unless the turn is over.
func (g *grant) quotaReset(turn uint64) time.Duration {
	reset := g.reset.Load()
	if g.state.Load()>>flags != turn {
		return 0
	}
	return time.Duration(reset)
}

// flag raises a flag of the turn. It is false if the turn is over.
func (g *grant) flag(turn, flag uint64) bool {
	for {
		s := g.state.Load()
		if s>>flags != turn || s&ended != 0 {
			return false
		}
		if g.state.CompareAndSwap(s, s|flag) {
			return true
		}
	}
}

// fail marks the turn, unless it is over.
func (g *grant) fail(turn uint64) { g.flag(turn, failed) }

// release ends the turn: whoever ends it gives back.
func (g *grant) release(turn uint64) {
	if g.state.CompareAndSwap(turn<<flags, (turn+1)<<flags) {
		g.end(turn, false)
		return
	}
	for {
		s := g.state.Load()
		switch {
		case s>>flags != turn || s&ended != 0:
			return
		case s&busy != 0:
			if g.state.CompareAndSwap(s, s|ended) {
				return
			}
		case g.state.CompareAndSwap(s, (turn+1)<<flags):
			g.end(turn, s&failed != 0)
			return
		}
	}
}

// end is the end of a turn, once the state says so.
func (g *grant) end(turn uint64, failed bool) {
	if failed {
		for i := range g.steps {
			if s := &g.steps[i]; s.way != pass {
				count(s.bound.tally, int64(turn)).failed.Add(1)
			}
		}
	}
	if g.owes {
		g.give(failed, false)
	}
	if g.settled || g.ready {
		g.more, g.settled, g.ready = 0, false, false
	}
	g.limiter.grants.Put(g) // the pool keeps alive what it took, for two collections at most
}

// enter begins to change what the turn holds; leave is its end. It is false, and
// there is nothing to leave, if the turn is over. While one is busy, the grant is not
// used again; one who is late finds another turn.
func (g *grant) enter(turn uint64) bool {
	g.midway.Lock()
	if !g.flag(turn, busy) {
		g.midway.Unlock()
		return false
	}
	return true
}

// leave ends the turn too, if somebody wanted that meanwhile: it may have another
// number by now.
func (g *grant) leave() {
	defer g.midway.Unlock()
	for {
		s := g.state.Load()
		turn := s >> flags
		switch {
		case s&ended == 0:
			if g.state.CompareAndSwap(s, s&^busy) {
				return
			}
		case g.state.CompareAndSwap(s, (turn+1)<<flags):
			g.end(turn, s&failed != 0)
			return
		}
	}
}

// give brings back what is held and decides on what is undecided, under the locks: of
// all steps or, if by Ready, of those in set-up.
func (g *grant) give(failed, ready bool) {
	var room [few]*step
	held := room[:0] // by stripe
	tries := false
	for i := range g.steps {
		s := &g.steps[i]
		if !s.bound.owes || !s.counted() || g.owed(s) == 0 || g.readied(s) || ready && !s.bound.setup {
			continue
		}
		tries = tries || s.bound.tries
		held = append(held, s)
		for j := len(held) - 1; j > 0 && held[j].stripe < held[j-1].stripe; j-- {
			held[j], held[j-1] = held[j-1], held[j]
		}
	}
	l := g.limiter
	for i, s := range held {
		if i == 0 || held[i-1].stripe != s.stripe {
			l.stripes[s.stripe].Lock()
		}
	}
	var b *book
	now := int64(0)
	if tries {
		b, now = l.rules(), l.now()
	}
	for _, s := range held {
		if s.bound.tries {
			g.decide(s, failed, b, now)
		} else {
			s.give(g.owed(s))
		}
	}
	for i, s := range held {
		if i == 0 || held[i-1].stripe != s.stripe {
			l.stripes[s.stripe].Unlock()
		}
	}
}

// owed is how many units the step has to bring back, or to decide on.
func (g *grant) owed(s *step) int {
	if s.raised {
		return s.units(sum(g.n, g.more))
	}
	return s.units(g.n)
}

// give brings back what is held. Needs the lock.
func (s *step) give(n int) {
	e := s.entry
	if t := e.meter.(holder).give(n); e.waits() {
		e.rouse()
	} else {
		e.tell(t)
	}
	if s.shard.held -= n; !s.alone {
		e.vacate()
	}
}

// decide ends a trial. Needs the lock.
func (g *grant) decide(s *step, failed bool, b *book, now int64) {
	s.shard.held -= g.owed(s)
	if !s.present(b) {
		return
	}
	spared := s.bound.limit.(Rate).Charge.spares(failed)
	m := s.entry.meter.(*trial)
	m.decide(g.at, g.n, spared)
	if s.raised {
		m.decide(g.again, g.more, spared)
	}
	s.entry.announce(now)
	s.shard.idlesBy(m.idles())
}
