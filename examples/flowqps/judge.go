package main

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// second is the window of the limit.
const second = int64(time.Second)

// Evidence is what a run has seen, and what it was promised.
type evidence struct {
	limit    int   // passes in any second
	inFlight int   // calls in flight; 0 means no such promise
	late     int64 // how much later than promised a unit may come back

	start, stop int64  // the first admission; when the callers stopped
	admitted    []call // all of them
	refused     []call // some of those that the limit per second refused, and only those
	peak        int    // the most calls inside at once, counted between admission and release
}

// A verdict is what the evidence shows for certain.
type verdict struct {
	passes []int // in each full second, counted from the first admission, by the end of the call
	most   int   // in any window of one second, for certain

	judged    int           // full seconds in which there was demand above the limit
	lowest    int           // the fewest passes in a judged second
	tolerance int           // the most passes that a judged second may lack
	late      time.Duration // the longest that callers left a free unit unasked for

	broken []string // what was not kept; empty if all was
}

// judge calls broken only what no order of the decisions can explain, each of
// them lying anywhere in its call. From above that is limit+1 admitted calls
// which began and ended within less than a second.
func judge(e evidence) verdict {
	h := newHistory(e.admitted)
	v := verdict{most: h.mostWithin(second), late: lateness(e)}
	if v.most > e.limit {
		v.breaks("%d admitted calls began and ended within less than a second; the limit is %d", v.most, e.limit)
	}
	if e.inFlight > 0 && e.peak > e.inFlight {
		v.breaks("%d calls were in flight at once; the limit is %d", e.peak, e.inFlight)
	}
	v.judgeRefusals(e, h)
	v.judgeSeconds(e, h)
	return v
}

// nothing reports that the run ended before a full second had, and with nothing
// broken until then: that is too little to call anything kept.
func (v *verdict) nothing() bool { return len(v.passes) == 0 && len(v.broken) == 0 }

func (v *verdict) breaks(format string, args ...any) {
	v.broken = append(v.broken, fmt.Sprintf(format, args...))
}

// judgeRefusals judges from below. A refusal is right only if at some instant in
// the refused call the second before that instant was full. So at least limit
// admitted calls touch the stretch from a second before the call's begin to its
// end.
func (v *verdict) judgeRefusals(e evidence, h history) {
	wrong, first := 0, ""
	for _, r := range e.refused {
		if n := h.touching(r.begin-second-e.late, r.end); n < e.limit {
			if wrong++; wrong == 1 {
				first = fmt.Sprintf("at %v with at most %d of %d in the second before", time.Duration(r.begin-e.start).Round(time.Microsecond), n, e.limit)
			}
		}
	}
	if wrong > 0 {
		v.breaks("%d of %d refused calls were refused though there was room, the first %s", wrong, len(e.refused), first)
	}
}

// judgeSeconds judges from below too. Of the limit admissions that touch the
// stretch of a refusal in a full second, all ended in that second, but for those
// that ended before it, and those that ended after it. Callers that come late,
// each time a unit is free, move the passes on until they straddle the ends of
// full seconds, and then there are such. That is the tolerance: what the refusal
// that leaves the least still leaves. A full second without any refusal had no
// demand above the limit, and says nothing.
func (v *verdict) judgeSeconds(e evidence, h history) {
	refused := slices.SortedFunc(slices.Values(e.refused), func(a, b call) int { return cmp.Compare(a.end, b.end) })
	few, first := 0, ""
	for from := e.start; from+second <= e.stop; from += second {
		to := from + second
		passes := h.endedIn(from, to)
		v.passes = append(v.passes, passes)

		across := h.across(to)
		tolerance, demand := 0, false
		for ; len(refused) > 0 && refused[0].end < to; refused = refused[1:] {
			r := refused[0]
			if r.begin < from {
				continue
			}
			before := h.endedIn(r.begin-second-e.late+1, from)
			after := upTo(across.begins, r.end)
			if !demand || before+after < tolerance {
				tolerance, demand = before+after, true
			}
		}
		if !demand {
			continue
		}
		if passes+tolerance < e.limit {
			if few++; few == 1 {
				first = fmt.Sprintf("second %d passed %d with a tolerance of %d", len(v.passes), passes, tolerance)
			}
		}
		if v.judged++; v.judged == 1 || passes < v.lowest {
			v.lowest = passes
		}
		v.tolerance = max(v.tolerance, tolerance)
	}
	if few > 0 {
		v.breaks("%d of %d full seconds passed less than the limit of %d, the first: %s", few, v.judged, e.limit, first)
	}
}

// lateness is the longest stretch from the instant when a unit was back for
// certain to the begin of the next call, or to the end of the run.
func lateness(e evidence) time.Duration {
	asked := newHistory(slices.Concat(e.admitted, e.refused)).begins
	longest := int64(0)
	for _, c := range e.admitted {
		if back := c.end + second + e.late; back < e.stop {
			next := e.stop
			if i := upTo(asked, back-1); i < len(asked) {
				next = min(next, asked[i])
			}
			longest = max(longest, next-back)
		}
	}
	return time.Duration(longest)
}
