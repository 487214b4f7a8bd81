package core_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/exactflow/exactflow/core"
)

// Who waits at one rule is foretold exactly: the model of decisions, and before
// each of its counts a slice of those who wait, in the order of their arrival. A
// script of arrivals, costs, deadlines, cancels, releases and changes of the rule
// is played by the limiter in a bubble, and by the model; after each event, who
// passed, who did not, why and when must be the same.

// tick is the unit of all times in a script. Deadlines and the ends of a queue's
// time fall between: what happens at one instant has no order.
const tick = 1000

// A soul is one who asks.
type soul struct {
	id       int
	r        core.Request
	arrived  int64
	deadline int64
	said     string // what it was told and when; "" while it waits
	grant    *grant
}

// A hall is the model of those who wait. All enforcing rules of its model have the
// same name and By.
type hall struct {
	*model
	lines map[string][]*soul
	fault string // what is wrong with it, for the negative control
	deaf  bool   // part of that
	// From here on the order of what happens at one instant decides, and nobody
	// can foretell that.
	vague bool
}

// word is what a soul is told, as both sides write it.
func word(now int64, what string, more any) string {
	if f, ok := more.(core.Refusal); ok {
		more = fmt.Sprintf("%s by %q %q after %d, known %v", "because of "+f.Reason.String(), f.Rule, f.By, f.RetryAfter, f.Known)
	}
	return fmt.Sprintf("%s at %d: %v", what, now, more)
}

func (h *hall) admit(now int64, s *soul) {
	a, g := h.try(now, s.r)
	if !a.ok { // below 0, and no rule
		s.said = word(now, "refused", a.refusal)
		return
	}
	s.said, s.grant = word(now, "passed", a.quotas[0]), g
}

func (h *hall) refuse(now int64, s *soul, v verdict, at int64, why core.Reason) {
	f := core.Refusal{Rule: v.rule.Name, By: v.rule.By, Reason: why}
	if at <= latest {
		f.RetryAfter, f.Known = time.Duration(at-now), true
	}
	v.rule.stat.Refused[why]++
	s.said = word(now, "refused", f)
}

// level is among whom the soul waits: it rises when half of its time is over, unless
// the Reserve keeps less from those above.
func (h *hall) level(now int64, s *soul, r core.Rule) int {
	own := int(s.r.Priority)
	if h.fault == "all are equal" {
		return 0
	}
	if now-s.arrived < int64(r.Queue.Wait-r.Queue.Wait/2) || h.fault == "nobody rises" {
		return own
	}
	kept := map[int]int{-1: r.Reserve.Default + r.Reserve.Critical, 0: r.Reserve.Critical, 1: 0}
	for own < 1 && kept[own+1] == kept[own] {
		own++
	}
	return own
}

// ahead is who waits before a newcomer.
func (h *hall) ahead(now int64, s *soul, line []*soul, r core.Rule) (before []*soul) {
	for _, o := range line {
		if h.level(now, o, r) >= h.level(now, s, r) {
			before = append(before, o)
		}
	}
	return before
}

// door is what the rule says to the soul; ok is false if there is none.
func (h *hall) door(now int64, s *soul) (v verdict, key string, ok bool) {
	enforcing, _ := h.look(now, s.r)
	if len(enforcing) == 0 {
		return verdict{}, "", false
	}
	return enforcing[0], fmt.Sprintf("%q", enforcing[0].count.values), true
}

// plain is the reason of a rule that nobody waits for.
func plain(at int64, behind bool) core.Reason {
	switch {
	case behind:
		return core.ReasonQueued
	case at == never:
		return core.ReasonNever
	case at == unknown:
		return core.ReasonInFlight
	}
	return core.ReasonRate
}

// arrive is Try, or Wait.
func (h *hall) arrive(now int64, s *soul, waits bool) {
	v, key, ok := h.door(now, s)
	if !ok {
		h.admit(now, s)
		return
	}
	line := h.ahead(now, s, h.lines[key], v.rule.Rule)
	at, behind := v.opens, v.opens <= now && len(line) > 0
	if behind && h.fault == "newcomers pass" {
		behind = false
	}
	if at <= now && !behind {
		h.admit(now, s)
		return
	}
	if behind {
		at = unknown
	}
	why := plain(at, behind)
	if q := v.rule.Queue; waits && q.Len > 0 && at != never {
		switch {
		case len(line) >= q.Len && h.fault != "no bound":
			why = core.ReasonQueueFull
		case h.soonest(now, v, line, cmp.Or(s.r.Cost, 1)) > min(s.deadline, s.arrived+int64(q.Wait)):
			why = core.ReasonQueueTimeout
		default:
			h.lines[key] = append(h.lines[key], s)
			return
		}
	}
	h.refuse(now, s, v, at, why)
}

// soonest lets all ahead, and then n units more, pass as early as they can; with them
// could pass what is kept. And it does so with those only from whom as much is kept, as
// if N were smaller by that. The later of the two counts.
func (h *hall) soonest(now int64, v verdict, line []*soul, n int) int64 {
	if _, per := size(v.limit); per == 0 {
		return now
	}
	ahead, alike := n, n
	for _, s := range line {
		if h.fault == "those ahead are not counted" {
			break
		}
		ahead += cmp.Or(s.r.Cost, 1)
		if v.rule.kept(v.limit, core.Priority(h.level(now, s, v.rule.Rule))) == v.kept {
			alike += cmp.Or(s.r.Cost, 1)
		}
	}
	return max(kth(now, v, ahead+v.kept, 0), kth(now, v, alike, v.kept))
}

// kth lets n units pass one by one, each not before the one that was N before it has
// left; of N a part is kept.
func kth(now int64, v verdict, n, kept int) int64 {
	size, per := size(v.limit)
	var passed []int64
	for _, u := range v.count.units {
		for range u.n {
			if leaves(u, per) > now {
				passed = append(passed, u.at)
			}
		}
	}
	at := now
	for range n {
		if i := len(passed) - (size - kept); i >= 0 {
			at = max(at, passed[i]+int64(per))
		}
		passed = append(passed, at)
	}
	return at
}

// settle lets all who stand in line look, until nothing changes any more.
func (h *hall) settle(now int64) {
	if h.deaf {
		h.deaf = false
		return
	}
	for _, key := range slices.Sorted(maps.Keys(h.lines)) {
		h.settleLine(now, key)
	}
}

func (h *hall) settleLine(now int64, key string) {
	line := slices.Clone(h.lines[key])
	if len(line) == 0 {
		return
	}
	sort := func() {
		slices.SortFunc(line, func(a, b *soul) int {
			var r core.Rule // there is none: nobody is behind anybody
			if v, _, ok := h.door(now, a); ok {
				r = v.rule.Rule
			}
			return cmp.Or(cmp.Compare(h.level(now, b, r), h.level(now, a, r)), cmp.Compare(a.id, b.id))
		})
	}
	sort()
	first := line[0]
	var admitted, refusedBehind bool
	for i, s := range line {
		v, _, ok := h.door(now, s)
		if !ok {
			continue
		}
		over := v.rule.Queue.Len > 0 && now >= s.arrived+int64(v.rule.Queue.Wait)
		if v.opens <= now && (over && i > 0 || now >= s.deadline) {
			h.vague = true // it passes, if it is late enough to be first, and soon enough
		}
	}
	for i := 0; i < len(line); i++ {
		s := line[i]
		v, _, ok := h.door(now, s)
		at := v.opens
		turn := i == 0
		if h.fault == "last in, first out" {
			turn = i == len(line)-1
		}
		switch {
		case now >= s.deadline:
			s.said = word(now, context.DeadlineExceeded.Error(), nil)
			if ok {
				v.rule.stat.Canceled++
			}
		case !ok || turn && at <= now:
			h.admit(now, s)
			admitted = true
		case at == never:
			h.refuse(now, s, v, at, core.ReasonNever)
		case v.rule.Queue.Len == 0 || now >= s.arrived+int64(v.rule.Queue.Wait):
			behind := at <= now
			if behind {
				at = unknown
			}
			why := core.ReasonQueueTimeout
			if v.rule.Queue.Len == 0 {
				why = plain(at, behind)
			}
			h.refuse(now, s, v, at, why)
			refusedBehind = refusedBehind || s != first
		default:
			continue
		}
		line = slices.Delete(line, i, i+1)
		i = -1
	}
	h.lines[key] = line
	h.vague = h.vague || admitted && refusedBehind
}

// cancel takes away one who waits.
func (h *hall) cancel(now int64, s *soul) {
	v, key, ok := h.door(now, s)
	if ok {
		v.rule.stat.Canceled++
	}
	h.lines[key] = slices.DeleteFunc(slices.Clone(h.lines[key]), func(o *soul) bool { return o == s })
	s.said = word(now, context.Canceled.Error(), nil)
	h.deaf = h.fault == "nobody is woken"
}

// pass lets the time pass, from one instant at which something happens to the next.
func (h *hall) pass(from, to int64) {
	for {
		at := h.events(from)
		for _, line := range h.lines {
			for _, s := range line {
				at = append(at, s.deadline)
				if v, _, ok := h.door(from, s); ok {
					wait := int64(v.rule.Queue.Wait)
					at = append(at, s.arrived+wait-wait/2, s.arrived+wait)
				}
			}
		}
		at = slices.DeleteFunc(at, func(t int64) bool { return t <= from })
		if len(at) == 0 || slices.Min(at) > to {
			return
		}
		from = slices.Min(at)
		h.settle(from)
	}
}

// A vigil is one script on its way.
type vigil struct {
	source
	start   time.Time
	rules   []core.Rule
	hall    *hall
	limiter *core.Limiter
	souls   []*soul
	seen    []*witness
	lines   []string
	wrong   string
	stats   map[string]int // how often each answer was given
}

// A witness is the limiter's side of a soul.
type witness struct {
	mu     sync.Mutex // of said: a bubble's clock tells the race detector nothing
	said   string
	permit core.Permit
	cancel func()
	given  bool
}

func (w *vigil) now() int64 { return int64(time.Since(w.start)) }

func (w *vigil) note(format string, args ...any) {
	w.lines = append(w.lines, fmt.Sprintf("%d\t", w.now())+fmt.Sprintf(format, args...))
}

func (w *vigil) trace() string { return "at\n" + strings.Join(w.lines, "\n") }

func (w *vigil) drawQueue() core.Queue {
	return core.Queue{
		Len:  1 + w.pick(8),
		Wait: tick*[]time.Duration{3, 10, 40, 40, 200}[w.pick(5)] + 500 + time.Duration(w.pick(50)),
	}
}

func (w *vigil) drawLimit(k string) core.Limit {
	if k == "rate" {
		return core.Rate{N: 1 + w.pick(6), Per: tick * []time.Duration{5, 10, 10, 20, 50}[w.pick(5)]}
	}
	return core.InFlight{N: 1 + w.pick(4)}
}

// drawRule draws the rule, or a change of it.
func (w *vigil) drawRule(old *core.Rule) core.Rule {
	if old == nil {
		r := core.Rule{Name: "r", By: []string{"", "user"}[w.pick(2)]}
		r.Limit = w.drawLimit([]string{"rate", "in flight"}[w.pick(2)])
		r.Queue = w.drawQueue()
		return w.drawReserve(r)
	}
	r := *old
	switch w.pick(8) {
	case 0, 1, 2:
		r.Limit = w.drawLimit(kind(r))
	case 3:
		r.Queue = w.drawQueue()
	case 4:
		r.Queue = core.Queue{Len: 1 + w.pick(4), Wait: max(r.Queue.Wait, tick+500)}
	case 5:
		r.Queue = core.Queue{}
	case 6:
		if r.By != "" {
			r.For = map[string]core.Limit{"ann": []core.Limit{w.drawLimit(kind(r)), core.InFlight{}, core.Unlimited{}}[w.pick(3)]}
		}
	case 7:
		r.Limit, r.Queue = w.drawLimit(kind(r)), w.drawQueue()
	}
	return w.drawReserve(r)
}

// drawReserve gives some rules a Reserve that all their limits have room for.
func (w *vigil) drawReserve(r core.Rule) core.Rule {
	least := 6
	for _, l := range append(slices.Collect(maps.Values(r.For)), r.Limit) {
		if kindOf(l) == "" {
			continue
		}
		if n, _ := size(l); n > 0 {
			least = min(least, n)
		}
	}
	r.Reserve = core.Reserve{}
	if w.pick(6) == 0 {
		r.Reserve.Critical = w.pick(least + 1)
		r.Reserve.Default = w.pick(least - r.Reserve.Critical + 1)
	}
	return r
}

func (w *vigil) drawRequest() core.Request {
	r := core.Request{Keys: []core.Key{{By: "user", Value: []string{"ann", "ann", "bob", ""}[w.pick(4)]}}}
	switch k := w.pick(16); {
	case k < 9:
		r.Cost = k & 1
	case k < 15:
		r.Cost = 1 + w.pick(4)
	default:
		r.Cost = []int{-1, 7}[w.pick(2)]
	}
	r.Priority = core.Priority([]int{0, 0, 0, 0, 0, -1, -1, 1, 1}[w.pick(9)])
	return r
}

// run plays until the script ends or something is wrong.
func (w *vigil) run(fault string) {
	w.b = w.b[:min(len(w.b), 2000)]
	w.stats = map[string]int{}
	w.rules = []core.Rule{w.drawRule(nil)}
	w.start = time.Now()
	w.hall = &hall{model: newModel(w.rules...), lines: map[string][]*soul{}, fault: fault}
	var err error
	if w.limiter, err = core.New(w.rules...); err != nil {
		panic(err)
	}
	w.note("New%v %v", show(w.rules), w.rules[0].Queue)
	for len(w.b) > 0 && w.wrong == "" && !w.hall.vague {
		switch k := w.pick(64); {
		case k < 24:
			w.ask(true)
		case k < 28:
			w.ask(false)
		case k < 30:
			for range 2 + w.pick(6) {
				w.ask(true)
			}
		case k < 42:
			w.sleep()
		case k < 52:
			w.release()
		case k < 57:
			w.cancel()
		case k < 61:
			w.replace()
		case k < 63:
			w.note("Forget")
			w.hall.forget("r")
			w.limiter.Forget("r") // an error where there is no rule
			synctest.Wait()
		}
		w.hall.settle(w.now())
		w.compare()
	}
	for _, s := range w.seen {
		s.cancel()
	}
	synctest.Wait()
}

func (w *vigil) ask(waits bool) {
	now := w.now()
	s := &soul{id: len(w.souls), r: w.drawRequest(), arrived: now, deadline: latest}
	o := new(witness)
	ctx, cancel := context.WithCancel(context.Background())
	o.cancel = cancel
	if waits && w.pick(4) == 0 {
		d := int64(1+w.pick(30))*tick + 1 + int64(s.id%400) // all at instants of their own
		s.deadline = now + d
		ctx, o.cancel = context.WithTimeout(ctx, time.Duration(d))
	}
	w.souls, w.seen = append(w.souls, s), append(w.seen, o)
	w.hall.arrive(now, s, waits)
	what := "Try"
	if waits {
		what = fmt.Sprintf("Wait until %d", s.deadline)
		go func() {
			p, err := w.limiter.Wait(ctx, s.r)
			o.tell(w.now(), p, err)
		}()
		synctest.Wait()
	} else {
		p, ok := w.limiter.Try(s.r)
		var err error
		if !ok {
			err = core.ErrRefused
		}
		o.tell(now, p, err)
	}
	w.note("#%d %s(%s) = %q", s.id, what, showRequest(s.r), o.heard())
}

// heard is what the limiter has said so far.
func (o *witness) heard() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.said
}

func (o *witness) tell(now int64, p core.Permit, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.permit = p
	switch {
	case err == nil:
		o.said = word(now, "passed", p.Quota())
	case errors.Is(err, core.ErrRefused):
		o.said = word(now, "refused", p.Refusal())
	default:
		o.said = word(now, err.Error(), nil)
	}
}

// sleep goes on by some ticks, or to where something happens.
func (w *vigil) sleep() {
	now := w.now()
	d := int64(1+w.pick(12)) * tick
	if at := w.hall.events(now); len(at) > 0 && w.pick(2) == 0 && (at[0]-now)%tick == 0 {
		d = at[0] - now
	}
	w.note("sleep %d", d)
	time.Sleep(time.Duration(d))
	synctest.Wait()
	w.hall.pass(now, now+d)
}

// one of the souls for which is true, or -1.
func (w *vigil) one(is func(i int) bool) int {
	var some []int
	for i := range w.souls {
		if is(i) {
			some = append(some, i)
		}
	}
	if len(some) == 0 {
		return -1
	}
	return one(&w.source, some)
}

func (w *vigil) release() {
	i := w.one(func(i int) bool { return w.souls[i].grant != nil && !w.seen[i].given })
	if i < 0 {
		return
	}
	w.note("release #%d", i)
	w.seen[i].given = true
	w.hall.release(w.souls[i].grant, false)
	w.seen[i].permit.Release()
	synctest.Wait()
}

func (w *vigil) cancel() {
	i := w.one(func(i int) bool { return w.souls[i].said == "" })
	if i < 0 {
		return
	}
	w.note("cancel #%d", i)
	w.hall.cancel(w.now(), w.souls[i])
	w.seen[i].cancel()
	synctest.Wait()
}

func (w *vigil) replace() {
	switch {
	case len(w.rules) == 0:
		w.rules = []core.Rule{w.drawRule(nil)}
	case w.pick(12) == 0:
		w.rules = nil
	default:
		w.rules = []core.Rule{w.drawRule(&w.rules[0])}
	}
	w.note("Replace%v %v", show(w.rules), w.rules)
	w.hall.replace(w.now(), w.rules...)
	if err := w.limiter.Replace(w.rules...); err != nil {
		w.wrong = err.Error()
	}
	synctest.Wait()
}

// compare looks for a difference.
func (w *vigil) compare() {
	if w.wrong != "" || w.hall.vague {
		return
	}
	for i, s := range w.souls {
		if said := w.seen[i].heard(); s.said != said {
			w.wrong = fmt.Sprintf("at %d #%d: %q; the model says %q", w.now(), i, said, s.said)
			return
		}
	}
	var waits int
	for _, line := range w.hall.lines {
		waits += len(line)
	}
	for i, g := range w.limiter.Stats() {
		m := w.hall.rules[i].stat
		refused := maps.Clone(m.Refused)
		if g.Admitted != m.Admitted || g.InFlight != m.InFlight || g.Canceled != m.Canceled || g.Waiting != waits || !maps.Equal(g.Refused, refused) {
			w.wrong = fmt.Sprintf("at %d stats are %+v\nthe model's %+v, and %d wait", w.now(), g, m, waits)
		}
	}
}

// count notes which answers a script has had.
func (w *vigil) count() {
	for _, s := range w.souls {
		what := strings.SplitN(s.said, " at ", 2)[0]
		if what == "passed" && !strings.Contains(s.said, fmt.Sprintf("at %d:", s.arrived)) {
			what = "passed later"
		}
		if _, why, ok := strings.Cut(s.said, "because of "); ok {
			what, _, _ = strings.Cut(why, " ")
		}
		w.stats[what]++
	}
}

// TestWhoWaitsIsAsTheModelForetells plays many scripts, always the same.
func TestWhoWaitsIsAsTheModelForetells(t *testing.T) {
	answers := map[string]int{}
	vague, all := 0, 0
	for seed := range uint64(1500 / slower) {
		synctest.Test(t, func(t *testing.T) {
			w := vigil{source: source{scriptOf(seed)}}
			w.run("")
			if w.wrong != "" {
				t.Fatalf("script %d\n%s\n%s", seed, w.trace(), w.wrong)
			}
			all++
			if w.hall.vague {
				vague++
			}
			w.count()
			for what, n := range w.stats {
				answers[what] += n
			}
		})
	}
	t.Logf("%d scripts, %d of them until the order at one instant decides: %v", all, vague, answers)
	for _, what := range []string{"passed", "passed later", "context canceled", "context deadline exceeded", "never",
		"in_flight", "rate", "queued", "queue_full", "queue_timeout"} {
		if answers[what] < 100/slower {
			t.Errorf("%q was answered %d times only", what, answers[what])
		}
	}
	if vague > all/2 {
		t.Errorf("%d of %d scripts are vague", vague, all)
	}
}

// FuzzWhoWaits plays what a fuzzer finds.
func FuzzWhoWaits(f *testing.F) {
	for seed := range uint64(50) {
		f.Add(scriptOf(seed))
	}
	f.Fuzz(func(t *testing.T, script []byte) {
		synctest.Test(t, func(t *testing.T) {
			w := vigil{source: source{script}}
			w.run("")
			if w.wrong != "" {
				t.Fatalf("%s\n%s", w.trace(), w.wrong)
			}
		})
	})
}

// TestTheModelOfWhoWaitsFindsWhatIsBroken is the negative control: a model with a
// fault that queues are known for must be found to differ.
func TestTheModelOfWhoWaitsFindsWhatIsBroken(t *testing.T) {
	for _, fault := range []string{"newcomers pass", "last in, first out", "nobody is woken", "those ahead are not counted", "no bound", "all are equal", "nobody rises"} {
		t.Run(fault, func(t *testing.T) {
			found, wrong := 0, ""
			for seed := range uint64(100) {
				synctest.Test(t, func(t *testing.T) {
					w := vigil{source: source{scriptOf(seed)}}
					w.run(fault)
					if w.wrong != "" {
						found++
						wrong = w.wrong
					}
				})
			}
			if found == 0 {
				t.Error("100 scripts, and nothing is wrong")
			}
			t.Logf("found in %d of 100 scripts; %s", found, wrong)
		})
	}
}

// Where requests wait at several doors in turn, what happens at one instant has
// an order that decides much. So here no model foretells; but all that passed is
// put into the model of decisions in the order of time, and at each moment of rest
// the following must hold: each that passed had room at all its rules; each that
// was refused was refused by a rule that had none, or by a line, or by the time;
// nobody waits who has room at all its rules and nobody before it at any of them;
// nobody waits longer than allowed; and Stats counts those who wait, no more, no
// less. At last nobody waits.

// A wing is one such script on its way.
type wing struct {
	vigil
	model   *model
	grants  []*grant
	told    []witnessed       // as of the last rest
	mu      sync.Mutex        // of fresh: a bubble's clock tells the race detector nothing
	fresh   map[int]witnessed // what came since
	longest time.Duration     // that any rule ever let wait
	fault   string            // what the model is told wrongly, for the negative control
}

// A witnessed is what the limiter told a soul.
type witnessed struct {
	at      int64
	back    bool
	err     error
	permit  core.Permit
	refusal core.Refusal
}

func (w *wing) drawRules(old []core.Rule) (rules []core.Rule) {
	for i, name := range []string{"a", "b", "c", "d"} {
		if was := slices.IndexFunc(old, func(r core.Rule) bool { return r.Name == name }); was >= 0 && w.pick(3) > 0 {
			rules = append(rules, old[was])
			continue
		}
		if i > 1 && w.pick(2) == 0 {
			continue
		}
		r := core.Rule{Name: name, On: []string{"", "*x*", "*y*", "*z*"}[w.pick(4)], By: []string{"", "", "user"}[w.pick(3)]}
		r.Limit = w.drawLimit([]string{"rate", "in flight"}[w.pick(2)])
		r.Shadow = name == "d" // what it takes depends on who of one instant is first
		if w.pick(8) > 0 {
			r.Queue = w.drawQueue()
		}
		if r.By != "" && w.pick(3) == 0 {
			r.For = map[string]core.Limit{"ann": []core.Limit{w.drawLimit(kind(r)), core.InFlight{}, core.Unlimited{}}[w.pick(3)]}
		}
		w.longest = max(w.longest, r.Queue.Wait)
		rules = append(rules, w.drawReserve(r))
	}
	if w.pick(2) == 0 {
		slices.Reverse(rules)
	}
	return rules
}

// run plays.
func (w *wing) run() {
	w.b = w.b[:min(len(w.b), 2000)]
	w.rules = w.drawRules(nil)
	w.start = time.Now()
	w.model, w.fresh = newModel(w.rules...), map[int]witnessed{}
	var err error
	if w.limiter, err = core.New(w.rules...); err != nil {
		panic(err)
	}
	w.note("New%v", show(w.rules))
	for len(w.b) > 0 && w.wrong == "" {
		switch k := w.pick(64); {
		case k < 24:
			w.ask(true)
		case k < 28:
			w.ask(false)
		case k < 30:
			for range 2 + w.pick(6) {
				w.ask(true)
			}
		case k < 42:
			d := time.Duration(1+w.pick(12)) * tick
			w.note("sleep %d", d)
			time.Sleep(d)
		case k < 52:
			if i := w.some(func(i int) bool { return w.grants[i] != nil && !w.grants[i].given }); i >= 0 {
				w.note("release #%d", i)
				w.model.release(w.grants[i], false)
				if w.fault != "slots are lost" {
					w.told[i].permit.Release()
				}
			}
		case k < 57:
			if i := w.some(func(i int) bool { return !w.told[i].back }); i >= 0 {
				w.note("cancel #%d", i)
				w.seen[i].cancel()
			}
		case k < 61:
			w.rules = w.drawRules(w.rules)
			w.note("Replace%v", show(w.rules))
			w.model.replace(w.now(), w.rules...)
			if err := w.limiter.Replace(w.rules...); err != nil {
				w.wrong = err.Error()
			}
		case k < 63 && len(w.rules) > 0:
			name := one(&w.source, w.rules).Name
			w.note("Forget %s", name)
			w.model.forget(name)
			w.limiter.Forget(name)
		}
		w.rest()
	}
	if w.wrong == "" {
		w.end()
	}
	for _, o := range w.seen {
		o.cancel()
	}
	synctest.Wait()
}

func (w *wing) some(is func(i int) bool) int {
	return w.one(is)
}

func (w *wing) ask(waits bool) {
	now := w.now()
	s := &soul{id: len(w.souls), r: w.drawRequest(), arrived: now, deadline: latest}
	s.r.On = []string{"x", "y", "z", "x y", "y z", "x y z"}[w.pick(6)]
	ctx, cancel := context.WithCancel(context.Background())
	if waits && w.pick(4) == 0 {
		d := int64(1+w.pick(30))*tick + 1 + int64(s.id%400)
		s.deadline = now + d
		ctx, cancel = context.WithTimeout(ctx, time.Duration(d))
	}
	i := s.id
	w.souls, w.seen = append(w.souls, s), append(w.seen, &witness{cancel: cancel})
	w.grants, w.told = append(w.grants, nil), append(w.told, witnessed{})
	tell := func(p core.Permit, err error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.fresh[i] = witnessed{w.now(), true, err, p, p.Refusal()}
	}
	if waits {
		go func() { tell(w.limiter.Wait(ctx, s.r)) }()
		synctest.Wait()
	} else {
		p, ok := w.limiter.Try(s.r)
		if tell(p, nil); !ok {
			tell(p, core.ErrRefused)
		}
	}
	w.note("#%d waits %v until %d (%s)", i, waits, s.deadline, showRequest(s.r))
	w.rest()
}

// rest judges a moment in which nobody runs.
func (w *wing) rest() {
	synctest.Wait()
	if w.wrong != "" {
		return
	}
	var news []int
	w.mu.Lock()
	for i, o := range w.fresh {
		w.told[i] = o
		news = append(news, i)
	}
	clear(w.fresh)
	w.mu.Unlock()
	slices.Sort(news)
	// At one instant those who passed come first, and of these those from whom more is
	// kept: if there is an order in which they all could pass, it is one.
	slices.SortStableFunc(news, func(i, j int) int {
		return cmp.Or(cmp.Compare(w.told[i].at, w.told[j].at), cmp.Compare(rank(w.told[i].err), rank(w.told[j].err)),
			cmp.Compare(w.souls[i].r.Priority, w.souls[j].r.Priority))
	})
	for _, i := range news {
		w.note("#%d at %d: %v %+v", i, w.told[i].at, w.told[i].err, w.told[i].refusal)
		if w.wrong = w.judge(i); w.wrong != "" {
			w.wrong = fmt.Sprintf("at %d #%d: %s", w.told[i].at, i, w.wrong)
			return
		}
	}
	now, waits := w.now(), 0
	type place struct { // of one who waits, at one of the doors that it needs
		level, id int
	}
	first := map[string]place{} // of each door
	before := func(a, b place) bool { return a.level > b.level || a.level == b.level && a.id < b.id }
	at := func(i int, v verdict) (string, place) {
		return fmt.Sprintf("%s %q", v.rule.Name, v.count.values), place{(&hall{}).level(now, w.souls[i], v.rule.Rule), i}
	}
	for i, s := range w.souls {
		if w.told[i].back {
			continue
		}
		enforcing, _ := w.model.look(now, s.r)
		for _, v := range enforcing {
			door, p := at(i, v)
			if f, ok := first[door]; !ok || before(p, f) {
				first[door] = p
			}
		}
	}
	for i, s := range w.souls {
		if w.told[i].back {
			continue
		}
		waits++
		if now >= s.deadline || now >= s.arrived+int64(w.longest) {
			w.wrong = fmt.Sprintf("at %d #%d waits still", now, i)
		}
		enforcing, _ := w.model.look(now, s.r)
		open, turn := true, true
		for _, v := range enforcing {
			door, p := at(i, v)
			open, turn = open && v.opens <= now, turn && first[door] == p
		}
		if open && turn {
			w.wrong = fmt.Sprintf("at %d #%d waits, and all its rules have room", now, i)
		}
	}
	sum := 0
	for i, g := range w.limiter.Stats() {
		sum += g.Waiting
		m := w.model.rules[i].stat
		if w.wrong == "" && (g.InFlight != m.InFlight || g.Admitted != m.Admitted) && w.fault == "" && !w.rules[i].Shadow {
			w.wrong = fmt.Sprintf("at %d: stats are %+v\nthe model's %+v", now, g, m)
		}
	}
	if sum != waits {
		w.wrong = fmt.Sprintf("at %d: %d wait; Stats says %d", now, waits, sum)
	}
}

func rank(err error) int {
	if err == nil {
		return 0
	}
	return 1
}

// judge looks whether what a soul was told can be true.
func (w *wing) judge(i int) string {
	s, o := w.souls[i], w.told[i]
	enforcing, _ := w.model.look(o.at, s.r)
	switch {
	case o.err == nil:
		a, g := w.model.try(o.at, s.r)
		if !a.ok {
			return fmt.Sprintf("it passed; the model says %s", a)
		}
		w.grants[i] = g
		if w.fault == "one too many" {
			for _, t := range g.took {
				if _, ok := t.rule.Limit.(core.Rate); ok {
					t.count.units = append(t.count.units, unit{o.at, 1})
				}
			}
		}
		return ""
	case errors.Is(o.err, context.Canceled):
		return ""
	case errors.Is(o.err, context.DeadlineExceeded):
		if o.at != s.deadline {
			return "it ends before its deadline, or after"
		}
		return ""
	case !errors.Is(o.err, core.ErrRefused):
		return o.err.Error()
	}
	v := verdict{opens: open}
	for _, e := range enforcing {
		if e.rule.Name == o.refusal.Rule {
			v = e
		}
	}
	if v.rule == nil && o.refusal.Rule != "" {
		return "no such rule is for it"
	}
	switch why := o.refusal.Reason; {
	case why == core.ReasonNever && (s.r.Cost < 0 || v.opens == never):
	case why == core.ReasonRate && v.opens > o.at && v.opens <= latest:
	case why == core.ReasonInFlight && v.opens == unknown:
	case why == core.ReasonQueued:
	case why == core.ReasonQueueFull && o.at == s.arrived:
	case why == core.ReasonQueueTimeout && o.at == s.arrived && w.tooLate(s, enforcing):
	case why == core.ReasonQueueTimeout && o.at >= s.arrived+int64(v.rule.Queue.Wait):
	default:
		return fmt.Sprintf("it was refused with %+v; the model says %d", o.refusal, v.opens)
	}
	return ""
}

// tooLate reports that the wait of one who has just come may not end in time at some
// of its rules: if all who wait and need that too are ahead of it there.
func (w *wing) tooLate(s *soul, enforcing []verdict) bool {
	for _, v := range enforcing {
		var line []*soul
		for j, o := range w.souls {
			if o == s || o.r.Cost < 0 || w.told[j].back && w.told[j].at < s.arrived {
				continue
			}
			others, _ := w.model.look(s.arrived, o.r)
			if slices.ContainsFunc(others, func(other verdict) bool { return other.count == v.count }) {
				line = append(line, o)
			}
		}
		h := hall{model: w.model}
		if v.rule.Queue.Len > 0 && v.opens != never && h.soonest(s.arrived, v, line, cmp.Or(s.r.Cost, 1)) > min(s.deadline, s.arrived+int64(v.rule.Queue.Wait)) {
			return true
		}
	}
	return false
}

const open = -1 << 63

// end lets all come to their end.
func (w *wing) end() {
	w.note("the end")
	time.Sleep(w.longest)
	w.rest()
	for i := range w.told {
		if !w.told[i].back && w.wrong == "" {
			w.wrong = fmt.Sprintf("#%d waits for ever", i)
		}
		if w.grants[i] != nil {
			w.model.release(w.grants[i], false)
			w.told[i].permit.Release()
		}
	}
	w.rest()
	for _, s := range w.limiter.Stats() {
		if (s.InFlight != 0 || s.Waiting != 0) && w.wrong == "" {
			w.wrong = fmt.Sprintf("at the end: %+v", s)
		}
	}
}

// TestWhoWaitsAtSeveralDoors plays many scripts, always the same.
func TestWhoWaitsAtSeveralDoors(t *testing.T) {
	said := map[string]int{}
	for seed := range uint64(1500 / min(slower, 4)) {
		synctest.Test(t, func(t *testing.T) {
			w := wing{vigil: vigil{source: source{scriptOf(seed)}}}
			w.run()
			if w.wrong != "" {
				t.Fatalf("script %d\n%s\n%s", seed, w.trace(), w.wrong)
			}
			for i, o := range w.told {
				switch {
				case o.err == nil && o.at > w.souls[i].arrived:
					said["passed later"]++
				case errors.Is(o.err, core.ErrRefused) && o.at > w.souls[i].arrived:
					said[o.refusal.Reason.String()+" later"]++
				default:
					said[fmt.Sprint(o.err, o.refusal.Reason)]++
				}
			}
		})
	}
	t.Logf("%v", said)
	for _, what := range []string{"passed later", "queue_timeout later", "rate later", "in_flight later", "never later"} {
		if said[what] < 60/slower {
			t.Errorf("%q was answered %d times only", what, said[what])
		}
	}
}

// FuzzSeveralDoors plays what a fuzzer finds.
func FuzzSeveralDoors(f *testing.F) {
	for seed := range uint64(50) {
		f.Add(scriptOf(seed))
	}
	f.Fuzz(func(t *testing.T, script []byte) {
		synctest.Test(t, func(t *testing.T) {
			w := wing{vigil: vigil{source: source{script}}}
			w.run()
			if w.wrong != "" {
				t.Fatalf("%s\n%s", w.trace(), w.wrong)
			}
		})
	})
}

// TestTheChecksOfSeveralDoorsFindWhatIsBroken is their negative control.
func TestTheChecksOfSeveralDoorsFindWhatIsBroken(t *testing.T) {
	for _, fault := range []string{"slots are lost", "one too many"} {
		found, wrong := 0, ""
		for seed := range uint64(100) {
			synctest.Test(t, func(t *testing.T) {
				w := wing{vigil: vigil{source: source{scriptOf(seed)}}, fault: fault}
				w.run()
				if w.wrong != "" {
					found++
					wrong = w.wrong
				}
				for _, o := range w.told {
					o.permit.Release()
				}
			})
		}
		if found < 10 {
			t.Errorf("%s: found in %d of 100 scripts", fault, found)
		}
		t.Logf("%s: found in %d of 100 scripts; %s", fault, found, wrong)
	}
}
