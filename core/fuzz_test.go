package core_test

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/exactflow/exactflow/core"
)

// A script is a list of bytes from which a play draws all its choices: rules,
// requests, costs, waits, releases, replacements. The package and the model play
// it side by side and must answer alike, to the nanosecond.

// FuzzRate plays one rule with one rate. The costs and waits are chosen around
// its edges.
func FuzzRate(f *testing.F) {
	some := make([]byte, 200)
	for i := range some {
		some[i] = byte(i * 37)
	}
	for _, n := range []int{-1, 0, 1, 2, 3, 20, 4095, 4096, 4097, 8192, 1 << 20, math.MaxInt} {
		for _, per := range []int64{-1, 0, 1, 2, 4095, 4096, 10_000, 1e9, 36e11, 365 * 24 * 36e11, math.MaxInt64} {
			f.Add(n, per, some)
		}
	}
	f.Fuzz(func(t *testing.T, n int, per int64, script []byte) {
		rule := core.Rule{Name: "r", Limit: core.Rate{N: n, Per: time.Duration(per)}}
		if n < 0 || per <= 0 {
			if l, err := core.New(rule); err == nil || l != nil {
				t.Fatalf("New(%v) = %v, %v; want an error", rule.Limit, l, err)
			}
			return
		}
		synctest.Test(t, func(t *testing.T) {
			p := play{source: source{script}, rules: []core.Rule{rule}}
			p.run(newLimited)
			if p.wrong == "" {
				p.wrong = p.windows(n, per)
			}
			if p.wrong != "" {
				t.Fatalf("%s\n%s", p.trace(), p.wrong)
			}
		})
	})
}

// FuzzDecisions plays several rules of all kinds, which change on the way.
func FuzzDecisions(f *testing.F) {
	for seed := range uint64(100) {
		f.Add(scriptOf(seed))
	}
	f.Fuzz(func(t *testing.T, script []byte) {
		synctest.Test(t, func(t *testing.T) {
			p := play{source: source{script}}
			p.run(newLimited)
			if p.wrong != "" {
				t.Fatalf("%s\n%s", p.trace(), p.wrong)
			}
		})
	})
}

// TestDecisionsAreThoseOfTheModel is the strong part of the two fuzz targets
// for those who only run the tests: thousands of scripts, always the same. The
// race detector, which finds nothing in one goroutine, sees fewer.
func TestDecisionsAreThoseOfTheModel(t *testing.T) {
	admitted, refused := 0, 0
	reasons, said := map[core.Reason]int{}, map[string]int{}
	for seed := range uint64(6000 / slower) {
		synctest.Test(t, func(t *testing.T) {
			p := play{source: source{scriptOf(seed)}}
			p.run(newLimited)
			if p.wrong != "" {
				t.Fatalf("script %d\n%s\n%s", seed, p.trace(), p.wrong)
			}
			admitted += p.admitted
			refused += p.refused
			for reason, n := range p.reasons {
				reasons[reason] += n
			}
			for what, n := range p.said {
				said[what] += n
			}
		})
	}
	// A generator that never gets to some answer would prove nothing about it.
	t.Logf("%d admitted, %d refused: %v", admitted, refused, reasons)
	for _, n := range []int{admitted, reasons[core.ReasonNever], reasons[core.ReasonInFlight], reasons[core.ReasonRate]} {
		if n < 10_000/slower {
			t.Error("some answer is rare")
		}
	}
	for _, what := range slices.Sorted(maps.Keys(said)) {
		t.Logf("%s: %d", what, said[what])
	}
	for _, k := range []string{"rate", "pace", "warm up", "in flight", "pace that warms up", "counted rate", "counted in flight"} {
		for _, some := range []string{"", " of which some is kept"} {
			for _, says := range []string{" has room", " has none"} {
				if n := said[k+some+says]; n < 200/slower {
					t.Errorf("%d times only the limit is a %s%s, and it%s", n, k, some, says)
				}
			}
		}
	}
	for _, what := range []string{"charged beyond N", "told to come to a ramp", "a ramp cold again"} {
		if n := said[what]; n < 200/slower {
			t.Errorf("%d times only: %s", n, what)
		}
	}
}

// TestRatesAreThoseOfTheModel does for FuzzRate what its neighbour does for
// FuzzDecisions.
func TestRatesAreThoseOfTheModel(t *testing.T) {
	sizes := []int{0, 1, 2, 3, 20, 100, 4095, 4096, 4097, 5000, 1 << 20, math.MaxInt}
	pers := []time.Duration{1, 2, 3, 1000, 4095, 4096, 10_000, time.Second, time.Hour, 365 * 24 * time.Hour, math.MaxInt64}
	for seed := range uint64(1500 / slower) {
		synctest.Test(t, func(t *testing.T) {
			n, per := sizes[seed%uint64(len(sizes))], pers[seed/5%uint64(len(pers))]
			p := play{source: source{scriptOf(seed)}, rules: []core.Rule{{Name: "r", Limit: core.Rate{N: n, Per: per}}}}
			p.run(newLimited)
			if p.wrong == "" {
				p.wrong = p.windows(n, int64(per))
			}
			if p.wrong != "" {
				t.Fatalf("script %d\n%s\n%s", seed, p.trace(), p.wrong)
			}
		})
	}
}

// TestBeyondMaxKeysDecisionsAreOnlyStricter plays scripts with more keys than
// MaxKeys. Nobody gets more than its limit there, and who has a count of its own
// is not refused for others.
func TestBeyondMaxKeysDecisionsAreOnlyStricter(t *testing.T) {
	admitted, excused := 0, 0
	for seed := range uint64(2000 / slower) {
		synctest.Test(t, func(t *testing.T) {
			p := play{source: source{scriptOf(seed)}, crowded: true}
			p.run(newLimited)
			if p.wrong != "" {
				t.Fatalf("script %d\n%s\n%s", seed, p.trace(), p.wrong)
			}
			admitted += p.admitted
			excused += p.excused
		})
	}
	t.Logf("%d admitted, %d refused only because of MaxKeys", admitted, excused)
	if min(admitted, excused) < 2000/slower {
		t.Error("too few to tell")
	}
}

func scriptOf(seed uint64) []byte {
	r := rand.New(rand.NewPCG(seed, 20))
	script := make([]byte, 100+r.IntN(900))
	for i := range script {
		script[i] = byte(r.Uint32())
	}
	return script
}

// A world is something that answers as a limiter does.
type world interface {
	ask(now int64, how string, r core.Request) (answer, func(failed bool))
	replace(now int64, rules []core.Rule) error
	forget(rule string, key []string) error
	stats() []core.Stat
}

// limited is the world under test. Its time is the bubble's.
type limited struct{ *core.Limiter }

func newLimited(rules []core.Rule) world {
	l, err := core.New(rules...)
	if err != nil {
		panic(err)
	}
	return limited{l}
}

func (w limited) ask(_ int64, how string, r core.Request) (answer, func(failed bool)) {
	var p core.Permit
	var a answer
	var err error
	switch how {
	case "Try":
		p, a.ok = w.Try(r)
	case "Wait":
		p, err = w.Wait(context.Background(), r)
		a.ok = err == nil
	case "Do": // shows no quota
		failure := errors.New("failed")
		switch err := w.Do(context.Background(), r, func(context.Context) error { return failure }); {
		case err == failure:
			a.ok = true
		case !errors.Is(err, core.ErrRefused) || !errors.As(err, &a.refusal):
			panic(err)
		}
		return a, func(bool) {}
	}
	if !a.ok && err != nil && err != core.ErrRefused {
		panic(err)
	}
	a.refusal = p.Refusal()
	a.quotas = []core.Quota{p.Quota()}
	return a, func(failed bool) {
		if failed {
			p.Fail()
		}
		q := p // on a copy: the first release of any copy counts
		q.Release()
	}
}

func (w limited) replace(_ int64, rules []core.Rule) error { return w.Replace(rules...) }
func (w limited) forget(rule string, key []string) error   { return w.Forget(rule, key...) }
func (w limited) stats() []core.Stat                       { return w.Stats() }

func (m *model) ask(now int64, how string, r core.Request) (answer, func(failed bool)) {
	a, g := m.try(now, r)
	if how == "Do" {
		m.release(g, true)
		a.quotas = nil
	}
	return a, func(failed bool) { m.release(g, failed) }
}

func (m *model) stats() (stats []core.Stat) {
	for _, r := range m.rules {
		stats = append(stats, r.stat)
	}
	return stats
}

// A play is one script on its way.
type play struct {
	source
	rules         []core.Rule // drawn from the script if there are none
	decisionsOnly bool        // do not compare what is told beside the decisions
	crowded       bool        // rules get a small MaxKeys: compare only what holds beyond it

	start   time.Time
	model   *model
	world   world
	request core.Request
	grants  [][2]func(bool) // the model's release and the world's, of all requests so far
	lines   []string
	wrong   string
	history []ask // of the first rule, for windows

	admitted, refused int
	reasons           map[core.Reason]int
	said              map[string]int // how often rules of each kind had room, and none
	excused           int            // refused only for others' sake
}

type ask struct {
	at int64
	n  int
	ok bool
}

// run plays until the script ends or something is wrong.
func (p *play) run(subject func([]core.Rule) world) {
	p.b = p.b[:min(len(p.b), 4000)] // a fuzzer finds more with many than with long ones
	fixed := p.rules != nil
	if !fixed {
		p.rules = p.drawRules(nil)
	}
	p.reasons, p.said = map[core.Reason]int{}, map[string]int{}
	p.start = time.Now()
	p.model = newModel(p.rules...)
	p.world = subject(p.rules)
	p.note("New%v", show(p.rules))
	for len(p.b) > 0 && p.wrong == "" && !p.model.vague {
		switch k := p.pick(64); {
		case k < 42:
			p.ask(fixed)
		case k < 54:
			p.sleep()
		case k < 60:
			if len(p.grants) > 0 {
				i := len(p.grants) - 1 - p.pick(len(p.grants))%min(len(p.grants), 12)
				failed := p.pick(4) == 0
				p.note("release #%d, failed %v", i, failed)
				p.grants[i][0](failed)
				p.grants[i][1](failed)
			}
		case fixed: // the rule stays
		case k < 63:
			p.rules = p.drawRules(p.rules)
			p.note("Replace%v", show(p.rules))
			for _, r := range p.model.rules {
				for _, c := range r.counts {
					c.own = false
				}
			}
			p.model.replace(p.now(), p.rules...)
			if err := p.world.replace(p.now(), p.rules); err != nil {
				p.wrong = fmt.Sprint("Replace: ", err)
			}
		default:
			p.forget()
		}
	}
	if p.wrong == "" && !p.decisionsOnly && !p.crowded {
		p.compareStats()
		for i := range p.grants {
			p.grants[i][0](false)
			p.grants[i][1](false)
		}
		p.note("release all")
		p.compareStats()
	}
}

func (p *play) now() int64 { return int64(time.Since(p.start)) }

// ask puts one request to both and compares the answers.
func (p *play) ask(fixed bool) {
	if !fixed && p.pick(3) == 0 { // else that of before, which is how a limit is met
		p.request = core.Request{On: p.drawOn(), Keys: p.drawKeys(), Priority: one(&p.source, levels)}
	} else if k := p.pick(12); !fixed && k < 3 { // the same client on another resource, or for another purpose
		p.request.On = p.drawOn()
	} else if !fixed && k < 5 {
		p.request.Priority = one(&p.source, levels)
	}
	r := p.request
	r.Cost = p.drawCost()
	how := []string{"Try", "Try", "Try", "Wait", "Do"}[p.pick(5)]
	now := p.now()
	if p.crowded {
		p.askCrowded(now, how, r)
		return
	}
	p.hear(now, r)
	want, given := p.model.ask(now, how, r)
	got, give := p.world.ask(now, how, r)
	p.note("#%d %s(%s) = %s", len(p.grants), how, showRequest(r), got)
	p.grants = append(p.grants, [2]func(bool){given, give})
	p.history = append(p.history, ask{now, cmp.Or(r.Cost, 1), got.ok})
	if want.ok {
		p.admitted++
	} else {
		p.refused++
		p.reasons[want.refusal.Reason]++
	}
	same := got.ok == want.ok
	if !p.decisionsOnly {
		same = same && got.refusal == want.refusal
		if len(got.quotas) > 0 {
			same = same && slices.Contains(want.quotas, got.quotas[0])
		}
	}
	if !same {
		p.wrong = fmt.Sprintf("the model says: %s", want)
	}
}

// hear notes what each rule says: a generator that never gets there proves nothing.
func (p *play) hear(now int64, r core.Request) {
	enforcing, _ := p.model.look(now, r)
	for _, v := range enforcing {
		n, per := size(v.limit)
		if n == 0 || r.Cost < 0 {
			continue
		}
		what := kind(v.rule.Rule)
		from, over := rampOf(v.limit)
		if over > 0 && what == "pace" {
			what += " that warms up"
		}
		if over > 0 && v.opens > now && v.opens < never && v.n+v.kept > from {
			p.said["told to come to a ramp"]++
		}
		if over > 0 && v.count.ramp != nil && v.count.cold(v.limit, now) {
			p.said["a ramp cold again"]++
		}
		switch v.role {
		case charges:
			if v.count.held+v.n > n || per > 0 && v.count.within(now, per) > n-min(n, v.n) {
				p.said["charged beyond N"]++
			}
			continue
		case watches:
			what = "counted " + what
		}
		if v.kept > 0 {
			what += " of which some is kept"
		}
		if v.opens <= now {
			p.said[what+" has room"]++
		} else if v.opens < never {
			p.said[what+" has none"]++
		}
	}
}

// askCrowded puts one request to a limiter that may have more keys than MaxKeys.
// Of what it does then only this is promised: it admits nothing that the model,
// who has room for all keys, would refuse; and if it refuses what the model would
// admit, it does so for a key that shares a count with others, or may have done.
func (p *play) askCrowded(now int64, how string, r core.Request) {
	enforcing, _ := p.model.look(now, r)
	fits := r.Cost >= 0
	fresh := make([]bool, len(enforcing))
	for i, v := range enforcing {
		fits = fits && v.opens <= now
		_, per := size(v.limit)
		fresh[i] = v.count.held == 0 && v.count.within(now, per) == 0
	}
	a, give := p.world.ask(now, how, r)
	p.note("#%d %s(%s) = %s", len(p.grants), how, showRequest(r), a)
	overflowed := map[string]bool{}
	for _, s := range p.world.stats() {
		overflowed[s.Rule] = s.Overflowed > 0
	}
	given := func(bool) {}
	switch {
	case a.ok && !fits:
		p.wrong = "the model, with room for all keys, refuses"
	case a.ok:
		_, given = p.model.ask(now, how, r)
		for i, v := range enforcing {
			if fresh[i] {
				v.count.own = !overflowed[v.rule.Name]
			}
		}
		p.admitted++
	case fits:
		i := slices.IndexFunc(enforcing, func(v verdict) bool { return v.rule.Name == a.refusal.Rule })
		v := enforcing[i]
		named := v.rule.always[strings.Join(v.count.values, ",")]
		reason := core.ReasonRate
		if kind(v.rule.Rule) == "in flight" {
			reason = core.ReasonKeys
		}
		if named || !overflowed[v.rule.Name] || !fresh[i] && (v.count.own || v.count.held > 0) || a.refusal.Reason != reason {
			p.wrong = "the model admits, and this key shares its count with nobody"
		}
		p.excused++
	}
	p.grants = append(p.grants, [2]func(bool){given, give})
}

// sleep goes to where something changes, just before, or somewhere else.
func (p *play) sleep() {
	const years = 200 * 365 * 24 * time.Hour // a bubble's clock has no more than 262
	now := p.now()
	events := p.model.events(now)
	var d time.Duration
	switch k := p.pick(8); {
	case k < 5 && len(events) > 0:
		i := 0
		if p.pick(3) == 0 {
			i = p.pick(len(events))
		}
		d = time.Duration(events[i]-now) + []time.Duration{0, 0, -1, 1}[p.pick(4)]
	case k < 7:
		d = time.Duration(p.pick(12))
	default:
		per := time.Second
		if pers := p.pers(); len(pers) > 0 {
			per = one(&p.source, pers)
		}
		d = []time.Duration{per, per - 1, per / 2, per/4095 + 1, per / 3}[p.pick(5)]
	}
	if d > 0 && time.Duration(now) < years-d {
		p.note("sleep %d", d)
		time.Sleep(d)
	}
}

func (p *play) forget() {
	if len(p.rules) == 0 {
		return
	}
	rule := p.rules[p.pick(len(p.rules))]
	var key []string
	if p.pick(3) > 0 {
		key = valuesOf(rule.By, core.Request{On: p.drawOn(), Keys: p.drawKeys()})
	}
	p.note("Forget(%q, %s)", rule.Name, showStrings(key))
	p.model.forget(rule.Name, key...)
	if err := p.world.forget(rule.Name, key); err != nil {
		p.wrong = fmt.Sprint("Forget: ", err)
	}
}

func (p *play) compareStats() {
	got, want := p.world.stats(), p.model.stats()
	if len(got) != len(want) {
		p.wrong = fmt.Sprintf("%d stats; want %d", len(got), len(want))
		return
	}
	for i, w := range want {
		g := got[i]
		refused := maps.Clone(g.Refused)
		maps.DeleteFunc(refused, func(_ core.Reason, n uint64) bool { return n == 0 })
		if g.Rule != w.Rule || g.Admitted != w.Admitted || g.Shadowed != w.Shadowed || g.Failed != w.Failed ||
			g.InFlight != w.InFlight || !maps.Equal(refused, w.Refused) {
			p.wrong = fmt.Sprintf("stats are %+v\nthe model's %+v", g, w)
			return
		}
	}
}

// windows judges what the first rule admitted by the sentence of the promise,
// without the model: never above n in any (t-per, t]; and never below, except
// that above 4096 a unit may come back one slice late.
func (p *play) windows(n int, per int64) string {
	late := int64(0)
	if n > 4096 {
		late = (per-1)/4095 + 1
	}
	for i, a := range p.history {
		exact, lately := 0, 0
		for _, b := range p.history[:i] {
			if b.ok && b.at > a.at-per {
				exact += b.n
			}
			if b.ok && b.at > a.at-min(per, math.MaxInt64-late)-late {
				lately += b.n
			}
		}
		if a.ok && a.n > n-exact {
			return fmt.Sprintf("#%d is admitted; in its window are %d of %d", i, exact, n)
		}
		if !a.ok && a.n > 0 && a.n <= n-lately {
			return fmt.Sprintf("#%d is refused; in its window are %d of %d", i, lately, n)
		}
	}
	return ""
}

func (p *play) note(format string, args ...any) {
	p.lines = append(p.lines, fmt.Sprintf("%d\t", p.now())+fmt.Sprintf(format, args...))
}

// trace is the script as it went; of a long one the end.
func (p *play) trace() string {
	lines := p.lines
	if len(lines) > 60 {
		lines = append([]string{lines[0], "…"}, lines[len(lines)-58:]...)
	}
	return "at\n" + strings.Join(lines, "\n")
}

// A source gives choices, and the first of each when it is used up.
type source struct{ b []byte }

// pick is one of n.
func (s *source) pick(n int) int {
	if len(s.b) == 0 {
		return 0
	}
	if n <= 256 {
		v := s.b[0]
		s.b = s.b[1:]
		return int(v) % n
	}
	var wide [4]byte
	s.b = s.b[copy(wide[:], s.b):]
	return int(binary.LittleEndian.Uint32(wide[:])>>1) % n
}

var (
	long      = strings.Repeat("x", 300)
	resources = []string{"r1", "r1", "r1", "r2", "r2", "r12", "r*2", ""}
	patterns  = []string{"", "", "", "", "*", "r1", "r1", "r*", "*2", "r*2", "r2*", "x"}
	bys       = []string{"", "", "ip", "ip", "ip", "tenant", "resource", "tenant,ip", "ip,resource"}
	values    = []string{"a", "a", "a", "b", "", "a,b", "b,a", long + "1", long + "2"}
	counts    = []int{0, 1, 1, 2, 2, 2, 2, 3, 3, 3, 4, 4, 5, 5, 7, 10, 10, 20, 4096, 4097, 5000, 1 << 20, math.MaxInt}
	levels    = []core.Priority{0, 0, 0, 0, 1, 1, 1, -1, -1, -1, 2, -128}
	overs     = []time.Duration{1, 5, 30, 100, 300, 10_000, time.Second, 3 * time.Second, time.Minute, 24 * time.Hour}
	pers      = []time.Duration{1, 2, 3, 7, 7, 10, 10, 10, 100, 100, 4096, 10_000, time.Millisecond, time.Second, time.Second,
		time.Second + 1, time.Minute, time.Hour, 24 * time.Hour, 365 * 24 * time.Hour, math.MaxInt64}
)

// one is one of list.
func one[T any](s *source, list []T) T { return list[s.pick(len(list))] }

func (p *play) drawOn() string { return one(&p.source, resources) }

func (p *play) drawKeys() (keys []core.Key) {
	for _, by := range []string{"ip", "tenant"} {
		if p.pick(5) > 0 {
			keys = append(keys, core.Key{By: by, Value: one(&p.source, values)})
		}
	}
	switch p.pick(12) {
	case 0: // of two with the same By the first counts
		keys = append(keys, core.Key{By: "ip", Value: one(&p.source, values)})
	case 1: // the resource is the resource
		keys = append(keys, core.Key{By: "resource", Value: "r2"})
	}
	return keys
}

// drawCost is mostly 1, and else around the size of some limit.
func (p *play) drawCost() int {
	switch k := p.pick(32); {
	case k < 20:
		return k & 1
	case k < 24:
		return 2 + p.pick(3)
	case k == 24:
		return []int{-1, -1, math.MinInt, math.MaxInt}[p.pick(4)]
	}
	var sizes []int
	for _, r := range p.rules {
		if r.Limit != (core.Unlimited{}) {
			n, _ := size(r.Limit)
			sizes = append(sizes, n)
		}
	}
	if len(sizes) == 0 {
		return 1
	}
	n := one(&p.source, sizes)
	if n == math.MaxInt {
		return []int{n, n - 1, n / 2, n/2 + 1}[p.pick(4)]
	}
	return []int{n, n, n, n + 1, max(n-1, 0), n / 2, n / 2, n/2 + 1, n / 3, p.pick(n + 1)}[p.pick(10)]
}

// pers are those of the present rules.
func (p *play) pers() (pers []time.Duration) {
	for _, r := range p.rules {
		if r.Limit == (core.Unlimited{}) {
			continue
		}
		if _, per := size(r.Limit); per > 0 {
			pers = append(pers, per)
		}
	}
	return pers
}

// drawRules draws rules, or changes some of the old ones.
func (p *play) drawRules(old []core.Rule) (rules []core.Rule) {
	for _, r := range old {
		switch k := p.pick(10); {
		case k < 4: // stays
		case k < 6:
			was := r.Limit
			r.Limit = p.drawLimit(kind(r))
			if was != (core.Unlimited{}) && p.pick(2) == 0 {
				_, per := size(was)
				switch l := r.Limit.(type) {
				case core.Rate:
					l.Per = per
					r.Limit = l
				case core.Pace:
					l.Per = per
					r.Limit = l
				case core.WarmUp:
					l.Rate.Per = per
					r.Limit = l
				}
			}
		case k < 7:
			r.For = p.drawFor(r.By, kind(r))
		case k < 8:
			if r.Shadow = !p.crowded && p.pick(2) == 0; p.crowded {
				r.MaxKeys = 1 + p.pick(3)
			}
			r.On = one(&p.source, patterns)
		case k < 9:
			r = p.drawRule(r.Name)
		default:
			continue
		}
		if p.pick(8) == 0 || r.Count != "" && r.Count == r.On {
			r.Count = p.drawCount(r)
		}
		if p.pick(8) == 0 || !p.holds(r) {
			r.Reserve = p.drawReserve(r)
		}
		rules = append(rules, r)
	}
	names := []string{"b", "d", "a", "e", "c"}
	more := 1
	if old == nil {
		more = 1 + p.pick(4)
	} else if p.pick(3) > 0 {
		more = 0
	}
	for _, name := range names[p.pick(3):] {
		if more > 0 && !slices.ContainsFunc(rules, func(r core.Rule) bool { return r.Name == name }) {
			rules = append(rules, p.drawRule(name))
			more--
		}
	}
	if p.pick(5) == 0 { // the order of rules decides nothing
		slices.Reverse(rules)
	}
	return rules
}

func (p *play) drawRule(name string) core.Rule {
	r := core.Rule{Name: name, On: one(&p.source, patterns), By: one(&p.source, bys), Shadow: p.pick(6) == 0}
	if p.crowded {
		r.Shadow, r.MaxKeys = false, 1+p.pick(3)
	}
	kind := []string{"rate", "rate", "in flight", "in flight", "pace", "pace", "warm up"}[p.pick(7)]
	if p.crowded { // keys that share a ramp find it warm
		kind = []string{"rate", "rate", "in flight"}[p.pick(3)]
	}
	r.Limit = p.drawLimit(kind)
	if p.pick(3) == 0 {
		r.For = p.drawFor(r.By, kind)
		if len(r.For) > 0 && p.pick(4) == 0 {
			r.Limit = core.Unlimited{}
		}
	}
	if r.Count = p.drawCount(r); r.Count != "" && p.pick(2) == 0 && kindOf(r.Limit) == "rate" {
		r.Limit = core.Rate{N: 2 + p.pick(6), Per: time.Hour} // which is met
	}
	r.Reserve = p.drawReserve(r)
	return r
}

// drawCount is mostly none. In a crowd not all that is in flight can be counted.
func (p *play) drawCount(r core.Rule) string {
	if k := kind(r); p.crowded || k == "pace" || k == "warm up" || p.pick(2) > 0 {
		return ""
	}
	if c := one(&p.source, patterns[5:]); c != r.On && !strings.Contains(r.By, "resource") { // what it refuses
		return c
	}
	return ""
}

// drawReserve is mostly none; else all, or a part, of the smallest limit.
func (p *play) drawReserve(r core.Rule) core.Reserve {
	least := least(r)
	if p.pick(5) < 2 || least == 0 {
		return core.Reserve{}
	}
	some := []int{0, 0, 1, 1, least / 3, least / 2, least - 1, p.pick(min(least, 256))}
	critical := min(least, one(&p.source, some))
	return core.Reserve{Critical: critical, Default: min(least-critical, one(&p.source, some))}
}

// holds reports that the Reserve is no more than any of the limits.
func (p *play) holds(r core.Rule) bool {
	least := least(r)
	return least == 0 && r.Reserve == (core.Reserve{}) || r.Reserve.Critical <= least && r.Reserve.Default <= least-r.Reserve.Critical
}

// least is the smallest N above 0 of the rule.
func least(r core.Rule) (least int) {
	for _, l := range append(slices.Collect(maps.Values(r.For)), r.Limit) {
		if kindOf(l) == "" {
			continue
		}
		if n, _ := size(l); n > 0 && (least == 0 || n < least) {
			least = n
		}
	}
	return least
}

func (p *play) drawLimit(kind string) core.Limit {
	switch kind {
	case "rate":
		return core.Rate{N: one(&p.source, counts), Per: one(&p.source, pers)}
	case "in flight":
		return core.InFlight{N: one(&p.source, counts)}
	case "pace":
		l := core.Pace{N: one(&p.source, counts), Per: one(&p.source, pers[:len(pers)-1])}
		if l.N <= 20 && p.pick(2) == 0 {
			l.From, l.Over = p.drawRamp(l.N)
		}
		return l
	case "warm up":
		l := core.WarmUp{Rate: core.Rate{N: one(&p.source, counts), Per: one(&p.source, pers)}}
		l.From, l.Over = p.drawRamp(l.Rate.N)
		return l
	}
	return core.Unlimited{}
}

func (p *play) drawRamp(n int) (from int, over time.Duration) {
	if n == 0 { // blocks, whatever these are
		return p.pick(3) - 1, one(&p.source, overs) * time.Duration(p.pick(2))
	}
	return []int{1, 1, 1 + p.pick(n), n - n/2, n}[p.pick(5)], one(&p.source, overs)
}

func (p *play) drawFor(by, kind string) map[string]core.Limit {
	if by == "" || strings.Contains(by, ",") {
		return nil
	}
	limits := map[string]core.Limit{}
	for range 1 + p.pick(2) {
		value := one(&p.source, values[2:5])
		if by == "resource" {
			value = p.drawOn()
		}
		limits[value] = p.drawLimit(kind)
		switch p.pick(12) {
		case 0, 1:
			limits[value] = core.Unlimited{}
		case 2: // of any kind: it blocks
			limits[value] = []core.Limit{core.Rate{N: 0, Per: one(&p.source, pers)}, core.InFlight{N: 0}}[p.pick(2)]
		}
	}
	return limits
}

func show(rules []core.Rule) string {
	var b strings.Builder
	for _, r := range rules {
		fmt.Fprintf(&b, "\n\t  {%s on %q by %q: %T %v", r.Name, r.On, r.By, r.Limit, r.Limit)
		for _, v := range slices.Sorted(maps.Keys(r.For)) {
			fmt.Fprintf(&b, ", for %q %T %v", v, r.For[v], r.For[v])
		}
		if r.Count != "" {
			fmt.Fprintf(&b, ", counts %q", r.Count)
		}
		if r.Reserve != (core.Reserve{}) {
			fmt.Fprintf(&b, ", keeps %v", r.Reserve)
		}
		if r.MaxKeys > 0 {
			fmt.Fprintf(&b, ", %d keys", r.MaxKeys)
		}
		if r.Shadow {
			b.WriteString(", shadow")
		}
		b.WriteString("}")
	}
	return strings.ReplaceAll(b.String(), "core.", "")
}

func showRequest(r core.Request) string {
	s := fmt.Sprintf("on %q cost %d", r.On, r.Cost)
	if r.Priority != 0 {
		s += fmt.Sprintf(" priority %d", int8(r.Priority))
	}
	for _, k := range r.Keys {
		s += fmt.Sprintf(" %s %s", k.By, showStrings([]string{k.Value}))
	}
	return s
}

func showStrings(list []string) string {
	return strings.ReplaceAll(fmt.Sprintf("%q", list), long, "xxx…")
}

func (a answer) String() string {
	s := "admitted"
	if !a.ok {
		s = fmt.Sprintf("refused by %q (by %q): %v, after %d, known %v", a.refusal.Rule, a.refusal.By, a.refusal.Reason,
			a.refusal.RetryAfter, a.refusal.Known)
	}
	for _, q := range a.quotas {
		s += fmt.Sprintf("; %q has %d of %d per %d, more in %d", q.Rule, q.Remaining, q.Limit, q.Window, q.Reset)
	}
	return s
}

// TestTheModelFindsWhatIsBroken is the negative control: limiters with the
// faults that are common must be found out by the decisions alone, without a look
// at what is told beside them.
func TestTheModelFindsWhatIsBroken(t *testing.T) {
	for name, broken := range map[string]func([]core.Rule) world{
		"N+1":                         func(r []core.Rule) world { return newAltered(more, r) },
		"a window that is too short":  func(r []core.Rule) world { return newAltered(shorter, r) },
		"buckets instead of a window": func(r []core.Rule) world { return bucketed{newAltered(same, r)} },
		"rules charged one by one":    newOneByOne,
		"slots freed by each release": func(r []core.Rule) world { return twice{newAltered(same, r)} },
		"fresh counts at each reload": func(r []core.Rule) world { return refilled{newAltered(same, r)} },
		"refused calls are counted":   func(r []core.Rule) world { return spent{newAltered(same, r)} },
		"what is cold gets N":         func(r []core.Rule) world { return newAltered(hot, r) },
		"a pace lets bursts pass":     func(r []core.Rule) world { return newAltered(burst, r) },
		"nothing is kept":             func(r []core.Rule) world { return unkept{newAltered(same, r)} },
		"what is counted is refused":  func(r []core.Rule) world { return uncounted{newAltered(same, r)} },
	} {
		t.Run(name, func(t *testing.T) { found(t, play{decisionsOnly: true}, broken) })
	}
	for name, broken := range map[string]func([]core.Rule) world{
		"keys are forgotten for others": func(r []core.Rule) world { return forgetful{newAltered(same, r)} },
		"keys share a count":            func(r []core.Rule) world { return newShared(r) },
	} {
		t.Run(name, func(t *testing.T) { found(t, play{crowded: true}, broken) })
	}
	for seed := range uint64(300) { // and what is not broken is not called so
		synctest.Test(t, func(t *testing.T) {
			p := play{source: source{scriptOf(seed)}}
			p.run(func(r []core.Rule) world { return newAltered(same, r) })
			if p.wrong != "" {
				t.Fatalf("the model differs from itself\n%s\n%s", p.trace(), p.wrong)
			}
		})
	}
}

// found plays scripts until one shows that the limiter is broken.
func found(t *testing.T, p play, broken func([]core.Rule) world) {
	const scripts = 300
	for seed := range uint64(scripts) {
		p := p
		p.source = source{scriptOf(seed)}
		synctest.Test(t, func(t *testing.T) { p.run(broken) })
		if p.wrong != "" {
			t.Logf("found in script %d", seed)
			return
		}
	}
	t.Errorf("%d scripts, and nothing is wrong", scripts)
}

// altered is the model with other rules than it was given: the world from which
// the broken ones are made.
type altered struct {
	*model
	alter func(core.Limit) core.Limit
}

func newAltered(alter func(core.Limit) core.Limit, rules []core.Rule) *altered {
	w := &altered{new(model), alter}
	w.replace(0, rules)
	return w
}

func (w *altered) replace(now int64, rules []core.Rule) error {
	var other []core.Rule
	for _, r := range rules {
		r.Limit = w.alter(r.Limit)
		r.For = maps.Clone(r.For)
		for v, l := range r.For {
			r.For[v] = w.alter(l)
		}
		other = append(other, r)
	}
	w.model.replace(now, other...)
	return nil
}

func (w *altered) forget(rule string, key []string) error {
	w.model.forget(rule, key...)
	return nil
}

func same(l core.Limit) core.Limit { return l }

func more(l core.Limit) core.Limit {
	switch l := l.(type) {
	case core.Rate:
		return core.Rate{N: max(l.N, l.N+1), Per: l.Per}
	case core.InFlight:
		return core.InFlight{N: max(l.N, l.N+1)}
	}
	return l
}

func hot(l core.Limit) core.Limit {
	switch l := l.(type) {
	case core.WarmUp:
		return l.Rate
	case core.Pace:
		return core.Pace{N: l.N, Per: l.Per}
	}
	return l
}

func burst(l core.Limit) core.Limit {
	if l, ok := l.(core.Pace); ok {
		return core.Rate{N: l.N, Per: l.Per}
	}
	return l
}

func shorter(l core.Limit) core.Limit {
	if l, ok := l.(core.Rate); ok {
		return core.Rate{N: l.N, Per: max(l.Per-1, 1)}
	}
	return l
}

// bucketed counts what came since the last multiple of Per.
type bucketed struct{ *altered }

func (w bucketed) ask(now int64, how string, r core.Request) (answer, func(failed bool)) {
	for _, rule := range w.rules {
		for _, c := range rule.counts {
			if l, ok := rule.limit(c.values).(core.Rate); ok {
				c.units = slices.DeleteFunc(c.units, func(u unit) bool { return u.at/int64(l.Per) != now/int64(l.Per) })
			}
		}
	}
	return w.altered.ask(now, how, r)
}

// twice believes every release.
type twice struct{ *altered }

func (w twice) ask(now int64, how string, r core.Request) (answer, func(failed bool)) {
	a, g := w.try(now, r)
	release := func(failed bool) {
		if g != nil {
			g.given = false
			w.release(g, failed)
		}
	}
	if how == "Do" {
		release(true)
	}
	return a, release
}

// refilled forgets at each reload.
type refilled struct{ *altered }

func (w refilled) replace(now int64, rules []core.Rule) error {
	w.model.rules = nil
	return w.altered.replace(now, rules)
}

// unkept gives to all what is kept for some.
type unkept struct{ *altered }

func (w unkept) ask(now int64, how string, r core.Request) (answer, func(failed bool)) {
	r.Priority = core.Critical
	return w.altered.ask(now, how, r)
}

// uncounted limits what a rule only counts, and counts nothing else.
type uncounted struct{ *altered }

func (w uncounted) ask(now int64, how string, r core.Request) (answer, func(failed bool)) {
	for _, rule := range w.rules {
		if rule.Count != "" {
			rule.Rule.On, rule.Rule.Count = rule.Count, ""
		}
	}
	return w.altered.ask(now, how, r)
}

// spent counts refused requests too.
type spent struct{ *altered }

func (w spent) ask(now int64, how string, r core.Request) (answer, func(failed bool)) {
	a, release := w.altered.ask(now, how, r)
	if !a.ok {
		for _, rule := range w.rules {
			if matches(rule.On, r.On) {
				c := rule.count(rule.values(r))
				c.units = append(c.units, unit{now, 1})
			}
		}
	}
	return a, release
}

// forgetful makes room for further keys as a cache does.
type forgetful struct{ *altered }

func (w forgetful) ask(now int64, how string, r core.Request) (answer, func(failed bool)) {
	for _, rule := range w.rules {
		for len(rule.counts) > rule.MaxKeys {
			delete(rule.counts, slices.Min(slices.Collect(maps.Keys(rule.counts))))
		}
	}
	return w.altered.ask(now, how, r)
}

// shared counts all keys together.
type shared struct{ *altered }

func newShared(rules []core.Rule) world {
	w := shared{newAltered(same, nil)}
	w.replace(0, rules)
	return w
}

func (w shared) replace(now int64, rules []core.Rule) error {
	rules = slices.Clone(rules)
	for i := range rules {
		rules[i].By, rules[i].For = "", nil
	}
	return w.altered.replace(now, rules)
}

// oneByOne has a limiter for each rule, and asks one after the other.
type oneByOne struct{ each []*altered }

func newOneByOne(rules []core.Rule) world {
	w := new(oneByOne)
	w.replace(0, rules)
	return w
}

func (w *oneByOne) ask(now int64, how string, r core.Request) (a answer, _ func(failed bool)) {
	var releases []func(bool)
	release := func(failed bool) {
		for _, f := range releases {
			f(failed)
		}
	}
	a.ok = len(w.each) > 0 || r.Cost >= 0
	for _, rule := range w.each {
		one, f := rule.ask(now, how, r)
		if !one.ok {
			release(true)
			return one, func(bool) {}
		}
		a = one
		releases = append(releases, f)
	}
	return a, release
}

func (w *oneByOne) replace(now int64, rules []core.Rule) error {
	old := w.each
	w.each = nil
	for _, r := range rules {
		i := slices.IndexFunc(old, func(o *altered) bool { return o.rules[0].Name == r.Name })
		if i < 0 {
			w.each = append(w.each, newAltered(same, []core.Rule{r}))
			continue
		}
		old[i].replace(now, []core.Rule{r})
		w.each = append(w.each, old[i])
	}
	return nil
}

func (w *oneByOne) forget(rule string, key []string) error {
	for _, one := range w.each {
		one.forget(rule, key)
	}
	return nil
}

func (w *oneByOne) stats() []core.Stat { return nil }

// A script found it: the rule's earlier change forgot what other keys had counted
// long ago, and a later one applied that to a key which had had a window of its
// own then. It was forgiven a unit that its own windows had kept all along.
func TestAKeyThatWasInForForgetsNothingByOlderChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		own := map[string]core.Limit{"a": core.Rate{N: 2, Per: time.Minute}}
		request := core.Request{Keys: []core.Key{{By: "ip", Value: "a"}}}
		w := newLimited([]core.Rule{{Name: "r", By: "ip", Limit: core.Rate{N: 3, Per: 10}, For: own}})
		w.ask(0, "Do", request)
		for _, rule := range []core.Rule{
			{Limit: core.Rate{N: 2, Per: time.Hour}, For: own}, // others forget what is older than 10 ns
			{Limit: core.Rate{N: 2, Per: time.Hour}},
			{Limit: core.Rate{N: 1, Per: time.Hour}},
		} {
			time.Sleep(20 * time.Nanosecond)
			rule.Name, rule.By = "r", "ip"
			w.replace(0, []core.Rule{rule})
		}
		if a, _ := w.ask(0, "Try", request); a.ok {
			t.Error("admitted, though one was admitted in the hour and one may be")
		}
	})
}

// A script found it: a key that was counted in what others share got a smaller
// limit of its own, and what it had used counted there, in the larger limit, only.
func TestAKeyThatIsNamedWhileItSharesKeepsItsCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rule := core.Rule{Name: "r", By: "ip", Limit: core.Rate{N: 5, Per: time.Minute}, MaxKeys: 1}
		w := newLimited([]core.Rule{rule})
		for _, key := range []string{"seated", "a", "a"} {
			if a, _ := w.ask(0, "Do", of("ip", key)); !a.ok {
				t.Fatalf("%q: %v", key, a)
			}
		}
		time.Sleep(time.Second)
		rule.For = map[string]core.Limit{"a": core.Rate{N: 2, Per: time.Hour}}
		w.replace(0, []core.Rule{rule})
		for range 2 { // also after its units have left what is shared
			if a, _ := w.ask(0, "Do", of("ip", "a")); a.ok {
				t.Error("admitted, though two were admitted in the hour and two may be")
			}
			time.Sleep(time.Minute)
		}
	})
}

// A value that is in For has never shared its count, and a reload of something
// else must not make it.
func TestAKeyThatStaysInForSharesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limit := core.Rate{N: 3, Per: time.Minute}
		rule := core.Rule{Name: "r", By: "ip", Limit: limit, For: map[string]core.Limit{"named": limit}, MaxKeys: 1}
		w := newLimited([]core.Rule{rule})
		for i := range 2000 { // enough for each stripe
			w.ask(0, "Do", of("ip", fmt.Sprint(i)))
		}
		rule.MaxKeys = 2
		w.replace(0, []core.Rule{rule})
		for range limit.N {
			if a, _ := w.ask(0, "Do", of("ip", "named")); !a.ok {
				t.Fatalf("refused for others' sake: %v", a)
			}
		}
	})
}

// A script found it: what keys shared was looked at by the window of before the
// reload, in which it had left, and so forgotten.
func TestWhatIsSharedIsRememberedInALongerWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rule := core.Rule{Name: "r", By: "ip", Limit: core.Rate{N: 2, Per: time.Second}, MaxKeys: 1}
		w := newLimited([]core.Rule{rule})
		for _, key := range []string{"seated", "a", "a"} {
			if a, _ := w.ask(0, "Do", of("ip", key)); !a.ok {
				t.Fatalf("%q: %v", key, a)
			}
		}
		time.Sleep(time.Second - 1)
		rule.Limit, rule.MaxKeys = core.Rate{N: 2, Per: time.Hour}, 2
		w.replace(0, []core.Rule{rule})
		time.Sleep(time.Second)
		if a, _ := w.ask(0, "Do", of("ip", "a")); a.ok {
			t.Error("admitted, though two were admitted in the hour and two may be")
		}
	})
}
