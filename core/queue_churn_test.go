package core_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/exactflow/exactflow/core"
)

// A crowd counts what happens to many who wait in real time.
type crowd struct {
	held, most             atomic.Int64 // units in the slots, counted by those inside
	passed, refused, ended atomic.Int64
	later                  atomic.Int64 // of passed: after a wait
	mu                     sync.Mutex
	calls                  []call
}

// watch runs f, and fails if that does not come back: then somebody sticks.
func watch(t *testing.T, l *core.Limiter, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	select {
	case <-done:
	case <-time.After(4 * time.Minute):
		stacks := make([]byte, 1<<16)
		t.Fatalf("somebody waits for ever: %+v\n%s", l.Stats(), stacks[:runtime.Stack(stacks, true)])
	}
}

// wait makes one call, holds what it got for a moment, and gives it back.
func (c *crowd) wait(l *core.Limiter, r *rand.Rand, start time.Time) {
	q := of("user", fmt.Sprint(r.IntN(20)))
	q.Cost, q.Priority = 1+r.IntN(3), core.Priority(r.IntN(3)-1)
	ctx, cancel := context.Background(), func() {}
	switch r.IntN(4) {
	case 0:
		ctx, cancel = context.WithTimeout(ctx, time.Duration(r.IntN(3_000_000)))
	case 1:
		ctx, cancel = context.WithCancel(ctx)
		time.AfterFunc(time.Duration(r.IntN(3_000_000)), cancel)
	}
	defer cancel()
	one := call{n: q.Cost, begin: time.Since(start)}
	p, err := l.Wait(ctx, q)
	one.end = time.Since(start)
	switch {
	case err == nil:
		held := c.held.Add(int64(q.Cost))
		for {
			most := c.most.Load()
			if held <= most || c.most.CompareAndSwap(most, held) {
				break
			}
		}
		switch r.IntN(8) {
		case 0:
			time.Sleep(time.Duration(r.IntN(200_000)))
		case 1, 2, 3:
			runtime.Gosched()
		}
		c.held.Add(-int64(q.Cost))
		p.Release()
		c.passed.Add(1)
		if one.end-one.begin > 200*time.Microsecond {
			c.later.Add(1)
		}
		one.ok = true
		c.mu.Lock()
		c.calls = append(c.calls, one)
		c.mu.Unlock()
	case errors.Is(err, core.ErrRefused):
		c.refused.Add(1)
		time.Sleep(time.Duration(r.IntN(2_000_000))) // else few would wait
	case err == ctx.Err():
		c.ended.Add(1)
	default:
		panic(err)
	}
}

// A hundred thousand waits of two hundred goroutines, with clients that go away
// and deadlines that pass, for slots, for a rate, and for each key's own slots.
// (Under the race detector there are a quarter as many.) Nobody sticks, no slot is
// lost, no limit is exceeded, and in the end nobody waits.
func TestNothingSticksInRealTime(t *testing.T) {
	const slots = 12
	rate := core.Rate{N: 4000, Per: 50 * time.Millisecond}
	rules := func(i int) []core.Rule {
		rules := []core.Rule{
			{Name: "slots", Limit: core.InFlight{N: slots}, Queue: core.Queue{Len: 180, Wait: 20 * time.Millisecond}},
			{Name: "rate", Limit: rate, Queue: core.Queue{Len: 180, Wait: 30 * time.Millisecond}},
			{Name: "user", By: "user", Limit: core.InFlight{N: 4}, Queue: core.Queue{Len: 30, Wait: 10 * time.Millisecond}, MaxKeys: 6},
		}
		switch i % 5 {
		case 1:
			rules[0].Limit = core.InFlight{N: slots / 2}
		case 2:
			rules[0].Queue = core.Queue{}
			rules[1].Reserve = core.Reserve{Default: rate.N / 10, Critical: rate.N / 10}
			rules[2].For = map[string]core.Limit{"3": core.Unlimited{}, "4": core.InFlight{N: 3}}
		case 3:
			rules[1].Limit = core.Rate{N: rate.N / 2, Per: rate.Per}
			rules[1].Queue.Wait = time.Millisecond
			rules[0].Reserve = core.Reserve{Default: 2, Critical: 2}
		case 4:
			slices.Reverse(rules)
			rules = rules[1:] // there are no users
		}
		return rules
	}
	for _, reloads := range []bool{false, true} {
		t.Run(fmt.Sprint("reloads ", reloads), func(t *testing.T) {
			l := limiterOf(t, rules(0)...)
			var c crowd
			var goroutines, reloading sync.WaitGroup
			start, stop := time.Now(), make(chan struct{})
			if reloads {
				reloading.Go(func() {
					for i := 0; ; i++ {
						select {
						case <-stop:
							return
						case <-time.After(time.Duration(i%7) * 300 * time.Microsecond):
						}
						if err := l.Replace(rules(i)...); err != nil {
							t.Error(err)
						}
						if i%20 == 0 {
							l.Forget("slots")
						}
					}
				})
			}
			const waits = 100_000 / 200 / min(slower, 4)
			watch(t, l, func() {
				for g := range 200 {
					goroutines.Go(func() {
						r := rand.New(rand.NewPCG(uint64(g), 3))
						for range waits {
							c.wait(l, r, start)
						}
					})
				}
				goroutines.Wait()
				close(stop)
				reloading.Wait()
			})
			took := time.Since(start)
			stats := l.Stats()
			replace(t, l, rules(0)...)
			if most := c.most.Load(); most > slots || most < slots-2 {
				t.Errorf("at most %d units were held at once; want %d", most, slots)
			}
			if proof := above(c.calls, rate.N, rate.Per); proof != "" {
				t.Error(proof)
			}
			if n := c.passed.Load() + c.refused.Load() + c.ended.Load(); n != 200*waits {
				t.Errorf("%d waits have ended; want %d", n, 200*waits)
			}
			for _, n := range []int64{c.passed.Load(), c.later.Load(), c.refused.Load(), c.ended.Load()} {
				if n < 2*waits {
					t.Errorf("%d passed, %d of them later, %d were refused, %d ended: some too few to tell",
						c.passed.Load(), c.later.Load(), c.refused.Load(), c.ended.Load())
				}
			}
			var refused, canceled uint64
			for _, s := range stats {
				if s.Waiting != 0 || s.InFlight != 0 {
					t.Errorf("%+v", s)
				}
				if s.Rule == "slots" && s.Admitted != uint64(c.passed.Load()) {
					t.Errorf("%+v; %d have passed", s, c.passed.Load())
				}
				canceled += s.Canceled
				for _, n := range s.Refused {
					refused += n
				}
			}
			if !reloads && (refused != uint64(c.refused.Load()) || canceled > uint64(c.ended.Load())) {
				t.Errorf("Stats has %d refused and %d canceled; want %d, and at most %d", refused, canceled, c.refused.Load(), c.ended.Load())
			}
			time.Sleep(rate.Per)
			for name, all := range map[string]core.Request{"slots": {Cost: slots}, "rate": {Cost: rate.N}} {
				rule := core.Rule{Name: "all", Limit: core.Unlimited{}}
				for _, r := range rules(0) {
					if r.Name == name {
						rule = r // the others let no such cost pass
					}
				}
				replace(t, l, rule)
				if _, ok := l.Try(all); !ok {
					t.Errorf("not all of %q can be had: %+v", name, l.Stats())
				}
				replace(t, l, rules(0)...)
			}
			t.Logf("%v: %d passed, %d of them after a wait, %d were refused, %d ended; at most %d units held; %+v",
				took, c.passed.Load(), c.later.Load(), c.refused.Load(), c.ended.Load(), c.most.Load(), stats)
		})
	}
}

// One slot, so that those inside see the order: two hundred who came one after
// the other pass in that order, however many between them give up meanwhile.
func TestOrderHoldsInRealTime(t *testing.T) {
	for round := range 10 {
		l := limiterOf(t, queued(core.InFlight{N: 1}, 200, time.Hour))
		p := hold(t, l, core.Request{})
		r := rand.New(rand.NewPCG(uint64(round), 4))
		var order []int // guarded by the slot
		var passed, ended atomic.Int64
		var all sync.WaitGroup
		var cancels []func()
		for i := range 200 {
			ctx, cancel := context.WithCancel(t.Context())
			cancels = append(cancels, cancel)
			all.Go(func() {
				p, err := l.Wait(ctx, core.Request{})
				if err != nil {
					ended.Add(1)
					return
				}
				order = append(order, i)
				passed.Add(1)
				p.Release()
			})
			for statOf(t, l, "rule").Waiting < i+1 {
				runtime.Gosched()
			}
		}
		watch(t, l, func() {
			go p.Release()
			for _, i := range r.Perm(200)[:120] {
				cancels[i]()
			}
			all.Wait()
		})
		for _, cancel := range cancels {
			cancel()
		}
		if !slices.IsSorted(order) || int64(len(order)) != passed.Load() || passed.Load()+ended.Load() != 200 || passed.Load() < 80 {
			t.Errorf("%d gave up; order %v", ended.Load(), order)
		}
		if s := statOf(t, l, "rule"); s.Waiting != 0 || s.InFlight != 0 || s.Canceled != uint64(ended.Load()) {
			t.Errorf("%+v", s)
		}
	}
}
