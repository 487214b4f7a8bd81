package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/exactflow/exactflow/core"
)

// A config is what the flags say.
type config struct {
	limit, inFlight int
	goroutines      int
	span, hold      time.Duration
	via, limiter    string
	kind            string
	from            int // of a warm-up
	over            time.Duration
	queue           core.Queue
	plot            string
}

const usage = `flowqps asks a limiter as hard as it can, and judges whether it kept its promise.

Many goroutines ask without a pause. Whoever is admitted stays inside for a
random time; whoever is refused asks again at once; with -queue, many wait instead.
Each second, counted from the first admission, one line tells how many asked,
passed, and were blocked, and with -queue how many began to wait. At the end the
run is judged, by what is certain only, and the exit status is 0 if all promises
were kept, 1 if one was broken or the run failed, 2 for wrong flags.
An interrupt (Ctrl-C) ends the run early and judges what there is; before the
first full second that is nothing, and the exit status 1.

  flowqps                        the scenario as reported
  flowqps -via gin -inflight 8   behind a gin server, at most 8 at once
  flowqps -kind warmup           from 2 per second to 20, over 5 seconds
  flowqps -kind pace -queue 50,3s
                                 one call each twentieth of a second; who can wait
                                 3 seconds waits, up to 50 of them
  flowqps -limiter xtime         the control: golang.org/x/time/rate breaks it
  flowqps -plot kinds.svg        what all kinds make of the same calls, drawn

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
	f.StringVar(&c.kind, "kind", "rate", "`which` kind of limit: "+strings.Join(kinds, ", "))
	f.IntVar(&c.from, "from", 0, "a warmup begins with `n` calls in a second; 0 means a tenth of -limit, and 1 at least")
	f.DurationVar(&c.over, "over", 0, "a warmup rises for this `time`; 0 means half of -for")
	f.Func("queue", "let `len,wait` calls wait, and how long at most, such as 100,1s; \"\" lets none wait", c.setQueue)
	f.StringVar(&c.plot, "plot", "", "run the kinds under calls that come in volleys, and draw what passes into this `file`, an SVG")
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
	want(slices.Contains(kinds, c.kind), "-kind is %q; want one of %s", c.kind, strings.Join(kinds, ", "))
	given := make(map[string]bool)
	f.Visit(func(f *flag.Flag) { given[f.Name] = true })
	if c.kind == "warmup" || c.plot != "" {
		want(c.from >= 0 && c.from <= max(c.limit, 1), "-from is %d; want 1 to -limit, %d, or 0 for a tenth of it", c.from, c.limit)
		want(c.over >= 0, "-over is %v; want a time above 0, or 0 for half of -for", c.over)
		if c.from == 0 {
			c.from = max(1, c.limit/10)
		}
		if c.over == 0 {
			c.over = c.span / 2
		}
	} else {
		want(!given["from"] && !given["over"], "-from and -over are of a warm-up; want them with -kind warmup")
	}
	if c.plot != "" {
		for name := range given {
			want(slices.Contains(plotFlags, name), "-plot has its own -%s; want beside it only -%s", name, strings.Join(plotFlags[1:], ", -"))
		}
		want(c.limit <= 1000, "-limit is %d; want 1000 at most with -plot", c.limit)
		want(c.span <= time.Minute, "-for is %v; want 1m at most with -plot", c.span)
	}
	want(c.kind == "rate" || c.limiter != "xtime", "-limiter xtime is no %s; want it with -kind rate", c.kind)
	want(c.queue.Len == 0 || c.limiter != "xtime", "-limiter xtime refuses at once; want it without -queue")
	want(c.inFlight <= 0 || c.limiter != "xtime", "-limiter xtime knows no limit for calls in flight; want it without -inflight")
	return c, errors.Join(wrong...)
}

// plotFlags may stand beside -plot.
var plotFlags = []string{"plot", "limit", "for", "from", "over"}

// setQueue reads a queue: how many may wait, and how long.
func (c *config) setQueue(text string) error {
	c.queue = core.Queue{}
	if text == "" {
		return nil
	}
	length, wait, _ := strings.Cut(text, ",")
	n, err := strconv.Atoi(length)
	d, err2 := time.ParseDuration(wait)
	if err != nil || err2 != nil || n < 1 || d < time.Millisecond {
		return errors.New("want how many may wait, 1 or more, and how long, 1ms or more, such as 100,1s")
	}
	c.queue = core.Queue{Len: n, Wait: d}
	return nil
}
