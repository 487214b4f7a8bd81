package core

import "sync/atomic"

// A Stat is what one rule has counted since it was added.
type Stat struct {
	Rule       string
	Admitted   uint64            // requests that the rule let pass and all others too
	Refused    map[Reason]uint64 // requests that were refused and this rule was named
	Shadowed   uint64            // requests that a Shadow rule would have refused
	Canceled   uint64            // requests whose context ended while they waited
	Failed     uint64            // admitted requests whose outcome was marked failed
	Overflowed uint64            // decisions about keys beyond MaxKeys
	Empty      uint64            // decisions about requests that lack a key of the rule's By
	InFlight   int               // units held now; of a rate that charges by outcome, those undecided
	Waiting    int               // requests that wait now, where they stand
	Keys       int               // keys in memory now, those that went idle and are not yet forgotten included
}

// Stats tells what each rule has counted since it was added, in the order of the
// rules. It takes the stripes' locks in turn, each for a moment: requests that
// are decided meanwhile may be in it or not.
func (l *Limiter) Stats() []Stat {
	b := l.rules()
	stats := make([]Stat, len(b.clauses))
	for i, c := range b.clauses {
		s := &stats[i]
		s.Rule = c.rule.Name
		s.Refused = make(map[Reason]uint64)
		for j := range c.ledger.tally {
			t := &c.ledger.tally[j]
			for why := range t.refused {
				if n := t.refused[why].Load(); n > 0 {
					s.Refused[Reason(why)] += n
				}
			}
			s.Shadowed += t.shadowed.Load()
			s.Failed += t.failed.Load()
			s.Canceled += t.canceled.Load()
			s.Overflowed += t.overflowed.Load()
			s.Empty += t.empty.Load()
		}
	}
	for i := range l.stripes {
		l.stripes[i].Lock()
		for j, c := range b.clauses {
			if s := c.ledger.peek(uint32(i)); s != nil {
				stats[j].Admitted += s.admitted
				stats[j].InFlight += s.held
				stats[j].Waiting += s.waiting
				stats[j].Keys += s.keys
			}
		}
		l.stripes[i].Unlock()
	}
	return stats
}

// A tally is a share of the counters that no lock guards. Each has cache lines
// of its own: refusals, which need no lock, do not wait for each other here, nor
// do they disturb the hints.
type tally struct {
	refused    [len(reasons)]atomic.Uint64
	shadowed   atomic.Uint64
	failed     atomic.Uint64
	canceled   atomic.Uint64
	overflowed atomic.Uint64
	empty      atomic.Uint64
	_          [128 - 8*(len(reasons)+5)]byte
}

// tallies is how many shares a rule has at most.
const tallies = 8

// count is any share: the instant is as good as a random number, and at hand.
// Their number is a power of two.
func count(shares []tally, now int64) *tally {
	return &shares[uint64(now^now>>8)&uint64(len(shares)-1)]
}
