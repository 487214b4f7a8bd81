package main

import (
	"strings"
	"testing"
	"time"
)

func pace(n int) terms { return terms{kind: "pace", n: n} }

// ramps rise by one in a tenth of a second, from 2 to 10.
var ramps = terms{kind: "warmup", n: 10, from: 2, over: 800 * ms}

// one makes calls of a microsecond that begin at the instants.
func one(at ...int64) []call {
	var calls []call
	for _, t := range at {
		calls = append(calls, call{t, t + 1000})
	}
	return calls
}

// convicts wants the verdict to break for one reason, which has the words in it, or
// to keep if there are none.
func convicts(t *testing.T, v verdict, words string) {
	t.Helper()
	switch {
	case words == "" && len(v.broken) > 0:
		t.Errorf("broken: %q", v.broken)
	case words != "" && (len(v.broken) != 1 || !strings.Contains(v.broken[0], words)):
		t.Errorf("broken: %q; want one reason with %q", v.broken, words)
	}
}

// At 20 a second the gap is 50.2 ms, and one that comes late leaves the next where
// it was, up to 3.9 ms.
func TestAPaceIsJudgedGapByGap(t *testing.T) {
	convicts(t, judge(evidence{terms: pace(20), admitted: one(0, 47*ms, 97*ms, 147*ms)}), "")
	convicts(t, judge(evidence{terms: pace(20), admitted: one(0, 46*ms)}), "2 admitted calls began and ended within less than 46.289062ms, the last at 46.001ms; the limit is 1")

	// 4 of 1000 may pass at once, and the next one a gap of 1.004 ms after the first
	// of them, less the slack.
	convicts(t, judge(evidence{terms: pace(1000), admitted: one(0, 0, 0, 0, 113*1000)}), "")
	convicts(t, judge(evidence{terms: pace(1000), admitted: one(0, 0, 0, 0, 100*1000)}), "5 admitted calls began and ended within less than 109.377µs")
}

// A limit that keeps no more than N per second is no pace yet.
func TestAPaceIsJudgedByTheSecondToo(t *testing.T) {
	var at []int64
	for i := range int64(21) {
		at = append(at, i*49*ms)
	}
	v := judge(evidence{terms: pace(20), admitted: one(at...)})
	if len(v.broken) == 0 || !strings.Contains(v.broken[0], "21 admitted calls began and ended within less than a second") {
		t.Errorf("a gap of 49 ms at 20 per second: %v", v.broken)
	}
}

func TestARefusalByAPaceNeedsAPassInTheGapBefore(t *testing.T) {
	e := evidence{terms: pace(20), admitted: one(0), refused: one(2*ms, 49*ms)}
	convicts(t, judge(e), "")
	e.refused = one(2*ms, 52*ms)
	convicts(t, judge(e), "1 of 2 refused calls were refused though there was room, the first at 52ms with at most 0 of 1")
}

func TestAWarmUpIsJudgedByItsRamp(t *testing.T) {
	e := evidence{terms: ramps, admitted: one(0, 0, 101*ms, 201*ms, 301*ms, 2000*ms)}
	convicts(t, judge(e), "")
	e.admitted = one(0, 0, 50*ms)
	convicts(t, judge(e), "3 admitted calls began and ended within less than a second, the last at 50.001ms; the limit is 2")
	e.admitted = append(one(0, 0, 101*ms, 201*ms, 301*ms), volleys(6, 1400*ms)...)
	convicts(t, judge(e), "")
	e.admitted = append(volleys(10, 1400*ms), one(0, 1390*ms)...)
	convicts(t, judge(e), "11 admitted calls")
}

func TestARefusalByAWarmUpNeedsAsManyAsTheRampHasRisenTo(t *testing.T) {
	e := evidence{terms: ramps, admitted: one(0, 0, 150*ms), refused: one(50*ms, 160*ms)}
	convicts(t, judge(e), "")
	e.refused = one(50*ms, 210*ms)
	convicts(t, judge(e), "the first at 210ms with at most 3 of 4 in the second before")
}

// Two windows after the last pass it begins anew, and what was warm is too much; up
// to then it is warm, and what is cold is too little.
func TestAWarmUpIsColdAgainAfterTwoWindows(t *testing.T) {
	e := evidence{terms: ramps, admitted: append(one(0), volleys(3, 2*second+ms)...)}
	convicts(t, judge(e), "3 admitted calls")
	e.admitted = append(one(0), volleys(10, 2*second-2*ms)...)
	convicts(t, judge(e), "")

	cold := one(0, 2*second+ms, 2*second+ms)
	convicts(t, judge(evidence{terms: ramps, admitted: cold, refused: one(2*second + 2*ms)}), "")
	warm := one(0, 2*second-2*ms, 2*second-2*ms)
	convicts(t, judge(evidence{terms: ramps, admitted: warm, refused: one(2*second - ms)}), "with at most 2 of 10")
}

func TestWhatPassesAtLeastWhileSomebodyWaits(t *testing.T) {
	for _, c := range []struct {
		terms terms
		from  int64
		w     time.Duration
		least int
	}{
		{terms{kind: "rate", n: 20}, 0, 999 * time.Millisecond, 0},
		{terms{kind: "rate", n: 20}, 0, 3 * time.Second, 60},
		{terms{kind: "rate", n: 20}, 0, -time.Hour, 0},
		{pace(20), 0, time.Second, 19},
		{ramps, 0, 3 * time.Second, 2 + 10 + 10},
		{ramps, 100*ms + 1000, 1 * time.Second, 3},
	} {
		if got := c.terms.promise(one(0)).least(c.from, int64(c.w)); got != c.least {
			t.Errorf("%v, for %v from %d on: %d; want %d", c.terms, c.w, c.from, got, c.least)
		}
	}
}
