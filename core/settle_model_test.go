package core_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/exactflow/exactflow/core"
)

// The model of what happens to a permit between decision and release, in its most
// obvious form: every rule has a list of charges, and every charge says whose it is.
// Time comes as an argument, one thing happens after the other.
type desk struct {
	rules []*deskRule
}

type deskRule struct {
	core.Rule
	charges []*charge
	failed  uint64
}

// A charge is n units that one permit took of one key.
type charge struct {
	of        *visit
	key       string
	at        time.Duration
	n         int
	gone      bool // it has left the window
	undecided bool
}

// A visit is what an admitted request has.
type visit struct {
	key             string
	n               int
	priority        core.Priority
	failed, settled bool
	ready, over     bool
}

func (r *deskRule) n() int {
	switch limit := r.Limit.(type) {
	case core.Rate:
		return limit.N
	case core.InFlight:
		return limit.N
	}
	panic("no such kind here")
}

// kept is how much of N is not for a request.
func (r *deskRule) kept(p core.Priority) int {
	return [...]int{r.Reserve.Default + r.Reserve.Critical, r.Reserve.Critical, 0}[p+1]
}

// age marks what has left the window.
func (r *deskRule) age(now time.Duration) {
	limit, ok := r.Limit.(core.Rate)
	for _, c := range r.charges {
		c.gone = c.gone || ok && c.at <= now-limit.Per
	}
	r.charges = slices.DeleteFunc(r.charges, func(c *charge) bool {
		return c.n == 0 || c.gone && !c.undecided
	})
}

func (r *deskRule) used(key string, now time.Duration) (sum int) {
	r.age(now)
	for _, c := range r.charges {
		if c.key == key || r.By == "" {
			sum += c.n
		}
	}
	return sum
}

// when is when n more fit if no outcome is told: now, later, or unknown or never.
func (r *deskRule) when(key string, now time.Duration, n int, p core.Priority) time.Duration {
	size := r.n() - r.kept(p)
	if n > size {
		return never
	}
	if r.used(key, now)+n <= size {
		return now
	}
	limit, ok := r.Limit.(core.Rate)
	if !ok {
		return unknown
	}
	var leave []time.Duration // the decided leave by themselves
	for _, c := range r.charges {
		if (c.key == key || r.By == "") && !c.undecided {
			leave = append(leave, c.at+limit.Per)
		}
	}
	slices.Sort(leave)
	for _, t := range leave {
		sum := n
		for _, c := range r.charges {
			if (c.key == key || r.By == "") && (c.undecided || c.at+limit.Per > t) {
				sum += c.n
			}
		}
		if sum <= size {
			return t
		}
	}
	return unknown
}

func (r *deskRule) take(p *visit, now time.Duration, n int) {
	limit, _ := r.Limit.(core.Rate)
	_, flight := r.Limit.(core.InFlight)
	r.charges = append(r.charges, &charge{of: p, key: p.key, at: now, n: n, undecided: flight || limit.Charge != core.ChargeAll})
}

// has tells whether the rule charged the visit.
func (r *deskRule) has(p *visit) bool {
	return slices.ContainsFunc(r.charges, func(c *charge) bool { return c.of == p })
}

// try decides: the refusal is zero if the request was admitted.
func (d *desk) try(key string, n int, priority core.Priority, now time.Duration, look bool) (*visit, core.Refusal) {
	p := &visit{key: key, n: n, priority: priority}
	var latest, worst time.Duration = now, now
	for _, r := range d.rules {
		if r.Shadow {
			continue
		}
		t := r.when(key, now, n, priority)
		worst = max(worst, t)
		if t < unknown {
			latest = max(latest, t)
		}
	}
	switch {
	case worst == never:
		return nil, core.Refusal{Reason: core.ReasonNever, RetryAfter: latest - now}
	case worst == unknown:
		return nil, core.Refusal{Reason: core.ReasonInFlight, RetryAfter: latest - now}
	case worst > now:
		return nil, core.Refusal{Reason: core.ReasonRate, RetryAfter: latest - now, Known: true}
	}
	for _, r := range d.rules {
		if !look && (!r.Shadow || r.when(key, now, n, priority) == now) {
			r.take(p, now, n)
		}
	}
	return p, core.Refusal{}
}

// settle lowers or raises. In whose rules the visit has a charge is asked of the list
// that was made on entry: a charge may have left its window.
func (d *desk) settle(p *visit, took []*deskRule, n int, now time.Duration) bool {
	if p.over || p.settled || n < 0 {
		return false
	}
	if n > p.n {
		for _, r := range took {
			if slices.Contains(d.rules, r) && !r.Shadow && !r.readied(p) && r.when(p.key, now, n-p.n, p.priority) > now {
				return false
			}
		}
		for _, r := range took {
			if slices.Contains(d.rules, r) && !r.readied(p) && r.when(p.key, now, n-p.n, p.priority) == now {
				r.take(p, now, n-p.n)
			}
		}
	}
	for _, r := range took {
		r.age(now)
		for _, c := range r.charges {
			if c.of == p && n < p.n {
				c.n -= p.n - n
			}
		}
		r.age(now)
	}
	p.settled, p.n = true, n
	return true
}

// readied tells that the visit holds nothing of the rule any more.
func (r *deskRule) readied(p *visit) bool {
	limit, ok := r.Limit.(core.InFlight)
	return ok && limit.SetUp && p.ready
}

func (r *deskRule) drop(p *visit) {
	r.charges = slices.DeleteFunc(r.charges, func(c *charge) bool { return c.of == p })
}

func (d *desk) ready(p *visit, took []*deskRule) {
	if p.over {
		return
	}
	for _, r := range took {
		if limit, ok := r.Limit.(core.InFlight); ok && limit.SetUp {
			r.drop(p)
		}
	}
	p.ready = true
}

func (d *desk) release(p *visit, took []*deskRule, now time.Duration) {
	if p.over {
		return
	}
	p.over = true
	for _, r := range took {
		r.age(now)
		if p.failed {
			r.failed++
		}
		limit, ok := r.Limit.(core.Rate)
		switch {
		case !ok, limit.Charge == core.ChargeFailed && !p.failed, limit.Charge == core.ChargeSucceeded && p.failed:
			r.drop(p)
		default:
			for _, c := range r.charges {
				if c.of == p {
					c.undecided = false
				}
			}
		}
	}
}

// A settled permit, whatever is done to it in whatever order, has charged what the
// obvious model says, and everybody's next decision is as the model's.
func TestPermitsAreChargedAsTheModelSays(t *testing.T) {
	for seed := range uint64(1500) {
		synctest.Test(t, func(t *testing.T) { runDesk(t, rand.New(rand.NewPCG(seed, 7)), 80) })
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

func runDesk(t *testing.T, random *rand.Rand, length int) {
	const tick = 10 * time.Millisecond
	rate := func(charge core.Charge) core.Limit {
		return core.Rate{N: 1 + random.IntN(6), Per: tick * time.Duration(1+random.IntN(12)), Charge: charge}
	}
	var rules []core.Rule
	add := func(name string, limit core.Limit) {
		if random.IntN(2) == 0 {
			return
		}
		r := core.Rule{Name: name, Limit: limit, By: [...]string{"", "k", "k,resource"}[random.IntN(3)], Shadow: random.IntN(5) == 0}
		if random.IntN(4) == 0 {
			r.Reserve.Critical = random.IntN(2)
		}
		rules = append(rules, r)
	}
	add("all", rate(core.ChargeAll))
	add("failed", rate(core.ChargeFailed))
	add("succeeded", rate(core.ChargeSucceeded))
	add("held", core.InFlight{N: 1 + random.IntN(6)})
	add("set-up", core.InFlight{N: 1 + random.IntN(6), SetUp: true})
	l, err := core.New(rules...)
	if err != nil {
		t.Fatal(err)
	}
	d := new(desk)
	for _, r := range rules {
		d.rules = append(d.rules, &deskRule{Rule: r})
	}

	type held struct {
		visit  *visit
		permit core.Permit
		old    []core.Permit // detached from
		took   []*deskRule
	}
	var all []*held
	began := time.Now()
	said := fmt.Sprintf("rules %v\n", rules)
	say := func(format string, args ...any) {
		said += fmt.Sprintf("%v: ", time.Since(began)) + fmt.Sprintf(format, args...) + "\n"
	}
	for range length {
		now := time.Since(began)
		var h *held
		if len(all) > 0 {
			h = all[random.IntN(len(all))]
		}
		switch op := random.IntN(20); {
		case op < 4:
			time.Sleep(tick * time.Duration(random.IntN(4)))
			continue
		case op < 11 || h == nil:
			key, n, look := string(rune('a'+random.IntN(2))), 1+random.IntN(2)*random.IntN(3), random.IntN(6) == 0
			priority := core.Priority(random.IntN(3) - 1)
			r := core.Request{On: "x", Keys: []core.Key{{By: "k", Value: key}}, Cost: n, Priority: priority}
			want, refusal := d.try(key, n, priority, now, look)
			ask := l.Try
			if look {
				ask = l.Peek
			}
			permit, ok := ask(r)
			say("ask %q cost %d %v, look %v: %v %v", key, n, priority, look, ok, permit.Refusal())
			got := permit.Refusal()
			got.Rule, got.By = "", ""
			if !got.Known { // a refused permit of unknown end may tell an instant or not
				got.RetryAfter, refusal.RetryAfter = 0, 0
			}
			if ok != (want != nil) || got != refusal {
				t.Fatalf("%sask: admitted %v with %+v, want %v with %+v; rules %v", said, ok, got, want != nil, refusal, rules)
			}
			if ok && look {
				permit.Release()
				permit.Fail()
				if permit.Settle(0) && len(rules) > 0 && !allShadow(rules) {
					t.Fatalf("%sa look could be settled", said)
				}
			}
			if ok && !look {
				h := &held{visit: want, permit: permit}
				for _, r := range d.rules {
					if r.has(want) {
						h.took = append(h.took, r)
					}
				}
				all = append(all, h)
			}
		case op < 13:
			n := random.IntN(6) - 1
			want, got := d.settle(h.visit, h.took, n, now), h.permit.Settle(n)
			say("settle %q at %d: %v", h.visit.key, n, got)
			if len(rules) > 0 && got != want {
				t.Fatalf("%sSettle(%d) is %v, want %v; rules %v", said, n, got, want, rules)
			}
		case op < 14:
			say("fail %q", h.visit.key)
			h.permit.Fail()
			h.visit.failed = h.visit.failed || !h.visit.over
		case op < 15:
			say("ready %q", h.visit.key)
			h.permit.Ready()
			d.ready(h.visit, h.took)
		case op < 16:
			say("detach %q", h.visit.key)
			if p := h.permit.Detach(); p != (core.Permit{}) {
				h.old = append(h.old, h.permit)
				h.permit = p
			} else if !h.visit.over && len(rules) > 0 {
				t.Fatalf("%sDetach of a good permit is the zero Permit", said)
			}
		case op < 18:
			say("release %q of cost %d, failed %v, over %v", h.visit.key, h.visit.n, h.visit.failed, h.visit.over)
			for _, p := range h.old { // in vain
				p.Fail()
				p.Ready()
				p.Release()
				if p.Settle(0) {
					t.Fatalf("%sa permit that was detached from can be settled", said)
				}
			}
			h.permit.Release()
			d.release(h.visit, h.took, now)
		case op < 19 && len(rules) > 0:
			i := random.IntN(len(rules))
			for _, r := range d.rules {
				r.age(now)
			}
			switch random.IntN(3) {
			case 0: // gone and there again
				say("replace %q by itself, afresh", rules[i].Name)
				without := slices.Delete(slices.Clone(rules), i, i+1)
				if err := l.Replace(without...); err != nil {
					t.Fatal(err)
				}
				d.rules[i] = &deskRule{Rule: rules[i]}
			default:
				switch limit := rules[i].Limit.(type) {
				case core.Rate:
					limit.N, limit.Per = 1+random.IntN(6), tick*time.Duration(1+random.IntN(12))
					rules[i].Limit = limit
				case core.InFlight:
					limit.N = 1 + random.IntN(6)
					rules[i].Limit = limit
				}
				d.rules[i].Limit = rules[i].Limit
				say("replace %q: %v", rules[i].Name, rules[i].Limit)
			}
			if err := l.Replace(rules...); err != nil {
				t.Fatal(err)
			}
		case len(rules) > 0:
			i := random.IntN(len(rules))
			say("forget %q", rules[i].Name)
			if err := l.Forget(rules[i].Name); err != nil {
				t.Fatal(err)
			}
			for _, c := range d.rules[i].charges {
				if _, ok := rules[i].Limit.(core.Rate); ok {
					c.gone = true
				}
			}
			time.Sleep(time.Nanosecond) // what is admitted at the instant of a pardon may count as pardoned
		}
		for i, s := range l.Stats() {
			r := d.rules[i]
			r.age(time.Since(began))
			want := 0
			for _, c := range r.charges {
				if c.undecided {
					want += c.n
				}
			}
			if s.InFlight != want || s.Failed != r.failed {
				t.Fatalf("%srule %q has %d in flight and %d failed, want %d and %d; rules %v", said, s.Rule, s.InFlight, s.Failed, want, r.failed, rules)
			}
		}
	}
}

func allShadow(rules []core.Rule) bool {
	return !slices.ContainsFunc(rules, func(r core.Rule) bool { return !r.Shadow })
}

// Above 4096 units share entries. Whatever is settled, pardoned and changed at instants
// that share one, no more are kept in any window than N, and who is refused fits when it
// is told to come.
func TestASlicedRateNeverKeepsMoreThanN(t *testing.T) {
	for seed := range uint64(2000) {
		synctest.Test(t, func(t *testing.T) { runSlices(t, rand.New(rand.NewPCG(seed, 11))) })
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

func runSlices(t *testing.T, random *rand.Rand) {
	rate := func() core.Rate { // slices of 1 to 6
		return core.Rate{N: 4097 + random.IntN(100), Per: time.Duration(4000 + random.IntN(20_000))}
	}
	type taken struct {
		permit core.Permit
		at     time.Duration
		n      int
		gone   bool
	}
	limit := rate()
	l := limiterOf(t, core.Rule{Name: "r", Limit: limit})
	var all []*taken
	began := time.Now()
	said := fmt.Sprintln(limit)
	for range 80 {
		now := time.Since(began)
		kept := func() (sum int) {
			for _, u := range all {
				if u.gone = u.gone || u.at <= now-limit.Per; !u.gone {
					sum += u.n
				}
			}
			return sum
		}
		switch op := random.IntN(14); {
		case op < 3:
			time.Sleep(time.Duration(random.IntN(4)))
		case op < 4:
			time.Sleep(limit.Per / time.Duration(1+random.IntN(4)))
		case op < 9:
			n := 1 + random.IntN(2000)
			p, ok := l.Try(core.Request{Cost: n})
			said += fmt.Sprintln(now, "try", n, ok, p.Refusal())
			if ok {
				all = append(all, &taken{permit: p, at: now, n: n})
				if sum := kept(); sum > limit.N {
					t.Fatalf("%s%d units are kept, of %d", said, sum, limit.N)
				}
				break
			}
			time.Sleep(p.Refusal().RetryAfter)
			if p, ok = l.Try(core.Request{Cost: n}); !ok {
				t.Fatalf("%swho comes when it is told is refused: %v", said, p.Refusal())
			}
			now = time.Since(began)
			all = append(all, &taken{permit: p, at: now, n: n})
			if sum := kept(); sum > limit.N {
				t.Fatalf("%s%d units are kept, of %d", said, sum, limit.N)
			}
		case op < 12 && len(all) > 0:
			u := all[random.IntN(len(all))]
			if u.permit == (core.Permit{}) { // what a Settle has added
				break
			}
			n := random.IntN(u.n + 100)
			ok := u.permit.Settle(n)
			said += fmt.Sprintln(now, "settle", u.at, u.n, n, ok)
			switch {
			case ok && n > u.n:
				all = append(all, &taken{at: now, n: n - u.n})
			case ok:
				u.n = n
			}
			if sum := kept(); sum > limit.N && ok && n > u.n {
				t.Fatalf("%s%d units are kept, of %d", said, sum, limit.N)
			}
		case op < 13:
			said += fmt.Sprintln(now, "forget")
			if err := l.Forget("r"); err != nil {
				t.Fatal(err)
			}
			for _, u := range all {
				u.gone = true
			}
		default:
			kept()
			limit = rate()
			said += fmt.Sprintln(now, "replace", limit)
			replace(t, l, core.Rule{Name: "r", Limit: limit})
		}
	}
}
