package core_test

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"math/big"
	"math/bits"
	"reflect"
	"slices"
	"sort"
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
	units  []unit   // admissions, oldest first; those that have left may linger. Of a pace the last
	late   int64    // how long after its time in the schedule the last of a pace passed
	ramp   *ramp    // of what warms up; nil: cold
	held   int      // units in flight
	moved  bool     // Replace has merged units, and none were admitted since
	slept  bool     // Replace has put an end to a ramp, and none were admitted since
	own    bool     // came into its window when nothing had been in overflow: see crowded
}

// A ramp is a warm-up on its way.
type ramp struct {
	begun int64
	last  int64 // when a request passed, or Per before one was told to come: the latest
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
	n     int // units
}

// A role is what a rule does with a request.
type role uint8

const (
	limits  role = iota // refuses it, or counts it
	watches             // only refuses: it is not what Count counts
	charges             // only counts
)

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
	role  role
	kept  int   // how much of N is not for the request
	begun int64 // when the ramp began, or would
	opens int64
}

// look asks every rule that applies to the request what it says.
func (m *model) look(now int64, r core.Request) (enforcing, shadow []verdict) {
	for _, rule := range m.rules {
		role, ok := rule.role(r.On)
		if !ok {
			continue
		}
		values := rule.values(r)
		limit := rule.limit(values)
		if limit == (core.Unlimited{}) {
			continue
		}
		v := verdict{taken: taken{rule, rule.count(values), cmp.Or(r.Cost, 1)}, limit: limit, role: role, kept: rule.kept(limit, r.Priority), begun: now}
		if !v.count.cold(limit, now) {
			v.begun = v.count.ramp.begun
		}
		v.opens = v.when(now, v.n)
		if role == charges {
			v.opens = now
		}
		if rule.Shadow {
			shadow = append(shadow, v)
		} else {
			enforcing = append(enforcing, v)
		}
	}
	return enforcing, shadow
}

// role: what Count has is counted, whether On has it too or not.
func (r *ruling) role(on string) (does role, ok bool) {
	switch {
	case r.Count == "":
		return limits, matches(r.On, on)
	case matches(r.Count, on):
		return charges, true
	}
	return watches, matches(r.On, on)
}

// kept is how much of N is not for a request of that priority.
func (r *ruling) kept(l core.Limit, p core.Priority) int {
	switch n, _ := size(l); {
	case n == 0 || p >= core.Critical: // of nothing, nothing is kept
		return 0
	case p == core.Default:
		return r.Reserve.Critical
	}
	return r.Reserve.Default + r.Reserve.Critical
}

// try decides: all rules that apply and enforce must have room, else nothing is
// counted. What a shadow rule says is noted after that, and hinders nobody.
func (m *model) try(now int64, r core.Request) (answer, *grant) {
	n := cmp.Or(r.Cost, 1)
	enforcing, shadow := m.look(now, r)
	for _, v := range append(slices.Clone(enforcing), shadow...) {
		v.warm(now)
	}
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
		if v.role == charges {
			continue
		}
		q := v.quota(now)
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
	q := named.quota(now)
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

// when is now if n fit, else the first instant at which they would if nobody else
// came, and the ramp went on; or unknown, or never. It tries all instants at which
// something changes for n.
func (v verdict) when(now int64, n int) int64 {
	size, per := size(v.limit)
	if n < 0 || n > size-v.kept {
		return never
	}
	if v.fits(now, n) {
		return now
	}
	var at []int64
	switch v.limit.(type) {
	case core.InFlight:
		return unknown
	case core.Pace:
		for x := v.level(now); ; x++ { // at each height of the ramp
			if x >= n+v.kept {
				at = append(at, max(v.reaches(x), v.count.due(v.limit, x-v.kept, n)))
			}
			if x == size {
				break
			}
		}
	default:
		at = append(at, now)
		for _, u := range v.count.units {
			at = append(at, leaves(u, per))
		}
		for _, t := range slices.Clone(at) { // the ramp is high enough for what is there then, and for n
			if room := size - v.kept - n; v.count.within(t, per) <= room {
				at = append(at, v.reaches(n+v.kept+v.count.within(t, per)))
			}
		}
	}
	slices.Sort(at)
	for _, t := range at {
		if t > now && (t >= latest || v.fits(t, n)) {
			return t
		}
	}
	panic("model: n fits in the end")
}

// fits reports whether n have room at t: in a limit that is smaller by what is kept.
func (v verdict) fits(t int64, n int) bool {
	room := v.level(t) - v.kept
	switch v.limit.(type) {
	case core.InFlight:
		return n <= room-v.count.held
	case core.Pace:
		return n <= room && v.count.due(v.limit, room, n) <= t
	}
	_, per := size(v.limit)
	return n <= room-v.count.within(t, per)
}

// level is L(t) of what warms up, else N.
func (v verdict) level(t int64) int {
	n, per := size(v.limit)
	from, over := rampOf(v.limit)
	if over == 0 || n == 0 {
		return n
	}
	return ideal(core.WarmUp{Rate: core.Rate{N: n, Per: per}, From: from, Over: over}, t-v.begun)
}

// reaches is the first instant at which L is x: From + ⌊(N-From)·gone/Over⌋ >= x.
func (v verdict) reaches(x int) int64 {
	n, _ := size(v.limit)
	from, over := rampOf(v.limit)
	if over == 0 || x <= from {
		return v.begun
	}
	rise := func(x int) *big.Int { return big.NewInt(int64(x - from)) }
	gone := new(big.Int).Mul(rise(x), big.NewInt(int64(over)))
	gone.Add(gone, rise(n)).Sub(gone, big.NewInt(1)).Div(gone, rise(n)) // rounded up
	return after(v.begun, gone.Int64())
}

// due is from when n may follow the last request of a pace: a gap after that one's
// time in the schedule, which was when it passed or, if it was late, up to s before.
func (c *count) due(l core.Limit, room, n int) int64 {
	if len(c.units) == 0 {
		return 0
	}
	_, per := size(l)
	last := c.units[len(c.units)-1]
	under := core.Pace{N: room, Per: per}
	if n = max(n, last.n); n > room/2 {
		n = room // all of Per+s
	}
	return after(last.at-min(c.late, slackOf(under)), gapOf(under, n))
}

// cold: what warms up has not begun to, or nobody has passed for 2·Per, and nobody
// was told to come in the last Per.
func (c *count) cold(l core.Limit, now int64) bool {
	_, per := size(l)
	return c.ramp == nil || after(after(c.ramp.last, int64(per)), int64(per)) <= now
}

// warm notes that somebody waits for the ramp: it begins, and goes on for its sake.
func (v verdict) warm(now int64) {
	from, over := rampOf(v.limit)
	if over > 0 && v.role == limits && v.opens > now && v.opens != never && v.n > from-v.kept {
		_, per := size(v.limit)
		v.keep(now, v.opens-int64(per))
	}
}

// keep makes the ramp go on.
func (v verdict) keep(now, last int64) {
	if !v.count.cold(v.limit, now) {
		last = max(last, v.count.ramp.last)
	}
	v.count.ramp = &ramp{v.begun, last}
}

// leaves is the first instant at which the window (t-per, t] is past the unit.
func leaves(u unit, per time.Duration) int64 { return after(u.at, int64(per)) }

func after(t, d int64) int64 {
	if t > latest-d {
		return latest
	}
	return t + d
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
	c := v.count
	size, _ := size(v.limit)
	switch v.role {
	case watches:
		v.n = 0
	case charges: // N is all that can be told of, and what is held has to add up
		v.n = min(v.n, size, math.MaxInt>>8)
	}
	if _, over := rampOf(v.limit); over > 0 {
		v.keep(now, now)
	}
	switch l := v.limit.(type) {
	case core.Rate, core.WarmUp:
		if v.n > 0 {
			c.units = append(c.units, unit{now, v.n})
			c.merge(l)
			if v.role == charges {
				c.trim(l, now)
			}
		}
		c.moved = c.moved && v.role == watches
	case core.Pace:
		late := slackOf(l)
		if len(c.units) > 0 {
			late = min(late, now-c.due(l, v.level(now)-v.kept, v.n))
		}
		c.units, c.late, c.slept = []unit{{now, v.n}}, late, false
	case core.InFlight:
		c.held += v.n
		v.rule.stat.InFlight += v.n
	}
	v.rule.stat.Admitted++
	g.took = append(g.took, v.taken)
}

// trim keeps the latest N of the units in the window.
func (c *count) trim(l core.Limit, now int64) {
	n, per := size(l)
	excess := c.within(now, per) - n
	for i, u := range c.units {
		if leaves(u, per) > now && excess > 0 {
			less := min(excess, u.n)
			c.units[i].n -= less
			excess -= less
		}
	}
	c.units = slices.DeleteFunc(c.units, func(u unit) bool { return u.n == 0 })
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
			t.count.held -= t.n
			t.rule.stat.InFlight -= t.n
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
				if reflect.DeepEqual(before.Rule, rule) {
					continue // untouched
				}
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
//
// So may a pace that slept while it had no ramp: it may not have become cold.
func (c *count) change(now int64, from, to core.Limit) (vague bool) {
	if k := kindOf(from); k == "" || k == "in flight" || k != kindOf(to) { // from or to Unlimited
		c.units, c.ramp = nil, nil
		return false
	}
	_, per := size(from)
	c.units = slices.DeleteFunc(c.units, func(u unit) bool { return leaves(u, per) <= now })
	if c.ramp != nil && after(c.ramp.last, int64(per)) <= now {
		c.ramp = nil
	}
	switch {
	case from == to: // something else has changed
		return false
	case kindOf(to) == "pace":
		_, was := rampOf(from)
		_, is := rampOf(to)
		switch {
		case was > 0 && is == 0:
			c.slept = c.ramp != nil
		case was == 0 && is > 0:
			vague, c.slept = c.slept, false
		}
		if was == 0 || is == 0 {
			if c.ramp = nil; len(c.units) > 0 { // as if it had begun with the last
				c.ramp = &ramp{c.units[0].at, c.units[0].at}
			}
		}
		return vague
	}
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

// events are instants after now at which something changes, in order: all at which
// a unit leaves its window, and some of a pace and of a ramp.
func (m *model) events(now int64) (at []int64) {
	for _, r := range m.rules {
		for _, c := range r.counts {
			l := r.limit(c.values)
			if k := kindOf(l); k == "" || k == "in flight" {
				continue
			}
			n, per := size(l)
			if k := kindOf(l); k == "pace" && len(c.units) > 0 && n > 0 {
				at = append(at, c.due(l, n, 1), c.due(l, n, n), c.due(l, n-n/2, 1))
			} else if k != "pace" {
				for _, u := range c.units {
					at = append(at, leaves(u, per))
				}
			}
			if _, over := rampOf(l); over > 0 && n > 0 && !c.cold(l, now) {
				v := verdict{limit: l, begun: c.ramp.begun}
				at = append(at, v.reaches(min(n, v.level(now)+1)), v.reaches(n), after(after(c.ramp.last, int64(per)), int64(per)))
			}
		}
	}
	at = slices.DeleteFunc(at, func(t int64) bool { return t <= now })
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
	if k := kindOf(limit); k == "" || k == kind(r.Rule) {
		return limit
	}
	per := time.Duration(1)
	for _, l := range append(slices.Collect(maps.Values(r.For)), r.Limit) {
		if kindOf(l) != "" {
			_, p := size(l)
			per = max(per, p)
		}
	}
	switch kind(r.Rule) {
	case "in flight":
		return core.InFlight{}
	case "pace":
		return core.Pace{Per: per}
	case "warm up":
		return core.WarmUp{Rate: core.Rate{Per: per}}
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
	case core.Pace:
		return "pace"
	case core.WarmUp:
		return "warm up"
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
	case core.Pace:
		return l.N, l.Per
	case core.WarmUp:
		return l.Rate.N, l.Rate.Per
	case core.InFlight:
		return l.N, 0
	}
	panic("model: Unlimited has no size")
}

// rampOf is From and Over; 0 where nothing warms up.
func rampOf(l core.Limit) (from int, over time.Duration) {
	switch l := l.(type) {
	case core.Pace:
		return l.From, l.Over
	case core.WarmUp:
		return l.From, l.Over
	}
	return 0, 0
}

// quota is what is left to the request's priority: the largest cost that has room,
// and the time until a larger one has.
func (v verdict) quota(now int64) core.Quota {
	n, per := size(v.limit)
	most := n - v.kept
	left := 0
	switch v.limit.(type) {
	case core.InFlight:
		left = most - v.count.held
	case core.Pace:
		left = sort.Search(most, func(n int) bool { return !v.fits(now, n+1) })
	default:
		left = v.level(now) - v.kept - v.count.within(now, per)
	}
	q := core.Quota{Rule: v.rule.Name, Limit: n, Window: per, Remaining: max(0, left)}
	if q.Remaining < most {
		if t := v.when(now, q.Remaining+1); t <= latest {
			q.Reset = time.Duration(t - now)
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
