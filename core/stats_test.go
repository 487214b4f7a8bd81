package core_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/exactflow/exactflow/core"
)

// The statistics stand in the order of the rules, also after these have been put
// in another, and each rule takes its numbers along.
func TestStatsStandInTheOrderOfTheRules(t *testing.T) {
	a := core.Rule{Name: "a", On: "a", Limit: core.InFlight{N: 9}}
	b := core.Rule{Name: "b", On: "b", Limit: core.Rate{N: 9, Per: time.Hour}}
	c := core.Rule{Name: "c", On: "c", Limit: core.Unlimited{}}
	l := limiterOf(t, b, a, c)
	check := func(want string) {
		t.Helper()
		var got []string
		for _, s := range l.Stats() {
			got = append(got, fmt.Sprint(s.Rule, s.Admitted))
		}
		if text := strings.Join(got, " "); text != want {
			t.Errorf("statistics %s; want %s", text, want)
		}
	}
	check("b0 a0 c0")
	hold(t, l, core.Request{On: "b"})
	hold(t, l, core.Request{On: "b"})
	hold(t, l, core.Request{On: "a"})
	check("b2 a1 c0")
	replace(t, l, a, c, b)
	check("a1 c0 b2")
	replace(t, l, a)
	replace(t, l, b, a)
	check("b0 a1")
}

// A request is admitted by all rules that apply to it, or refused by the one that
// is named. No other rule counts it.
func TestOnlyTheNamedRuleCountsARefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t,
			core.Rule{Name: "minute", Limit: core.Rate{N: 3, Per: time.Minute}},
			core.Rule{Name: "slots", On: "orders", Limit: core.InFlight{N: 1}},
			core.Rule{Name: "closed", On: "closed", Limit: core.InFlight{}},
			core.Rule{Name: "shadow", Limit: core.Rate{N: 1, Per: time.Hour}, Shadow: true},
		)
		check := func(rule string, admitted uint64, refused map[core.Reason]uint64, shadowed uint64) {
			t.Helper()
			s := statOf(t, l, rule)
			if s.Admitted != admitted || fmt.Sprint(s.Refused) != fmt.Sprint(refused) || s.Shadowed != shadowed {
				t.Errorf("%s: %d admitted, %v refused, %d shadowed; want %d, %v, %d",
					rule, s.Admitted, s.Refused, s.Shadowed, admitted, refused, shadowed)
			}
		}
		none := map[core.Reason]uint64{}
		p := hold(t, l, core.Request{On: "orders"})
		refused(t, l, core.Request{On: "orders"}) // by slots
		refused(t, l, core.Request{On: "closed"}) // by closed
		refused(t, l, core.Request{On: "closed", Cost: 9})
		p.Release()
		hold(t, l, core.Request{On: "orders"}).Release()
		hold(t, l, core.Request{})
		refused(t, l, core.Request{On: "orders"})          // by minute
		refused(t, l, core.Request{On: "orders"})          // by what it left behind
		refused(t, l, core.Request{On: "orders", Cost: 2}) // by slots: never
		check("minute", 3, map[core.Reason]uint64{core.ReasonRate: 2}, 0)
		check("slots", 2, map[core.Reason]uint64{core.ReasonInFlight: 1, core.ReasonNever: 1}, 0)
		check("closed", 0, map[core.Reason]uint64{core.ReasonNever: 2}, 0)
		check("shadow", 1, none, 2)
	})
}

// A cost is one request in what is admitted, and all its units in what is held.
func TestStatsCountRequestsAndHoldUnits(t *testing.T) {
	l := limiterOf(t, inFlight(10), rate(100, time.Hour))
	p := hold(t, l, core.Request{Cost: 7})
	if s := statOf(t, l, "inflight"); s.Admitted != 1 || s.InFlight != 7 {
		t.Errorf("%d admitted, %d in flight; want 1 and 7", s.Admitted, s.InFlight)
	}
	if s := statOf(t, l, "rate"); s.Admitted != 1 || s.InFlight != 0 {
		t.Errorf("%d admitted by the rate, %d in flight; want 1 and none", s.Admitted, s.InFlight)
	}
	p.Release()
	if s := statOf(t, l, "inflight"); s.Admitted != 1 || s.InFlight != 0 {
		t.Errorf("%d admitted, %d in flight; want 1 and 0", s.Admitted, s.InFlight)
	}
}

// Failed requests are among the admitted, and count with every rule that let
// them in.
func TestStatsCountFailures(t *testing.T) {
	l := limiterOf(t, inFlight(10), rate(100, time.Hour), core.Rule{Name: "other", On: "other", Limit: core.InFlight{N: 1}})
	for i := range 6 {
		p := hold(t, l, core.Request{})
		if i%3 == 0 {
			p.Fail()
		}
		p.Release()
	}
	for rule, want := range map[string]uint64{"inflight": 2, "rate": 2, "other": 0} {
		if s := statOf(t, l, rule); s.Failed != want {
			t.Errorf("%s: %d failed; want %d", rule, s.Failed, want)
		}
	}
}

// Requests without the rule's key are counted, whether they pass or not.
func TestStatsCountMissingKeys(t *testing.T) {
	l := limiterOf(t, core.Rule{Name: "ip", By: "ip", Limit: core.Rate{N: 2, Per: time.Hour}}, rate(100, time.Hour))
	passes(l, core.Request{}, 5)
	passes(l, of("ip", "a"), 5)
	passes(l, of("ip", ""), 2)
	if n := statOf(t, l, "ip").Empty; n != 7 {
		t.Errorf("%d without the key; want 7", n)
	}
	if n := statOf(t, l, "rate").Empty; n != 0 {
		t.Errorf("%d without a key in a rule that has none; want 0", n)
	}
}

// Keys are those in memory, overflows the decisions about others.
func TestStatsCountKeys(t *testing.T) {
	l := limiterOf(t, core.Rule{Name: "ip", By: "ip", Limit: core.Rate{N: 2, Per: time.Hour}, MaxKeys: 3})
	for i := range 10 {
		l.Try(of("ip", fmt.Sprint(i)))
	}
	s := statOf(t, l, "ip")
	if s.Keys != 3 || s.Overflowed != 7 {
		t.Errorf("%d keys, %d overflowed; want 3 and 7", s.Keys, s.Overflowed)
	}
}

// A rule that is changed goes on counting; what Stats has handed out is the
// caller's, and changes no more.
func TestStatsGoOnAndStandStill(t *testing.T) {
	l := limiterOf(t, rate(1, time.Hour))
	passes(l, core.Request{}, 3)
	seen := statOf(t, l, "rate")
	replace(t, l, rate(2, time.Hour))
	passes(l, core.Request{}, 3)
	if s := statOf(t, l, "rate"); s.Admitted != 2 || s.Refused[core.ReasonRate] != 4 {
		t.Errorf("%d admitted, %v refused; want 2 and 4", s.Admitted, s.Refused)
	}
	if seen.Admitted != 1 || seen.Refused[core.ReasonRate] != 2 {
		t.Errorf("what was seen has become %+v", seen)
	}
	seen.Refused[core.ReasonRate] = 1000
	if n := statOf(t, l, "rate").Refused[core.ReasonRate]; n != 4 {
		t.Errorf("a caller's map has become the limiter's: %d refused", n)
	}
}

// Nothing that is counted gets lost among many goroutines: who was admitted,
// refused, failed, and lacked a key adds up.
func TestStatsAddUpInARace(t *testing.T) {
	const threads, each = 8, 3000
	l := limiterOf(t, inFlight(3), core.Rule{Name: "ip", By: "ip", Limit: core.Rate{N: 2000, Per: time.Hour}})
	type sum struct{ admitted, refused, failed, empty uint64 }
	sums := make([]sum, threads)
	var all sync.WaitGroup
	for i := range sums {
		all.Go(func() {
			for j := range each {
				r := of("ip", []string{"", "a", "b"}[j%3])
				p, ok := l.Try(r)
				switch {
				case !ok:
					sums[i].refused++
				case j%2 == 0:
					p.Fail()
					sums[i].failed++
					fallthrough
				default:
					sums[i].admitted++
				}
				if j%3 == 0 {
					sums[i].empty++
				}
				if j%100 == 0 {
					l.Stats()
				}
				p.Release()
			}
		})
	}
	all.Wait()
	var want, got sum
	for _, s := range sums {
		want.admitted += s.admitted
		want.refused += s.refused
		want.failed += s.failed
		want.empty += s.empty
	}
	for _, s := range l.Stats() {
		got.admitted, got.failed, got.empty = s.Admitted, s.Failed, s.Empty
		for _, n := range s.Refused {
			got.refused += n
		}
		if s.InFlight != 0 {
			t.Errorf("%s: %d in flight after all have gone", s.Rule, s.InFlight)
		}
	}
	if got != want {
		t.Errorf("statistics %+v; the callers saw %+v", got, want)
	}
}

// Statistics in JSON have words for reasons.
func TestStatsAreReadableInJSON(t *testing.T) {
	l := limiterOf(t, inFlight(0))
	refused(t, l, core.Request{})
	text, err := json.Marshal(l.Stats())
	if err != nil {
		t.Fatal(err)
	}
	if want := `"Refused":{"never":1}`; !strings.Contains(string(text), want) {
		t.Errorf("%s; want it to have %s", text, want)
	}
}

// Rules' names are all that statistics say about requests: no keys, no resources.
func TestStatsTellNoKeys(t *testing.T) {
	l := limiterOf(t, core.Rule{Name: "user", By: "user,resource", Limit: core.Rate{N: 1, Per: time.Hour}, MaxKeys: 1})
	for i := range 5 {
		r := of("user", fmt.Sprint("secret-", i))
		r.On = "secret"
		passes(l, r, 2)
	}
	if text := fmt.Sprintf("%+v", l.Stats()); strings.Contains(text, "secret") {
		t.Errorf("%s has a key in it", text)
	}
	names := []string{}
	for _, s := range l.Stats() {
		names = append(names, s.Rule)
	}
	if !slices.Equal(names, []string{"user"}) {
		t.Errorf("rules %q; want those that there are", names)
	}
}
