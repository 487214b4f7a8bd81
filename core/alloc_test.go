//go:build !race

package core_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/exactflow/exactflow/core"
)

// A limiter that is asked a million times a second must not feed the garbage
// collector, least of all by its refusals.
func TestDecisionsAllocateNothing(t *testing.T) {
	r := core.Request{On: "GET /orders/{id}", Keys: []core.Key{{By: "ip", Value: "192.0.2.7"}}}
	for _, c := range []struct {
		name string
		n    int
		want bool
	}{
		{"admitted", 1 << 20, true},
		{"refused", 1, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			l, err := core.New(
				core.Rule{Name: "service", Limit: core.InFlight{N: c.n}},
				core.Rule{Name: "route", On: "GET /*", Limit: core.Rate{N: c.n, Per: time.Minute}},
				core.Rule{Name: "client", By: "ip", Limit: core.Rate{N: c.n, Per: time.Hour}},
			)
			if err != nil {
				t.Fatal(err)
			}
			for range 5000 { // until the rings have grown
				p, _ := l.Try(r)
				p.Release()
			}
			if n := testing.AllocsPerRun(1000, func() {
				p, ok := l.Try(r)
				if ok != c.want {
					t.Errorf("Try admits: %v; want %v", ok, c.want)
				}
				p.Release()
			}); n != 0 {
				t.Errorf("Try allocates %v times", n)
			}
			if n := testing.AllocsPerRun(1000, func() {
				p, err := l.Wait(t.Context(), r)
				if (err == nil) != c.want {
					t.Errorf("Wait: %v; want admitted: %v", err, c.want)
				}
				p.Release()
			}); n != 0 {
				t.Errorf("Wait allocates %v times", n)
			}
		})
	}
}

// A queue costs nothing who need not wait, and nothing who cannot.
func TestAQueueAllocatesOnlyForThoseWhoWait(t *testing.T) {
	queue := core.Queue{Len: 1, Wait: time.Hour}
	for _, c := range []struct {
		name string
		rule core.Rule
		want bool
	}{
		{"admitted", core.Rule{Name: "r", Limit: core.InFlight{N: 1}, Queue: queue}, true},
		{"the wait cannot end in time", core.Rule{Name: "r", Limit: core.Rate{N: 1, Per: 24 * time.Hour}, Queue: queue}, false},
	} {
		l, err := core.New(c.rule)
		if err != nil {
			t.Fatal(err)
		}
		if !c.want {
			l.Try(core.Request{})
		}
		if n := testing.AllocsPerRun(1000, func() {
			p, err := l.Wait(t.Context(), core.Request{})
			if (err == nil) != c.want {
				t.Errorf("%s: %v", c.name, err)
			}
			p.Release()
		}); n != 0 {
			t.Errorf("%s: Wait allocates %v times", c.name, n)
		}
	}
}

// Ten thousand wait, in goroutines of the test. What the heap has grown by, which is
// without their stacks, is theirs and the timers'.
func TestAWaiterTakesLittleMemory(t *testing.T) {
	const many = 10_000
	l, err := core.New(core.Rule{Name: "r", Limit: core.InFlight{N: 1}, Queue: core.Queue{Len: many, Wait: time.Hour}})
	if err != nil {
		t.Fatal(err)
	}
	p, _ := l.Try(core.Request{})
	start := make(chan struct{})
	var began, all sync.WaitGroup
	for range many {
		began.Add(1)
		all.Go(func() {
			began.Done()
			<-start
			p, err := l.Wait(context.Background(), core.Request{})
			if err != nil {
				t.Error(err)
			}
			p.Release()
		})
	}
	began.Wait()
	before := heap()
	close(start)
	for l.Stats()[0].Waiting < many {
		time.Sleep(time.Millisecond)
	}
	each := (int64(heap()) - int64(before)) / many
	p.Release()
	all.Wait()
	t.Logf("%d bytes each", each)
	if each > 800 || each < 200 {
		t.Errorf("a waiter takes %d bytes; want some 650, and 800 at most", each)
	}
}
