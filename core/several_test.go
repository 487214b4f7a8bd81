package core_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/exactflow/exactflow/core"
)

// One per minute refuses nine of ten, and a hundred per hour stands before it in
// the list. Who charges one rule after the other has spent ten of the hundred.
func TestARefusalChargesNobody(t *testing.T) {
	hour := core.Rule{Name: "hour", Limit: core.Rate{N: 100, Per: time.Hour}}
	minute := core.Rule{Name: "minute", On: "orders", Limit: core.Rate{N: 1, Per: time.Minute}}
	for _, rules := range [][]core.Rule{{hour, minute}, {minute, hour}} {
		synctest.Test(t, func(t *testing.T) {
			l := limiterOf(t, rules...)
			if n := passes(l, core.Request{On: "orders"}, 10); n != 1 {
				t.Errorf("%d of 10 passed; want 1", n)
			}
			if n := passes(l, core.Request{On: "other"}, 200); n != 99 {
				t.Errorf("of the hour's hundred %d were left; want 99", n)
			}
		})
	}
}

// A slot is taken, so five calls are refused. The budget beside it is what it was.
func TestAFullHouseSpendsNoBudget(t *testing.T) {
	l := limiterOf(t, rate(5, time.Hour), inFlight(1))
	p := hold(t, l, core.Request{})
	if n := passes(l, core.Request{}, 5); n != 0 {
		t.Errorf("%d passed; want none", n)
	}
	p.Release()
	if n := passes(l, core.Request{}, 10); n != 4 {
		t.Errorf("%d of the budget were left; want 4", n)
	}
}

// And the other way around: a spent budget takes no slot.
func TestASpentBudgetTakesNoSlot(t *testing.T) {
	l := limiterOf(t, inFlight(2), rate(1, time.Hour))
	hold(t, l, core.Request{}).Release()
	passes(l, core.Request{}, 5)
	if n := statOf(t, l, "inflight").InFlight; n != 0 {
		t.Errorf("%d in flight; want none", n)
	}
}

// Some ask for what a second rule always refuses. Those whom the first rule alone
// concerns have room for each of them, and are never refused: nobody takes a
// slot only to put it back.
func TestTheRefusedAreInNobodysWay(t *testing.T) {
	const n = 4
	l := limiterOf(t,
		inFlight(n),
		core.Rule{Name: "closed", On: "closed", Limit: core.Rate{N: 1, Per: time.Hour}},
		core.Rule{Name: "key", On: "closed", By: "key", Limit: core.Rate{N: 1000, Per: time.Hour}},
	)
	hold(t, l, core.Request{On: "closed"}).Release()
	var all, good sync.WaitGroup
	stop := make(chan struct{})
	var wrong atomic.Int32
	for i := range 8 {
		all.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				r := of("key", string(rune('a'+i)))
				r.On, r.Cost = "closed", n%2 // with a cost of 0 or 1
				if _, ok := l.Try(r); ok {
					t.Error("the closed resource let one in")
				}
				r.Cost = 2
				if _, ok := l.Try(r); ok {
					t.Error("the closed resource let two in")
				}
			}
		})
	}
	for range n {
		good.Go(func() {
			for range 3000 {
				p, ok := l.Try(core.Request{On: "free"})
				if !ok {
					wrong.Add(1)
				}
				p.Release()
			}
		})
	}
	good.Wait()
	close(stop)
	all.Wait()
	if n := wrong.Load(); n != 0 {
		t.Errorf("%d requests were refused though there was room", n)
	}
}

// Whatever order the rules stand in, the same requests at the same times get the
// same answers.
func TestTheOrderOfRulesDecidesNothing(t *testing.T) {
	rules := []core.Rule{
		{Name: "all", Limit: core.Rate{N: 30, Per: time.Second}},
		{Name: "busy", Limit: core.InFlight{N: 12}},
		{Name: "client", By: "ip", Limit: core.Rate{N: 5, Per: 300 * ms}, For: map[string]core.Limit{"b": core.Rate{N: 2, Per: 2 * time.Second}}},
		{Name: "client-busy", By: "ip", Limit: core.InFlight{N: 5}},
		{Name: "orders", On: "o*", By: "resource", Limit: core.Rate{N: 9, Per: 700 * ms}},
		{Name: "small", On: "o*", Limit: core.Rate{N: 3, Per: 90 * ms}},
		{Name: "trial", On: "*", By: "ip", Limit: core.Rate{N: 2, Per: 100 * ms}, Shadow: true},
		{Name: "trial-busy", On: "*", Limit: core.InFlight{N: 6}, Shadow: true},
	}
	seen := map[core.Reason]int{}
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 3))
			var orders [3]*core.Limiter
			for i := range orders {
				orders[i] = limiterOf(t, rules...)
				random.Shuffle(len(rules), func(i, j int) { rules[i], rules[j] = rules[j], rules[i] })
			}
			var held [][len(orders)]core.Permit
			for range 800 {
				r := of("ip", string(rune('a'+random.IntN(4))))
				r.On = []string{"orders", "others", "health"}[random.IntN(3)]
				r.Cost = random.IntN(7) - 1
				var answers [len(orders)]core.Permit
				var first bool
				for i, l := range orders {
					p, ok := l.Try(r)
					answers[i] = p
					if i == 0 {
						first = ok
						seen[p.Refusal().Reason]++
						continue
					}
					if ok != first || p.Refusal() != answers[0].Refusal() {
						t.Fatalf("seed %d, %+v: %t %+v in one order, %t %+v in another",
							seed, r, first, answers[0].Refusal(), ok, p.Refusal())
					}
				}
				if first {
					held = append(held, answers)
				}
				if len(held) > 0 && random.IntN(3) > 0 {
					i := random.IntN(len(held))
					for _, p := range held[i] {
						p.Release()
					}
					held[i] = held[len(held)-1]
					held = held[:len(held)-1]
				}
				if random.IntN(2) == 0 {
					time.Sleep(time.Duration(random.IntN(30)) * ms)
				}
			}
			for _, rule := range rules {
				want := statOf(t, orders[0], rule.Name)
				want.Keys = 0 // when an idle key is forgotten is chance
				for _, l := range orders[1:] {
					s := statOf(t, l, rule.Name)
					s.Keys = 0
					if fmt.Sprint(s) != fmt.Sprint(want) {
						t.Errorf("seed %d: %+v in one order, %+v in another", seed, want, s)
					}
				}
			}
		})
	}
	if len(seen) < 4 {
		t.Errorf("only %v were seen: too little to tell", seen)
	}
}

// Of several rules that refuse, the one that tells most is named: never before
// unknown, before the latest instant, before the others; of equals the first by
// name. The wait told is the latest that is known.
func TestTheRuleThatTellsMostIsNamed(t *testing.T) {
	const s, m = time.Second, time.Minute
	rules := map[string]core.Rule{
		"never":    {By: "ip", Limit: core.Rate{N: 0, Per: s}, On: "x"},
		"nothing":  {Limit: core.InFlight{N: 0}, On: "x"},
		"full":     {Limit: core.InFlight{N: 1}},
		"house":    {By: "ip", Limit: core.InFlight{N: 1}},
		"second":   {Limit: core.Rate{N: 1, Per: s}},
		"minute":   {Limit: core.Rate{N: 1, Per: m}},
		"a-minute": {By: "ip", Limit: core.Rate{N: 1, Per: m}},
		"free":     {Limit: core.Rate{N: 9, Per: time.Hour}},
		"shadow":   {Limit: core.Rate{N: 1, Per: time.Hour}, Shadow: true},
		"sha-full": {Limit: core.InFlight{N: 1}, Shadow: true},
	}
	for _, c := range []struct {
		rules string
		want  core.Refusal
	}{
		{"second", core.Refusal{Rule: "second", Reason: core.ReasonRate, RetryAfter: s, Known: true}},
		{"second minute", core.Refusal{Rule: "minute", Reason: core.ReasonRate, RetryAfter: m, Known: true}},
		{"second free minute shadow", core.Refusal{Rule: "minute", Reason: core.ReasonRate, RetryAfter: m, Known: true}},
		{"second minute sha-full", core.Refusal{Rule: "minute", Reason: core.ReasonRate, RetryAfter: m, Known: true}},
		{"minute a-minute second", core.Refusal{Rule: "a-minute", By: "ip", Reason: core.ReasonRate, RetryAfter: m, Known: true}},
		{"full", core.Refusal{Rule: "full", Reason: core.ReasonInFlight}},
		{"house full", core.Refusal{Rule: "full", Reason: core.ReasonInFlight}},
		{"full second", core.Refusal{Rule: "full", Reason: core.ReasonInFlight, RetryAfter: s}},
		{"house second minute free", core.Refusal{Rule: "house", By: "ip", Reason: core.ReasonInFlight, RetryAfter: m}},
		{"never", core.Refusal{Rule: "never", By: "ip", Reason: core.ReasonNever}},
		{"never nothing", core.Refusal{Rule: "never", By: "ip", Reason: core.ReasonNever}},
		{"nothing full", core.Refusal{Rule: "nothing", Reason: core.ReasonNever}},
		{"never second minute", core.Refusal{Rule: "never", By: "ip", Reason: core.ReasonNever, RetryAfter: m}},
		{"nothing full second", core.Refusal{Rule: "nothing", Reason: core.ReasonNever, RetryAfter: s}},
	} {
		for _, names := range orders(strings.Fields(c.rules)) {
			synctest.Test(t, func(t *testing.T) {
				var list []core.Rule
				for _, name := range names {
					r := rules[name]
					r.Name = name
					list = append(list, r)
				}
				l := limiterOf(t, list...)
				r := of("ip", "a")
				hold(t, l, r)
				r.On = "x"
				for range 2 { // with the first look and with what it left behind
					if got := refused(t, l, r); got != c.want {
						t.Errorf("%v: refusal %+v; want %+v", names, got, c.want)
					}
				}
			})
		}
	}
}

// A cost that one rule can never fit is told before the instant of another.
func TestACostTooLargeIsToldFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t,
			core.Rule{Name: "small", Limit: core.Rate{N: 2, Per: time.Second}},
			core.Rule{Name: "large", Limit: core.Rate{N: 3, Per: time.Minute}})
		hold(t, l, core.Request{})
		want := core.Refusal{Rule: "small", Reason: core.ReasonNever, RetryAfter: time.Minute}
		if r := refused(t, l, core.Request{Cost: 3}); r != want {
			t.Errorf("refusal %+v; want %+v", r, want)
		}
	})
}

// orders are all orders of a list.
func orders(list []string) (all [][]string) {
	if len(list) == 0 {
		return [][]string{nil}
	}
	for i, first := range list {
		rest := append(append([]string{}, list[:i]...), list[i+1:]...)
		for _, o := range orders(rest) {
			all = append(all, append([]string{first}, o...))
		}
	}
	return all
}

// Who waits the minute that he is told passes, and not only the second.
func TestTheWaitToldIsEnough(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t,
			core.Rule{Name: "second", Limit: core.Rate{N: 1, Per: time.Second}},
			core.Rule{Name: "minute", Limit: core.Rate{N: 3, Per: time.Minute}})
		for i := range 30 {
			hold(t, l, core.Request{})
			want := time.Duration(i/3)*time.Minute + time.Duration(i%3)*time.Second
			if at := time.Since(midnight); at != want {
				t.Fatalf("number %d passed at %v; want at %v", i, at, want)
			}
			time.Sleep(refused(t, l, core.Request{}).RetryAfter)
		}
	})
}

// Twenty rules on one resource: the tightest decides. Each is taken away in turn,
// and lets exactly one more pass: none was charged for what another refused.
func TestTwentyRulesAreExact(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var rules []core.Rule
		for i := range 20 {
			r := core.Rule{Name: fmt.Sprint("rule-", 10+i), Limit: core.Rate{N: 10 + i, Per: time.Hour}}
			if i%3 == 1 {
				r.By = "ip"
			}
			if i%3 == 2 {
				r.On = "ord*"
			}
			rules = append(rules, r)
		}
		rand.New(rand.NewPCG(1, 1)).Shuffle(len(rules), func(i, j int) { rules[i], rules[j] = rules[j], rules[i] })
		l := limiterOf(t, rules...)
		r := of("ip", "a")
		r.On = "orders"
		if n := passes(l, r, 100); n != 10 {
			t.Fatalf("%d passed; want 10", n)
		}
		for tightest := 10; tightest < 29; tightest++ {
			name := fmt.Sprint("rule-", tightest)
			if got := refused(t, l, r); got.RetryAfter != time.Hour || !got.Known {
				t.Errorf("refusal %+v; want an hour to wait", got)
			}
			for i := range rules {
				if rules[i].Name == name {
					rules = append(rules[:i:i], rules[i+1:]...)
					break
				}
			}
			replace(t, l, rules...)
			if n := passes(l, r, 100); n != 1 {
				t.Errorf("without %s %d more passed; want 1", name, n)
			}
		}
	})
}

// Ten thousand rules, each for resources of its own, hold each its own limit.
func TestTenThousandRulesAreExact(t *testing.T) {
	var rules []core.Rule
	for i := range 10_000 {
		on := fmt.Sprintf("GET /%d", i)
		if i%100 == 0 {
			on += "/*"
		}
		rules = append(rules, core.Rule{Name: on, On: on, Limit: core.Rate{N: 1 + i%3, Per: time.Hour}})
	}
	l := limiterOf(t, rules...)
	for i := 0; i < 10_000; i += 50 {
		r := core.Request{On: fmt.Sprintf("GET /%d", i)}
		if i%100 == 0 {
			r.On += "/items"
		}
		if n := passes(l, r, 10); n != 1+i%3 {
			t.Errorf("%s: %d passed; want %d", r.On, n, 1+i%3)
		}
	}
	if n := passes(l, core.Request{On: "GET /10001"}, 10); n != 10 {
		t.Errorf("where no rule applies %d of 10 passed", n)
	}
}

// Looking up the rules of a resource seen before takes no longer among ten
// thousand than among ten. The bound is wide, for machines are noisy; a look at
// each rule would break it many times over.
func TestRulesThatDoNotApplyCostNothing(t *testing.T) {
	cost := func(n int) time.Duration {
		rules := []core.Rule{{Name: "apply", On: "a*y", Limit: core.InFlight{N: 1}}}
		for i := range n {
			rules = append(rules, core.Rule{Name: fmt.Sprint(i), On: fmt.Sprintf("%d*", i), Limit: core.InFlight{N: 1}})
		}
		l := limiterOf(t, rules...)
		best := time.Hour
		for range 100 {
			start := time.Now()
			for range 100 {
				hold(t, l, core.Request{On: "apply"}).Release()
			}
			best = min(best, time.Since(start))
		}
		return best
	}
	if few, many := cost(10), cost(10_000); many > 10*few {
		t.Errorf("100 decisions take %v among 10 rules, %v among 10,000", few, many)
	}
}

// A shadow rule refuses nobody. It takes while it has room, and then counts whom
// it would have refused.
func TestAShadowRuleRefusesNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shadow := rate(3, time.Second)
		shadow.Shadow = true
		l := limiterOf(t, shadow)
		trace(t, l, core.Request{}, volley{0, 10, 10}, volley{900 * ms, 10, 10}, volley{time.Second, 10, 10})
		if s := statOf(t, l, "rate"); s.Admitted != 6 || s.Shadowed != 24 || len(s.Refused) != 0 {
			t.Errorf("admitted %d, shadowed %d, refused %v; want 6, 24, none", s.Admitted, s.Shadowed, s.Refused)
		}
		shadow.Shadow = false
		replace(t, l, shadow) // what it counted in shadow it knows when it enforces
		trace(t, l, core.Request{}, volley{2*time.Second - 1, 0, 10}, volley{2 * time.Second, 3, 10})
	})
}

// What a shadow rule has not taken is not given back to it.
func TestAShadowRuleGetsBackWhatItTook(t *testing.T) {
	shadow := inFlight(1)
	shadow.Shadow = true
	l := limiterOf(t, shadow)
	a, b := hold(t, l, core.Request{}), hold(t, l, core.Request{})
	if s := statOf(t, l, "inflight"); s.InFlight != 1 || s.Shadowed != 1 {
		t.Errorf("%d in flight, %d shadowed; want 1 and 1", s.InFlight, s.Shadowed)
	}
	b.Release()
	if n := statOf(t, l, "inflight").InFlight; n != 1 {
		t.Errorf("%d in flight after the shadowed one has gone; want 1", n)
	}
	hold(t, l, core.Request{}).Release()
	a.Release()
	if s := statOf(t, l, "inflight"); s.InFlight != 0 || s.Shadowed != 2 || s.Admitted != 1 {
		t.Errorf("%d in flight, %d shadowed, %d admitted; want 0, 2, 1", s.InFlight, s.Shadowed, s.Admitted)
	}
}

// A shadow rule judges what the others admit: what they refuse is neither charged
// to it nor counted as shadowed.
func TestAShadowRuleJudgesTheAdmitted(t *testing.T) {
	for _, shadowFirst := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			rules := []core.Rule{
				{Name: "shadow", Limit: core.Rate{N: 2, Per: time.Hour}, Shadow: true},
				{Name: "rate", On: "orders", Limit: core.Rate{N: 1, Per: time.Hour}},
			}
			if !shadowFirst {
				rules[0], rules[1] = rules[1], rules[0]
			}
			l := limiterOf(t, rules...)
			passes(l, core.Request{On: "orders"}, 10)
			if s := statOf(t, l, "shadow"); s.Admitted != 1 || s.Shadowed != 0 {
				t.Errorf("admitted %d, shadowed %d; want 1 and 0", s.Admitted, s.Shadowed)
			}
			passes(l, core.Request{}, 4)
			if s := statOf(t, l, "shadow"); s.Admitted != 2 || s.Shadowed != 3 {
				t.Errorf("admitted %d, shadowed %d; want 2 and 3", s.Admitted, s.Shadowed)
			}
		})
	}
}
