package core

import (
	"math/bits"
	"sync"
	"sync/atomic"
)

// A stripe is a mutex that guards, of every rule, the entries whose keys hash to
// it: [shard] number i of each ledger belongs to stripe i. So the rules that
// count by one key share a lock. A stripe has a cache line to itself.
type stripe struct {
	sync.Mutex
	_ [56]byte
}

// An entry is the count for one key of one rule. The key, the hash and the meter
// never change; opens and bound are read without the lock.
type entry struct {
	key  string // as kept: see step.key
	hash uint64

	// opens is the hint for the lock-free refusal: what the meter's opens says of
	// 1 unit, or unsaid. It speaks for bound and is believed only with it; both
	// are written under the lock, opens before bound and again after. bound is nil
	// once the entry is forgotten.
	opens atomic.Int64
	bound atomic.Pointer[bound]

	meter meter
	line  *line // who waits; nil: nobody ever did
}

// newEntry is an entry with an empty count.
func newEntry(b *bound, key string, hash uint64) *entry {
	return entryWith(b, key, hash, b.limit.meter(b))
}

// entryWith is an entry with the count m, which is under b.
func entryWith(b *bound, key string, hash uint64, m meter) *entry {
	e := &entry{key: key, hash: hash, meter: m}
	e.opens.Store(unsaid)
	e.bound.Store(b)
	return e
}

// told is the hint, if it speaks for b. To read bound before and after is what
// makes the pair one: a bound that was left never comes back.
func (e *entry) told(b *bound) (t int64, ok bool) {
	if e.bound.Load() != b {
		return open, false
	}
	t = e.opens.Load()
	return t, t != unsaid && e.bound.Load() == b
}

// tell publishes a hint. Needs the lock. The cheap look first spares the cache
// lines of all who refuse.
func (e *entry) tell(t int64) {
	if e.opens.Load() != t {
		e.opens.Store(t)
	}
}

// settle brings the entry under b, after Replace has changed the rule. Needs the
// lock. The hint is left unsaid: whoever decides next publishes it.
func (e *entry) settle(b *bound) {
	old := e.bound.Load()
	if old == b {
		return
	}
	e.opens.Store(unsaid)
	seated := e.seated()
	e.meter.change(b, b.clause.floorOf(old))
	e.bound.Store(b)
	if now := e.seated(); now != seated {
		b.clause.ledger.seat(now)
	}
}

// comply settles the entry of a key under the clause, or clears it if that has
// made the key Unlimited. Needs the lock.
func (e *entry) comply(c *clause) {
	b := c.bound
	if c.ledger.solo == nil {
		b = c.boundOf(value{e.key, e.hash & 1})
	}
	if _, holds := e.meter.(holder); holds && b.named {
		e.settle(b) // what it holds comes back beside those that MaxKeys bounds
		return
	}
	if b.free {
		e.tell(unsaid)
		e.meter.change(e.bound.Load(), latest) // forgets all
		return
	}
	e.settle(b)
}

// seated reports that the entry is one of those that MaxKeys bounds: those of
// values in For stand beside, and of what is in flight only those in use count: where
// something is held, or somebody waits, who must find the place that was left to it.
func (e *entry) seated() bool {
	b := e.bound.Load()
	return !b.named && (!b.holds || e.meter.idles() > open || e.waits())
}

// vacate gives up the key's place, after the last that was held has come back, or
// the last who waited has left. Needs the lock.
func (e *entry) vacate() {
	if b := e.bound.Load(); b.clause.ledger.solo == nil && !b.named && !e.seated() {
		b.clause.ledger.seat(false)
	}
}

// A ledger is what a rule has counted: it outlives the rule's changes.
type ledger struct {
	parts []string // the rule's By, split; none: solo counts all

	solo     *entry // the entry of a rule without By, in stripe home
	home     uint32
	only     shard                   // what is counted beside solo
	shards   atomic.Pointer[[]shard] // of other rules, one a stripe, made with the first plan
	seats    atomic.Int64            // entries that MaxKeys bounds
	spilled  atomic.Bool             // some share counts, or did
	swept    atomic.Uint32           // where the last sweep began
	pardoned atomic.Int64            // when Forget came last; latest while it goes on
	tally    []tally
}

// seat counts one more entry that MaxKeys bounds, or one less.
func (g *ledger) seat(more bool) {
	if more {
		g.seats.Add(1)
	} else {
		g.seats.Add(-1)
	}
}

// open makes the shards of a rule with a By, unless they are there.
func (g *ledger) open(stripes int) []shard {
	if g.solo != nil {
		return nil
	}
	if g.shards.Load() == nil {
		made := make([]shard, stripes)
		g.shards.CompareAndSwap(nil, &made)
	}
	return *g.shards.Load()
}

// peek is the shard that belongs to stripe i, if it is there.
func (g *ledger) peek(i uint32) *shard {
	if g.solo == nil {
		if shards := g.shards.Load(); shards != nil {
			return &(*shards)[i]
		}
	} else if g.home == i {
		return &g.only
	}
	return nil
}

// A shard has what a ledger counts under one stripe's lock. Only table is read
// without it.
type shard struct {
	table    atomic.Pointer[table]
	soonest  atomic.Int64 // nothing idles before; written under the lock
	keys     int
	hand     int    // where an insertion looks for idle entries
	overflow *entry // see overflow.go; in no table
	admitted uint64
	held     int
	look     int   // where a sweep goes on to look for them,
	seen     int64 // and when the first of those that it has passed idles
	waiting  int
	doors    map[*entry]struct{} // where somebody waits
	_        [40]byte
}

// A table is an open-addressed hash table with linear probing. It has at least
// one empty slot.
type table []atomic.Pointer[entry]

// home is the slot where the probe for hash begins. The upper half of the hash
// is for slots, the lower for stripes.
func (t table) home(hash uint64) int {
	at, _ := bits.Mul64(hash>>32<<32, uint64(len(t)))
	return int(at)
}

func (t table) next(i int) int {
	if i++; i < len(t) {
		return i
	}
	return 0
}

// find is the entry of a single value, or nil. Without the lock, it may miss an
// entry that is being moved, and find one that is being forgotten.
func (s *shard) find(hash uint64, text string) *entry {
	at := s.table.Load()
	if at == nil {
		return nil
	}
	t := *at
	for i := t.home(hash); ; i = t.next(i) {
		e := t[i].Load()
		if e == nil || e.hash == hash && e.key == text {
			return e
		}
	}
}

// findAll is find for the values of several parts.
func (s *shard) findAll(hash uint64, parts []string, r *Request) *entry {
	at := s.table.Load()
	if at == nil {
		return nil
	}
	t := *at
	for i := t.home(hash); ; i = t.next(i) {
		e := t[i].Load()
		if e == nil || e.hash == hash && joined(e.key, parts, r) {
			return e
		}
	}
}

// insert adds an entry that is not there. Needs the lock. It first looks at a
// constant number of slots for idle entries to forget, so that a table grows by
// what is live; all of it is copied when it grows, which is one stripe's part.
func (s *shard) insert(c *clause, e *entry, now int64) {
	s.tidy(c, now)
	if at := s.table.Load(); at == nil || 4*(s.keys+1) > 3*len(*at) {
		s.grow()
	}
	s.table.Load().put(e)
	s.keys++
	s.idlesBy(later(now, e.bound.Load().per)) // at the earliest: it is about to be used
}

// idlesBy notes that an entry may idle from t on. Needs the lock.
func (s *shard) idlesBy(t int64) {
	s.seen = min(s.seen, t)
	if t < s.soonest.Load() {
		s.soonest.Store(t)
	}
}

func (t table) put(e *entry) {
	i := t.home(e.hash)
	for t[i].Load() != nil {
		i = t.next(i)
	}
	t[i].Store(e)
}

func (s *shard) grow() {
	old := 0
	if at := s.table.Load(); at != nil {
		old = len(*at)
	}
	s.rebuild(max(8, old+old/2))
}

// shrink gives back a table of which little is used. Needs the lock.
func (s *shard) shrink() {
	if n := len(*s.table.Load()); n > 64 && 8*s.keys < n {
		s.rebuild(max(8, 2*s.keys))
	}
}

// rebuild makes the table anew, with so many slots.
func (s *shard) rebuild(slots int) {
	t := make(table, slots)
	if at := s.table.Load(); at != nil {
		for i := range *at {
			if e := (*at)[i].Load(); e != nil {
				t.put(e)
			}
		}
	}
	s.table.Store(&t)
	s.hand = 0
	s.look, s.seen = 0, latest // begins anew
}

// looks is how many slots an insertion examines for idle entries. An insertion
// fills one slot, so the hand goes around the table while an eighth of it is
// filled: beyond an eighth, all in the table are live or were a moment ago.
const looks = 8

// tidy forgets the idle among the next few slots. Needs the lock.
func (s *shard) tidy(c *clause, now int64) {
	at := s.table.Load()
	if at == nil {
		return
	}
	t := *at
	for range looks {
		if s.hand >= len(t) {
			s.hand = 0
		}
		if e := t[s.hand].Load(); e != nil && e.idles(c) <= now {
			s.remove(c, t, s.hand) // another may have moved here: look again
		} else {
			s.hand++
		}
	}
}

// idles is from when nobody can tell whether the entry is there, if it is not used
// again. Needs the lock.
func (e *entry) idles(c *clause) int64 {
	e.comply(c)
	if e.waits() {
		return unknown
	}
	return e.meter.idles()
}

// remove forgets the entry in slot i, and closes the gap: an entry further on
// moves into it unless its own probe begins after the gap. A reader without the
// lock may miss the one that moves.
func (s *shard) remove(c *clause, t table, i int) {
	e := t[i].Load()
	if e.seated() {
		c.ledger.seat(false)
	}
	s.keys--
	if i < s.look {
		s.seen = open // one not yet looked at may move before the look
	}
	for j := t.next(i); ; j = t.next(j) {
		moved := t[j].Load()
		if moved == nil {
			break
		}
		// Its home is cyclically in (i, j]: it must stay.
		if h := t.home(moved.hash); i < j && i < h && h <= j || i > j && (i < h || h <= j) {
			continue
		}
		t[i].Store(moved)
		i = j
	}
	t[i].Store(nil)
	e.bound.Store(nil)
}
