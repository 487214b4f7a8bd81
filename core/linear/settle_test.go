package linear

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/exactflow/exactflow/core"
)

// What happens to permits after their decision is checked in the same way, at one
// instant: a rate, one that keeps only what failed, and what is in flight.
const (
	all    = 0 // 9 units
	failed = 1 // 6 units
	out    = 2 // 5 units
)

var fits = [...]int{all: 9, failed: 6, out: 5}

// A deed is what is done by or to a permit, of a request that costs n by now.
type deed struct {
	what string // "try", "peek", "settle", "release"
	n    int
	to   int // of settle
	fail bool
}

// A tally is how many units of each rule are used.
type tally [len(fits)]int

func (s *tally) room(n int) bool {
	for rule := range fits {
		if s[rule]+n > fits[rule] {
			return false
		}
	}
	return true
}

func (s *tally) add(n int) {
	for rule := range s {
		s[rule] += n
	}
}

// settles is the limiter that does one thing after the other. An output is true where
// something was admitted, or settled.
var settles = porcupine.Model{
	Init: func() any { return tally{} },
	Step: func(from, in, output any) (bool, any) {
		s, d, ok := from.(tally), in.(deed), output.(bool)
		return ok == s.step(d), s
	},
}

func (s *tally) step(d deed) (ok bool) {
	switch d.what {
	case "peek":
		return s.room(d.n)
	case "try":
		if ok = s.room(d.n); ok {
			s.add(d.n)
		}
	case "settle":
		if ok = d.to <= d.n || s.room(d.to-d.n); ok {
			s.add(d.to - d.n)
		}
	case "release":
		s[out] -= d.n
		if !d.fail {
			s[failed] -= d.n
		}
		ok = true
	}
	return ok
}

// A doer does deeds, one after the other, for one goroutine.
type doer func(deed) bool

// deeds makes a history.
func deeds(seed uint64, who func() doer) []porcupine.Operation {
	const goroutines = 3
	var clock, ready atomic.Int64
	each := [goroutines][]porcupine.Operation{}
	var wg sync.WaitGroup
	for g := range goroutines {
		do := who()
		wg.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(g)))
			record := func(d deed) bool {
				op := porcupine.Operation{ClientId: g, Input: d, Call: clock.Add(1)}
				ok := do(d)
				op.Output, op.Return = ok, clock.Add(1)
				each[g] = append(each[g], op)
				return ok
			}
			for call := range 8 {
				ready.Add(1)
				for spins := 0; ready.Load() < int64(goroutines*(call+1)); spins++ { // all at once
					if spins > 2000 {
						runtime.Gosched()
					}
				}
				d := deed{what: "try", n: 1 + r.IntN(3), fail: r.IntN(3) == 0}
				if r.IntN(5) == 0 {
					d.what = "peek"
				}
				if !record(d) || d.what == "peek" {
					continue
				}
				if d.what, d.to = "settle", r.IntN(6); r.IntN(4) > 0 && record(d) {
					d.n = d.to
				}
				if r.IntN(3) == 0 {
					runtime.Gosched()
				}
				d.what = "release"
				record(d)
			}
		})
	}
	wg.Wait()
	return slices.Concat(each[:]...)
}

func ordered(t *testing.T, seed uint64, who func() doer) (ok bool, ops []porcupine.Operation) {
	ops = deeds(seed, who)
	switch porcupine.CheckOperationsTimeout(settles, ops, time.Minute) {
	case porcupine.Ok:
		return true, ops
	case porcupine.Unknown:
		t.Fatal("the check of a history takes more than a minute")
	}
	return false, ops
}

func TestSettlingIsLinearizable(t *testing.T) {
	told := map[string]int{}
	overlapping := 0
	for seed := uint64(0); seed < 200 || overlapping < 300 && seed < 2000; seed++ {
		synctest.Test(t, func(t *testing.T) {
			rules := []core.Rule{
				all:    {Name: "all", Limit: core.Rate{N: fits[all], Per: time.Hour}},
				failed: {Name: "failed", Limit: core.Rate{N: fits[failed], Per: time.Hour, Charge: core.ChargeFailed}},
				out:    {Name: "out", Limit: core.InFlight{N: fits[out]}},
			}
			for i := range watchers {
				rules = append(rules, core.Rule{Name: fmt.Sprint(i), Limit: core.Rate{N: 1 << 20, Per: time.Hour}, Shadow: true})
			}
			l, err := core.New(rules...)
			if err != nil {
				t.Fatal(err)
			}
			ok, ops := ordered(t, seed, func() doer {
				var p core.Permit
				return func(d deed) (ok bool) {
					switch d.what {
					case "try":
						p, ok = l.Try(core.Request{Cost: d.n})
					case "peek":
						_, ok = l.Peek(core.Request{Cost: d.n})
					case "settle":
						ok = p.Settle(d.to)
					case "release":
						if ok = true; d.fail {
							p.Fail()
						}
						p.Release()
					}
					return ok
				}
			})
			if !ok {
				t.Fatalf("history %d has no order:\n%s", seed, list(ops))
			}
			for _, op := range ops {
				told[fmt.Sprint(op.Input.(deed).what, " ", op.Output)]++
				if op.Return-op.Call > 1 {
					overlapping++
				}
			}
		})
	}
	t.Logf("%v; %d calls overlapped others", told, overlapping)
	if len(told) != 7 || overlapping == 0 {
		t.Error("a check without some answer, or without two calls at once, proves nothing about it")
	}
}

// A raise that charges one rule after the other, and puts back what it took when the
// next has no room, is the negative control.
func TestTheCheckFindsARaiseInParts(t *testing.T) {
	const histories = 300
	for seed := range uint64(histories) {
		var mu sync.Mutex
		var s tally
		ok, _ := ordered(t, seed, func() doer {
			return func(d deed) bool {
				if d.what != "settle" || d.to <= d.n {
					mu.Lock()
					defer mu.Unlock()
					return s.step(d)
				}
				for rule := range fits {
					mu.Lock()
					fit := s[rule]+d.to-d.n <= fits[rule]
					if fit {
						s[rule] += d.to - d.n
					} else {
						for before := range rule {
							s[before] -= d.to - d.n
						}
					}
					mu.Unlock()
					if !fit {
						return false
					}
					runtime.Gosched()
				}
				return true
			}
		})
		if !ok {
			t.Logf("found in history %d", seed)
			return
		}
	}
	t.Errorf("%d histories, and all have an order", histories)
}

func list(ops []porcupine.Operation) (text string) {
	slices.SortFunc(ops, func(a, b porcupine.Operation) int { return int(a.Call - b.Call) })
	for _, op := range ops {
		text += fmt.Sprintf("%d to %d\tgoroutine %d\t%+v: %v\n", op.Call, op.Return, op.ClientId, op.Input, op.Output)
	}
	return text
}
