package main

import (
	"cmp"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"sort"
	"time"

	"github.com/exactflow/exactflow/core"
)

// second is the window of the limit.
const second = int64(time.Second)

// kinds are the kinds of limit, by their flags.
var kinds = []string{"rate", "pace", "warmup"}

// A terms is the limit of a run, of any kind: n calls a second.
type terms struct {
	kind string
	n    int
	from int   // of a warmup: how many calls per second it begins with
	over int64 // and how long it rises
	late int64 // how much later than promised a unit may come back
}

func (c config) terms() terms {
	m := terms{kind: c.kind, n: c.limit, from: c.from, over: int64(c.over)}
	if m.n > 4096 && m.kind != "pace" { // then a unit may come back one slice late
		m.late = (second + 4094) / 4095
	}
	return m
}

func (m terms) limit() core.Limit {
	switch m.kind {
	case "pace":
		return core.Pace{N: m.n, Per: time.Second}
	case "warmup":
		return core.WarmUp{Rate: core.Rate{N: m.n, Per: time.Second}, From: m.from, Over: time.Duration(m.over)}
	}
	return core.Rate{N: m.n, Per: time.Second}
}

func (m terms) String() string {
	switch m.kind {
	case "pace":
		return fmt.Sprintf("%d/s, paced", m.n)
	case "warmup":
		return fmt.Sprintf("%d/s, from %d over %v", m.n, m.from, time.Duration(m.over))
	}
	return fmt.Sprintf("%d/s", m.n)
}

// slack and gap are a pace's s and gap, as its doc comment has them.
const slack = second / 256

func (m terms) gap() int64 { return (second + slack + int64(m.n) - 1) / int64(m.n) }

// A ceiling is a promise from above: at most so many calls in (t-w, t].
type ceiling struct {
	w    int64
	most func(t int64) int
}

// A promise is what a limit has promised for the passes of one run.
type promise struct {
	above []ceiling
	// From below: there is room at t unless room(t) calls or more passed in
	// (t-reach, t]. Neither is for certain what the limit counts: reach may be too
	// long, and room too little.
	reach int64
	room  func(t int64) int
	rises bool // room is not always the same
}

// promise is what the limit has promised, given who passed.
func (m terms) promise(passes []call) promise {
	constant := func(n int) func(int64) int { return func(int64) int { return n } }
	switch m.kind {
	case "pace":
		// Its bound for (t-w, t] is ⌊(w+s)/gap⌋+1, which says most where w is all but
		// the least that lets one more pass.
		p := promise{above: []ceiling{{second, constant(m.n)}}, reach: m.gap(), room: constant(1)}
		for first, more := slack/m.gap()+1, int64(0); ; more = max(1, 2*more) {
			n := first + more
			w := n*m.gap() - slack - 1
			if w >= second {
				return p
			}
			if w > 0 {
				p.above = append(p.above, ceiling{w, constant(int(n))})
			}
		}
	case "warmup":
		certain, possible := starts(passes)
		return promise{
			above: []ceiling{{second, func(t int64) int { return m.ramp(certain, t) }}},
			reach: second + m.late,
			room:  func(t int64) int { return m.ramp(possible, t) },
			rises: true,
		}
	}
	return promise{above: []ceiling{{second, constant(m.n)}}, reach: second + m.late, room: constant(m.n)}
}

// A start is an instant from which on a ramp counts, and when it began.
type start struct{ since, begun int64 }

// starts are those of the ramps that there were for certain, each at the earliest,
// and of those that there may have been, each at the latest. A ramp begins with the
// first pass, and with one that comes two windows after those before it. L is no
// more than the former say, and no less than the latter.
func starts(passes []call) (certain, possible []start) {
	h := newHistory(passes)
	for _, b := range h.begins {
		if h.touching(b-2*second, b-1) == 0 {
			certain = append(certain, start{b, b})
		}
	}
	// Of those that pass in a ramp, the first to end ends after the ramp begins; and
	// those that ended before it had all begun two windows before.
	last := int64(math.MinInt64 / 2)
	for _, c := range slices.SortedFunc(slices.Values(passes), func(a, b call) int { return cmp.Compare(a.end, b.end) }) {
		if c.end-last >= 2*second {
			possible = append(possible, start{last + 2*second, c.end})
		}
		last = max(last, c.begin)
	}
	return certain, possible
}

// ramp is L at t.
func (m terms) ramp(starts []start, t int64) int {
	i := sort.Search(len(starts), func(i int) bool { return starts[i].since > t })
	if i == 0 || t <= starts[i-1].begun {
		return m.from
	}
	gone := t - starts[i-1].begun
	if gone >= m.over {
		return m.n
	}
	hi, lo := bits.Mul64(uint64(m.n-m.from), uint64(gone))
	rise, _ := bits.Div64(hi, lo, uint64(m.over))
	return m.from + int(rise)
}

// least is how many calls pass in a stretch of length w from t on, at least, if
// somebody waits all the time: as many as there is room for, reach after reach.
//
// At the end of each reach the calls in it fill the room that was there when it
// began, which does not shrink: else one that waits would have passed.
func (p promise) least(t, w int64) int {
	if w < 0 {
		return 0
	}
	if !p.rises {
		return int(w/p.reach) * p.room(t)
	}
	n := 0
	for ; w >= p.reach; w -= p.reach {
		n += p.room(t)
		t += p.reach
	}
	return n
}
