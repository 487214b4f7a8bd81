// Command flowqps puts a limiter under the load that breaks most of them, and
// judges whether it kept its promise: flowqps -h tells how.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	context.AfterFunc(ctx, stop) // a second interrupt ends the program itself
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run is the program, until ctx is done at the latest. It returns the exit
// status: 0 if all promises were kept, 1 if one was broken or the run failed, 2
// for wrong flags.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	c, err := parse(args, stdout)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		fmt.Fprintf(stderr, "%v\nflowqps -h tells what the flags are\n", err)
		return 2
	}

	l := newLoad(c)
	ask, hangUp, err := connect(c, l.work)
	if err != nil {
		fmt.Fprintf(stderr, "flowqps: %v\n", err)
		return 1
	}
	defer hangUp()

	fmt.Fprintf(stdout, "%s via %s: limit %d/s%s, %d goroutines, hold 0-%v, for %v\n",
		c.limiter, c.via, c.limit, orNothing(c.inFlight, ", in flight %d"), c.goroutines, c.hold, c.span)
	ended := make(chan error)
	go func() { ended <- l.run(ctx, ask) }()
	if err := printSeconds(stdout, l, ended); err != nil {
		fmt.Fprintf(stderr, "flowqps: a call failed: %v\n", err)
		return 1
	}

	e := l.evidence(c)
	v := judge(e)
	printVerdict(stdout, e, v)
	if len(v.broken) > 0 {
		return 1
	}
	return 0
}

// orNothing formats n, unless it is 0.
func orNothing(n int, format string) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(format, n)
}

// evidence is what the load has seen, under the limits of c. The callers must
// have stopped.
func (l *load) evidence(c config) evidence {
	e := evidence{
		limit:    c.limit,
		inFlight: c.inFlight,
		stop:     l.until.Load(),
		admitted: l.passes(),
		refused:  l.refused(),
		peak:     int(l.peak.Load()),
	}
	e.start = start(e.admitted)
	if c.limit > 4096 {
		e.late = (second + 4094) / 4095 // above 4096 a unit may come back one slice late
	}
	return e
}

// start is when the first of the calls began.
func start(calls []call) int64 {
	if len(calls) == 0 {
		return 0
	}
	first := calls[0].begin
	for _, c := range calls {
		first = min(first, c.begin)
	}
	return first
}

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
		p, b := newHistory(l.passes()).endedIn(0, start(l.passes())+t), int(l.blocked())
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
	}
	if e.inFlight > 0 {
		fmt.Fprintf(w, "judged in flight: the peak, counted inside the admitted calls\n")
	}
	if len(v.broken) == 0 {
		fmt.Fprintln(w, "verdict: kept")
	}
	for _, b := range v.broken {
		fmt.Fprintln(w, "verdict: BROKEN:", b)
	}
}
