package core_test

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"math/bits"
	"slices"
	"strings"
	"time"

	"github.com/exactflow/exactflow/core"
)

// The model is what the package promises, in its most obvious form: for every
// rule and key a slice of admissions, or a number of units held; time comes as an
// argument; one thing happens after the other. It is the normative text: where
// the package and the model differ, one of them is wrong, and the model is what
// can be checked by reading.
//
// Instants are nanoseconds since the limiter was made.
type model struct {
	rules []*ruling
	vague bool // from here on answers may differ by a slice: see change
}

// A ruling is a rule and what it has counted.
type ruling struct {
	core.Rule
	counts map[string]*count
	stat   core.Stat
	always map[string]bool // the values that were in For as long as the rule was there
}

// A count is what a rule has counted for one key.
type count struct {
	values []string // the key: one value for each part of By
	units  []unit   // admissions of a rate, oldest first; those that have left may linger
	held   int      // units in flight
	moved  bool     // Replace has merged units, and none were admitted since
	own    bool     // came into its window when nothing had been in overflow: see crowded
}

// A unit is an admission: n units that passed, and the instant from which their
// time in the window runs.
type unit struct {
	at int64
	n  int
}

// An answer is what a request is told. Quotas has all that may be told: one,
// unless several rules are equally tight; none if quotas cannot be seen.
type answer struct {
	ok      bool
	refusal core.Refusal
	quotas  []core.Quota
}

// A grant is what an admitted request took, rule by rule. Zero: nothing.
type grant struct {
	n     int
	took  []taken
	given bool
}

type taken struct {
	rule  *ruling
	count *count
}

// What opens says instead of an instant. Sums of instants stop at latest.
const (
	unknown = math.MaxInt64 - 1
	never   = math.MaxInt64
	latest  = math.MaxInt64 - 2
)

func newModel(rules ...core.Rule) *model {
	m := new(model)
	m.replace(0, rules...)
	return m
}

// A verdict is what one rule says to one request.
type verdict struct {
	taken
	limit core.Limit
	opens int64
}

// look asks every rule that applies to the request what it says.
func (m *model) look(now int64, r core.Request) (enforcing, shadow []verdict) {
	for _, rule := range m.rules {
		if !matches(rule.On, r.On) {
			continue
		}
		values := rule.values(r)
		limit := rule.limit(values)
		if limit == (core.Unlimited{}) {
			continue
		}
		c := rule.count(values)
		v := verdict{taken{rule, c}, limit, opens(limit, c, now, cmp.Or(r.Cost, 1))}
		if rule.Shadow {
			shadow = append(shadow, v)
		} else {
			enforcing = append(enforcing, v)
		}
	}
	return enforcing, shadow
}

// try decides: all rules that apply and enforce must have room, else nothing is
// counted. What a shadow rule says is noted after that, and hinders nobody.
func (m *model) try(now int64, r core.Request) (answer, *grant) {
	n := cmp.Or(r.Cost, 1)
	enforcing, shadow := m.look(now, r)
	var refusing []verdict
	for _, v := range enforcing {
		if v.opens > now {
			refusing = append(refusing, v)
		}
	}
	if len(refusing) > 0 {
		return refuse(now, refusing), nil
	}
	if n < 0 {
		return answer{refusal: core.Refusal{Reason: core.ReasonNever}, quotas: []core.Quota{{}}}, nil
	}

	g := &grant{n: n}
	a := answer{ok: true}
	for _, v := range enforcing {
		g.take(v, now)
		q := quota(v, now)
		if len(a.quotas) > 0 {
			switch tighter(q, a.quotas[0]) {
			case -1:
				a.quotas = nil
			case +1:
				continue
			}
		}
		a.quotas = append(a.quotas, q)
	}
	for _, v := range shadow {
		if v.opens > now {
			v.rule.stat.Shadowed++
		} else {
			g.take(v, now)
		}
	}
	if len(a.quotas) == 0 {
		a.quotas = []core.Quota{{}}
	}
	return a, g
}

// refuse names the rule that tells most: never before unknown before the latest
// instant; of equals the first by name.
func refuse(now int64, refusing []verdict) answer {
	named := slices.MinFunc(refusing, func(a, b verdict) int { // never > unknown > any instant
		return cmp.Or(cmp.Compare(b.opens, a.opens), cmp.Compare(a.rule.Name, b.rule.Name))
	})
	f := core.Refusal{Rule: named.rule.Name, By: named.rule.By, Known: true}
	for _, v := range refusing {
		if v.opens > latest {
			f.Known = false
		} else {
			f.RetryAfter = max(f.RetryAfter, time.Duration(v.opens-now))
		}
	}
	q := quota(named, now)
	q.Reset = 0
	switch named.opens {
	case never:
		f.Reason = core.ReasonNever
	case unknown:
		f.Reason = core.ReasonInFlight
	default:
		f.Reason = core.ReasonRate
		q.Reset = time.Duration(named.opens - now)
	}
	named.rule.stat.Refused[f.Reason]++
	return answer{refusal: f, quotas: []core.Quota{q}}
}

// opens is now when n fit, else the first instant at which they would if nobody
// else came; or unknown, or never.
func opens(l core.Limit, c *count, now int64, n int) int64 {
	size, per := size(l)
	if n < 0 || n > size {
		return never
	}
	if _, ok := l.(core.InFlight); ok {
		if n <= size-c.held {
			return now
		}
		return unknown
	}
	room := size - c.within(now, per)
	if n <= room {
		return now
	}
	for _, u := range c.units {
		if t := leaves(u, per); t > now {
			if room += u.n; n <= room {
				return t
			}
		}
	}
	panic("model: n fits an empty window")
}

// leaves is the first instant at which the window (t-per, t] is past the unit.
func leaves(u unit, per time.Duration) int64 {
	if u.at > latest-int64(per) {
		return latest
	}
	return u.at + int64(per)
}

// within is how many units are in the window that ends now.
func (c *count) within(now int64, per time.Duration) (n int) {
	for _, u := range c.units {
		if leaves(u, per) > now {
			n += u.n
		}
	}
	return n
}

func (g *grant) take(v verdict, now int64) {
	switch v.limit.(type) {
	case core.Rate:
		v.count.units = append(v.count.units, unit{now, g.n})
		v.count.merge(v.limit)
		v.count.moved = false
	case core.InFlight:
		v.count.held += g.n
		v.rule.stat.InFlight += g.n
	}
	v.rule.stat.Admitted++
	g.took = append(g.took, v.taken)
}

// merge is what a rate above 4096 does to keep its memory bounded: admissions in
// one aligned slice of ⌈Per/4095⌉ leave together, with the latest of them.
func (c *count) merge(l core.Limit) (moved bool) {
	n, per := size(l)
	if n <= 4096 {
		return false
	}
	width := (int64(per)-1)/4095 + 1
	var merged []unit
	for _, u := range c.units {
		if i := len(merged) - 1; i >= 0 && merged[i].at/width == u.at/width {
			moved = moved || merged[i].at != u.at
			merged[i] = unit{u.at, merged[i].n + u.n}
		} else {
			merged = append(merged, u)
		}
	}
	c.units = merged
	return moved
}

// release gives back what is held: once.
func (m *model) release(g *grant, failed bool) {
	if g == nil || g.given {
		return
	}
	g.given = true
	for _, t := range g.took {
		if failed {
			t.rule.stat.Failed++
		}
		if kind(t.rule.Rule) == "in flight" {
			t.count.held -= g.n
			t.rule.stat.InFlight -= g.n
		}
	}
}

// replace puts rules in place. One that keeps its name, its kind and its By keeps
// its counts: of every key, what was admitted within the window of the old limit.
func (m *model) replace(now int64, rules ...core.Rule) {
	old := m.rules
	m.rules = nil
	for _, rule := range rules {
		next := &ruling{Rule: rule, counts: map[string]*count{}, always: map[string]bool{},
			stat: core.Stat{Rule: rule.Name, Refused: map[core.Reason]uint64{}}}
		for v := range rule.For {
			next.always[v] = true
		}
		for _, r := range old {
			if r.Name == rule.Name && r.By == rule.By && kind(r.Rule) == kind(rule) {
				before := *r
				next = r // grants point to it
				next.Rule = rule
				maps.DeleteFunc(next.always, func(v string, _ bool) bool { return rule.For[v] == nil })
				for _, c := range next.counts {
					m.vague = c.change(now, before.limit(c.values), next.limit(c.values)) || m.vague
				}
			}
		}
		m.rules = append(m.rules, next)
	}
}

// change goes on under another limit. It reports that the package may do so in
// another way: a key that nobody asked for between two changes may have slept
// through the first, and then its units were not merged by it, and come back up
// to a slice earlier. Neither way is before their time.
func (c *count) change(now int64, from, to core.Limit) (vague bool) {
	old, was := from.(core.Rate)
	if _, is := to.(core.Rate); !was || !is {
		c.units = nil
		return false
	}
	if from == to {
		return false
	}
	c.units = slices.DeleteFunc(c.units, func(u unit) bool { return leaves(u, old.Per) <= now })
	vague = c.moved && len(c.units) > 0
	c.moved = c.merge(to) || vague
	return vague
}

// forget clears what was counted for a key, or for all, except what is held.
func (m *model) forget(rule string, key ...string) {
	for _, r := range m.rules {
		for _, c := range r.counts {
			if r.Name == rule && (len(key) == 0 || slices.Equal(c.values, key)) {
				c.units = nil
			}
		}
	}
}

// events are the instants after now at which a unit leaves its window, in order.
func (m *model) events(now int64) (at []int64) {
	for _, r := range m.rules {
		for _, c := range r.counts {
			if l, ok := r.limit(c.values).(core.Rate); ok {
				for _, u := range c.units {
					if t := leaves(u, l.Per); t > now {
						at = append(at, t)
					}
				}
			}
		}
	}
	slices.Sort(at)
	return slices.Compact(at)
}

// values are what the rule knows the request by, one for each part of its By.
func (r *ruling) values(q core.Request) []string { return valuesOf(r.By, q) }

func valuesOf(by string, q core.Request) (values []string) {
	if by == "" {
		return nil
	}
	for _, part := range strings.Split(by, ",") {
		value := ""
		if part == "resource" {
			value = q.On
		} else if i := slices.IndexFunc(q.Keys, func(k core.Key) bool { return k.By == part }); i >= 0 {
			value = q.Keys[i].Value
		}
		values = append(values, value)
	}
	return values
}

// limit is that of For, if it has the value, else the rule's. One of another kind
// than the rule's, which blocks, does so as one of the rule's kind: that of a rate
// remembers as long as any of the rule's.
func (r *ruling) limit(values []string) core.Limit {
	limit := r.Limit
	if len(values) == 1 {
		if l, ok := r.For[values[0]]; ok {
			limit = l
		}
	}
	switch k := kindOf(limit); {
	case k == "" || k == kind(r.Rule):
		return limit
	case k == "rate":
		return core.InFlight{}
	}
	per := time.Duration(1)
	for _, l := range append(slices.Collect(maps.Values(r.For)), r.Limit) {
		if l, ok := l.(core.Rate); ok {
			per = max(per, l.Per)
		}
	}
	return core.Rate{Per: per}
}

func (r *ruling) count(values []string) *count {
	key := fmt.Sprintf("%q", values)
	if r.counts[key] == nil {
		r.counts[key] = &count{values: values}
	}
	return r.counts[key]
}

// kind is that of the rule's limit or, if that is Unlimited, of those in For,
// where one that blocks may stand among others.
func kind(r core.Rule) string {
	open, blocks := kindOf(r.Limit), ""
	for _, l := range r.For {
		if k := kindOf(l); k != "" {
			if n, _ := size(l); n > 0 {
				open = cmp.Or(open, k)
			} else {
				blocks = max(blocks, k)
			}
		}
	}
	return cmp.Or(open, blocks)
}

func kindOf(l core.Limit) string {
	switch l.(type) {
	case core.Rate:
		return "rate"
	case core.InFlight:
		return "in flight"
	}
	return ""
}

// matches: "" is all, "*" any run of characters, everything else itself.
func matches(pattern, on string) bool {
	if pattern == "" {
		return true
	}
	var m func(p, s string) bool
	m = func(p, s string) bool {
		switch {
		case p == "":
			return s == ""
		case p[0] == '*':
			return m(p[1:], s) || s != "" && m(p, s[1:])
		}
		return s != "" && s[0] == p[0] && m(p[1:], s[1:])
	}
	return m(pattern, on)
}

func size(l core.Limit) (n int, per time.Duration) {
	switch l := l.(type) {
	case core.Rate:
		return l.N, l.Per
	case core.InFlight:
		return l.N, 0
	}
	panic("model: Unlimited has no size")
}

// quota is what is left: of a rate with the time until the oldest unit leaves.
func quota(v verdict, now int64) core.Quota {
	n, per := size(v.limit)
	q := core.Quota{Rule: v.rule.Name, Limit: n, Window: per}
	if _, ok := v.limit.(core.InFlight); ok {
		q.Remaining = max(0, n-v.count.held)
		return q
	}
	q.Remaining = max(0, n-v.count.within(now, per))
	for _, u := range v.count.units {
		if t := leaves(u, per); t > now {
			q.Reset = time.Duration(t - now)
			break
		}
	}
	return q
}

// tighter compares Remaining / Limit.
func tighter(a, b core.Quota) int {
	ah, al := bits.Mul64(uint64(a.Remaining), uint64(b.Limit))
	bh, bl := bits.Mul64(uint64(b.Remaining), uint64(a.Limit))
	return cmp.Or(cmp.Compare(ah, bh), cmp.Compare(al, bl))
}
