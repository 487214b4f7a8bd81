package main

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"
)

// flowqps runs the program, and returns its exit status and what it wrote.
func flowqps(ctx context.Context, args ...string) (status int, stdout, stderr string) {
	var out, err bytes.Buffer
	status = run(ctx, args, &out, &err)
	return status, out.String(), err.String()
}

func TestTheLimitHoldsInTheReportedScenario(t *testing.T) {
	status, out, _ := flowqps(t.Context(), "-for", "3s")
	if status != 0 || !strings.Contains(out, "verdict: kept") || strings.Count(out, "pass ") != 3 || strings.Contains(out, "not judged") {
		t.Errorf("status %d:\n%s", status, out)
	}
}

// The control: were it not called broken, the other verdicts would say nothing.
func TestTheControlIsCalledBroken(t *testing.T) {
	var args []string
	for _, via := range vias {
		args = append(args, "-limiter xtime -for 1s -via "+via)
	}
	together(t, 1, "within less than a second, the last at", args...)
}

// together runs flowqps with each of the args, all at the same time, and wants it to
// end with a status and with words in its output.
func together(t *testing.T, status int, words string, args ...string) {
	t.Helper()
	var runs sync.WaitGroup
	for _, a := range args {
		runs.Go(func() {
			got, out, err := flowqps(t.Context(), strings.Fields(a)...)
			if got != status || !strings.Contains(out, words) {
				t.Errorf("flowqps %s: status %d, %q\n%s", a, got, err, out)
			}
		})
	}
	runs.Wait()
}

func TestTheLimitsHoldBehindAServer(t *testing.T) {
	var args []string
	for _, via := range vias[1:] {
		args = append(args, "-for 2s -inflight 5 -via "+via)
	}
	together(t, 0, " of 5\n", args...)
}

func TestEveryKindHoldsEverywhere(t *testing.T) {
	var refuse, queue []string
	for _, via := range vias {
		for _, kind := range kinds {
			a := "-for 2s -goroutines 30 -kind " + kind + " -via " + via
			if kind != "rate" {
				refuse = append(refuse, a)
			}
			queue = append(queue, a+" -queue 40,9s", a+" -queue 5,1s -goroutines 8")
		}
	}
	together(t, 0, "verdict: kept", refuse...)
	together(t, 0, "judged in order:", queue...)
	together(t, 0, "verdict: kept", "-for 1s -queue 9,1s -inflight 2", "-for 1s -kind pace -limit 5000 -queue 100,1s", "-for 1s -kind warmup -limit 5000 -from 5000")
}

// One waits for a place that nobody leaves before the end.
func TestTheEndOfTheRunEndsTheWaits(t *testing.T) {
	begun := time.Now()
	var args []string
	for _, via := range vias {
		args = append(args, "-for 1s -limit 1 -goroutines 3 -queue 9,1h -via "+via)
	}
	together(t, 0, "verdict: kept", args...)
	if gone := time.Since(begun); gone > 30*time.Minute {
		t.Errorf("it took %v", gone)
	}
}

func TestAnInterruptEndsTheRunAndJudgesIt(t *testing.T) {
	ctx, interrupt := context.WithTimeout(t.Context(), 1100*time.Millisecond)
	defer interrupt()
	status, out, _ := flowqps(ctx, "-for", "1h")
	if status != 0 || !strings.Contains(out, "verdict: kept") {
		t.Errorf("status %d:\n%s", status, out)
	}
}

// What was not judged was not kept.
func TestAnInterruptBeforeTheFirstFullSecondJudgesNothing(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	interrupt()
	status, out, _ := flowqps(ctx, "-for", "1h")
	if status != 1 || !strings.Contains(out, "verdict: nothing judged") || strings.Contains(out, "verdict: kept") {
		t.Errorf("status %d:\n%s", status, out)
	}
}

// A full disk takes the first lines and not the verdict.
func TestAFailedWriteIsNoSuccess(t *testing.T) {
	for _, args := range [][]string{{"-for", "1s"}, {"-h"}} {
		for room := range 2 {
			var err bytes.Buffer
			status := run(t.Context(), args, &disk{room: room}, &err)
			if status != 1 || !strings.Contains(err.String(), "the output is not complete: no space left") {
				t.Errorf("%v, with room for %d lines: status %d, %q", args, room, status, err.String())
			}
		}
	}
}

// A disk has room for so many writes.
type disk struct{ room int }

func (d *disk) Write(b []byte) (int, error) {
	if d.room--; d.room < 0 {
		return 0, errors.New("no space left")
	}
	return len(b), nil
}

func TestWrongFlagsAreToldWhatWouldBeRight(t *testing.T) {
	for args, want := range map[string]string{
		"-limit 0":                      "-limit is 0; want 1 or more",
		"-limit many":                   `invalid value "many" for flag -limit`,
		"-inflight -1":                  "-inflight is -1; want 1 or more",
		"-goroutines 0":                 "-goroutines is 0; want 1 or more",
		"-for 999ms":                    "-for is 999ms; want 1s or more",
		"-hold -1s":                     "-hold is -1s; want 0 or more",
		"-via http":                     `-via is "http"; want one of core, nethttp, gin, echo, echo5, grpc`,
		"-limiter none":                 `-limiter is "none"; want one of exactflow, xtime`,
		"-limiter xtime -inflight 3":    "-limiter xtime knows no limit for calls in flight",
		"-burst 3":                      "flag provided but not defined: -burst",
		"20":                            `"20" is no flag`,
		"-kind pacing":                  `-kind is "pacing"; want one of rate, pace, warmup`,
		"-queue 100":                    `invalid value "100" for flag -queue: want how many may wait, 1 or more, and how long, 1ms or more, such as 100,1s`,
		"-queue 0,1s":                   `invalid value "0,1s" for flag -queue`,
		"-queue 5,0s":                   `invalid value "5,0s" for flag -queue`,
		"-queue 5,1":                    `invalid value "5,1" for flag -queue`,
		"-from 3":                       "-from and -over are of a warm-up; want them with -kind warmup",
		"-over 1s -kind pace":           "-from and -over are of a warm-up; want them with -kind warmup",
		"-kind warmup -from 21":         "-from is 21; want 1 to -limit, 20, or 0 for a tenth of it",
		"-kind warmup -over -1s":        "-over is -1s; want a time above 0, or 0 for half of -for",
		"-limiter xtime -queue 5,1s":    "-limiter xtime refuses at once; want it without -queue",
		"-limiter xtime -kind pace":     "-limiter xtime is no pace; want it with -kind rate",
		"-plot x.svg -kind pace":        "-plot has its own -kind; want beside it only -limit, -for, -from, -over",
		"-plot x.svg -limit 1001":       "-limit is 1001; want 1000 at most with -plot",
		"-plot x.svg -for 2m":           "-for is 2m0s; want 1m at most with -plot",
		"-limit -1 -goroutines -1 -via": "flag needs an argument: -via",
	} {
		status, out, err := flowqps(t.Context(), strings.Fields(args)...)
		if status != 2 || !strings.Contains(err, want) || !strings.Contains(err, "flowqps -h") || out != "" {
			t.Errorf("flowqps %s: status %d, %q, and on stdout %q", args, status, err, out)
		}
	}
}

func TestHelpNamesEveryFlag(t *testing.T) {
	status, out, err := flowqps(t.Context(), "-h")
	for _, name := range []string{"limit", "inflight", "goroutines", "for", "hold", "via", "limiter", "kind", "queue", "from", "over", "plot"} {
		if !strings.Contains(out, "  -"+name+" ") {
			t.Errorf("-%s is missing in\n%s", name, out)
		}
	}
	if status != 0 || err != "" {
		t.Errorf("status %d, %q", status, err)
	}
}
