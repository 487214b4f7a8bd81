// Package judge says from outside how many calls a limiter has admitted at most
// within a stretch of time, whatever it says itself.
package judge

import (
	"slices"
	"time"
)

// An Admission is a call that was admitted at some instant between Begin and End,
// which were read before and after the call.
type Admission struct{ Begin, End time.Duration }

// Most is the largest number of calls that began and ended within less than per,
// and so the largest number that were admitted in one window for certain. The
// truth may be more, never less: a caller's own single stamp, taken before the
// call or after, proves nothing, since the caller may have been put to sleep
// between the stamp and the decision.
func Most(admissions []Admission, per time.Duration) int {
	var begins, ends []time.Duration
	for _, a := range admissions {
		if a.End-a.Begin < per { // else it lies in no window for certain
			begins = append(begins, a.Begin)
			ends = append(ends, a.End)
		}
	}
	slices.Sort(begins)
	slices.Sort(ends)
	// In the window from a begin are the calls that ended before its end, less
	// those that began before it: none is left that did that and ended later.
	most, ended := 0, 0
	for earlier, begin := range begins {
		if earlier > 0 && begin == begins[earlier-1] {
			continue
		}
		for ended < len(ends) && ends[ended] < begin+per {
			ended++
		}
		most = max(most, ended-earlier)
	}
	return most
}

// Before is how many ended before t.
func Before(admissions []Admission, t time.Duration) int {
	n := 0
	for _, a := range admissions {
		if a.End < t {
			n++
		}
	}
	return n
}
