package main

import (
	"slices"
	"strings"
	"testing"
	"time"
)

const ms = int64(time.Millisecond)

// volleys makes n calls, each 1 ms long, that begin at each of the instants.
func volleys(n int, at ...int64) []call {
	var calls []call
	for _, t := range at {
		for range n {
			calls = append(calls, call{t, t + ms})
		}
	}
	return calls
}

// Refused calls at every millisecond of the run, but for the first.
func asking(from, to int64) []call {
	var calls []call
	for t := from + 2*ms; t < to; t += ms {
		calls = append(calls, call{t, t + ms/2})
	}
	return calls
}

func TestOneMoreInAWindowIsBroken(t *testing.T) {
	v := judge(evidence{terms: terms{kind: "rate", n: 3}, admitted: volleys(2, 0, 998*ms)})
	if v.most != 4 || len(v.broken) != 1 || !strings.Contains(v.broken[0], "4 admitted calls") {
		t.Errorf("four calls within 999 ms under a limit of 3: %+v", v)
	}
}

// The second volley may have been decided a whole second after the first: the
// decisions may lie at the begin of the one and at the end of the other.
func TestOneMoreThatTouchesIsKept(t *testing.T) {
	v := judge(evidence{terms: terms{kind: "rate", n: 3}, admitted: volleys(2, 0, 999*ms)})
	if v.most != 2 || len(v.broken) != 0 {
		t.Errorf("four calls within a whole second under a limit of 3: %+v", v)
	}
}

// A call that took a second or more says too little to count against anybody.
func TestALongCallIsNoWitness(t *testing.T) {
	calls := append(volleys(3, 0), call{-5 * second, 500 * ms}, call{0, second}, call{ms, 900 * ms})
	if got := newHistory(calls).mostWithin(second); got != 4 {
		t.Errorf("most within a second is %d; want the volley of 3 and the call of 899 ms", got)
	}
}

func TestMostWithinAgreesWithTheObviousCount(t *testing.T) {
	seed := uint64(1)
	random := func(n int64) int64 {
		seed = seed*6364136223846793005 + 1442695040888963407
		return int64(seed>>33) % n
	}
	for range 2000 {
		var calls []call
		for range random(12) {
			b := random(30)
			calls = append(calls, call{b, b + random(14)})
		}
		want := 0
		for _, left := range calls {
			n := 0
			for _, c := range calls {
				if c.begin >= left.begin && c.end < left.begin+10 {
					n++
				}
			}
			want = max(want, n)
		}
		if got := newHistory(calls).mostWithin(10); got != want {
			t.Fatalf("most of %v within 10 is %d; want %d", calls, got, want)
		}
	}
}

func TestInFlightIsJudgedByThePeakInside(t *testing.T) {
	for peak, broken := range map[int]int{4: 0, 5: 1} {
		if v := judge(evidence{terms: terms{kind: "rate", n: 9}, inFlight: 4, peak: peak}); len(v.broken) != broken {
			t.Errorf("peak %d under a limit of 4: %v", peak, v.broken)
		}
	}
}

func TestEachFullSecondPassesTheLimit(t *testing.T) {
	e := evidence{terms: terms{kind: "rate", n: 3}, stop: 3 * second, admitted: volleys(3, 0, second, 2*second), refused: asking(0, 3*second)}
	v := judge(e)
	if len(v.broken) != 0 || !slices.Equal(v.passes, []int{3, 3, 3}) || v.judged != 3 || v.lowest != 3 || v.tolerance != 0 || v.late != 0 {
		t.Errorf("three each second, under constant demand: %+v", v)
	}

	e.admitted = e.admitted[:len(e.admitted)-1]
	if v = judge(e); len(v.broken) == 0 || v.lowest != 2 {
		t.Errorf("two in the third second, under constant demand: %+v", v)
	}
	e.refused = asking(0, 2*second)
	if v = judge(e); len(v.broken) != 0 || v.judged != 2 {
		t.Errorf("two in the third second, in which nobody else asked: %+v", v)
	}
}

// A limit that gives units back a tenth of a second late passes them all in each
// of the first seconds; only the refusals show it.
func TestARefusalWithRoomIsBroken(t *testing.T) {
	e := evidence{terms: terms{kind: "rate", n: 3}, stop: 2 * second, admitted: volleys(3, 0, 1100*ms), refused: asking(0, 2*second)}
	if v := judge(e); len(v.broken) != 1 || !strings.Contains(v.broken[0], "though there was room") {
		t.Errorf("a unit that came back 100 ms late: %+v", v)
	}
	e.late = 100 * ms
	if v := judge(e); len(v.broken) != 0 {
		t.Errorf("a unit that may come back 100 ms late: %+v", v)
	}
	e.late, e.admitted = 0, volleys(3, 0, 1000*ms)
	if v := judge(e); len(v.broken) != 0 {
		t.Errorf("a unit that came back in time: %+v", v)
	}
}

// Callers that come late move the volleys, here until one straddles the end of a
// full second. Fewer than the limit pass in the next one then, as they must: its
// last refusal still counted what had passed just before it.
func TestCallersThatComeLateAreTolerated(t *testing.T) {
	e := evidence{
		terms: terms{kind: "rate", n: 4}, stop: 3 * second,
		admitted: slices.Concat(volleys(4, 0), volleys(2, 1990*ms, 2000*ms, 3005*ms)),
		refused:  slices.Concat(asking(0, 990*ms), asking(2002*ms, 2900*ms)),
	}
	v := judge(e)
	if len(v.broken) != 0 || !slices.Equal(v.passes, []int{4, 2, 2}) || v.judged != 2 || v.lowest != 2 || v.tolerance != 2 || v.late != 989*time.Millisecond {
		t.Errorf("two in the third second, and two that its last refusal still counted: %+v", v)
	}

	e.admitted = slices.Concat(volleys(4, 0), volleys(1, 1990*ms), volleys(2, 2000*ms, 3005*ms))
	if v := judge(e); len(v.broken) != 2 {
		t.Errorf("two in the third second, and one that its last refusal still counted: %+v", v)
	}
}

// A server's calls are long, and many are on their way when a full second ends.
// They make no difference to what had passed before.
func TestCallsOnTheirWayLeaveNoTolerance(t *testing.T) {
	e := evidence{terms: terms{kind: "rate", n: 3}, stop: 2 * second, admitted: volleys(3, 0, second), refused: asking(0, 2*second)}
	e.admitted = append(e.admitted, call{1980 * ms, 2001 * ms}, call{1990 * ms, 2001 * ms}, call{1999 * ms, 2001 * ms})
	if v := judge(e); len(v.broken) != 0 || v.judged != 2 || v.lowest != 3 || v.tolerance != 0 {
		t.Errorf("three each second, and three on their way at the end: %+v", v)
	}
}
