package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/exactflow/exactflow/core"
)

// apart is how often the callers of a plot ask, all at once.
const apart = 1500 * time.Millisecond

// A scene is one panel of a plot: a limit under the volleys.
type scene struct {
	title   string
	config  config
	load    *load
	seen    evidence
	verdict verdict
}

// scenes are the kinds, under c's numbers. Half as many again as the limit ask in
// each volley: more than pass at once, and fewer than pass until the next one.
func scenes(c config) []*scene {
	c.via, c.limiter, c.goroutines, c.hold = "core", "exactflow", max(2, c.limit*3/2), 0
	queue := core.Queue{Len: c.goroutines, Wait: 2 * time.Second}
	under := func(title, kind string, q core.Queue) *scene {
		c.kind, c.queue = kind, q
		return &scene{title: title, config: c}
	}
	return []*scene{
		under("Rate: who does not fit is refused", "rate", core.Queue{}),
		under("Rate with a queue: who does not fit waits", "rate", queue),
		under("Pace with a queue: one by one, evenly", "pace", queue),
		under(fmt.Sprintf("WarmUp: from %d to %d in %.3g s, and who does not fit is refused", c.from, c.limit, c.over.Seconds()), "warmup", core.Queue{}),
	}
}

// plot runs all scenes at the same time, judges each, and draws them. It returns
// the exit status.
func plot(ctx context.Context, c config, stdout, stderr io.Writer) int {
	file, err := openDrawing(c.plot) // before the work: a wrong path is told at once
	if err != nil {
		fmt.Fprintf(stderr, "flowqps: %v\n", err)
		return 1
	}
	defer file.discard()
	panels := scenes(c)
	fmt.Fprintf(stderr, "%d limits, each under %d calls at once every %v, for %v\n", len(panels), panels[0].config.goroutines, apart, c.span)
	var running sync.WaitGroup
	failed := make([]error, len(panels))
	for i, s := range panels {
		running.Go(func() { failed[i] = s.run(ctx) })
	}
	done := make(chan struct{})
	go func() { running.Wait(); close(done) }()
	for t, waiting := 1, true; waiting; t++ {
		select {
		case <-time.After(time.Second):
			fmt.Fprintf(stderr, "%4ds of %v\n", t, c.span)
		case <-done:
			waiting = false
		}
	}

	status := 0
	for i, s := range panels {
		if failed[i] != nil {
			fmt.Fprintf(stderr, "flowqps: %s: %v\n", s.title, failed[i])
			return 1
		}
		fmt.Fprintf(stdout, "%s: %s\n", s.title, s.summary())
		for _, b := range s.verdict.broken {
			fmt.Fprintln(stdout, "verdict: BROKEN:", b)
			status = 1
		}
	}
	if ctx.Err() != nil {
		fmt.Fprintln(stderr, "flowqps: interrupted, so nothing is drawn")
		return 1
	}
	if err := file.write(draw(panels)); err != nil {
		fmt.Fprintf(stderr, "flowqps: %v\n", err)
		return 1
	}
	if status == 0 {
		fmt.Fprintln(stdout, "verdict: kept")
	}
	return status
}

// A drawing is the file that it will be put into.
type drawing struct {
	*os.File
	fresh bool // it was not there before
}

func openDrawing(path string) (*drawing, error) {
	_, err := os.Stat(path)
	file, failed := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o644)
	return &drawing{file, err != nil}, failed
}

// write puts it there, in place of what was.
func (d *drawing) write(b []byte) error {
	info, err := d.Stat()
	if err == nil && info.Mode().IsRegular() {
		err = d.Truncate(0)
	}
	if err == nil {
		_, err = d.Write(b)
	}
	d.fresh = d.fresh && err != nil
	return errors.Join(err, d.Close())
}

// discard leaves nothing behind that was not there, unless it was written.
func (d *drawing) discard() {
	d.Close()
	if d.fresh {
		os.Remove(d.Name())
	}
}

func (s *scene) run(ctx context.Context) error {
	s.load = newLoad(s.config)
	s.load.every = apart
	ask, hangUp, err := connect(s.config, s.load)
	if err != nil {
		return err
	}
	defer hangUp()
	err = s.load.run(ctx, ask)
	s.seen = s.load.evidence(s.config)
	s.verdict = judge(s.seen)
	return err
}

func (s *scene) summary() string {
	passed := 0
	for _, c := range s.seen.admitted {
		if c.end < s.seen.stop {
			passed++
		}
	}
	text := fmt.Sprintf("%d passed, %d refused", passed, s.load.blocked())
	if s.config.queue.Len > 0 {
		text += fmt.Sprintf(", longest wait %.1f s", s.verdict.line.longest.Seconds())
	}
	return text
}
