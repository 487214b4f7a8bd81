package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/exactflow/exactflow/core"
)

// Evidence is what a run has seen, and what it was promised.
type evidence struct {
	terms
	inFlight int        // calls in flight; 0 means no such promise
	queue    core.Queue // the zero Queue refuses at once

	start, stop int64  // the first admission; when the callers stopped
	admitted    []call // all of them
	refused     []call // some of those that the limit refused, or its queue
	asks        []call // with a queue, the admitted calls again, each from when it asked
	waits       []wait // all who stood in line
	peak        int    // the most calls inside at once, counted between admission and release
	machine     delays // what the limiter is not to blame for
}

// A verdict is what the evidence shows for certain.
type verdict struct {
	passes []int // in each full second, counted from the first admission, by the end of the call
	most   int   // in any window of one second, for certain

	judged    int           // full seconds in which there was demand above the limit
	lowest    int           // the fewest passes in a judged second
	tolerance int           // the most passes that a judged second may lack
	late      time.Duration // the longest that callers left a free unit unasked for

	line line // what was seen of those who waited

	broken []string // what was not kept; empty if all was
}

// judge calls broken only what no order of the decisions can explain, each of
// them lying anywhere in its call. From above that is more admitted calls, begun
// and ended within a stretch, than the limit lets pass in one so long.
func judge(e evidence) verdict {
	h := newHistory(e.admitted)
	v := verdict{most: h.mostWithin(second), late: lateness(e)}
	p := e.promise(e.admitted)
	for _, c := range p.above {
		if over, t := h.overmost(c.w, c.most); over > 0 {
			v.breaks("%d admitted calls began and ended within less than %v, the last at %v; the limit is %d",
				over+c.most(t), stretch(c.w), e.at(t), c.most(t))
		}
	}
	if e.inFlight > 0 && e.peak > e.inFlight {
		v.breaks("%d calls were in flight at once; the limit is %d", e.peak, e.inFlight)
	}
	v.judgeRefusals(e, h, p)
	v.judgeSeconds(e, h)
	v.judgeLine(e, h, p)
	return v
}

// nothing reports that the run ended before a full second had, and with nothing
// broken until then: that is too little to call anything kept.
func (v *verdict) nothing() bool { return len(v.passes) == 0 && len(v.broken) == 0 }

func (v *verdict) breaks(format string, args ...any) {
	v.broken = append(v.broken, fmt.Sprintf(format, args...))
}

// at is an instant as it is told: counted from the first admission.
func (e evidence) at(t int64) time.Duration {
	return time.Duration(t - e.start).Round(time.Microsecond)
}

// stretch is a length as it is told.
func stretch(w int64) string {
	if w == second {
		return "a second"
	}
	return time.Duration(w).String()
}

// judgeRefusals judges from below. A refusal is right only if at some instant in
// the refused call the limit had no room, so that as many admitted calls as fill
// it touch the stretch from its reach before the call's begin to its end; or, with
// a queue, if others were ahead in line. With one it is right, moreover, only if
// the call waited as long as it may, or if so many were ahead that it could not
// begin to: as many as have a place, or as pass in the time that it may wait.
func (v *verdict) judgeRefusals(e evidence, h history, p promise) {
	var line history
	if e.queue.Len > 0 {
		var calls []call
		for _, w := range e.waits {
			calls = append(calls, call{w.asked, w.end})
		}
		line = newHistory(calls)
	}
	wrong, first := 0, ""
	for _, r := range e.refused {
		passed, fill := h.touching(r.begin-p.reach, r.end), min(p.room(r.begin), p.room(r.end))
		full, why := passed >= fill, fmt.Sprintf("with at most %d of %d in the %s before", passed, fill, strings.TrimPrefix(stretch(p.reach), "a "))
		if wait := int64(e.queue.Wait); e.queue.Len > 0 && r.end-r.begin < wait {
			ahead, places := line.touching(r.begin-1, r.end), min(e.queue.Len, p.least(r.begin, wait))
			if ahead < places {
				why = fmt.Sprintf("after %v, with at most %d ahead in a line that has room for %d and moves on by %d or more in %v",
					time.Duration(r.end-r.begin), ahead, e.queue.Len, p.least(r.begin, wait), e.queue.Wait)
			}
			full = ahead >= places && (full || ahead > 0)
		} else if e.queue.Len > 0 {
			full = true
		}
		if !full {
			if wrong++; wrong == 1 {
				first = fmt.Sprintf("at %v %s", e.at(r.begin), why)
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
// demand above the limit, and says nothing. Nor has a refusal in a line met a full
// second before it, nor one by a limit of another kind: there no second is judged.
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
		if !demand || e.kind != "rate" || e.queue.Len > 0 {
			continue
		}
		if passes+tolerance < e.n {
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
		v.breaks("%d of %d full seconds passed less than the limit of %d, the first: %s", few, v.judged, e.n, first)
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
