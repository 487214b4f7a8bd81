package core_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sort"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/exactflow/exactflow/core"
)

// A bubble explores time, not interleavings. Here many goroutines call in real
// time, and a checker that knows nothing of the limiter judges what they saw.
// Nobody outside knows the instant of a decision, only that it lies between a
// reading of the clock before the call and one after it. So a history counts as
// broken only for certain, and each check below is a proof, with no tolerance in
// it that a slow machine could exceed.

// A call is one decision as its caller saw it.
type call struct {
	begin, end time.Duration // the readings around it
	n          int           // its cost
	key        string
	ok         bool
	refusal    core.Refusal
	// of an admitted call that was released: the readings around the release
	leaving, left time.Duration
}

// above proves that more than n units were admitted in less than per: that many
// calls began and ended within it. It returns "" if there is no proof.
func above(calls []call, n int, per time.Duration) string {
	in := admittedOf(calls)
	slices.SortFunc(in, func(a, b call) int { return cmp.Compare(a.begin, b.begin) })
	for i := range in {
		sum, from := 0, in[i].begin
		for j := i; j < len(in) && in[j].begin < from+per; j++ {
			if in[j].end < from+per {
				sum += in[j].n
			}
		}
		if sum > n {
			return fmt.Sprintf("%d units in less than %v from %v on; want at most %d", sum, per, from, n)
		}
	}
	return ""
}

// below proves that a call was refused though it had room: that with all the
// units that can have been in its window, those of the calls which touch
// (its begin - per, its end], n are not exceeded.
func below(calls []call, n int, per time.Duration) string {
	return refusedWithRoom(calls, n, func(c call) time.Duration { return c.end + per })
}

// aboveHeld proves that more than n units were held at one instant: it lies after
// all of those calls had ended and before any of them was being released.
func aboveHeld(calls []call, n int) string {
	type change struct {
		at time.Duration
		n  int
	}
	var changes []change
	for _, c := range admittedOf(calls) {
		if c.end < c.leaving {
			changes = append(changes, change{c.end, c.n}, change{c.leaving, -c.n})
		}
	}
	slices.SortFunc(changes, func(a, b change) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.n, b.n)) })
	held := 0
	for _, c := range changes {
		if held += c.n; held > n {
			return fmt.Sprintf("%d units held at %v; want at most %d", held, c.at, n)
		}
	}
	return ""
}

// belowHeld proves that a call was refused though fewer than n units can have
// been held at any instant of it.
func belowHeld(calls []call, n int) string {
	return refusedWithRoom(calls, n, func(c call) time.Duration { return c.left + 1 })
}

// refusedWithRoom looks at every refused call: all units that were admitted in a
// call begun by its end, and that were not gone by its begin, must leave no room.
func refusedWithRoom(calls []call, n int, gone func(call) time.Duration) string {
	in := admittedOf(calls)
	came := newTotals(in, func(c call) time.Duration { return c.begin })
	went := newTotals(in, gone)
	for _, c := range calls {
		if touch := came.until(c.end) - went.until(c.begin); !c.ok && touch+c.n <= n {
			return fmt.Sprintf("%d refused from %v to %v with only %d units about; the limit is %d", c.n, c.begin, c.end, touch, n)
		}
	}
	return ""
}

// wrongWait proves that a refused call was told an instant at which nothing
// opens: no call was admitted one window before it. Or that it waits for a unit
// that came after it was refused: nothing takes longer than a window. Who reads
// the clock before the lock, or before what was last told, may hear that.
func wrongWait(calls []call, per time.Duration) string {
	in := admittedOf(calls)
	came := newTotals(in, func(c call) time.Duration { return c.begin })
	went := newTotals(in, func(c call) time.Duration { return c.end + 1 })
	for _, c := range calls {
		if !c.ok {
			d := c.refusal.RetryAfter - per
			if !c.refusal.Known || d > 0 || came.until(c.end+d)-went.until(c.begin+d) <= 0 {
				return fmt.Sprintf("refused from %v to %v with %+v; nothing opens then", c.begin, c.end, c.refusal)
			}
		}
	}
	return ""
}

// totals are running sums of units over the time.
type totals struct {
	at  []time.Duration
	sum []int
}

func newTotals(calls []call, at func(call) time.Duration) (t totals) {
	slices.SortFunc(calls, func(a, b call) int { return cmp.Compare(at(a), at(b)) })
	sum := 0
	for _, c := range calls {
		sum += c.n
		t.at = append(t.at, at(c))
		t.sum = append(t.sum, sum)
	}
	return t
}

// until is the sum up to and with this instant.
func (t totals) until(at time.Duration) int {
	i := sort.Search(len(t.at), func(i int) bool { return t.at[i] > at })
	if i == 0 {
		return 0
	}
	return t.sum[i-1]
}

func admittedOf(calls []call) []call { return where(calls, func(c call) bool { return c.ok }) }

func where(calls []call, f func(call) bool) (some []call) {
	for _, c := range calls {
		if f(c) {
			some = append(some, c)
		}
	}
	return some
}

// storm lets goroutines call as often as they like, for a while. A decide fills
// in what it asked and was told; it may return what is to be done when the
// request is done, some time later.
func storm(goroutines int, length time.Duration, decide func(*call, *rand.Rand) (release func())) []call {
	const most = 20_000 // calls of one goroutine
	start := time.Now()
	each := make([][]call, goroutines)
	var wg sync.WaitGroup
	for g := range each {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(g), 7))
			for time.Since(start) < length && len(each[g]) < most {
				c := call{n: 1}
				c.begin = time.Since(start)
				release := decide(&c, r)
				c.end = time.Since(start)
				switch r.IntN(4) {
				case 0:
				case 1:
					runtime.Gosched()
				default:
					time.Sleep(time.Duration(r.IntN(1_000_000)))
				}
				if release != nil {
					c.leaving = time.Since(start)
					release()
					c.left = time.Since(start)
				}
				each[g] = append(each[g], c)
			}
		})
	}
	wg.Wait()
	return slices.Concat(each...)
}

// try asks a limiter, for a storm.
func try(l *core.Limiter, c *call, r core.Request) func() {
	r.Cost = c.n
	p, ok := l.Try(r)
	c.ok, c.refusal = ok, p.Refusal()
	if !ok {
		return nil
	}
	return p.Release
}

// whileReloading is a storm during which rules come and go.
func whileReloading(t *testing.T, l *core.Limiter, rules func(i int) []core.Rule, decide func(*call, *rand.Rand) func()) []call {
	replace(t, l, rules(0)...)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 1; ; i++ {
			select {
			case <-stop:
				return
			default:
				if err := l.Replace(rules(i)...); err != nil {
					t.Error(err)
				}
				time.Sleep(time.Duration(i%5) * 100 * time.Microsecond)
			}
		}
	})
	calls := storm(50, 300*time.Millisecond, decide)
	close(stop)
	wg.Wait()
	return calls
}

// verify reports what the checks prove, and that the history has something to
// prove: a full window admitted, and someone refused.
func verify(t *testing.T, calls []call, n int, proofs ...string) {
	t.Helper()
	admitted := len(admittedOf(calls))
	if most := slices.MaxFunc(calls, func(a, b call) int { return cmp.Compare(a.n, b.n) }).n; admitted*most < n || admitted == len(calls) {
		t.Errorf("%d of %d calls admitted: the storm was too weak", admitted, len(calls))
	}
	for _, proof := range proofs {
		if proof != "" {
			t.Error(proof)
		}
	}
	t.Logf("%d of %d calls admitted", admitted, len(calls))
}

func TestRateHoldsInRealTime(t *testing.T) {
	for _, s := range []struct {
		n    int
		per  time.Duration
		cost int // up to this
	}{
		{n: 20, per: 100 * time.Millisecond, cost: 1},
		{n: 20, per: 100 * time.Millisecond, cost: 7},
		{n: 1, per: time.Millisecond, cost: 1},
		{n: 500, per: 50 * time.Millisecond, cost: 1},
		{n: 10_000, per: 50 * time.Millisecond, cost: 200},
	} {
		rate := core.Rate{N: s.n, Per: s.per}
		t.Run(fmt.Sprintf("%v cost %d", rate, s.cost), func(t *testing.T) {
			l := limiterOf(t, core.Rule{Name: "r", Limit: rate})
			calls := storm(50, 200*time.Millisecond, func(c *call, r *rand.Rand) func() {
				c.n = 1 + r.IntN(s.cost)
				return try(l, c, core.Request{})
			})
			late := time.Duration(0)
			if s.n > 4096 {
				late = (s.per-1)/4095 + 1
			}
			verify(t, calls, s.n, above(calls, s.n, s.per), below(calls, s.n, s.per+late), wrongWait(calls, s.per))
		})
	}
}

// Decisions about many rules take long. A clock that is read before the locks, or
// before the hint of the last rule, is late then; and who is refused by such a
// clock for a unit that came meanwhile is told to wait for more than a window.
func TestTheClockIsReadLastInRealTime(t *testing.T) {
	const per = 300 * time.Microsecond
	for _, cost := range []int{1, 2} { // without the locks, and with them
		t.Run(fmt.Sprint("cost ", cost), func(t *testing.T) {
			var rules []core.Rule
			for i := range 100 {
				rules = append(rules, core.Rule{Name: fmt.Sprint(i), Limit: core.Rate{N: 1 << 30, Per: per}})
			}
			rules = append(rules, core.Rule{Name: "r", Limit: core.Rate{N: cost, Per: per}})
			l := limiterOf(t, rules...)
			calls := storm(50, 300*time.Millisecond, func(c *call, _ *rand.Rand) func() {
				c.n = cost
				return try(l, c, core.Request{})
			})
			verify(t, calls, cost, above(calls, cost, per), below(calls, cost, per), wrongWait(calls, per))
		})
	}
}

// Every rule of several is held, and none is charged for what another refused:
// else it would refuse with room.
func TestSeveralRulesHoldInRealTime(t *testing.T) {
	rates := map[string]core.Rate{"slow": {N: 20, Per: 100 * time.Millisecond}, "fast": {N: 8, Per: 30 * time.Millisecond}}
	l := limiterOf(t,
		core.Rule{Name: "slow", Limit: rates["slow"]},
		core.Rule{Name: "held", Limit: core.InFlight{N: 3}},
		core.Rule{Name: "fast", Limit: rates["fast"]})
	calls := storm(50, 400*time.Millisecond, func(c *call, _ *rand.Rand) func() { return try(l, c, core.Request{}) })
	of := func(rule string) []call {
		return where(calls, func(c call) bool { return c.ok || c.refusal.Rule == rule })
	}
	for name, rate := range rates {
		verify(t, of(name), rate.N, above(of(name), rate.N, rate.Per), below(of(name), rate.N, rate.Per))
	}
	verify(t, of("held"), 3, aboveHeld(of("held"), 3), belowHeld(of("held"), 3))
}

// Each key has its window, those in For their own.
func TestKeysHoldInRealTime(t *testing.T) {
	limits := map[string]core.Limit{"3": core.Rate{N: 2, Per: 10 * time.Millisecond}}
	rate := core.Rate{N: 5, Per: 30 * time.Millisecond}
	l := limiterOf(t, core.Rule{Name: "r", By: "ip", Limit: rate, For: limits})
	calls := storm(50, 300*time.Millisecond, func(c *call, r *rand.Rand) func() {
		c.key = fmt.Sprint(r.IntN(8))
		return try(l, c, of("ip", c.key))
	})
	for i := range 8 {
		key := fmt.Sprint(i)
		limit := rate
		if l, ok := limits[key].(core.Rate); ok {
			limit = l
		}
		his := where(calls, func(c call) bool { return c.key == key })
		verify(t, his, limit.N, above(his, limit.N, limit.Per), below(his, limit.N, limit.Per), wrongWait(his, limit.Per))
	}
}

// More keys than there is room for move in and out of what they share, while
// MaxKeys goes up and down. None gets more than its limit, and those in For
// neither less.
func TestKeysBeyondMaxKeysHoldInRealTime(t *testing.T) {
	const n, per = 3, 10 * time.Millisecond
	rule := core.Rule{Name: "r", By: "ip", Limit: core.Rate{N: n, Per: per}, For: map[string]core.Limit{"0": core.Rate{N: n, Per: per}}}
	l := limiterOf(t, rule)
	reload := func(i int) []core.Rule {
		rule.MaxKeys = 1 + i%20
		return []core.Rule{rule}
	}
	calls := whileReloading(t, l, reload, func(c *call, r *rand.Rand) func() {
		c.key = fmt.Sprint(r.IntN(40))
		return try(l, c, of("ip", c.key))
	})
	for i := range 40 {
		key := fmt.Sprint(i)
		his := where(calls, func(c call) bool { return c.key == key })
		if proof := above(his, n, per); proof != "" {
			t.Errorf("key %s: %s", key, proof)
		}
		if i == 0 {
			verify(t, his, n, below(his, n, per), wrongWait(his, per))
		}
	}
	if s := statOf(t, l, "r"); s.Overflowed == 0 {
		t.Error("no key was beyond MaxKeys")
	}
}

// Reloads of other rules gain and lose nothing; lowering and raising a limit
// gains nothing above the higher and loses nothing below the lower.
func TestReplaceHoldsInRealTime(t *testing.T) {
	const low, high, per = 10, 20, 50 * time.Millisecond
	l := limiterOf(t)
	decide := func(c *call, _ *rand.Rand) func() { return try(l, c, core.Request{}) }
	calls := whileReloading(t, l, func(i int) []core.Rule {
		rules := []core.Rule{
			{Name: "same", Limit: core.Rate{N: high, Per: per}},
			{Name: "other", On: "elsewhere", Limit: core.Rate{N: 1 + i, Per: per}},
		}
		switch i % 3 {
		case 0:
			slices.Reverse(rules)
		case 1:
			rules = rules[:1]
		}
		return rules
	}, decide)
	verify(t, calls, high, above(calls, high, per), below(calls, high, per), wrongWait(calls, per))
	calls = whileReloading(t, l, func(i int) []core.Rule {
		return []core.Rule{{Name: "changes", Limit: core.Rate{N: []int{low, high}[i%2], Per: per}}}
	}, decide)
	verify(t, calls, high, above(calls, high, per), below(calls, low, per), wrongWait(calls, per))
}

// The slots of an in-flight limit are never more than N, all of them used, and
// all there at the end, whatever callers do with their permits: some release on
// many copies at once, and again long after, when others hold the slots.
func TestInFlightHoldsInRealTime(t *testing.T) {
	const n = 5
	l := limiterOf(t, core.Rule{Name: "r", Limit: core.InFlight{N: n}})
	var inside, peak atomic.Int64
	calls := storm(50, 400*time.Millisecond, func(c *call, r *rand.Rand) func() {
		p, ok := l.Try(core.Request{})
		if c.ok, c.refusal = ok, p.Refusal(); !ok {
			p.Release() // of a refused one: nothing
			return nil
		}
		now := inside.Add(1)
		for {
			if was := peak.Load(); was >= now || peak.CompareAndSwap(was, now) {
				break
			}
		}
		copies := r.IntN(4)
		return func() {
			inside.Add(-1)
			var wg sync.WaitGroup
			for range copies {
				wg.Go(p.Release)
			}
			p.Release()
			wg.Wait()
			for range copies {
				p.Release()
			}
		}
	})
	verify(t, calls, n, aboveHeld(calls, n), belowHeld(calls, n))
	if got := peak.Load(); got != n {
		t.Errorf("peak %d; want %d", got, n)
	}
	if got := passes(l, core.Request{Cost: n}, 1); got != 1 {
		t.Errorf("at the end not all %d slots are free", n)
	}
	hold(t, l, core.Request{Cost: n})
	refused(t, l, core.Request{})
}

// Stale permits, released again and again while others hold the slots they once
// had, free nobody's slot but their own.
func TestLateReleasesReachNobodyElse(t *testing.T) {
	const n = 3
	l := limiterOf(t, core.Rule{Name: "r", Limit: core.InFlight{N: n}}, core.Rule{Name: "by", By: "ip", Limit: core.InFlight{N: n}})
	var inside atomic.Int64
	var above atomic.Bool
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(g), 1))
			var stale []core.Permit
			for range 3000 {
				if p, ok := l.Try(of("ip", fmt.Sprint(r.IntN(2)))); ok {
					if inside.Add(1) > n {
						above.Store(true)
					}
					runtime.Gosched()
					inside.Add(-1)
					p.Release()
					stale = append(stale, p)
				}
				for range min(len(stale), 3) {
					stale[r.IntN(len(stale))].Release()
				}
			}
		})
	}
	wg.Wait()
	if above.Load() {
		t.Errorf("more than %d inside", n)
	}
	for range n {
		hold(t, l, of("ip", "0"))
	}
	refused(t, l, of("ip", "0"))
}

// TestTheCheckerFindsWhatIsBroken is the negative control: limiters that are
// broken in the ways that are common must be proved broken.
func TestTheCheckerFindsWhatIsBroken(t *testing.T) {
	const n, per = 20, 50 * time.Millisecond
	for name, broken := range map[string]func() (decide func() bool){
		// Two callers read 19 of 20, and both pass.
		"it checks, then counts": func() func() bool {
			w := newNaive(n, per)
			return func() bool {
				if !w.fits() {
					return false
				}
				time.Sleep(time.Millisecond)
				w.add()
				return true
			}
		},
		// A full bucket, and what runs in while it is emptied.
		"a bucket of N": func() func() bool {
			b := bucket{tokens: n, size: n, every: per / n, last: time.Now()}
			return func() bool { return b.take(time.Now) }
		},
		// Time runs back, and the same stretch is paid out twice. The bucket of 1
		// is without fault when the clock is read under the lock.
		"it reads the clock before it locks": func() func() bool {
			b := bucket{tokens: 1, size: 1, every: per / n, last: time.Now()}
			var calls atomic.Int64
			return func() bool {
				now := time.Now()
				if calls.Add(1)%2 == 0 { // sleeps on the way to the lock
					time.Sleep(2 * per / n)
				}
				return b.take(func() time.Time { return now })
			}
		},
		"a window that is too short": func() func() bool {
			w := newNaive(n, per*3/4)
			return func() bool { w.Lock(); defer w.Unlock(); return w.fitsLocked() && w.addLocked() }
		},
	} {
		t.Run(name, func(t *testing.T) {
			decide := broken()
			calls := storm(50, 150*time.Millisecond, func(c *call, _ *rand.Rand) func() { c.ok = decide(); return nil })
			if proof := above(calls, n, per); proof == "" {
				t.Error("not proved broken")
			} else {
				t.Log(proof)
			}
		})
	}
	t.Run("a window that is too long", func(t *testing.T) {
		w := newNaive(n, per*5/4)
		calls := storm(50, 150*time.Millisecond, func(c *call, _ *rand.Rand) func() {
			w.Lock()
			defer w.Unlock()
			c.ok = w.fitsLocked() && w.addLocked()
			return nil
		})
		if proof := below(calls, n, per); proof == "" {
			t.Error("not proved broken")
		}
		if proof := above(calls, n, per); proof != "" {
			t.Error(proof)
		}
	})
	t.Run("it always tells to wait for the whole window", func(t *testing.T) {
		w := newNaive(n, per)
		calls := storm(50, 150*time.Millisecond, func(c *call, _ *rand.Rand) func() {
			w.Lock()
			defer w.Unlock()
			if c.ok = w.fitsLocked() && w.addLocked(); !c.ok {
				c.refusal = core.Refusal{Known: true, RetryAfter: per}
			}
			return nil
		})
		if wrongWait(calls, per) == "" {
			t.Error("not proved broken")
		}
	})
	t.Run("slots that are counted after they are taken", func(t *testing.T) {
		var held atomic.Int64
		calls := storm(50, 150*time.Millisecond, func(c *call, _ *rand.Rand) func() {
			if held.Load() >= n/4 {
				return nil
			}
			time.Sleep(time.Millisecond)
			held.Add(1)
			c.ok = true
			return func() { held.Add(-1) }
		})
		if aboveHeld(calls, n/4) == "" {
			t.Error("not proved broken")
		}
	})
	t.Run("a slot that is lost now and then", func(t *testing.T) {
		var held atomic.Int64
		calls := storm(50, 150*time.Millisecond, func(c *call, r *rand.Rand) func() {
			if c.ok = held.Add(1) <= n/4; !c.ok {
				held.Add(-1)
				return nil
			}
			lost := r.IntN(20) == 0
			return func() {
				if !lost {
					held.Add(-1)
				}
			}
		})
		if belowHeld(calls, n/4) == "" {
			t.Error("not proved broken")
		}
	})
	t.Run("and what is not broken is not called so", func(t *testing.T) {
		w := newNaive(n, per)
		calls := storm(50, 150*time.Millisecond, func(c *call, _ *rand.Rand) func() {
			w.Lock()
			defer w.Unlock()
			c.ok = w.fitsLocked() && w.addLocked()
			return nil
		})
		verify(t, calls, n, above(calls, n, per), below(calls, n, per))
	})
}

// naive is a window as a list of instants.
type naive struct {
	sync.Mutex
	n   int
	per time.Duration
	at  []time.Time
}

func newNaive(n int, per time.Duration) *naive { return &naive{n: n, per: per} }

func (w *naive) fits() bool {
	w.Lock()
	defer w.Unlock()
	return w.fitsLocked()
}

func (w *naive) fitsLocked() bool {
	now := time.Now()
	w.at = slices.DeleteFunc(w.at, func(t time.Time) bool { return now.Sub(t) >= w.per })
	return len(w.at) < w.n
}

func (w *naive) add() bool {
	w.Lock()
	defer w.Unlock()
	return w.addLocked()
}

func (w *naive) addLocked() bool {
	w.at = append(w.at, time.Now())
	return true
}

// bucket is a token bucket.
type bucket struct {
	sync.Mutex
	tokens, size float64
	every        time.Duration
	last         time.Time
}

func (b *bucket) take(clock func() time.Time) bool {
	b.Lock()
	defer b.Unlock()
	now := clock()
	if now.After(b.last) {
		b.tokens = min(b.size, b.tokens+float64(now.Sub(b.last))/float64(b.every))
	}
	b.last = now
	if b.tokens < 1 {
		return false
	}
	b.tokens--
	return true
}
