package core

import (
	"crypto/sha256"
	"encoding/binary"
	"hash/maphash"
	"slices"
	"strings"
	"sync/atomic"
)

// A book is all rules of a moment, compiled: immutable, but for its memo. Replace
// puts another in its place.
type book struct {
	clauses []*clause
	named   map[string]*clause
	exact   map[string][]int // the clauses whose On has no "*", by On
	broad   []int            // the others
	all     *plan            // if every rule is for all resources: then there is one plan
	memo    [1 << 12]atomic.Pointer[plan]
}

// bind makes a book of clauses.
func bind(clauses []*clause, stripes int) *book {
	b := &book{
		clauses: clauses,
		named:   make(map[string]*clause, len(clauses)),
		exact:   make(map[string][]int),
	}
	for i, c := range clauses {
		b.named[c.rule.Name] = c
		if len(c.on) == 1 && c.count == nil {
			b.exact[c.on[0]] = append(b.exact[c.on[0]], i)
		} else {
			b.broad = append(b.broad, i)
		}
	}
	if !slices.ContainsFunc(clauses, func(c *clause) bool { return strings.Join(c.on, "") != "" || len(c.on) == 1 || c.count != nil }) {
		b.all = b.make(stripes, "")
	}
	return b
}

// A clause is a rule, compiled. An unchanged rule keeps its clause in the next
// book, so that its bounds stay the same and hints stay believed.
type clause struct {
	rule    Rule // the caller's, copied
	on      pattern
	count   pattern // nil: it counts what it limits
	ledger  *ledger
	bound   *bound
	special map[value]*bound // For
	since   int64            // the instant at which Replace made the clause
	dropped bool             // of what it counted, some may have been dropped: see Count
	change  int              // how many changes of the rule came before
	floors  []floor          // what they made most keys forget
	settled atomic.Bool      // Replace has been through the values in For
}

// A plan is the clauses that apply to one resource: those that enforce first.
type plan struct {
	on      string
	hash    uint64
	clauses []planned
	queues  bool // some of them let requests wait
	keeps   bool // some of them have a Reserve
}

// A planned is a clause, and at hand what each decision asks of it.
type planned struct {
	*clause
	bound  *bound
	solo   *entry  // of a rule without By
	shards []shard // one a stripe, of a rule with a By
	by     string  // a single By
	how
}

// A role is what a clause does with a request.
type role uint8

const (
	limits  role = iota // looks, and counts
	watches             // only looks
	counts              // only counts
)

// applies is the clause's role for a resource; ok is false if it has none.
func (c *clause) applies(on string) (does role, ok bool) {
	switch {
	case c.count == nil:
		return limits, c.on.matches(on)
	case c.count.matches(on):
		return counts, true
	}
	return watches, c.on.matches(on)
}

// planned needs the number of stripes.
func (c *clause) planned(stripes int) planned {
	return planned{c, c.bound, c.ledger.solo, c.ledger.open(stripes), c.single(), how{shadow: c.rule.Shadow, alone: c.ledger.solo != nil}}
}

// probes is how many places of the memo a resource may stand in.
const probes = 4

// plan finds the clauses for a resource: in the memo or, the first time, by
// looking through the rules. The memo is bounded: where all places are taken one
// is given up, which costs its resource another look.
func (b *book) plan(l *Limiter, on string) *plan {
	if b.all != nil {
		return b.all
	}
	h := maphash.String(l.seed, on)
	for i := range uint64(probes) {
		p := b.memo[(h+i)%uint64(len(b.memo))].Load()
		if p == nil {
			break
		}
		if p.hash == h && p.on == on {
			return p
		}
	}
	return b.learn(len(l.stripes), h, on)
}

// make looks through the rules.
func (b *book) make(stripes int, on string) *plan {
	p := &plan{on: strings.Clone(on)}
	apply := slices.Clone(b.exact[on])
	for _, i := range b.broad {
		if _, ok := b.clauses[i].applies(on); ok {
			apply = append(apply, i)
		}
	}
	slices.Sort(apply)
	for _, shadow := range []bool{false, true} {
		for _, i := range apply {
			if c := b.clauses[i]; c.rule.Shadow == shadow {
				at := c.planned(stripes)
				at.role, _ = c.applies(on)
				at.mute = shadow || at.role == counts
				p.clauses = append(p.clauses, at)
				p.queues = p.queues || c.rule.Queue.Len > 0 && !at.mute
				p.keeps = p.keeps || c.rule.Reserve != (Reserve{}) && at.role != counts
			}
		}
	}
	return p
}

// longestMemo is the longest resource that the memo takes, in bytes.
const longestMemo = 1024

func (b *book) learn(stripes int, h uint64, on string) *plan {
	p := b.make(stripes, on)
	p.hash = h
	if len(on) > longestMemo {
		return p
	}
	at := h + h>>62 // where no place is free, any of the probes
	for i := range uint64(probes) {
		if b.memo[(h+i)%uint64(len(b.memo))].Load() == nil {
			at = h + i
			break
		}
	}
	b.memo[at%uint64(len(b.memo))].Store(p)
	return p
}

// A pattern is an On, split at its stars.
type pattern []string

func compile(on string) pattern {
	if on == "" {
		on = "*"
	}
	return strings.Split(on, "*")
}

// matches finds each part at its first place after the one before: if the parts
// fit in any way they fit so too. The last must end the resource.
func (p pattern) matches(on string) bool {
	rest, ok := strings.CutPrefix(on, p[0])
	if !ok || len(p) == 1 {
		return ok && rest == ""
	}
	last := len(p) - 1
	for _, part := range p[1:last] {
		if _, rest, ok = strings.Cut(rest, part); !ok {
			return false
		}
	}
	return strings.HasSuffix(rest, p[last])
}

// A value is a key's value as kept: as it is up to 256 bytes, else as its
// SHA-256, with long set to 1 so that the two never meet.
type value struct {
	text string
	long uint64
}

// longest is how many bytes of a value are kept as they are.
const longest = 256

func keep(text string) value {
	if len(text) > longest {
		return digest(text)
	}
	return value{text, 0}
}

func digest(text string) value {
	sum := sha256.Sum256([]byte(text))
	return value{string(sum[:]), 1}
}

// resource is the By that stands for the resource itself.
const resource = "resource"

// text is the request's value for one part of By; "" if it lacks that.
func (r *Request) text(by string) string {
	if by == resource {
		return r.On
	}
	for k := range r.Keys {
		if key := &r.Keys[k]; key.By == by {
			return key.Value
		}
	}
	return ""
}

// part is text as it is kept.
func (r *Request) part(by string) value { return keep(r.text(by)) }

// single is the rule's By, if that has one part.
func (c *clause) single() string {
	if len(c.ledger.parts) == 1 {
		return c.ledger.parts[0]
	}
	return ""
}

// hash is that of a single value. Its lowest bit tells the long.
func (l *Limiter) hash(v value) uint64 {
	return maphash.String(l.seed, v.text)&^1 | v.long
}

// stripe is that of a hash.
func (l *Limiter) stripe(hash uint64) uint32 {
	return uint32(hash>>1) & uint32(len(l.stripes)-1)
}

// hashAll hashes the values of several parts. It also tells whether one lacks.
func (l *Limiter) hashAll(parts []string, r *Request) (hash uint64, empty bool) {
	for _, by := range parts {
		v := r.part(by)
		hash = (hash<<7 | hash>>57) ^ l.hash(v)
		hash *= 0x9e3779b97f4a7c15 // odd: no information is lost
		empty = empty || v.text == ""
	}
	return hash, empty
}

// join is the key to keep of several parts. The values stand one behind the
// other, each behind its length, so that "a:b","c" and "a","b:c" stay apart.
func join(parts []string, r *Request) string {
	var key []byte
	for _, by := range parts {
		v := r.part(by)
		key = binary.AppendUvarint(key, uint64(len(v.text))<<1|v.long)
		key = append(key, v.text...)
	}
	return string(key)
}

// joined reports that key is the request's, as join keeps it.
func joined(key string, parts []string, r *Request) bool {
	for _, by := range parts {
		v := r.part(by)
		n, used := uvarint(key)
		if n != uint64(len(v.text))<<1|v.long || key[used:used+len(v.text)] != v.text {
			return false
		}
		key = key[used+len(v.text):]
	}
	return true
}

// uvarint is binary.Uvarint of a string that holds one, of at most two bytes.
func uvarint(s string) (n uint64, used int) {
	if s[0] < 0x80 {
		return uint64(s[0]), 1
	}
	return uint64(s[0]&0x7f) | uint64(s[1])<<7, 2
}

// boundOf is the bound for a key of a single By.
func (c *clause) boundOf(v value) *bound {
	if c.special != nil {
		if b, ok := c.special[v]; ok {
			return b
		}
	}
	return c.bound
}

// A floor is what a change of a rule made the keys forget that are not in For:
// what was admitted at or before at. The floors of a rule descend: a change that
// made all forget more than an earlier one leaves nothing of that.
type floor struct {
	change int
	at     int64
}

// follow makes c, at its instant, the next change of the rule that was: of what
// that counted it remembers what lies within its Per. Unlimited counted nothing,
// and what had been counted before that is not taken up again.
func (c *clause) follow(was *clause) {
	at := int64(latest)
	if !was.bound.free {
		at = c.since - was.bound.per
	}
	c.change, c.dropped = was.change+1, c.dropped || was.dropped
	c.floors = slices.Clone(was.floors)
	for n := len(c.floors); n > 0 && c.floors[n-1].at <= at; n-- {
		c.floors = c.floors[:n-1]
	}
	c.floors = append(c.floors, floor{c.change, at})
}

// floorOf is the instant at and before which an entry that was under old forgets:
// the latest of all changes that it slept through. A key in For sleeps through
// none: Replace settles it.
func (c *clause) floorOf(old *bound) int64 {
	if old.named {
		return c.since - old.per
	}
	for _, f := range c.floors {
		if f.change > old.clause.change {
			return f.at
		}
	}
	return open
}
