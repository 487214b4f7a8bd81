package main

import (
	"slices"
	"sort"
)

// A call is two readings of one clock, in nanoseconds: the decision about the
// call lies between them, or on one of them. Nothing more is known about it.
type call struct{ begin, end int64 }

// A history is calls that can be asked how many of their decisions lie in a
// stretch of time: for certain ([history.mostWithin]), or at most
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

// mostWithin is the most calls that all began and ended within less than w: so
// many decisions lie in one window of that length for certain.
//
// A call as long as w lies in no such window, and is left out. Of the others,
// each that began before b also ended before b+w. So those that lie wholly in
// [b, b+w) are the ones that ended before b+w, less the ones that began before b:
// two pointers, one over each order.
func (h history) mostWithin(w int64) int {
	short := h
	if slices.ContainsFunc(h.calls, func(c call) bool { return c.end-c.begin >= w }) {
		short = newHistory(slices.DeleteFunc(slices.Clone(h.calls), func(c call) bool { return c.end-c.begin >= w }))
	}
	most, ended := 0, 0
	for began, b := range short.begins {
		for ended < len(short.ends) && short.ends[ended]-b < w {
			ended++
		}
		most = max(most, ended-began)
	}
	return most
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
