package main

import (
	"slices"
	"sort"
)

// A call is two readings of one clock, in nanoseconds: the decision about the
// call lies between them, or on one of them. Nothing more is known about it.
type call struct{ begin, end int64 }

// A history is calls that can be asked how many of their decisions lie in a
// stretch of time: for certain ([history.within]), or at most
// ([history.touching]).
type history struct {
	calls        []call
	begins, ends []int64 // in ascending order, each on its own
}

func newHistory(calls []call) history {
	h := history{calls: calls}
	for _, c := range calls {
		h.begins = append(h.begins, c.begin)
		h.ends = append(h.ends, c.end)
	}
	slices.Sort(h.begins)
	slices.Sort(h.ends)
	return h
}

// shorter is the calls that took less than w. No other lies in a stretch of that
// length for certain.
func (h history) shorter(w int64) history {
	long := func(c call) bool { return c.end-c.begin >= w }
	if !slices.ContainsFunc(h.calls, long) {
		return h
	}
	return newHistory(slices.DeleteFunc(slices.Clone(h.calls), long))
}

// within is how many calls began and ended in (t-w, t], all being shorter than w:
// those that had ended by t, less those that had begun by t-w. The latter are all
// among the former.
func (h history) within(t, w int64) int { return upTo(h.ends, t) - upTo(h.begins, t-w) }

// mostWithin is the most calls that all began and ended within less than w: so
// many decisions lie in one window of that length for certain.
func (h history) mostWithin(w int64) int {
	n, _ := h.overmost(w, func(int64) int { return 0 })
	return n
}

// overmost is the most by which the calls in (t-w, t] are more than allowed at t,
// for certain, and that t. It is below 0 if there are always fewer.
//
// There are most when one has just ended. The two counts of within grow with t, so
// two pointers find them.
func (h history) overmost(w int64, allowed func(t int64) int) (over int, at int64) {
	h = h.shorter(w)
	began := 0
	for i, t := range h.ends {
		for began < len(h.begins) && h.begins[began] <= t-w {
			began++
		}
		if n := i + 1 - began - allowed(t); i == 0 || n > over {
			over, at = n, t
		}
	}
	return over, at
}

// touching is how many calls may have been decided in (from, to]: all but those
// that ended at or before from, and those that began after to.
func (h history) touching(from, to int64) int {
	return upTo(h.begins, to) - upTo(h.ends, from)
}

// endedIn is how many calls ended in [from, to).
func (h history) endedIn(from, to int64) int {
	return upTo(h.ends, to-1) - upTo(h.ends, from-1)
}

// across is the calls that began before t and did not end before it.
func (h history) across(t int64) history {
	return newHistory(slices.DeleteFunc(slices.Clone(h.calls), func(c call) bool { return c.begin >= t || c.end < t }))
}

// upTo is how many of the ascending instants are at or before t.
func upTo(instants []int64, t int64) int {
	return sort.Search(len(instants), func(i int) bool { return instants[i] > t })
}
