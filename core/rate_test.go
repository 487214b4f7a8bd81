package core_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/exactflow/exactflow/core"
)

// rate is a rule that counts all requests together.
func rate(n int, per time.Duration) core.Rule {
	return core.Rule{Name: "rate", Limit: core.Rate{N: n, Per: per}}
}

const ms = time.Millisecond

// Twenty pass just before the second is half over, and twenty more come half a
// second later. A count that starts anew at full seconds, or at half ones, would
// let all forty pass within 501 ms.
func TestASecondVolleyWaitsForTheFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, rate(20, time.Second))
		trace(t, l, core.Request{},
			volley{499 * ms, 20, 20},
			volley{1000 * ms, 0, 20},
			volley{1499*ms - 1, 0, 20},
			volley{1499 * ms, 20, 20},
			volley{2499*ms - 1, 0, 20},
			volley{2499 * ms, 20, 100},
		)
	})
}

// Sixty pass in the last second of an hour. A counter for each hour of the clock
// would let sixty more pass in the first second of the next.
func TestTheHourOnTheClockIsNoWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, rate(60, time.Hour))
		trace(t, l, core.Request{},
			volley{time.Hour - time.Second, 60, 61},
			volley{time.Hour, 0, 60},
			volley{time.Hour + time.Second, 0, 60},
			volley{2*time.Hour - time.Second - 1, 0, 60},
			volley{2*time.Hour - time.Second, 60, 61},
		)
	})
}

// One passes at once, nineteen at the end of the second, and twenty more come
// just after it. Only the first has left by then: an estimate that weighs the
// last window by its age would think that more had.
func TestOnlyWhatHasLeftIsFree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, rate(20, time.Second))
		trace(t, l, core.Request{},
			volley{0, 1, 1},
			volley{990 * ms, 19, 20},
			volley{1003 * ms, 1, 20},
			volley{1990*ms - 1, 0, 20},
			volley{1990 * ms, 19, 20},
			volley{2003*ms - 1, 0, 20},
			volley{2003 * ms, 1, 20},
		)
	})
}

// Many threads ask all the time. Who reads the clock before taking the lock may
// come second with the earlier reading, and then a stretch of time is paid out
// twice: thousands pass. Each call here is known to lie between a reading before
// and one after it, so that N+1 admitted calls which began and ended within less
// than a window are a broken promise for certain.
func TestTimeNeverRunsBackwards(t *testing.T) {
	const (
		n       = 50
		per     = 4 * ms
		threads = 16
		windows = 60
	)
	type call struct{ begin, end time.Duration }
	l := limiterOf(t, rate(n, per))
	start := time.Now()
	logs := make([][]call, threads)
	var admitted atomic.Int64
	var all sync.WaitGroup
	for i := range logs {
		all.Go(func() {
			for time.Since(start) < windows*per || admitted.Load() < 2*n {
				begin := time.Since(start)
				if _, ok := l.Try(core.Request{}); ok {
					logs[i] = append(logs[i], call{begin, time.Since(start)})
					admitted.Add(1)
				}
			}
		})
	}
	all.Wait()

	calls := slices.Concat(logs...)
	for _, first := range calls {
		within := 0
		for _, c := range calls {
			if c.begin >= first.begin && c.end < first.begin+per {
				within++
			}
		}
		if within > n {
			t.Fatalf("%d admitted calls began and ended within less than %v; want at most %d", within, per, n)
		}
	}
}

// At exactly oldest + Per the oldest has left. One leaves, so one enters, however
// many come at that instant.
func TestWhenOneLeavesOneEnters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, rate(3, time.Second))
		trace(t, l, core.Request{},
			volley{0, 1, 1},
			volley{300 * ms, 1, 1},
			volley{600 * ms, 1, 1},
			volley{1000*ms - 1, 0, 100},
			volley{1000 * ms, 1, 100},
			volley{1000*ms + 1, 0, 100},
			volley{1300*ms - 1, 0, 100},
			volley{1300 * ms, 1, 100},
			volley{1600 * ms, 1, 100},
			volley{2000 * ms, 1, 100},
			volley{2300 * ms, 1, 100},
		)
	})
}

// A hundred come at the same nanosecond, from one goroutine and then from as
// many. A set of time stamps would hold one.
func TestEachOfOneInstantCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, rate(10, time.Second))
		trace(t, l, core.Request{}, volley{0, 10, 100})

		sleepUntil(t, time.Second)
		var passed atomic.Int32
		for range 100 {
			go func() {
				if _, ok := l.Try(core.Request{}); ok {
					passed.Add(1)
				}
			}()
		}
		synctest.Wait()
		if n := passed.Load(); n != 10 {
			t.Errorf("%d of 100 passed; want 10", n)
		}
		trace(t, l, core.Request{}, volley{2*time.Second - 1, 0, 100}, volley{2 * time.Second, 10, 100})
	})
}

// A client that keeps to its limit is never refused, whether it comes evenly, in
// volleys, or in volleys at odd times.
func TestAClientWithinTheLimitIsNeverRefused(t *testing.T) {
	const second = time.Second
	slice := (second + 4094) / 4095 // above 4096 a unit may come back this late
	for _, c := range []struct {
		name   string
		n      int
		per    time.Duration
		volley int
		every  time.Duration
	}{
		{"evenly, at the limit", 10, second, 1, 100 * ms},
		{"evenly, at a limit that divides badly", 3, second, 1, 333_333_334},
		{"evenly, below the limit", 10, second, 1, 107 * ms},
		{"all at once", 10, second, 10, second},
		{"in twos", 10, second, 2, 200 * ms},
		{"one each five seconds", 1, 5 * second, 1, 5 * second},
		{"evenly, at the largest limit that is exact", 4096, second, 1, (second + 4095) / 4096},
		{"evenly, below a large limit by a slice", 10_000, second, 1, (second+slice)/10_000 + 1},
		{"all of a large limit at once, a slice apart", 10_000, second, 10_000, second + slice},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := limiterOf(t, rate(c.n, c.per))
				for asked := 0; asked < max(1000, 3*c.n); asked += c.volley {
					if n := passes(l, core.Request{}, c.volley); n != c.volley {
						t.Fatalf("at %v: %d of %d passed; want all", time.Since(midnight), n, c.volley)
					}
					time.Sleep(c.every)
				}
			})
		})
	}
}

// A client that tries at twice the limit gets the limit, for ever: what was
// refused is not counted. A limiter that counts refusals too would starve it.
func TestAClientThatKeepsTryingGetsItsLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, rate(10, time.Second))
		for second := range 60 {
			n := 0
			for range 20 {
				n += passes(l, core.Request{}, 1)
				time.Sleep(50 * ms)
			}
			if n != 10 {
				t.Fatalf("second %d: %d passed; want 10", second, n)
			}
		}
	})
}

// Three come each millisecond for a minute, at five per tenth of a second. No
// tenth has more than five, and no second has less than fifty.
func TestAShortWindowHoldsForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n, per = 5, 100 * ms
		l := limiterOf(t, rate(n, per))
		var log []admission
		for at := range time.Minute / ms {
			sleepUntil(t, at*ms)
			log = append(log, admission{at * ms, passes(l, core.Request{}, 3)})
		}
		if most := mostIn(per, log); most != n {
			t.Errorf("%d passed in some stretch of %v; want %d at most, and reached", most, per, n)
		}
		for s := range time.Duration(60) {
			sum := 0
			for _, a := range log {
				if a.at >= s*time.Second && a.at < (s+1)*time.Second {
					sum += a.cost
				}
			}
			if sum != 50 {
				t.Errorf("second %d: %d passed; want 50", s, sum)
			}
		}
	})
}

// From a nanosecond to a year the promise is the same: all the units at once,
// none until just before the window has passed, then all again.
func TestTheWindowMayHaveAnyLength(t *testing.T) {
	const day = 24 * time.Hour
	for _, limit := range []core.Rate{
		{N: 3, Per: 1},
		{N: 5, Per: 2},
		{N: 7, Per: 999},
		{N: 10, Per: 500 * ms},
		{N: 1, Per: 5 * time.Second},
		{N: 1, Per: time.Hour},
		{N: 4096, Per: time.Hour},
		{N: 200_000, Per: day},
		{N: 10_000, Per: 17}, // fewer nanoseconds than units
		{N: 1, Per: 365 * day},
		{N: 2, Per: 50 * 365 * day},
	} {
		t.Run(fmt.Sprintf("%d per %v", limit.N, limit.Per), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := limiterOf(t, rate(limit.N, limit.Per))
				late := time.Duration(0)
				if limit.N > 4096 {
					late = (limit.Per + 4094) / 4095
				}
				cost := 1
				if limit.N%1000 == 0 {
					cost = 1000 // to be quick
				}
				n := limit.N / cost
				trace(t, l, core.Request{Cost: cost},
					volley{0, n, n + 1},
					volley{limit.Per - 1, 0, 2},
					volley{limit.Per + late, n, n + 1},
					volley{2*limit.Per + late - 1, 0, 2},
					volley{2*limit.Per + 2*late, n, n + 1},
				)
			})
		})
	}
}

// The largest limit is a limit: two requests that want all of it do not add up to
// a negative number.
func TestTheLargestNumberIsALimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, rate(math.MaxInt, time.Second))
		all, most := core.Request{Cost: math.MaxInt}, core.Request{Cost: math.MaxInt - 1}
		if n := passes(l, most, 1); n != 1 {
			t.Fatal("the first is refused; want admitted")
		}
		if r := refused(t, l, all); r.Reason != core.ReasonRate {
			t.Errorf("the second is refused as %q; want %q", r.Reason, core.ReasonRate)
		}
		if n := passes(l, core.Request{}, 3); n != 1 {
			t.Errorf("of the unit left, %d passed; want 1", n)
		}
		sleepUntil(t, 2*time.Second)
		if n := passes(l, all, 2); n != 1 {
			t.Errorf("after the window %d passed; want 1", n)
		}
	})
}

// The longest window is a window: the sum of an instant and 292 years does not
// come out in the past.
func TestTheLongestWindowIsAWindow(t *testing.T) {
	for _, n := range []int{1, 10_000} {
		synctest.Test(t, func(t *testing.T) {
			l := limiterOf(t, rate(n, math.MaxInt64))
			const century = 100 * 365 * 24 * time.Hour
			trace(t, l, core.Request{},
				volley{time.Hour, n, n + 1},
				volley{2 * time.Hour, 0, 2},
				volley{century, 0, 2},
			)
			if r := refused(t, l, core.Request{}); r.Reason != core.ReasonRate || r.RetryAfter < century {
				t.Errorf("refusal %+v; want a rate's, with more than a century to wait", r)
			}
		})
	}
}

// A limit of nothing lets nothing pass, ever; and says so, for there is no instant
// to come back at.
func TestNothingPassesALimitOfNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, rate(0, time.Second))
		for range 3 {
			want := core.Refusal{Rule: "rate", Reason: core.ReasonNever}
			if r := refused(t, l, core.Request{}); r != want {
				t.Errorf("refusal %+v; want %+v", r, want)
			}
			time.Sleep(time.Hour)
		}
	})
}

// A thousand and one per second are that, and not without limit because a
// millisecond holds more than one.
func TestMoreThanOnePerMillisecond(t *testing.T) {
	for _, n := range []int{1001, 4096} {
		synctest.Test(t, func(t *testing.T) {
			l := limiterOf(t, rate(n, time.Second))
			for second := range time.Duration(3) {
				sum := 0
				for tick := range time.Duration(10_000) {
					sleepUntil(t, second*time.Second+tick*100*time.Microsecond)
					sum += passes(l, core.Request{}, 2)
				}
				if sum != n {
					t.Errorf("second %d: %d passed; want %d", second, sum, n)
				}
			}
		})
	}
}

// A request of cost five takes five; no cost is a cost of one; what is left over
// is there for those who fit.
func TestCostCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, rate(10, time.Second))
		trace(t, l, core.Request{Cost: 5}, volley{0, 2, 3})
		trace(t, l, core.Request{}, volley{0, 0, 3}, volley{time.Second, 1, 1})
		trace(t, l, core.Request{Cost: 1}, volley{1100 * ms, 1, 1})
		trace(t, l, core.Request{Cost: 4}, volley{1200 * ms, 2, 9})
		trace(t, l, core.Request{Cost: 10}, volley{2200*ms - 1, 0, 1}, volley{2200 * ms, 1, 2})
	})
}

// A cost above the limit never passes, and a cost below zero is no gift: both are
// refused as never, spend nothing, and bring nothing back.
func TestACostThatCannotFitIsRefusedForEver(t *testing.T) {
	for _, cost := range []int{11, math.MaxInt, -1, math.MinInt} {
		for _, limit := range []core.Limit{core.Rate{N: 10, Per: time.Second}, core.InFlight{N: 10}} {
			synctest.Test(t, func(t *testing.T) {
				l := limiterOf(t, core.Rule{Name: "r", Limit: limit})
				for range 5 {
					want := core.Refusal{Rule: "r", Reason: core.ReasonNever}
					if r := refused(t, l, core.Request{Cost: cost}); r != want {
						t.Errorf("cost %d of %v: refusal %+v; want %+v", cost, limit, r, want)
					}
				}
				hold(t, l, core.Request{Cost: 10})
				if r := refused(t, l, core.Request{}); r.Reason == core.ReasonNever {
					t.Errorf("cost 1 of %v: refusal %+v; want one that ends", limit, r)
				}
				if r := refused(t, l, core.Request{Cost: cost}); r.Reason != core.ReasonNever {
					t.Errorf("cost %d of %v, all taken: refusal %+v; want never", cost, limit, r)
				}
			})
		}
	}
}

// A cost below zero is wrong in itself, so it is refused where no rule applies,
// too.
func TestANegativeCostIsRefusedWithoutARule(t *testing.T) {
	l := limiterOf(t, core.Rule{Name: "orders", On: "orders", Limit: core.InFlight{N: 1}})
	if r := refused(t, l, core.Request{On: "health", Cost: -1}); r.Reason != core.ReasonNever || r.Known || r.RetryAfter != 0 {
		t.Errorf("refusal %+v; want never", r)
	}
	if n := passes(l, core.Request{On: "health"}, 10); n != 10 {
		t.Errorf("%d of 10 passed; want all: no rule applies", n)
	}
}

// Steps of the wall clock have no effect, because only the monotonic one is read.
// A test cannot set the machine's clock back, but it can read the program: the
// monotonic reading is lost by what turns a time into a number, a string or
// another zone, and by nothing else.
func TestTheWallClockIsNeverRead(t *testing.T) {
	loses := map[string]bool{
		"Unix": true, "UnixNano": true, "UnixMicro": true, "UnixMilli": true,
		"Round": true, "Truncate": true, "UTC": true, "Local": true, "In": true, "Date": true,
		"Clock": true, "Hour": true, "Minute": true, "Second": true, "Nanosecond": true,
		"AddDate": true, "Format": true, "AppendFormat": true, "MarshalText": true,
	}
	durations := map[string]bool{"Hour": true, "Minute": true, "Second": true, "Nanosecond": true}
	names, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	readings := 0
	positions := token.NewFileSet()
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(positions, name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			s, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			x, _ := s.X.(*ast.Ident)
			ofTime := x != nil && x.Name == "time"
			if ofTime && (s.Sel.Name == "Now" || s.Sel.Name == "Since") {
				readings++
			}
			if loses[s.Sel.Name] && !(ofTime && durations[s.Sel.Name]) {
				t.Errorf("%v: %s loses the monotonic reading", positions.Position(n.Pos()), s.Sel.Name)
			}
			return true
		})
	}
	if readings == 0 {
		t.Error("no clock is read anywhere: this test looks in the wrong place")
	}
}

// Nine of ten are taken, and two goroutines ask at once. Who looks first and
// counts later lets both pass.
func TestTwoDoNotShareTheLastUnit(t *testing.T) {
	for range 2000 {
		l := limiterOf(t, rate(10, time.Hour))
		passes(l, core.Request{}, 9)
		var passed atomic.Int32
		var both sync.WaitGroup
		begin := make(chan struct{})
		for range 2 {
			both.Go(func() {
				<-begin
				if _, ok := l.Try(core.Request{}); ok {
					passed.Add(1)
				}
			})
		}
		close(begin)
		both.Wait()
		if n := passed.Load(); n != 1 {
			t.Fatalf("%d passed where one unit was left", n)
		}
	}
}

// A hundred goroutines ask until they are refused, each with a cost of its own.
// The hour's units are given out to the last one, and not one more.
func TestACrowdGetsExactlyTheLimit(t *testing.T) {
	const n = 3000
	l := limiterOf(t, rate(n, time.Hour))
	var spent atomic.Int64
	var all sync.WaitGroup
	for i := range 100 {
		all.Go(func() {
			for cost := 1 + i%3; cost > 0; {
				if _, ok := l.Try(core.Request{Cost: cost}); ok {
					spent.Add(int64(cost))
				} else {
					cost-- // what is left may be smaller
				}
			}
		})
	}
	all.Wait()
	if s := spent.Load(); s != n {
		t.Errorf("%d units were spent; want %d", s, n)
	}
}

// Who is refused is told when to come back: a nanosecond earlier it is refused
// again, with a nanosecond to wait; at that instant it passes.
func TestRetryAfterIsTheInstant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, rate(10, time.Second))
		trace(t, l, core.Request{Cost: 3}, volley{0, 1, 1})
		trace(t, l, core.Request{Cost: 4}, volley{100 * ms, 1, 1})
		trace(t, l, core.Request{Cost: 3}, volley{200 * ms, 1, 1})
		sleepUntil(t, 300*ms)
		for cost, opens := range map[int]time.Duration{
			1: 1000 * ms, 3: 1000 * ms, // when the first has left
			4: 1100 * ms, 7: 1100 * ms, // when the second has, too
			8: 1200 * ms, 10: 1200 * ms, // when all have
		} {
			want := core.Refusal{Rule: "rate", Reason: core.ReasonRate, RetryAfter: opens - 300*ms, Known: true}
			if r := refused(t, l, core.Request{Cost: cost}); r != want {
				t.Errorf("cost %d: refusal %+v; want %+v", cost, r, want)
			}
		}

		r := refused(t, l, core.Request{Cost: 5})
		time.Sleep(r.RetryAfter - 1)
		if r := refused(t, l, core.Request{Cost: 5}); r.RetryAfter != 1 {
			t.Errorf("a nanosecond early: retry after %v; want 1ns", r.RetryAfter)
		}
		time.Sleep(time.Nanosecond)
		hold(t, l, core.Request{Cost: 5})
	})
}

// Coming back when told serves a client for ever, and loses no time: each second
// passes one.
func TestWhoComesBackWhenToldPasses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, rate(1, time.Second))
		for i := range 100 {
			hold(t, l, core.Request{})
			if at := time.Since(midnight); at != time.Duration(i)*time.Second {
				t.Fatalf("number %d passed at %v; want at second %d", i, at, i)
			}
			time.Sleep(refused(t, l, core.Request{}).RetryAfter)
		}
	})
}

// Requests of any cost come at random. Each passes exactly if the log of those
// that passed before says that it fits.
func TestARequestPassesExactlyIfItFits(t *testing.T) {
	for seed := range uint64(40) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 0))
			n := 1 + random.IntN(12)
			per := time.Duration(1 + random.IntN(40))
			l := limiterOf(t, rate(n, per))
			var log []admission
			for range 500 {
				now := time.Since(midnight)
				used := 0
				for _, a := range log {
					if a.at > now-per {
						used += a.cost
					}
				}
				cost := 1 + random.IntN(n+1)
				if random.IntN(2) == 0 {
					cost = 1
				}
				_, ok := l.Try(core.Request{Cost: cost})
				if fits := used+cost <= n; ok != fits {
					t.Fatalf("seed %d, %d per %v, at %v with %d used: cost %d admitted %t; want %t",
						seed, n, per, now, used, cost, ok, fits)
				}
				if ok {
					log = append(log, admission{now, cost})
				}
				if random.IntN(3) == 0 {
					time.Sleep(time.Duration(random.IntN(int(per) + 2)))
				}
			}
		})
	}
}

// Each of 4096 units has an instant of its own and comes back at just that one.
func TestUpTo4096UnitsAreExactToTheNanosecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n, per = 4096, time.Second
		l := limiterOf(t, rate(n, per))
		random := rand.New(rand.NewPCG(1, 2))
		var at []time.Duration
		for range n {
			time.Sleep(time.Duration(1 + random.IntN(100)))
			at = append(at, time.Since(midnight))
			hold(t, l, core.Request{})
		}
		for i, a := range at {
			before, after := volley{a + per - 1, 0, 1}, volley{a + per, 1, 2}
			if i > 0 && before.at == at[i-1]+per {
				before.of = 0 // the one before left only just now, and was replaced
			}
			trace(t, l, core.Request{}, before, after)
		}
	})
}

// Above 4096 a unit comes back at most one slice of the window late, and never
// early: memory is bounded, and the promise is not touched.
func TestALargeLimitIsLateByASliceAndNeverEarly(t *testing.T) {
	for seed, limit := range []core.Rate{
		{N: 4097, Per: time.Second},
		{N: 5000, Per: time.Millisecond},
		{N: 20_000, Per: time.Second},
		{N: 1_000_000, Per: time.Hour},
		{N: 9000, Per: 20 * time.Microsecond},
	} {
		t.Run(fmt.Sprintf("%d per %v", limit.N, limit.Per), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				random := rand.New(rand.NewPCG(uint64(seed), 1))
				slice := (limit.Per + 4094) / 4095
				l := limiterOf(t, rate(limit.N, limit.Per))
				var log []admission
				window, slack := 0, 0 // the first in (now-Per, now], and in (now-Per-slice, now]
				used, late := 0, 0    // and what they sum up to
				refusals := 0
				for range 20_000 {
					time.Sleep(time.Duration(random.Int64N(int64(limit.Per)/2000 + 2)))
					now := time.Since(midnight)
					for ; window < len(log) && log[window].at <= now-limit.Per; window++ {
						used -= log[window].cost
					}
					for ; slack < len(log) && log[slack].at <= now-limit.Per-slice; slack++ {
						late -= log[slack].cost
					}
					cost := 1 + random.IntN(limit.N/500+1)
					_, ok := l.Try(core.Request{Cost: cost})
					if ok && used+cost > limit.N {
						t.Fatalf("at %v with %d used: cost %d passed", now, used, cost)
					}
					if !ok && late+cost <= limit.N {
						t.Fatalf("at %v with %d used a slice ago: cost %d is refused", now, late, cost)
					}
					if ok {
						log = append(log, admission{now, cost})
						used += cost
						late += cost
					} else {
						refusals++
					}
				}
				if refusals == 0 || len(log) == 0 {
					t.Fatalf("%d passed and %d were refused: this proves nothing", len(log), refusals)
				}
			})
		})
	}
}
