package main

import (
	"testing"
	"time"

	"github.com/exactflow/exactflow/bench/judge"
	"github.com/exactflow/exactflow/core"
)

// What a pace allows at most is allowed here; one request more, anywhere, is not.
func TestTooManySeesOneMore(t *testing.T) {
	pace := core.Pace{N: 1000, Per: time.Second}
	const gap = 1003906250 * time.Nanosecond / 1000
	// Four at once, as after a pause, and then one per gap.
	steady := func(n int) (all []judge.Admission) {
		for i := range n {
			t := max(0, time.Duration(i)*(gap+1)-3906250)
			all = append(all, judge.Admission{Begin: t, End: t})
		}
		return all
	}
	at := func(t time.Duration) judge.Admission { return judge.Admission{Begin: t, End: t} }
	if err := tooMany(pace, steady(2500)); err != nil {
		t.Error(err)
	}
	for name, all := range map[string][]judge.Admission{
		"at the start":  append(steady(2500), at(0)),
		"in the middle": append(steady(2500), at(1250*time.Millisecond)),
		"in one second": append(steady(1000), at(time.Second-1)),
	} {
		if tooMany(pace, all) == nil {
			t.Errorf("one more %s was not found", name)
		}
	}
}
