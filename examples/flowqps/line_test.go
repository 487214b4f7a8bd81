package main

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/exactflow/exactflow/core"
)

// lined is a run under a rate of 2 a second, and a queue: calls that pass without a
// wait at 0, and others that wait from stood on, and pass then.
func lined(waits ...wait) evidence {
	e := evidence{terms: terms{kind: "rate", n: 2}, queue: core.Queue{Len: 3, Wait: 2 * time.Second}, stop: 4 * second, admitted: one(0, 0), asks: one(0, 0)}
	for _, w := range waits {
		if w.passed {
			e.admitted = append(e.admitted, call{w.looked, w.end})
			e.asks = append(e.asks, call{w.asked, w.end})
		}
		e.waits = append(e.waits, w)
	}
	return e
}

// stands waits from asked on, and passes at passed.
func stands(asked, passed int64) wait {
	return wait{asked: asked, stood: asked + 1000, looked: passed, end: passed + 1000, passed: true}
}

// until waits from asked on, and is refused.
func until(asked, refused int64) wait {
	w := stands(asked, refused)
	w.passed = false
	return w
}

func TestALineIsKept(t *testing.T) {
	e := lined(stands(100*ms, second+ms), stands(200*ms, second+2*ms), stands(300*ms, 2*second+2*ms), stands(second+100*ms, 2*second+3*ms), stands(second+200*ms, 3*second+3*ms))
	v := judge(e)
	convicts(t, v, "")
	if v.line.waited != 5 || v.line.most != 3 || v.line.pairs != 4 || v.line.least != 4 || v.line.passed != 5 {
		t.Errorf("%+v", v.line)
	}
}

func TestOneMoreInLineIsBroken(t *testing.T) {
	e := lined(stands(100*ms, second+ms), stands(200*ms, second+2*ms), until(300*ms, 2*second), until(400*ms, 2*second))
	convicts(t, judge(e), "4 calls stood in line at once; the queue has room for 3")
	e.inFlight = 9 // then there are two lines
	convicts(t, judge(e), "")
}

// The last look of the first is the last at which it stood in line for certain.
func TestOneMoreInLineThatMayHaveLeftIsKept(t *testing.T) {
	convicts(t, judge(lined(until(100*ms, 500*ms), until(200*ms, 900*ms), until(300*ms, 900*ms), until(500*ms, 900*ms))), "")
}

func TestAWaitBeyondTheLimitIsBroken(t *testing.T) {
	e := lined(stands(100*ms, 2*second+250*ms))
	e.inFlight = 9 // that is what it waits for
	convicts(t, judge(e), "1 calls stood in line for longer than 2s, one for 2.149999s")
	e.machine.longest = 100 * ms
	convicts(t, judge(e), "")
}

func TestOvertakingIsBroken(t *testing.T) {
	convicts(t, judge(lined(stands(100*ms, second+5*ms), stands(200*ms, second+2*ms))), "1 calls overtook others; the first that was overtaken stood in line from 100.001ms to 1.005s")
	convicts(t, judge(lined(until(100*ms, second+5*ms), stands(200*ms, second+2*ms))), "1 calls overtook others")
	e := lined(stands(100*ms, second+5*ms))
	e.asks = append(e.asks, call{second + ms, second + 2*ms}) // at once
	convicts(t, judge(e), "1 calls overtook others")
}

// Two that ask at the same time may stand in line in any order, and who is decided
// about while the other is has not passed before it for certain.
func TestAnOrderThatCannotBeToldIsKept(t *testing.T) {
	convicts(t, judge(lined(stands(100*ms, second+5*ms), stands(100*ms+500, second+2*ms))), "")
	convicts(t, judge(lined(stands(100*ms, second+2*ms+500), stands(200*ms, second+2*ms))), "")
}

// Somebody stands in line for 3.5 seconds, and a limit of 2 lets one a second pass.
func TestAPlaceLeftFreeIsBroken(t *testing.T) {
	slow := []wait{stands(100*ms, second+ms), stands(200*ms, 2*second+ms), stands(300*ms, 2*second+200*ms), stands(second+100*ms, 3*second+ms), stands(2*second+100*ms, 4*second+ms)}
	slow[2].passed = false
	e := lined(slow...)
	convicts(t, judge(e), "while calls stood in line, for 3.900999s, 4 passed; there was room for 6")

	e.machine.sum = second + 900*ms // somebody else had the processors
	convicts(t, judge(e), "")
	e.machine.sum, e.inFlight = 0, 2
	convicts(t, judge(e), "")
}

// The line is empty twice, for 201 microseconds and for 50.001 milliseconds, which
// is no time in which anything has to pass.
func TestALineThatIsEmptyForAMomentIsOneLine(t *testing.T) {
	e := lined(stands(100*ms, second+ms), stands(second+ms+200_000, 2*second+ms), stands(2*second+51*ms, 3*second+ms))
	e.n, e.admitted, e.asks = 1, e.admitted[1:], e.asks[1:]
	v := judge(e)
	convicts(t, v, "")
	if v.line.busy != 2850797*time.Microsecond || v.line.passed != 3 || v.line.least != 2 {
		t.Errorf("%+v", v.line)
	}
	e.waits = []wait{stands(100*ms, second+ms), stands(second+102*ms, 2*second+ms)}
	if v := judge(e); v.line.busy != 0 {
		t.Errorf("two lines, none of them for more than a second: %+v", v.line)
	}
}

// Of two a second as many pass in two seconds as there are places in line, 3 and
// one more. So it is refused only if the 3 are there.
func TestARefusalWithAPlaceInLineIsBroken(t *testing.T) {
	e := lined(stands(100*ms, second+ms), stands(200*ms, second+2*ms), stands(300*ms, 2*second+2*ms))
	e.refused = one(400 * ms)
	convicts(t, judge(e), "")
	e.refused = one(250 * ms)
	convicts(t, judge(e), "the first at 250ms after 1µs, with at most 2 ahead in a line that has room for 3 and moves on by 4 or more in 2s")
}

func TestARefusalOfOneWhoCannotPassInTimeIsKept(t *testing.T) {
	e := lined(stands(100*ms, second+ms), stands(200*ms, second+2*ms))
	e.queue.Wait = 1500 * time.Millisecond
	e.refused = one(250 * ms)
	convicts(t, judge(e), "")
	e.refused = one(150 * ms)
	convicts(t, judge(e), "with at most 1 ahead in a line that has room for 3 and moves on by 2 or more in 1.5s")
}

// One who waited as long as it may is refused, whoever is there.
func TestARefusalAfterTheWholeWaitIsKept(t *testing.T) {
	e := lined(until(100*ms, 2*second+101*ms))
	e.refused = []call{{100 * ms, 2*second + 102*ms}}
	e.machine.sum = 4 * second
	convicts(t, judge(e), "")
	e.refused[0].end = 2 * second
	convicts(t, judge(e), "refused though there was room")
}

// A second of nothing but a line: what a machine that is too busy to wake anybody
// does must not count against the limiter, and what an idle one does must.
func TestTheDelaysOfAnIdleMachineAreNone(t *testing.T) {
	clock, ticks := int64(0), 0
	ctx, stop := context.WithCancel(t.Context())
	late := []int64{0, tick, tick + idle, tick + idle + 5*ms, 2 * tick, tick + idle + 2*ms}
	var d delays
	d.measure(ctx, func() int64 {
		clock += late[ticks]
		if ticks++; ticks == len(late) {
			stop()
		}
		return clock
	})
	if d != (delays{longest: 5 * ms, sum: 7 * ms}) {
		t.Errorf("%+v; want 5 ms at most, and 7 in all", d)
	}
	if d.grace() != 105*ms {
		t.Errorf("a grace of %v; want a tenth of a second more than the longest", time.Duration(d.grace()))
	}
}

// What a real run has seen keeps what it was promised, and breaks what it was not:
// so the checks find in a run what they find in a few calls made up.
func TestARunKeepsWhatItWasPromisedAndNothingElse(t *testing.T) {
	c, err := parse([]string{"-queue", "50,1s", "-for", "1500ms"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	l := newLoad(c)
	ask, _, err := connect(c, l)
	if err == nil {
		err = l.run(t.Context(), ask)
	}
	if err != nil {
		t.Fatal(err)
	}
	convicts(t, judge(l.evidence(c)), "")

	for words, promise := range map[string]func(e *evidence){
		"; the limit is 19":              func(e *evidence) { e.n = 19 },
		"less than 46.289062ms":          func(e *evidence) { e.kind = "pace" },
		"; the limit is 2":               func(e *evidence) { e.terms = terms{kind: "warmup", n: 20, from: 2, over: second} },
		"though there was room":          func(e *evidence) { e.n = 100 },
		"; the queue has room for 5":     func(e *evidence) { e.queue.Len = 5 },
		"calls stood in line for longer": func(e *evidence) { e.queue.Wait, e.machine.longest = time.Millisecond, 0 },
		"calls stood in line, for 1.":    func(e *evidence) { e.n, e.machine = 30, delays{} },
		"overtook": func(e *evidence) {
			e.asks = append(slices.Clip(e.asks), call{e.stop, e.stop + 1})
			e.waits = append(slices.Clip(e.waits), stands(e.start, e.stop+2))
		},
	} {
		e := l.evidence(c)
		promise(&e)
		if v := judge(e); !strings.Contains(strings.Join(v.broken, "\n"), words) {
			t.Errorf("no %q in %q", words, v.broken)
		}
	}
}
