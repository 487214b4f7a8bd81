package main

import (
	"fmt"
	"io"
	"time"
)

// printSeconds prints one line for each full second, counted from the first
// admission, until the load has ended, and returns what it ended with.
func printSeconds(w io.Writer, l *load, ended <-chan error) error {
	// Calls are noted a little after they are decided. What is noted later still
	// goes into the next line.
	const settled = 20 * time.Millisecond
	select {
	case <-l.first:
	case err := <-ended:
		return err
	}
	var passed, blocked int
	line := func(t int64) {
		p, b := l.passedBy(start(l.passes())+t), int(l.blocked())
		fmt.Fprintf(w, "%4ds  total %10d  pass %6d  block %10d\n", t/second, p-passed+b-blocked, p-passed, b-blocked)
		passed, blocked = p, b
	}
	for t := second; ; t += second {
		due := time.Duration(start(l.passes()) + t - l.now())
		select {
		case <-time.After(due + settled):
			line(t)
		case err := <-ended:
			for ; err == nil && start(l.passes())+t <= l.until.Load(); t += second {
				line(t)
			}
			return err
		}
	}
}

// printVerdict prints the summary in one line, then what was judged, and how.
func printVerdict(w io.Writer, e evidence, v verdict) {
	sum := 0
	for _, n := range v.passes {
		sum += n
	}
	fmt.Fprintf(w, "limit %d/s, passed %.4g/s, most in any second %d, peak in flight %d%s\n",
		e.limit, float64(sum)/float64(max(1, len(v.passes))), v.most, e.peak, orNothing(e.inFlight, " of %d"))

	fmt.Fprintf(w, "judged from above: %d admitted calls, of which no %d may begin and end within less than a second\n", len(e.admitted), e.limit+1)
	if v.judged == 0 {
		fmt.Fprintf(w, "not judged from below: in no full second was there demand above the limit\n")
	} else {
		fmt.Fprintf(w, "judged from below: %d refused calls, each of which must have found the second before it full\n", len(e.refused))
		fmt.Fprintf(w, "judged from below: %d of %d full seconds, counted from the first admission: the lowest passed %d, with a tolerance of %d,\n"+
			"  since callers asked up to %v late for what was free\n",
			v.judged, len(v.passes), v.lowest, v.tolerance, v.late.Round(time.Microsecond))
		if e.late > 0 {
			fmt.Fprintf(w, "  (above 4096, what has passed may come back %v late)\n", time.Duration(e.late))
		}
	}
	if e.inFlight > 0 {
		fmt.Fprintf(w, "judged in flight: the peak, counted inside the admitted calls\n")
	}
	switch {
	case v.nothing():
		fmt.Fprintln(w, "verdict: nothing judged, since the run ended before a full second had")
	case len(v.broken) == 0:
		fmt.Fprintln(w, "verdict: kept")
	}
	for _, b := range v.broken {
		fmt.Fprintln(w, "verdict: BROKEN:", b)
	}
}

// orNothing formats n, unless it is 0.
func orNothing(n int, format string) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(format, n)
}
