package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/exactflow/exactflow/bench/judge"
	"github.com/exactflow/exactflow/bench/loops"
	"github.com/exactflow/exactflow/core"
)

// paced is how much of n per second passes where more always wait, in per cent:
// the median of three runs of three seconds. It panics if too many pass.
func paced(n int) float64 {
	var reached []float64
	for range 3 {
		reached = append(reached, pacedOnce(n, 3*time.Second))
	}
	slices.Sort(reached)
	fmt.Fprintf(os.Stderr, "  %.2f %%\n", reached)
	return median(reached)
}

// pacedOnce has as many goroutines as the queue holds wait, be done at once, and
// wait again.
func pacedOnce(n int, length time.Duration) float64 {
	pace := core.Pace{N: n, Per: time.Second}
	l := loops.New(loops.Queued(pace))

	var all sync.WaitGroup
	each := make([][]judge.Admission, loops.Waiters)
	epoch := time.Now()
	for i := range each {
		all.Go(func() {
			for {
				begin := time.Since(epoch)
				if begin >= length {
					return
				}
				p, err := l.Wait(context.Background(), core.Request{On: loops.On})
				if err != nil {
					panic(fmt.Sprintf("bars: refused, though the queue has room: %v", p.Refusal()))
				}
				each[i] = append(each[i], judge.Admission{Begin: begin, End: time.Since(epoch)})
				p.Release()
			}
		})
	}
	all.Wait()
	admissions := slices.Concat(each...)
	if err := tooMany(pace, admissions); err != nil {
		panic(fmt.Sprintf("bars: %v", err))
	}
	return 100 * float64(judge.Before(admissions, length)) / (float64(n) * length.Seconds())
}

// tooMany says where more passed for certain than a pace promises: N in Per, and
// what it says of stretches of any length, of which the whole run is one.
func tooMany(p core.Pace, admissions []judge.Admission) error {
	slack := min(p.Per/256, 4*time.Millisecond)
	gap := (p.Per + slack + time.Duration(p.N) - 1) / time.Duration(p.N)
	check := func(within time.Duration, limit int) error {
		if most := judge.Most(admissions, within); most > limit {
			return fmt.Errorf("%v let %d pass within %v; want %d at most", p, most, within, limit)
		}
		return nil
	}
	last := time.Duration(0)
	for _, a := range admissions {
		last = max(last, a.End)
	}
	for _, within := range []time.Duration{10 * time.Millisecond, p.Per / 10, p.Per, last + 1} {
		if err := check(within, int((within+slack)/gap)+1); err != nil {
			return err
		}
	}
	return check(p.Per, p.N)
}
