package judge

import (
	"math/rand/v2"
	"testing"
	"time"
)

// The judge must neither accuse a limiter that held, however its callers were
// delayed, nor miss one that certainly did not.
func TestMostCountsOnlyWhatIsCertain(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		name string
		all  []Admission
		want int
	}{
		{"none", nil, 0},
		{"one", []Admission{{0, ms}}, 1},
		{"one that lasted as long as the window may have been decided in any", []Admission{{0, 1000 * ms}}, 0},
		{"two exactly a window apart", []Admission{{0, 0}, {1000 * ms, 1000 * ms}}, 1},
		{"two a nanosecond less apart", []Admission{{0, 0}, {1000*ms - 1, 1000*ms - 1}}, 2},
		{"the second may have been decided at its end", []Admission{{0, 0}, {999 * ms, 1001 * ms}}, 1},
		{"the first may have been decided at its begin", []Admission{{0, 2 * ms}, {500 * ms, 1001 * ms}}, 1},
		{"a long one before does not hide two short ones", []Admission{{0, 5000 * ms}, {10 * ms, 11 * ms}, {12 * ms, 13 * ms}}, 2},
		{"order of recording does not matter", []Admission{{30 * ms, 31 * ms}, {10 * ms, 11 * ms}, {2000 * ms, 2001 * ms}, {20 * ms, 21 * ms}}, 3},
	} {
		if got := Most(c.all, time.Second); got != c.want {
			t.Errorf("%s: %d; want %d", c.name, got, c.want)
		}
	}
}

// Whatever the instants of the decisions were, the judge never counts more than
// some window really had, and with exact stamps it counts exactly that.
func TestMostIsALowerBound(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		var blurred, sharp []Admission
		for range 60 {
			at := time.Duration(r.IntN(5000)) * time.Millisecond
			sharp = append(sharp, Admission{at, at})
			blurred = append(blurred, Admission{at - time.Duration(r.IntN(300))*time.Millisecond, at + time.Duration(r.IntN(300))*time.Millisecond})
		}
		truth := 0
		for _, first := range sharp {
			n := 0
			for _, a := range sharp {
				if a.Begin >= first.Begin && a.Begin < first.Begin+time.Second {
					n++
				}
			}
			truth = max(truth, n)
		}
		if got := Most(sharp, time.Second); got != truth {
			t.Fatalf("with exact stamps %d; want %d", got, truth)
		}
		if got := Most(blurred, time.Second); got > truth {
			t.Fatalf("%d in one window; there were never more than %d", got, truth)
		}
	}
}
