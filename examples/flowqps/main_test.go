package main

import (
	"bytes"
	"context"
	"errors"
	"strings"
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
	for _, via := range vias {
		t.Run(via, func(t *testing.T) {
			status, out, _ := flowqps(t.Context(), "-limiter", "xtime", "-for", "1s", "-via", via)
			if status != 1 || !strings.Contains(out, "BROKEN: ") || !strings.Contains(out, "the limit is 20") {
				t.Errorf("status %d:\n%s", status, out)
			}
		})
	}
}

func TestTheLimitsHoldBehindAServer(t *testing.T) {
	for _, via := range vias[1:] {
		t.Run(via, func(t *testing.T) {
			status, out, _ := flowqps(t.Context(), "-for", "2s", "-inflight", "5", "-via", via)
			if status != 0 || !strings.Contains(out, "verdict: kept") || !strings.Contains(out, " of 5\n") {
				t.Errorf("status %d:\n%s", status, out)
			}
		})
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
		"-via http":                     `-via is "http"; want one of core, nethttp, gin, echo, grpc`,
		"-limiter none":                 `-limiter is "none"; want one of exactflow, xtime`,
		"-limiter xtime -inflight 3":    "-limiter xtime knows no limit for calls in flight",
		"-burst 3":                      "flag provided but not defined: -burst",
		"20":                            `"20" is no flag`,
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
	for _, name := range []string{"limit", "inflight", "goroutines", "for", "hold", "via", "limiter"} {
		if !strings.Contains(out, "  -"+name+" ") {
			t.Errorf("-%s is missing in\n%s", name, out)
		}
	}
	if status != 0 || err != "" {
		t.Errorf("status %d, %q", status, err)
	}
}
