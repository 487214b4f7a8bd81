package core_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/exactflow/exactflow/core"
)

// A service knows a hundred thousand clients by name: some are blocked, some free,
// some have a plan of their own. Their list changes while requests come, and no
// decision stands still for it.
func TestAChangeOfManyValuesStallsNoDecision(t *testing.T) { stallsNothing(t, changeMany) }

func changeMany(t *testing.T) (pause, control time.Duration) {
	const values, changes = 100_000 / slower, 6
	names := make([]string, values)
	for i := range names {
		names[i] = fmt.Sprintf("client %d", i)
	}
	// plan is the i-th client's limit in the k-th list.
	plan := func(i, k int) core.Limit {
		return []core.Limit{core.Rate{Per: time.Hour}, core.Unlimited{}, core.Rate{N: 2 + k, Per: time.Hour}, core.InFlight{}}[(i+k)%4]
	}
	rule := func(k int) core.Rule {
		r := core.Rule{Name: "client", By: "name", Limit: core.Rate{N: 1, Per: time.Hour}, For: make(map[string]core.Limit, values)}
		if k%2 == 1 { // then only those in the list are limited
			r.Limit = core.Unlimited{}
		}
		for i, name := range names {
			r.For[name] = plan(i, k)
		}
		return r
	}
	lists := make([]core.Rule, changes+1)
	for k := range lists {
		lists[k] = rule(k)
	}
	l := limiterOf(t, lists[0])

	var pauses, controls atomic.Int64
	slowest := func(max *atomic.Int64, d time.Duration) {
		if int64(d) > max.Load() {
			max.Store(int64(d))
		}
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			r := of("name", names[i*7919%values])
			before := time.Now()
			p, _ := l.Try(r)
			slowest(&pauses, time.Since(before))
			p.Release()
			if i%64 == 0 {
				before := time.Now()
				time.Sleep(100 * time.Microsecond)
				slowest(&controls, time.Since(before)-100*time.Microsecond)
			}
		}
	})
	for k := 1; k <= changes; k++ {
		before := time.Now()
		replace(t, l, lists[k])
		t.Logf("a Replace of %d values takes %v", values, time.Since(before))
		for i := k; i < values; i += values / 97 {
			p, ok := l.Try(of("name", names[i]))
			switch plan(i, k).(type) {
			case core.Unlimited:
				if !ok {
					t.Errorf("list %d: %s is free; it was refused: %v", k, names[i], p.Refusal())
				}
			case core.InFlight:
				if p.Refusal().Reason != core.ReasonNever {
					t.Errorf("list %d: %s is blocked; %v", k, names[i], p.Refusal())
				}
			}
		}
	}
	close(stop)
	wg.Wait()
	if n := statOf(t, l, "client").Overflowed; n > 0 {
		t.Errorf("%d decisions about keys beyond MaxKeys; those in For come beside", n)
	}
	return time.Duration(pauses.Load()), time.Duration(controls.Load())
}
