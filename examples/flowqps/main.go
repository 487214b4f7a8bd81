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
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	context.AfterFunc(ctx, stop) // a second interrupt ends the program itself
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run is the program, until ctx is done at the latest. It returns the exit
// status: 0 if all promises were kept, 1 if one was broken, or nothing judged, or
// the run failed, 2 for wrong flags.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	out := &writer{to: stdout}
	status := judged(ctx, args, out, stderr)
	if out.err != nil { // whoever reads the output must not take a part for all
		fmt.Fprintf(stderr, "flowqps: the output is not complete: %v\n", out.err)
		return max(status, 1)
	}
	return status
}

// judged is run, but for the output's errors.
func judged(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	c, err := parse(args, stdout)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		fmt.Fprintf(stderr, "%v\nflowqps -h tells what the flags are\n", err)
		return 2
	}

	if c.plot != "" {
		return plot(ctx, c, stdout, stderr)
	}

	l := newLoad(c)
	ask, hangUp, err := connect(c, l)
	if err != nil {
		fmt.Fprintf(stderr, "flowqps: %v\n", err)
		return 1
	}
	defer hangUp()

	queue := ""
	if c.queue.Len > 0 {
		queue = fmt.Sprintf(", up to %d wait up to %v", c.queue.Len, c.queue.Wait)
	}
	fmt.Fprintf(stdout, "%s via %s: limit %v%s%s, %d goroutines, hold 0-%v, for %v\n",
		c.limiter, c.via, c.terms(), orNothing(c.inFlight, ", in flight %d"), queue, c.goroutines, c.hold, c.span)
	ended := make(chan error)
	go func() { ended <- l.run(ctx, ask) }()
	if err := printSeconds(stdout, l, c.queue.Len > 0, ended); err != nil {
		fmt.Fprintf(stderr, "flowqps: a call failed: %v\n", err)
		return 1
	}

	e := l.evidence(c)
	v := judge(e)
	printVerdict(stdout, e, v)
	if len(v.broken) > 0 || v.nothing() {
		return 1
	}
	return 0
}

// A writer remembers the first error, after which it writes no more.
type writer struct {
	to  io.Writer
	err error
}

func (w *writer) Write(b []byte) (n int, err error) {
	if w.err == nil {
		n, w.err = w.to.Write(b)
	}
	return n, w.err
}
