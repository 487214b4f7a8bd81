package core

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"time"
)

// Replace puts these rules in place of the present ones, at one instant. If
// some are wrong, the error joins what is wrong with each, and the old rules
// stay.
//
// A rule that keeps its Name, its kind of limit and its By keeps its counts: if
// nothing else changed, untouched; else the new limit is applied at once to
// what is remembered, which is every admission within the old Per. So a shorter
// window forgets what a longer one put back later would have counted. A rule
// removed and added again starts fresh, and so does a key of a rate that was
// [Unlimited].
// Permits of requests in flight stay good.
func (l *Limiter) Replace(rules ...Rule) error {
	l.changing.Lock()
	defer l.changing.Unlock()
	return l.replace(rules, l.rules())
}

// Rules is the present rules, in their order, as New and Replace took them; what was 0
// and means another number, as MaxKeys, is that number. To change them changes nothing.
func (l *Limiter) Rules() []Rule {
	b := l.rules()
	rules := make([]Rule, len(b.clauses))
	for i, c := range b.clauses {
		rules[i] = c.rule
		rules[i].For = maps.Clone(c.rule.For)
	}
	return rules
}

// replace compiles, and changes the books in one decision over all stripes: its
// instant lies between those of the decisions by the old book and those by the
// new.
func (l *Limiter) replace(rules []Rule, old *book) error {
	if err := check(rules); err != nil {
		return err
	}
	clauses := make([]*clause, len(rules))
	var changed []*clause
	for i := range rules {
		r := rules[i].normal()
		was := old.named[r.Name]
		if was != nil && reflect.DeepEqual(was.rule, r) {
			clauses[i] = was
			continue
		}
		clauses[i] = l.compile(r, was)
		changed = append(changed, clauses[i])
	}
	next := bind(clauses, len(l.stripes))

	for i := range l.stripes {
		l.stripes[i].Lock()
	}
	now := l.now()
	for _, c := range changed {
		c.since = now
		if was := old.named[c.rule.Name]; was != nil && was.ledger == c.ledger {
			c.follow(was)
		}
		for i := range l.stripes {
			if s := c.ledger.peek(uint32(i)); s != nil {
				s.unknownIdle()
			}
		}
	}
	l.book.Store(next)
	for i := range l.stripes {
		l.stripes[i].Unlock()
	}

	for _, was := range old.clauses {
		if next.named[was.rule.Name] != was {
			l.rouse(was.ledger)
		}
	}
	for _, c := range changed {
		if was := old.named[c.rule.Name]; was != nil && was.ledger == c.ledger {
			l.settle(was.special, c)
			l.settle(c.special, c)
			if c.rule.By != "" && c.exceeded() {
				l.cleanAll(c)
			}
		}
		c.settled.Store(true)
	}
	return nil
}

// rouse makes all who wait for a rule that has changed decide anew, by the new
// rules.
func (l *Limiter) rouse(g *ledger) {
	for i := range l.stripes {
		l.stripes[i].Lock()
		if s := g.peek(uint32(i)); s != nil {
			s.rouse()
		}
		l.stripes[i].Unlock()
	}
}

// settle brings the entries of the values in For under the clause, before the
// next Replace. A value that is new there may have been counted in overflow, and
// gets its entry now. Those who decide meanwhile do the same for theirs.
func (l *Limiter) settle(special map[value]*bound, c *clause) {
	for v := range special {
		hash := l.hash(v)
		i := l.stripe(hash)
		s := &c.ledger.open(len(l.stripes))[i]
		l.stripes[i].Lock()
		b, now := c.boundOf(v), l.now()
		switch e := s.find(hash, v.text); {
		case e != nil:
			e.comply(c)
		case b.added && !b.free:
			if m := s.shared(b, now); m != nil {
				s.insert(c, entryWith(b, v.text, hash, m), now)
			}
		}
		l.stripes[i].Unlock()
	}
}

// compile makes a clause of a checked rule. It goes on with the ledger of the
// rule that has been there under the name, if that is of the same kind and By.
func (l *Limiter) compile(r Rule, was *clause) *clause {
	c := &clause{rule: r, on: compile(r.On)}
	if r.Count != "" {
		c.count, c.dropped = compile(r.Count), true
	}
	c.bound = newBound(c, r.Limit, false)
	kept := was != nil && was.rule.kind() == r.kind() && was.rule.By == r.By
	if r.For != nil {
		c.special = make(map[value]*bound, len(r.For))
		kind, blocking := r.kind(), r.blocking()
		for text, limit := range r.For {
			v := keep(strings.Clone(text))
			if k := limit.kind(); k != "" && k != kind {
				limit = blocking
			}
			c.special[v] = newBound(c, limit, true)
			c.special[v].added = kept && was.special[v] == nil
		}
	}
	if kept {
		c.ledger = was.ledger
	} else {
		c.ledger = l.newLedger(c)
	}
	for _, b := range append(slices.Collect(maps.Values(c.special)), c.bound) {
		b.tally = c.ledger.tally
		if b.n > 0 { // else there is nothing to keep
			b.kept = r.Reserve.levels()
		}
	}
	return c
}

func (l *Limiter) newLedger(c *clause) *ledger {
	shares := 1
	for shares < min(tallies, runtime.GOMAXPROCS(0)) {
		shares *= 2
	}
	g := &ledger{tally: make([]tally, shares)}
	g.pardoned.Store(open)
	if c.rule.By != "" {
		g.parts = strings.Split(c.rule.By, ",")
		return g
	}
	g.home = l.stripe(l.hash(value{text: c.rule.Name}))
	g.solo = new(entry)
	if !c.bound.free {
		g.solo = newEntry(c.bound, "", 0)
	}
	return g
}

func newBound(c *clause, limit Limit, named bool) *bound {
	n, per := limit.size()
	b := &bound{clause: c, limit: limit, n: n, cold: n, per: int64(per), slice: slice(n, int64(per)), named: named}
	_, b.free = limit.(Unlimited)
	f, holds := limit.(InFlight)
	b.holds, b.setup = holds, f.SetUp
	r, _ := limit.(Rate)
	b.tries = r.Charge != ChargeAll
	b.owes = b.holds || b.tries
	if w, ok := limit.(interface{ ramp() (int, time.Duration) }); ok {
		if from, over := w.ramp(); over > 0 {
			b.cold, b.over = min(from, n), int64(over)
		}
	}
	return b
}

// normal is a copy of the rule as it is kept.
func (r Rule) normal() Rule {
	r.For = maps.Clone(r.For)
	if len(r.For) == 0 {
		r.For = nil
	}
	if r.MaxKeys == 0 {
		r.MaxKeys = 1 << 20
	}
	return r
}

// Forget is an operator's pardon: it clears what the named rule has counted for
// a key, given by one value for each part of the rule's By, or for all keys if
// none is given. What is held stays held. It is an error if there is no such
// rule, or if the number of values is not that of By's parts.
//
// Keys beyond MaxKeys share their counts, which only a pardon for all clears.
func (l *Limiter) Forget(rule string, key ...string) error {
	l.changing.Lock()
	defer l.changing.Unlock()
	c := l.rules().named[rule]
	if c == nil {
		return fmt.Errorf("core: Forget: there is no rule %q", rule)
	}
	if len(key) > 0 && len(key) != len(c.ledger.parts) {
		return fmt.Errorf("core: Forget: rule %q counts by %q; want as many values as that has parts, %d, or none for all keys; there are %d",
			rule, c.rule.By, len(c.ledger.parts), len(key))
	}
	c.ledger.pardoned.Store(latest)
	defer func() { c.ledger.pardoned.Store(l.now()) }()
	if len(key) > 0 {
		l.pardon(c, key)
		return nil
	}
	for i := range l.stripes {
		l.stripes[i].Lock()
		if s := c.ledger.peek(uint32(i)); s != nil {
			s.pardon(c, l.now())
		}
		if c.ledger.solo != nil && c.ledger.home == uint32(i) && !c.bound.free {
			c.ledger.solo.pardon(c, l.now())
		}
		l.stripes[i].Unlock()
	}
	return nil
}

// pardon clears one key.
func (l *Limiter) pardon(c *clause, key []string) {
	var r Request
	for i, by := range c.ledger.parts {
		if by == resource {
			r.On = key[i]
		}
		r.Keys = append(r.Keys, Key{by, key[i]})
	}
	at := c.planned(len(l.stripes))
	_, _, hash, _ := l.see(&at, &r)
	i := l.stripe(hash)
	l.stripes[i].Lock()
	defer l.stripes[i].Unlock()
	if _, e, _, _ := l.see(&at, &r); e != nil {
		e.pardon(c, l.now())
		at.shards[i].unknownIdle()
	}
}

// pardon clears all keys of the shard. Needs the lock.
func (s *shard) pardon(c *clause, now int64) {
	if at := s.table.Load(); at != nil {
		t := *at
		for i := 0; i < len(t); {
			e := t[i].Load()
			if e != nil {
				if e.pardon(c, now); e.idles(c) == open {
					s.remove(c, t, i) // another may have moved here
					continue
				}
			}
			i++
		}
		s.shrink()
	}
	if s.overflow != nil {
		s.overflow.meter.forget(now)
		s.overflow.rouse()
	}
}

// pardon clears the entry. Needs the lock.
func (e *entry) pardon(c *clause, now int64) {
	e.comply(c)
	e.meter.forget(now)
	if e.waits() {
		e.rouse()
	} else if b := e.bound.Load(); b.tries {
		e.tell(unsaid)
	} else if !b.holds {
		e.tell(open)
	}
}

// check joins what is wrong with the rules.
func check(rules []Rule) error {
	var wrong []error
	at := make(map[string]int, len(rules))
	for i := range rules {
		r := &rules[i]
		for _, err := range r.check() {
			wrong = append(wrong, fmt.Errorf("core: rule %q (number %d): %w", r.Name, i+1, err))
		}
		if first, twice := at[r.Name]; twice && r.Name != "" {
			wrong = append(wrong, fmt.Errorf("core: rule %q (number %d): rule number %d has the same Name; want unique names", r.Name, i+1, first+1))
		} else {
			at[r.Name] = i
		}
	}
	return errors.Join(wrong...)
}
