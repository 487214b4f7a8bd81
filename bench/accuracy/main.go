// Command accuracy shows, for exactflow and its peers, how many calls a limit of
// so many per second really admits:
//
//	go run ./accuracy [-for 5s] [-limits 20,1000]
//
// "scenario": 100 goroutines; whoever is admitted works for 0 to 50 ms and is done;
// whoever is refused yields the processor and asks again at once.
//
// "volleys": all is idle for 2.5 s, then 100 goroutines ask for 100 ms, at once
// again whether admitted or not; and so on.
//
// The most in any second is what is certain: so many admitted calls began and
// ended within less than one second.
//
// "pair": 100 goroutines call once, at the same time, where two rules apply; one of
// them makes calls wait.
//
// The exit status is 1 if exactflow ever admitted more than its limit or, in a pair,
// less.
package main

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/exactflow/exactflow/bench/judge"
	"github.com/exactflow/exactflow/bench/peers"
)

const (
	goroutines = 100
	hold       = 50 * time.Millisecond
	idle       = 2500 * time.Millisecond
	volley     = 100 * time.Millisecond
	key        = "192.0.2.7"
)

func main() {
	length := flag.Duration("for", 5*time.Second, "how long each limiter is asked in the scenario; volleys last twice as long for all together, pairs some seconds")
	list := flag.String("limits", "20,1000", "limits per second in the scenario and the volleys, separated by commas")
	flag.Parse()
	var limits []int
	for _, s := range strings.Split(*list, ",") {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 || *length < time.Second {
			fmt.Fprintln(os.Stderr, "accuracy: -limits are numbers from 1; -for is a second at least")
			os.Exit(2)
		}
		limits = append(limits, n)
	}

	var runs []*run
	for _, n := range limits {
		for _, m := range peers.Rates() {
			r := &run{load: "scenario", limit: n, peer: m.New(n, time.Second)}
			fmt.Fprintf(os.Stderr, "%s, %d per second: %s for %v\n", r.load, n, m.Name, *length)
			r.scenario(*length)
			runs = append(runs, r)
		}
	}
	runs = append(runs, volleys(limits, 2**length)...)
	doubles := pairs()

	broken := false
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "load\tlimit\tlimiter\talgorithm\tfirst second\tmost in any second\tpasses per second")
	for i, r := range runs {
		if i > 0 && (r.load != runs[i-1].load || r.limit != runs[i-1].limit) {
			fmt.Fprintln(w, strings.Repeat("\t", 6))
		}
		most, mark := judge.Most(r.admissions, time.Second), ""
		if most > r.limit {
			mark = "over"
			broken = broken || r.peer.Name == "exactflow"
		}
		fmt.Fprintf(w, "%s\t%5d\t%s\t%s\t%12d\t%5s%13d\t%17.1f\n", r.load, r.limit, r.peer.Name, r.peer.Kind,
			judge.Before(r.admissions, time.Second), mark, most, float64(len(r.admissions))/r.length.Seconds())
	}
	w.Flush()
	fmt.Println()
	fmt.Fprintln(w, "load\tlimit\tlimiter\trules\tfewest of 100\tmost of 100")
	for i, p := range doubles {
		if i > 0 && p.unit != doubles[i-1].unit {
			fmt.Fprintln(w, strings.Repeat("\t", 5))
		}
		line, wrong := p.row()
		fmt.Fprintln(w, line)
		broken = broken || wrong
	}
	w.Flush()
	if broken {
		fmt.Fprintln(os.Stderr, "accuracy: exactflow broke its limit")
		os.Exit(1)
	}
}

// A run is one limiter under one load.
type run struct {
	load  string
	limit int
	peer  peers.Peer

	epoch      time.Time // when it was first asked
	length     time.Duration
	mu         sync.Mutex
	admissions []judge.Admission // since epoch
}

// scenario asks from all goroutines for so long.
func (r *run) scenario(length time.Duration) {
	r.ask(length, hold)
	r.length = length
}

// ask asks from all goroutines until length is over. Whoever is admitted holds
// for a random part of hold.
func (r *run) ask(length, hold time.Duration) {
	if r.epoch.IsZero() {
		r.epoch = time.Now()
	}
	end := time.Since(r.epoch) + length
	var wg sync.WaitGroup
	for range goroutines {
		wg.Go(func() {
			var mine []judge.Admission
			ctx := context.Background()
			for {
				begin := time.Since(r.epoch)
				if begin >= end {
					break
				}
				done, ok := r.peer.Try(ctx, key)
				if !ok {
					runtime.Gosched()
					continue
				}
				mine = append(mine, judge.Admission{Begin: begin, End: time.Since(r.epoch)})
				if hold > 0 {
					time.Sleep(rand.N(hold))
				}
				done()
			}
			r.mu.Lock()
			defer r.mu.Unlock()
			r.admissions = append(r.admissions, mine...)
		})
	}
	wg.Wait()
}

// volleys fires at one limiter after the other, round after round: while one is
// asked all others are idle.
func volleys(limits []int, length time.Duration) []*run {
	var runs []*run
	for _, n := range limits {
		for _, m := range peers.Rates() {
			runs = append(runs, &run{load: "volleys", limit: n, peer: m.New(n, time.Second)})
		}
	}
	fmt.Fprintf(os.Stderr, "volleys: all limiters for %v\n", length)
	for begin := time.Now(); time.Since(begin) < length; {
		for _, r := range runs {
			if !r.epoch.IsZero() {
				time.Sleep(idle - time.Since(r.epoch.Add(r.length)))
			}
			r.ask(volley, 0)
			r.length = time.Since(r.epoch)
		}
	}
	return runs
}
