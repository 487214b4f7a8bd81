package main

import (
	"fmt"
	"io"
	"time"
)

// printSeconds prints one line for each full second, counted from the first
// admission, until the load has ended, and returns what it ended with.
func printSeconds(w io.Writer, l *load, queues bool, ended <-chan error) error {
	// Calls are noted a little after they are decided. What is noted later still
	// goes into the next line.
	const settled = 20 * time.Millisecond
	select {
	case <-l.first:
	case err := <-ended:
		return err
	}
	var passed, blocked, waited int
	line := func(t int64) {
		p, b, q := l.passedBy(first(l.passes())+t), int(l.blocked()), int(l.waited.Load())
		queued := ""
		if queues {
			queued = fmt.Sprintf("  wait %6d", q-waited)
		}
		fmt.Fprintf(w, "%4ds  total %10d  pass %6d  block %10d%s\n", t/second, p-passed+b-blocked, p-passed, b-blocked, queued)
		passed, blocked, waited = p, b, q
	}
	for t := second; ; t += second {
		due := time.Duration(first(l.passes()) + t - l.now())
		select {
		case <-time.After(due + settled):
			line(t)
		case err := <-ended:
			for ; err == nil && first(l.passes())+t <= l.until.Load(); t += second {
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
	fmt.Fprintf(w, "limit %v, passed %.4g/s, most in any second %d, peak in flight %d%s\n",
		e.terms, float64(sum)/float64(max(1, len(v.passes))), v.most, e.peak, orNothing(e.inFlight, " of %d"))

	fmt.Fprintf(w, "judged from above: %d admitted calls, of which no %s\n", len(e.admitted), e.most())
	if len(e.refused) > 0 {
		fmt.Fprintf(w, "judged from below: %d refused calls, each of which must have found %s\n", len(e.refused), e.shut())
	}
	switch {
	case v.judged > 0:
		fmt.Fprintf(w, "judged from below: %d of %d full seconds, counted from the first admission: the lowest passed %d, with a tolerance of %d,\n"+
			"  since callers asked up to %v late for what was free\n",
			v.judged, len(v.passes), v.lowest, v.tolerance, v.late.Round(time.Microsecond))
		if e.late > 0 {
			fmt.Fprintf(w, "  (above 4096, what has passed may come back %v late)\n", time.Duration(e.late))
		}
	case len(e.refused) == 0 && v.line.least == 0:
		fmt.Fprintf(w, "not judged from below: in no full second was there demand above the limit\n")
	}
	if e.queue.Len > 0 {
		v.line.print(w, e)
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

// most is how many must not pass, in which stretch.
func (m terms) most() string {
	switch m.kind {
	case "pace":
		text := fmt.Sprintf("%d may begin and end within less than a second", m.n+1)
		if above := m.promise(nil).above; len(above) > 1 {
			text += fmt.Sprintf(", and no %d within less than %v", above[1].most(0)+1, stretch(above[1].w))
		}
		return text
	case "warmup":
		return fmt.Sprintf("more than the ramp has risen to, and no %d, may begin and end within less than a second", m.n+1)
	}
	return fmt.Sprintf("%d may begin and end within less than a second", m.n+1)
}

// shut is what a refused call must have found.
func (e evidence) shut() string {
	found := "the second before it full"
	switch e.kind {
	case "pace":
		found = fmt.Sprintf("a pass less than %v before it", time.Duration(e.gap()))
	case "warmup":
		found = "the second before it as full as the ramp has risen to"
	}
	if e.queue.Len > 0 {
		found += " or somebody in line,\n  and either no place there, or more ahead than pass in time, or no end after the whole wait"
	}
	return found
}

func (q line) print(w io.Writer, e evidence) {
	fmt.Fprintf(w, "judged in line: %d calls waited, %d at once%s, none longer than %v, with a grace of %v\n",
		q.waited, q.most, orNothing(e.queue.Len, " of %d"), q.longest.Round(time.Millisecond), time.Duration(e.machine.grace()).Round(time.Millisecond))
	if e.inFlight > 0 {
		fmt.Fprintf(w, "  (how many at once is not judged with -inflight, since two rules have two lines)\n")
	}
	fmt.Fprintf(w, "judged in order: %d calls asked while another stood in line, and none may pass before it\n", q.pairs)
	if q.least > 0 {
		fmt.Fprintf(w, "judged in use: while calls stood in line, for %v, %d passed, and nine tenths of %d must\n", q.busy.Round(time.Millisecond), q.passed, q.least)
	} else if e.inFlight > 0 {
		fmt.Fprintf(w, "not judged in use: who waits may wait for the calls in flight\n")
	} else {
		fmt.Fprintf(w, "not judged in use: at no time did calls stand in line for long enough\n")
	}
}

// orNothing formats n, unless it is 0.
func orNothing(n int, format string) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(format, n)
}
