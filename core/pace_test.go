package core_test

import (
	"cmp"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"reflect"
	"sort"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/exactflow/exactflow/core"
)

// paced is what a Pace promises, in its obvious form: all that has passed, and
// fractions for gaps.
type paced struct {
	limit core.Pace
	log   []pass
}

// A pass is n units that passed, and the limit that let them.
type pass struct {
	at    int64
	n     int
	under core.Pace
}

func slackOf(l core.Pace) int64 { return int64(min(l.Per/256, 4*time.Millisecond)) }

// gapOf is n·(Per+s)/(N+1-n), and Per+s at most.
func gapOf(l core.Pace, n int) int64 {
	span := int64(l.Per) + slackOf(l)
	if n >= l.N {
		return span
	}
	gap := big.NewRat(1, 1).SetFrac(
		new(big.Int).Mul(big.NewInt(int64(n)), big.NewInt(span)),
		new(big.Int).Sub(big.NewInt(int64(l.N)), big.NewInt(int64(n-1))))
	up := new(big.Int).Sub(gap.Denom(), big.NewInt(1))
	up.Add(up, gap.Num()).Div(up, gap.Denom())
	return min(span, up.Int64())
}

// last is the scheduled time of the last request, under the present limit: each
// comes a gap after the one before, or s before it passed.
func (p *paced) last() int64 {
	var behind int64
	for i, a := range p.log {
		s := slackOf(a.under)
		if i == 0 {
			behind = s
			continue
		}
		before := p.log[i-1]
		due := before.at - min(behind, s) + gapOf(a.under, max(before.n, a.n))
		behind = min(s, a.at-due)
	}
	return p.log[len(p.log)-1].at - min(behind, slackOf(p.limit))
}

func (p *paced) when(now int64, n int) int64 {
	switch {
	case n > p.limit.N:
		return never
	case len(p.log) == 0:
		return now
	}
	return max(now, p.last()+gapOf(p.limit, max(n, p.log[len(p.log)-1].n)))
}

func (p *paced) admit(now int64, n int) { p.log = append(p.log, pass{now, n, p.limit}) }
func (p *paced) told(int64, int64, int) {}
func (p *paced) forget()                { p.log = nil }
func (p *paced) bound() (int, int64)    { return p.limit.N, int64(p.limit.Per) }

func (p *paced) change(now int64, to core.Limit) {
	if n := len(p.log); n > 0 && p.log[n-1].at <= now-int64(p.limit.Per) {
		p.log = nil
	}
	p.limit = to.(core.Pace)
}

// A sole is the model of one kind of limit for one key.
type sole interface {
	// when is now if n fit, else the first instant at which they would if nobody
	// else came; or never.
	when(now int64, n int) int64
	admit(now int64, n int)
	told(now, at int64, n int) // a request for n was refused, and told to come back at
	change(now int64, to core.Limit)
	forget()
	bound() (n int, per int64)
}

// A duet plays a script to a limiter with one rule and to models of its kind, one a
// key: some keys have a limit of their own.
type duet struct {
	source
	limits []core.Limit
	make   func(core.Limit) sole

	lines             []string
	admitted, refused int
	replaced          int
}

var duetKeys = []string{"a", "b", "c"}

// run says what is wrong, or "".
func (d *duet) run() (wrong string) {
	begun := time.Now()
	now := func() int64 { return int64(time.Since(begun)) }
	note := func(format string, args ...any) {
		d.lines = append(d.lines, fmt.Sprintf("%d: ", now())+fmt.Sprintf(format, args...))
	}
	pick := func() core.Limit { return d.limits[d.pick(len(d.limits))] }
	rule := core.Rule{Name: "rule", By: "key", Limit: pick()}
	if d.pick(2) == 0 {
		rule.For = map[string]core.Limit{"c": pick()}
	}
	limitOf := func(key string) core.Limit {
		if l, ok := rule.For[key]; ok {
			return l
		}
		return rule.Limit
	}
	l, err := core.New(rule)
	if err != nil {
		return err.Error()
	}
	note("New %+v", rule)
	models := map[string]sole{}
	logs := map[string][]admission{} // since the limit last changed
	for _, key := range duetKeys {
		models[key] = d.make(limitOf(key))
	}
	key := "a"
	for len(d.b) > 0 {
		m := models[key]
		size, per := m.bound()
		cost := []int{1, 1, 1, 1, 2, 3, 1 + size/3, 1 + size/2, size, size + min(1, math.MaxInt-size)}[d.pick(10)]
		cost = max(1, cost)
		switch k := d.pick(32); {
		case k < 20:
			want := m.when(now(), cost)
			p, ok := l.Try(core.Request{Keys: []core.Key{{By: "key", Value: key}}, Cost: cost})
			q := p.Quota()
			note("%s asks for %d: %v, %+v, %+v", key, cost, ok, p.Refusal(), q)
			refusal := core.Refusal{Rule: "rule", By: "key"}
			switch {
			case want <= now():
				d.admitted++
				m.admit(now(), cost)
				logs[key] = append(logs[key], admission{time.Duration(now()), cost})
				refusal = core.Refusal{}
			case want == never:
				d.refused++
				refusal.Reason = core.ReasonNever
			default:
				d.refused++
				m.told(now(), want, cost)
				refusal.Reason, refusal.Known, refusal.RetryAfter = core.ReasonRate, true, time.Duration(want-now())
			}
			if ok != (want <= now()) || p.Refusal() != refusal {
				return fmt.Sprintf("want %+v", refusal)
			}
			// What is left is the largest cost that would pass.
			left := sort.Search(size, func(n int) bool { return m.when(now(), n+1) > now() })
			reset := time.Duration(0)
			switch {
			case !ok:
				reset = refusal.RetryAfter
			case left < size:
				reset = time.Duration(m.when(now(), left+1) - now())
			}
			if want := (core.Quota{Rule: "rule", Limit: size, Window: time.Duration(per), Remaining: left, Reset: reset}); q != want {
				return fmt.Sprintf("want %+v", want)
			}
			if ok && mostIn(time.Duration(per), logs[key]) > size {
				return fmt.Sprintf("%d in one window", mostIn(time.Duration(per), logs[key]))
			}
		case k < 28:
			pause := m.when(now(), cost) - now() // to where it opens, or just before or after
			if pause <= 0 || pause > 1<<60 {
				pause = []int64{per, per - 1, per / 2, per / 7, per + per/256, 2 * per, 1}[d.pick(7)]
			}
			pause += []int64{0, 0, 0, -1, 1, per / 1000, per / 100, -per / 100}[d.pick(8)]
			if pause > 0 && now() < int64(100*365*24*time.Hour)-pause {
				time.Sleep(time.Duration(pause))
			}
		case k < 30:
			key = duetKeys[d.pick(len(duetKeys))]
		case k < 31:
			before := rule
			rule.Limit = pick()
			if rule.For != nil {
				rule.For = map[string]core.Limit{"c": pick()}
			}
			note("Replace %+v", rule)
			if err := l.Replace(rule); err != nil {
				return err.Error()
			}
			if reflect.DeepEqual(rule, before) {
				continue // nothing has changed
			}
			d.replaced++
			for key, m := range models {
				m.change(now(), limitOf(key))
				logs[key] = nil
			}
		default:
			note("Forget %s", key)
			if err := l.Forget("rule", key); err != nil {
				return err.Error()
			}
			m.forget()
			logs[key] = nil
		}
	}
	return ""
}

// playDuets plays many scripts, always the same.
func playDuets(t *testing.T, scripts int, limits []core.Limit, fresh func(core.Limit) sole) {
	admitted, refused, replaced := 0, 0, 0
	for seed := range uint64(scripts / slower) {
		synctest.Test(t, func(t *testing.T) {
			d := duet{source: source{scriptOf(seed)}, limits: limits, make: fresh}
			if wrong := d.run(); wrong != "" {
				t.Fatalf("script %d\n%s\n%s", seed, strings.Join(d.lines, "\n"), wrong)
			}
			admitted, refused, replaced = admitted+d.admitted, refused+d.refused, replaced+d.replaced
		})
	}
	t.Logf("%d admitted, %d refused, %d replaced", admitted, refused, replaced)
	if min(admitted, refused, replaced) < scripts/slower {
		t.Error("too few to tell")
	}
}

// fuzzDuets is the same for a fuzzer.
func fuzzDuets(f *testing.F, limits []core.Limit, fresh func(core.Limit) sole) {
	for seed := range uint64(50) {
		f.Add(scriptOf(seed))
	}
	f.Fuzz(func(t *testing.T, script []byte) {
		synctest.Test(t, func(t *testing.T) {
			d := duet{source: source{script[:min(len(script), 2000)]}, limits: limits, make: fresh}
			if wrong := d.run(); wrong != "" {
				t.Fatalf("%s\n%s", strings.Join(d.lines, "\n"), wrong)
			}
		})
	})
}

var paces = []core.Limit{
	core.Pace{N: 10, Per: time.Second}, core.Pace{N: 5, Per: time.Second}, core.Pace{N: 10, Per: time.Second},
	core.Pace{N: 1, Per: time.Second}, core.Pace{N: 1, Per: 24 * time.Hour}, core.Pace{N: 100_000, Per: time.Second},
	core.Pace{N: 1000, Per: time.Second}, core.Pace{N: 1000, Per: 10 * time.Second}, core.Pace{N: 7, Per: 3}, core.Pace{N: 3, Per: 1000},
	core.Pace{N: 0, Per: time.Second}, core.Pace{N: 20_000, Per: time.Minute}, core.Pace{N: math.MaxInt, Per: time.Second},
	core.Pace{N: 2, Per: math.MaxInt64 / 2}, core.Pace{N: 11, Per: 365 * 24 * time.Hour},
}

func newPaced(l core.Limit) sole { return &paced{limit: l.(core.Pace)} }

func TestPacesAreThoseOfTheModel(t *testing.T) { playDuets(t, 600, paces, newPaced) }

func FuzzPace(f *testing.F) { fuzzDuets(f, paces, newPaced) }

// Whatever comes and whenever, no stretch of Per has more than N. Who comes here
// knows when it opens, and comes then, or late, or after a rest; with costs of all
// sizes, or mostly of one.
func TestNoStretchOfAPaceHasMoreThanItsN(t *testing.T) {
	full := 0
	random := rand.New(rand.NewPCG(1, 2))
	for range 3000 / slower {
		synctest.Test(t, func(t *testing.T) {
			limit := core.Pace{N: 1 + random.IntN(12), Per: []time.Duration{time.Second, 1000, 5, time.Hour}[random.IntN(4)]}
			if random.IntN(4) == 0 {
				limit.N = 1 + random.IntN(3000) // so that bursts come in
			}
			largest := 1 + random.IntN(limit.N)
			l := limiterOf(t, core.Rule{Name: "rule", Limit: limit})
			begun := time.Now()
			var log []admission
			for range 200 {
				cost := 1 + random.IntN(largest)
				if random.IntN(3) > 0 {
					cost = largest
				}
				p, ok := l.Try(core.Request{Cost: cost})
				if ok {
					log = append(log, admission{time.Since(begun), cost})
					continue
				}
				d := p.Refusal().RetryAfter
				switch random.IntN(8) {
				case 0:
					d += time.Duration(random.Int64N(int64(limit.Per)/100 + 1))
				case 1:
					d += time.Duration(random.Int64N(int64(limit.Per) + 1))
				}
				time.Sleep(d)
			}
			most := mostIn(limit.Per, log)
			if most > limit.N {
				t.Fatalf("%v: %d in one stretch: %v", limit, most, log)
			}
			if most == limit.N {
				full++
			}
		})
	}
	t.Logf("%d histories have a stretch with N", full)
	if full < 300/slower {
		t.Error("few fill a stretch: this proves little")
	}
}

// The bound on bursts, in stretches of every length: (k-1)·gap <= w+s.
func TestAPaceHasItsBoundInAnyStretch(t *testing.T) {
	const ms = time.Millisecond
	random := rand.New(rand.NewPCG(3, 4))
	for _, limit := range []core.Pace{{N: 10_000, Per: time.Second}, {N: 256, Per: time.Second}, {N: 257, Per: time.Second},
		{N: 20_000, Per: time.Minute}, {N: 100, Per: 10 * ms}} {
		synctest.Test(t, func(t *testing.T) {
			l := limiterOf(t, core.Rule{Name: "rule", Limit: limit})
			begun := time.Now()
			gap, slack := gapOf(limit, 1), slackOf(limit)
			var log []admission
			for len(log) < 2000 {
				if n := passes(l, core.Request{}, 1); n > 0 {
					log = append(log, admission{time.Since(begun), 1})
				} else {
					time.Sleep(refused(t, l, core.Request{}).RetryAfter + time.Duration(random.Int64N(2*slack+1)*int64(random.IntN(2))))
				}
			}
			for _, w := range []time.Duration{1, ms, 2 * ms, 5 * ms, limit.Per / 10, limit.Per / 3, limit.Per} {
				bound := (int64(w)+slack)/gap + 1
				if most := mostIn(w, log); int64(most) > bound {
					t.Errorf("%v: %d in %v; want at most %d", limit, most, w, bound)
				} else if w == 1 && int64(most) < bound {
					t.Errorf("%v: at most %d at one instant; %d are allowed, and should have come", limit, most, bound)
				}
			}
		})
	}
}

func TestAPaceIsEvenFromOneADayToAHundredThousandASecond(t *testing.T) {
	for _, limit := range []core.Pace{{N: 1, Per: 24 * time.Hour}, {N: 3, Per: 24 * time.Hour}, {N: 100, Per: time.Minute},
		{N: 10, Per: time.Second}, {N: 7, Per: time.Second}, {N: 10_000, Per: time.Second}, {N: 100_000, Per: time.Second}} {
		synctest.Test(t, func(t *testing.T) {
			l := limiterOf(t, core.Rule{Name: "rule", Limit: limit})
			begun := time.Now()
			slack := time.Duration(slackOf(limit))
			gap := (limit.Per+slack-1)/time.Duration(limit.N) + 1
			for k := range time.Duration(1000) { // the first comes after a rest, and counts as late
				for passes(l, core.Request{}, 1) == 0 {
					time.Sleep(refused(t, l, core.Request{}).RetryAfter)
				}
				if want := max(0, k*gap-slack); time.Since(begun) != want {
					t.Fatalf("%v: number %d passes at %v; want %v", limit, k, time.Since(begun), want)
				}
			}
			// In the long run next to nothing is lost.
			if ideal := limit.Per * 999 / time.Duration(limit.N); time.Since(begun) > ideal+ideal/200 {
				t.Errorf("%v: 1000 in %v; an ideal pace takes %v", limit, time.Since(begun), ideal)
			}
		})
	}
}

// A timer wakes a sleeper up to 1.2 ms late. Strict spacing would add that to every
// gap: of 10 000 a second it lets 800 through.
func TestLateTimersCostAPaceNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, core.Rule{Name: "rule", Limit: core.Pace{N: 10_000, Per: time.Second}})
		random := rand.New(rand.NewPCG(5, 6))
		begun := time.Now()
		var log []admission
		for time.Since(begun) < 5*time.Second {
			p, ok := l.Try(core.Request{})
			if ok {
				log = append(log, admission{time.Since(begun), 1})
			} else {
				time.Sleep(p.Refusal().RetryAfter + time.Duration(random.Int64N(1_200_000)))
			}
		}
		if len(log) < 5*9900 {
			t.Errorf("%d passed in 5 seconds", len(log))
		}
		if most := mostIn(time.Second, log); most > 10_000 {
			t.Errorf("%d in a second", most)
		}
	})
}

// Twenty come at once, and leave one by one.
func TestAQueueBeforeAPaceLeavesOneByOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limit := core.Pace{N: 10, Per: time.Second}
		l := limiterOf(t, core.Rule{Name: "rule", Limit: limit, Queue: core.Queue{Len: 20, Wait: time.Minute}})
		begun := time.Now()
		var done sync.WaitGroup
		for k := range time.Duration(20) {
			done.Go(func() {
				if _, err := l.Wait(t.Context(), core.Request{}); err != nil {
					t.Error(err)
				}
				if want := max(0, k*time.Duration(gapOf(limit, 1))-time.Duration(slackOf(limit))); time.Since(begun) != want {
					t.Errorf("number %d passes at %v; want %v", k, time.Since(begun), want)
				}
			})
			synctest.Wait()
		}
		done.Wait()
	})
}

// Ten a second and a wait of half of one: the first passes, five can wait until
// their turn, and the next is told so at once.
func TestWhoCannotBePacedInTimeIsRefusedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, core.Rule{Name: "rule", Limit: core.Pace{N: 10, Per: time.Second}, Queue: core.Queue{Len: 20, Wait: 500 * time.Millisecond}})
		begun := time.Now()
		for range 6 {
			go l.Wait(t.Context(), core.Request{})
			synctest.Wait()
		}
		p, err := l.Wait(t.Context(), core.Request{})
		if err != core.ErrRefused || p.Refusal().Reason != core.ReasonQueueTimeout || time.Since(begun) > 0 {
			t.Errorf("%v, %v after %v", err, p.Refusal(), time.Since(begun))
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if s := statOf(t, l, "rule"); s.Admitted != 6 || s.Waiting != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// 10 a second, 5, 10 again, a thousand times: nobody passes before the gap of the
// present pace is over, counted from who passed last.
func TestReplacingAPaceBackAndForthGainsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ten := core.Rule{Name: "rule", Limit: core.Pace{N: 10, Per: time.Second}}
		five := core.Rule{Name: "rule", Limit: core.Pace{N: 5, Per: time.Second}}
		l := limiterOf(t, ten)
		begun := time.Now()
		passes(l, core.Request{}, 1)
		opens := refused(t, l, core.Request{}).RetryAfter
		for range 1000 {
			replace(t, l, five)
			if n := passes(l, core.Request{}, 1); n > 0 {
				t.Fatalf("one passes at %v", time.Since(begun))
			}
			replace(t, l, ten)
			if at := time.Since(begun) + refused(t, l, core.Request{}).RetryAfter; at != opens {
				t.Fatalf("it opens at %v; want %v as before", at, opens)
			}
			time.Sleep((opens - time.Since(begun)) / 100)
		}
	})
}

// Keys beyond MaxKeys share one pace a stripe, and who gets an entry of its own then
// is not early.
func TestKeysBeyondMaxKeysSharePaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limit := core.Pace{N: 10, Per: time.Second}
		l := limiterOf(t, core.Rule{Name: "rule", By: "key", Limit: limit, MaxKeys: 2})
		random := rand.New(rand.NewPCG(7, 8))
		logs := map[string][]admission{}
		begun := time.Now()
		for i := range 20_000 {
			key := fmt.Sprint((i/200 + random.IntN(3)) % 5) // two at a time have a rest, and leave their place
			cost := cmp.Or(random.IntN(3), 1)
			p, ok := l.Try(core.Request{Keys: []core.Key{{By: "key", Value: key}}, Cost: cost})
			if ok {
				logs[key] = append(logs[key], admission{time.Since(begun), cost})
			} else if random.IntN(3) == 0 {
				time.Sleep(p.Refusal().RetryAfter)
			}
			if random.IntN(100) == 0 {
				time.Sleep(2 * time.Second)
			}
		}
		for key, log := range logs {
			if most := mostIn(limit.Per, log); most > limit.N {
				t.Errorf("key %s: %d in a stretch", key, most)
			}
			for i, a := range log[1:] {
				if gap := gapOf(limit, max(log[i].cost, a.cost)); int64(a.at-log[i].at) < gap-slackOf(limit) {
					t.Fatalf("key %s: %v after %v", key, a, log[i])
				}
			}
		}
		if s := statOf(t, l, "rule"); s.Overflowed < 1000 || s.Admitted < 1000 {
			t.Errorf("%+v: this proves nothing", s)
		}
	})
}

func TestAPaceOfNothingBlocksAndKindsDoNotMix(t *testing.T) {
	l := limiterOf(t, core.Rule{Name: "rule", By: "key", Limit: core.Pace{N: 5, Per: time.Second},
		For: map[string]core.Limit{"blocked": core.Rate{Per: time.Second}, "free": core.Unlimited{}}})
	if f := refused(t, l, of("key", "blocked")); f.Reason != core.ReasonNever {
		t.Errorf("%+v", f)
	}
	if n := passes(l, of("key", "free"), 100); n != 100 {
		t.Errorf("%d of 100 of the free pass", n)
	}
	// What blocked becomes a pace like the others.
	replace(t, l, core.Rule{Name: "rule", By: "key", Limit: core.Pace{N: 5, Per: time.Second},
		For: map[string]core.Limit{"blocked": core.Pace{N: 1, Per: time.Hour}}})
	if n := passes(l, of("key", "blocked"), 100); n != 1 {
		t.Errorf("%d of 100 pass; want 1", n)
	}
	for _, wrong := range []core.Rule{
		{Name: "rule", Limit: core.Pace{N: -1, Per: time.Second}},
		{Name: "rule", Limit: core.Pace{N: 1}},
		{Name: "rule", Limit: core.Pace{N: 1, Per: -1}},
		{Name: "rule", Limit: &core.Pace{N: 1, Per: 1}},
		{Name: "rule", By: "key", Limit: core.Pace{N: 1, Per: 1}, For: map[string]core.Limit{"a": core.Rate{N: 1, Per: 1}}},
		{Name: "rule", By: "key", Limit: core.Unlimited{}, For: map[string]core.Limit{"a": core.Pace{N: 1, Per: 1}, "b": core.InFlight{N: 1}}},
	} {
		if _, err := core.New(wrong); err == nil {
			t.Errorf("%+v makes a limiter", wrong)
		}
	}
}
