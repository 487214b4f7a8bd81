package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// A config is what the flags say.
type config struct {
	limit, inFlight int
	goroutines      int
	span, hold      time.Duration
	via, limiter    string
}

const usage = `flowqps asks a limiter as hard as it can, and judges whether it kept its promise.

Many goroutines ask without a pause. Whoever is admitted stays inside for a
random time; whoever is refused asks again at once. Each second, counted from the
first admission, one line tells how many asked, passed, and were blocked. At the
end the run is judged, by what is certain only, and the exit status is 0 if all
promises were kept, 1 if one was broken or the run failed, 2 for wrong flags.
An interrupt (Ctrl-C) ends the run early and judges what there is; before the
first full second that is nothing, and the exit status 1.

  flowqps                        the scenario as reported
  flowqps -via gin -inflight 8   behind a gin server, at most 8 at once
  flowqps -limiter xtime         the control: golang.org/x/time/rate breaks it

`

// parse reads the flags, or says what is wrong and what would be right.
// The error is [flag.ErrHelp] if the flags ask for help, which is then written.
func parse(args []string, stdout io.Writer) (config, error) {
	var c config
	f := flag.NewFlagSet("flowqps", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.IntVar(&c.limit, "limit", 20, "admit at most `n` calls in any second")
	f.IntVar(&c.inFlight, "inflight", 0, "admit at most `n` calls at once, beside; 0 sets no such limit")
	f.IntVar(&c.goroutines, "goroutines", 100, "`n` callers")
	f.DurationVar(&c.span, "for", 10*time.Second, "run for this `time`, from the first admission on")
	f.DurationVar(&c.hold, "hold", 50*time.Millisecond, "an admitted call takes a random part of this `time`")
	f.StringVar(&c.via, "via", "core", "`where` the limiter stands: "+strings.Join(vias, ", ")+"; all but core are a server on a loopback port")
	f.StringVar(&c.limiter, "limiter", "exactflow", "`which` limiter: "+strings.Join(limiters, ", "))

	if err := f.Parse(args); errors.Is(err, flag.ErrHelp) {
		fmt.Fprint(stdout, usage)
		f.SetOutput(stdout)
		f.PrintDefaults()
		return c, err
	} else if err != nil {
		return c, err
	}

	var wrong []error
	want := func(ok bool, format string, args ...any) {
		if !ok {
			wrong = append(wrong, fmt.Errorf(format, args...))
		}
	}
	want(f.NArg() == 0, "%q is no flag; want flags only", f.Arg(0))
	want(c.limit >= 1, "-limit is %d; want 1 or more", c.limit)
	want(c.inFlight >= 0, "-inflight is %d; want 1 or more, or 0 for no such limit", c.inFlight)
	want(c.goroutines >= 1, "-goroutines is %d; want 1 or more", c.goroutines)
	want(c.span >= time.Second, "-for is %v; want 1s or more, since full seconds are judged", c.span)
	want(c.hold >= 0, "-hold is %v; want 0 or more", c.hold)
	want(slices.Contains(vias, c.via), "-via is %q; want one of %s", c.via, strings.Join(vias, ", "))
	want(slices.Contains(limiters, c.limiter), "-limiter is %q; want one of %s", c.limiter, strings.Join(limiters, ", "))
	want(c.inFlight <= 0 || c.limiter != "xtime", "-limiter xtime knows no limit for calls in flight; want it without -inflight")
	return c, errors.Join(wrong...)
}
