// Command bars measures what exactflow promises to cost, and says of each bar
// whether it is kept:
//
//	go run ./bars [-run regexp]
//
// A clock is one serial time.Since on a field. What is compared is timed in turn,
// in many slices, A B, B A, A B, …, each shorter than what an operating system
// gives to another process, and the median of the slices' ratios counts: so a busy
// machine and a processor that changes its speed spoil some slices, not the
// median. A line without a bar is for comparison. The exit status is 1 if a bar is
// missed, and 2 if none has a name that matches.
package main

import (
	"flag"
	"fmt"
	"math"
	"os"
	"regexp"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/exactflow/exactflow/bench/loops"
)

// A bar is one promise: what is measured is at most, or at least, so much.
type bar struct {
	name    string
	measure func() float64
	verb    string // format of both numbers
	least   bool
	limit   float64 // NaN: the number is told for comparison
}

func main() {
	if os.Getenv(role) != "" {
		serveTapped()
		return
	}
	run := flag.String("run", "", "measure only those bars whose name matches this regular expression")
	flag.Parse()
	only, err := regexp.Compile(*run)
	if err != nil {
		fmt.Fprintln(os.Stderr, "bars:", err)
		os.Exit(2)
	}

	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "promise\tmeasured\tbar\t")
	missed, matched := 0, 0
	for _, b := range bars() {
		if !only.MatchString(b.name) {
			continue
		}
		matched++
		fmt.Fprintln(os.Stderr, b.name)
		got := b.measure()
		if math.IsNaN(b.limit) {
			fmt.Fprintf(w, "%s\t"+b.verb+"\t\t\n", b.name, got)
			continue
		}
		relation, verdict := "≤", "ok"
		if b.least {
			relation = "≥"
		}
		if b.least && got < b.limit || !b.least && !(got <= b.limit) {
			verdict = "MISSED"
			missed++
		}
		fmt.Fprintf(w, "%s\t"+b.verb+"\t%s "+b.verb+"\t%s\n", b.name, got, relation, b.limit, verdict)
	}
	if matched == 0 {
		fmt.Fprintf(os.Stderr, "bars: no promise has a name that matches %q\n", *run)
		os.Exit(2)
	}
	w.Flush()
	fmt.Printf("\none clock is %.1f ns\n", median(interleave(loops.Clock())[0]))
	if missed > 0 {
		fmt.Printf("%d missed\n", missed)
		os.Exit(1)
	}
}

const (
	rounds = 601
	slice  = 250 * time.Microsecond
)

// interleave times the loops in turn, and returns for each its nanoseconds per
// call in each round.
func interleave(all ...loops.Loop) [][]float64 {
	calls := make([]int, len(all))
	for i, l := range all {
		timed(l, 1000)
		per := make([]float64, 25)
		for j := range per {
			per[j] = float64(timed(l, 100)) / 100
		}
		calls[i] = 1 + int(float64(slice)/median(per))
	}
	ns := make([][]float64, len(all))
	for round := range rounds {
		for j := range all {
			i := j
			if round%2 == 1 {
				i = len(all) - 1 - j
			}
			ns[i] = append(ns[i], float64(timed(all[i], calls[i]))/float64(calls[i]))
		}
	}
	return ns
}

// timed panics if the loop did not do what its name says.
func timed(l loops.Loop, n int) time.Duration {
	begin := time.Now()
	admitted := l.Run(n)
	took := time.Since(begin)
	if err := l.Judge(n, admitted); err != nil {
		panic(err)
	}
	return took
}

// ratio is a's time in multiples of the sum of the others', the median of the
// rounds.
func ratio(a loops.Loop, others ...loops.Loop) float64 {
	ns := interleave(append([]loops.Loop{a}, others...)...)
	return each(func(round int) float64 {
		sum := 0.0
		for _, other := range ns[1:] {
			sum += other[round]
		}
		return ns[0][round] / sum
	})
}

// added is what a takes longer than b, in nanoseconds.
func added(a, b loops.Loop) float64 {
	ns := interleave(a, b)
	return each(func(round int) float64 { return ns[0][round] - ns[1][round] })
}

func each(of func(round int) float64) float64 {
	all := make([]float64, rounds)
	for round := range all {
		all[round] = of(round)
	}
	return median(all)
}

func median(all []float64) float64 {
	all = slices.Sorted(slices.Values(all))
	return all[len(all)/2]
}
