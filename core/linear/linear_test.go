// Package linear checks histories of concurrent decisions for linearizability:
// that there is an order, in which every call stands somewhere between its begin
// and its end, and in which a limiter that does one thing after the other would
// have answered alike. It is a module of its own, so that users of core never
// meet what it needs.
package linear

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/exactflow/exactflow/core"
	"golang.org/x/time/rate"
)

// The histories are made in bubbles, where time stands still while anybody runs:
// so all that a decision depends on is known, and what remains is the order. It
// is taken from an atomic counter, read before and after each call.

// The rules under test: two rates, and what is in flight. Of some of their units a
// part is kept from the less important.
const (
	step  = time.Second // between two rounds
	wide  = 0           // 30 units per 3 steps, on all
	short = 1           // 5 units per step, on "a"
	held  = 2           // 3 units in flight, on all
)

var (
	names = [...]string{"wide", "short", "held"}
	sizes = [...]int{30, 5, 3}
	pers  = [...]time.Duration{3 * step, step, 0}
	kept  = [...]core.Reserve{{Default: 2, Critical: 4}, {}, {Critical: 1}}
)

// Rules that only look on make a decision last, so that others begin meanwhile.
const watchers = 100

func rules() []core.Rule {
	rules := []core.Rule{
		{Name: names[wide], Limit: core.Rate{N: sizes[wide], Per: pers[wide]}, Reserve: kept[wide]},
		{Name: names[held], Limit: core.InFlight{N: sizes[held]}, Reserve: kept[held]},
		{Name: names[short], On: "a", Limit: core.Rate{N: sizes[short], Per: pers[short]}},
	}
	for i := range watchers {
		rules = append(rules, core.Rule{Name: fmt.Sprint(i), Limit: core.Rate{N: 1 << 20, Per: time.Hour}, Shadow: true})
	}
	return rules
}

// An input is a request, or the release of one that was admitted.
type input struct {
	round   int
	on      string
	n       int
	p       core.Priority
	release bool
}

// An output is what a request is told. A limiter that tells less leaves rule
// empty.
type output struct {
	ok   bool
	rule string // the tightest, or the refusing one
	left int
}

const rounds = 6

// A state has the units of each rule by the round they were admitted in; those
// held all in round 0.
type state [len(names)][rounds]int

// left is what is left of a rule for a request like in: less than nothing, where others
// have taken what is kept from it.
func (s *state) left(rule int, in input) int {
	left := sizes[rule]
	for i, n := range s[rule] {
		if rule == held || time.Duration(in.round-i)*step < pers[rule] {
			left -= n
		}
	}
	if in.p < core.Critical {
		left -= kept[rule].Critical
	}
	if in.p < core.Default {
		left -= kept[rule].Default
	}
	return left
}

func (s *state) fits(in input, rules ...int) bool {
	for _, rule := range rules {
		if in.n > s.left(rule, in) {
			return false
		}
	}
	return true
}

func (s *state) add(in input, n int, rules ...int) {
	for _, rule := range rules {
		if rule == held {
			s[rule][0] += n
		} else {
			s[rule][in.round] += n
		}
	}
}

// applied are the rules for a resource, in their order.
func applied(on string) []int {
	if on == "a" {
		return []int{wide, held, short}
	}
	return []int{wide, held}
}

// model is the limiter that does one thing after the other.
var model = porcupine.Model{
	Init: func() any { return state{} },
	Step: func(from, in, out any) (bool, any) {
		s, i, o := from.(state), in.(input), out.(output)
		if i.release {
			s.add(i, -i.n, held)
			return true, s
		}
		rules := applied(i.on)
		if o.ok != s.fits(i, rules...) {
			return false, s
		}
		if !o.ok {
			if at := slices.Index(names[:], o.rule); at >= 0 {
				left := s.left(at, i)
				return i.n > left && o.left == max(0, left), s
			}
			return o.rule == "", s
		}
		s.add(i, i.n, rules...)
		if o.rule == "" {
			return true, s
		}
		tightest := slices.MinFunc(rules, func(a, b int) int {
			if d := s.left(a, i)*sizes[b] - s.left(b, i)*sizes[a]; d != 0 {
				return d
			}
			return strings.Compare(names[a], names[b])
		})
		return o.rule == names[tightest] && o.left == s.left(tightest, i), s
	},
}

// A limiter answers requests; the release of those admitted may be nil.
type limiter func(input) (output, func())

// history lets goroutines call a limiter in rounds, between which time goes on.
func history(seed uint64, make func() limiter) (ops []porcupine.Operation) {
	const goroutines, calls = 3, 7
	var clock atomic.Int64
	l := make()
	each := [goroutines][]porcupine.Operation{}
	for round := range rounds {
		var ready atomic.Int32
		var wg sync.WaitGroup
		for g := range goroutines {
			wg.Go(func() {
				r := rand.New(rand.NewPCG(seed, uint64(round*goroutines+g)))
				record := func(in input, call func() output) {
					op := porcupine.Operation{ClientId: g, Input: in, Call: clock.Add(1)}
					op.Output = call()
					op.Return = clock.Add(1)
					each[g] = append(each[g], op)
				}
				for call := range calls {
					ready.Add(1)
					for spins := 0; ready.Load() < int32(goroutines*(call+1)); spins++ { // all at once
						if spins > 2000 {
							runtime.Gosched()
						}
					}
					in := input{round: round, on: []string{"a", "a", "b"}[r.IntN(3)], n: 1 + r.IntN(4)/3, p: core.Priority(r.IntN(3) - 1)}
					var release func()
					record(in, func() (o output) { o, release = l(in); return o })
					if r.IntN(3) == 0 {
						runtime.Gosched()
					}
					if release != nil {
						in.release = true
						record(in, func() output { release(); return output{} })
					}
				}
			})
		}
		wg.Wait()
		time.Sleep(step)
	}
	return slices.Concat(each[:]...)
}

// linear makes a history in a bubble, and checks it.
func linear(t *testing.T, seed uint64, make func() limiter) (ok bool, ops []porcupine.Operation) {
	synctest.Test(t, func(*testing.T) { ops = history(seed, make) })
	switch porcupine.CheckOperationsTimeout(model, ops, time.Minute) {
	case porcupine.Ok:
		return true, ops
	case porcupine.Unknown:
		t.Fatal("the check of a history takes more than a minute")
	}
	return false, ops
}

func show(ops []porcupine.Operation) string {
	slices.SortFunc(ops, func(a, b porcupine.Operation) int { return int(a.Call - b.Call) })
	var b strings.Builder
	for _, op := range ops {
		fmt.Fprintf(&b, "%d to %d\tgoroutine %d\t%+v: %+v\n", op.Call, op.Return, op.ClientId, op.Input, op.Output)
	}
	return b.String()
}

func TestDecisionsAreLinearizable(t *testing.T) {
	admitted, refused := 0, 0
	refusedBy := map[string]int{}
	overlapping := 0
	for seed := uint64(0); seed < 40 || overlapping < 300 && seed < 1000; seed++ {
		ok, ops := linear(t, seed, func() limiter {
			l, err := core.New(rules()...)
			if err != nil {
				t.Fatal(err)
			}
			return func(in input) (output, func()) {
				p, ok := l.Try(core.Request{On: in.on, Cost: in.n, Priority: in.p})
				out := output{ok, p.Quota().Rule, p.Quota().Remaining}
				if !ok {
					return out, nil
				}
				return out, p.Release
			}
		})
		if !ok {
			t.Fatalf("history %d has no order:\n%s", seed, show(ops))
		}
		for _, op := range ops {
			switch out := op.Output.(output); {
			case op.Input.(input).release:
			case out.ok:
				admitted++
			default:
				refused++
				refusedBy[out.rule]++
			}
			if op.Return-op.Call > 1 {
				overlapping++
			}
		}
	}
	t.Logf("%d admitted, %d refused: %v; %d calls overlapped others", admitted, refused, refusedBy, overlapping)
	if admitted == 0 || len(refusedBy) < len(names) || overlapping == 0 {
		t.Error("a check without some answer, or without two calls at once, proves nothing about it")
	}
}

// TestTheCheckFindsWhatIsBroken is the negative control.
func TestTheCheckFindsWhatIsBroken(t *testing.T) {
	// Two callers read that 1 is left, and both take it.
	t.Run("it checks, then counts", func(t *testing.T) {
		found(t, true, func(g *guarded, in input, rules []int) bool {
			g.Lock()
			fits := g.fits(in, rules...)
			g.Unlock()
			if fits {
				runtime.Gosched()
				g.Lock()
				g.add(in, in.n, rules...)
				g.Unlock()
			}
			return fits
		})
	})
	// What the first rules took is put back when the next refuses. Until then
	// others are refused for it.
	t.Run("it takes, then puts back", func(t *testing.T) {
		found(t, true, func(g *guarded, in input, rules []int) bool {
			for i, rule := range rules {
				g.Lock()
				fits := g.fits(in, rule)
				if fits {
					g.add(in, in.n, rule)
				} else {
					g.add(in, -in.n, rules[:i]...)
				}
				g.Unlock()
				if !fits {
					return false
				}
				runtime.Gosched()
			}
			return true
		})
	})
	t.Run("and what is not broken is not called so", func(t *testing.T) {
		found(t, false, func(g *guarded, in input, rules []int) bool {
			g.Lock()
			defer g.Unlock()
			fits := g.fits(in, rules...)
			if fits {
				g.add(in, in.n, rules...)
			}
			return fits
		})
	})
}

type guarded struct {
	sync.Mutex
	state
}

// found makes histories of a limiter that decides so, and looks whether one of
// them has no order.
func found(t *testing.T, want bool, decide func(*guarded, input, []int) bool) {
	t.Helper()
	const histories = 100
	for seed := range uint64(histories) {
		ok, ops := linear(t, seed, func() limiter {
			var g guarded
			return func(in input) (output, func()) {
				if !decide(&g, in, applied(in.on)) {
					return output{}, nil
				}
				return output{ok: true}, func() {
					g.Lock()
					defer g.Unlock()
					g.add(in, -in.n, held)
				}
			}
		})
		if !ok && want {
			t.Logf("found in history %d", seed)
			return
		}
		if !ok {
			t.Fatalf("history %d has no order:\n%s", seed, show(ops))
		}
	}
	if want {
		t.Errorf("%d histories, and all have an order", histories)
	}
}

// golang.org/x/time/rate decides in order too, but by a bucket: N, and soon what
// ran in meanwhile. One goroutine is enough to see it.
func TestTheCheckFindsABucket(t *testing.T) {
	play := func(allow func() bool) porcupine.CheckResult {
		var ops []porcupine.Operation
		for round := range rounds {
			for range 2 * sizes[wide] {
				now := int64(2 * len(ops))
				in, ok := input{round: round, on: "b", n: 1}, allow()
				ops = append(ops, porcupine.Operation{Input: in, Output: output{ok: ok}, Call: now, Return: now + 1})
				if ok {
					in.release = true
					ops = append(ops, porcupine.Operation{Input: in, Output: output{}, Call: now + 2, Return: now + 3})
				}
			}
			time.Sleep(step)
		}
		return porcupine.CheckOperationsTimeout(model, ops, time.Minute)
	}
	synctest.Test(t, func(t *testing.T) {
		bucket := rate.NewLimiter(rate.Every(pers[wide]/time.Duration(sizes[wide])), sizes[wide])
		if got := play(bucket.Allow); got != porcupine.Illegal {
			t.Errorf("of x/time/rate the check says %s; want %s", got, porcupine.Illegal)
		}
		l, err := core.New(rules()...)
		if err != nil {
			t.Fatal(err)
		}
		if got := play(func() bool { p, ok := l.Try(core.Request{On: "b"}); p.Release(); return ok }); got != porcupine.Ok {
			t.Errorf("of core the check says %s; want %s", got, porcupine.Ok)
		}
	})
}
