package core_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/exactflow/exactflow/core"
)

// One of two rules lets requests wait. Where the wait is inside the check, all have
// been checked by the other rule before the first of them is counted, and all pass.

// A hundred at once, for 20 a minute, and evenly by a thousand a second.
func TestARateHoldsBesideAPaceThatLetsWait(t *testing.T) {
	for _, by := range []string{"", "user"} {
		t.Run(fmt.Sprintf("by %q", by), func(t *testing.T) {
			for range 5 {
				l := limiterOf(t,
					core.Rule{Name: "rate", Limit: core.Rate{N: 20, Per: time.Minute}},
					core.Rule{Name: "pace", By: by, Limit: core.Pace{N: 1000, Per: time.Second}, Queue: core.Queue{Len: 1000, Wait: time.Minute}})
				var passed atomic.Int64
				var all sync.WaitGroup
				for range 100 {
					all.Go(func() {
						if _, err := l.Wait(t.Context(), of("user", "ann")); err == nil {
							passed.Add(1)
						}
					})
				}
				watch(t, l, all.Wait)
				if n := passed.Load(); n != 20 {
					t.Errorf("%d of 100 passed; want 20", n)
				}
				if s := statOf(t, l, "pace"); s.Admitted != 20 || s.Waiting != 0 {
					t.Errorf("%+v", s)
				}
			}
		})
	}
}

// A hundred at once, for 10 in flight, and evenly by a thousand a second and user.
// Who finds all ten held while it waits for its turn is refused: the slots have no
// queue.
func TestSlotsHoldBesideAPaceThatLetsWait(t *testing.T) {
	for _, queue := range []core.Queue{{}, {Len: 1000, Wait: time.Minute}} {
		t.Run(fmt.Sprintf("slots with a queue of %d", queue.Len), func(t *testing.T) {
			l := limiterOf(t,
				core.Rule{Name: "slots", Limit: core.InFlight{N: 10}, Queue: queue},
				core.Rule{Name: "pace", By: "user", Limit: core.Pace{N: 1000, Per: time.Second}, Queue: core.Queue{Len: 1000, Wait: time.Minute}})
			var held, most, passed atomic.Int64
			var all sync.WaitGroup
			for range 100 {
				all.Go(func() {
					l.Do(t.Context(), of("user", "ann"), func(context.Context) error {
						n := held.Add(1)
						for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
						}
						time.Sleep(50 * time.Millisecond)
						held.Add(-1)
						passed.Add(1)
						return nil
					})
				})
			}
			watch(t, l, all.Wait)
			if n := most.Load(); n != 10 {
				t.Errorf("%d were in flight at once; want 10", n)
			}
			if n := passed.Load(); queue.Len > 0 && n != 100 || n < 10 {
				t.Errorf("%d of 100 passed", n)
			}
			for _, s := range l.Stats() {
				if s.InFlight != 0 || s.Waiting != 0 {
					t.Errorf("%+v", s)
				}
			}
		})
	}
}

// A thousand and one per second, paced, for a crowd that asks again at once, and for
// one that waits: never more in any second.
func TestMoreThanAThousandASecondAreHeldByAPace(t *testing.T) {
	for _, queue := range []core.Queue{{}, {Len: 100, Wait: time.Second}} {
		t.Run(fmt.Sprintf("a queue of %d", queue.Len), func(t *testing.T) {
			const n = 1001
			l := limiterOf(t, core.Rule{Name: "pace", Limit: core.Pace{N: n, Per: time.Second}, Queue: queue})
			start := time.Now()
			var mu sync.Mutex
			var calls []call
			var all sync.WaitGroup
			for range 50 {
				all.Go(func() {
					for time.Since(start) < 2500*time.Millisecond {
						c := call{n: 1, begin: time.Since(start)}
						_, err := l.Wait(t.Context(), core.Request{})
						if c.end = time.Since(start); err != nil {
							continue
						}
						c.ok = true
						mu.Lock()
						calls = append(calls, c)
						mu.Unlock()
					}
				})
			}
			watch(t, l, all.Wait)
			if queue.Len == 0 {
				if proof := above(calls, n, time.Second); proof != "" {
					t.Error(proof)
				}
			} else if windows := int(time.Since(start)/time.Second) + 1; len(calls) > n*windows { // who waits is a long interval
				t.Errorf("%d in %d seconds; want %d at most", len(calls), windows, n*windows)
			}
			if len(calls) < n {
				t.Errorf("%d passed in 2.5 seconds; want some %d", len(calls), 5*n/2)
			}
		})
	}
}
