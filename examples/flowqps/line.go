package main

import (
	"cmp"
	"context"
	"math"
	"slices"
	"time"
)

// A line is what was seen of those who waited.
type line struct {
	waited  int           // calls that stood in line
	most    int           // at once, for certain
	longest time.Duration // that one stood in line, for certain
	pairs   int           // calls that asked while another stood in line for certain
	busy    time.Duration // how long somebody stood in line for certain, in stretches long enough to be judged
	passed  int           // calls that may have passed in these
	least   int           // calls that the limit has room for in these, at least
}

// Delays are how late a goroutine wakes that has nothing to do but sleep for a
// millisecond, again and again. It wakes up to two late on an idle machine; beyond
// that the machine is to blame, and a waiter wakes as late.
type delays struct{ longest, sum int64 }

const tick, idle = int64(time.Millisecond), int64(2 * time.Millisecond)

// measure takes the delays until ctx is done.
func (d *delays) measure(ctx context.Context, now func() int64) {
	for t := now(); ctx.Err() == nil; {
		time.Sleep(time.Duration(tick))
		woken := now()
		late := max(0, woken-t-tick-idle)
		d.longest, d.sum, t = max(d.longest, late), d.sum+late, woken
	}
}

// grace is how late a waiter may wake: as late as the goroutine that was measured,
// and, since it is another, a tenth of a second more.
func (d delays) grace() int64 { return d.longest + second/10 }

// judgeLine judges what a queue promises to those who wait. Each stands in line
// for certain from stood to looked, and is decided about after that.
func (v *verdict) judgeLine(e evidence, h history, p promise) {
	if e.queue.Len == 0 {
		return
	}
	v.line.waited = len(e.waits)
	v.judgeLength(e)
	v.judgePatience(e)
	v.judgeOrder(e)
	v.judgeUse(e, h, p)
}

// judgeLength wants no more in line than have a place. With two rules there are
// two lines, and who moves from one to the other always has a place.
func (v *verdict) judgeLength(e evidence) {
	var stands []call
	for _, w := range e.waits {
		stands = append(stands, call{w.stood, w.looked})
	}
	h := newHistory(stands)
	for _, t := range h.begins {
		v.line.most = max(v.line.most, h.covering(t))
	}
	if e.inFlight == 0 && v.line.most > e.queue.Len {
		v.breaks("%d calls stood in line at once; the queue has room for %d", v.line.most, e.queue.Len)
	}
}

// covering is how many calls have begun by t and end after it, if none ends before
// it begins.
func (h history) covering(t int64) int { return upTo(h.begins, t) - upTo(h.ends, t) }

// judgePatience wants nobody to wait longer than Wait, but for the grace.
func (v *verdict) judgePatience(e evidence) {
	wrong := 0
	for _, w := range e.waits {
		stood := time.Duration(w.looked - w.stood)
		v.line.longest = max(v.line.longest, stood)
		if stood > e.queue.Wait+time.Duration(e.machine.grace()) {
			wrong++
		}
	}
	if wrong > 0 {
		v.breaks("%d calls stood in line for longer than %v, one for %v", wrong, e.queue.Wait, v.line.longest)
	}
}

// judgeOrder wants first in, first out. A call is overtaken for certain by one
// that asked when it already stood in line, and was admitted when it still did,
// whether it passed later or not.
func (v *verdict) judgeOrder(e evidence) {
	stood := slices.SortedFunc(slices.Values(e.waits), func(a, b wait) int { return cmp.Compare(a.stood, b.stood) })
	wrong, first := 0, wait{}
	next, last := 0, wait{looked: math.MinInt64} // of those who stood when the call asked, who did the longest
	for _, c := range slices.SortedFunc(slices.Values(e.asks), func(a, b call) int { return cmp.Compare(a.begin, b.begin) }) {
		for ; next < len(stood) && stood[next].stood < c.begin; next++ {
			if stood[next].looked > last.looked {
				last = stood[next]
			}
		}
		if last.looked >= c.begin {
			v.line.pairs++
		}
		if c.end < last.looked {
			if wrong++; wrong == 1 {
				first = last
			}
		}
	}
	if wrong > 0 {
		v.breaks("%d calls overtook others; the first that was overtaken stood in line from %v to %v",
			wrong, e.at(first.stood), e.at(first.looked))
	}
}

// judgeUse judges from below: while somebody stands in line, nearly all passes
// that the limit has room for. All but a tenth, that is, and but for the grace, and
// for as long as the machine let nobody wake. Where nobody stands for a moment,
// what could pass then passes a moment later.
func (v *verdict) judgeUse(e evidence, h history, p promise) {
	if e.inFlight > 0 {
		return // who stands in line may wait for that
	}
	const moment = second / 10
	stood := slices.SortedFunc(slices.Values(e.waits), func(a, b wait) int { return cmp.Compare(a.stood, b.stood) })
	for len(stood) > 0 {
		from, to, none := stood[0].stood, stood[0].looked, int64(0)
		for ; len(stood) > 0 && stood[0].stood <= to+moment; stood = stood[1:] {
			none += max(0, stood[0].stood-to)
			to = max(to, stood[0].looked)
		}
		if least := p.least(from, to-from-none-e.machine.grace()-e.machine.sum); least > 0 {
			v.line.busy += time.Duration(to - from - none)
			v.line.passed += h.touching(from, to)
			v.line.least += least
		}
	}
	if 10*v.line.passed < 9*v.line.least {
		v.breaks("while calls stood in line, for %v, %d passed; there was room for %d", v.line.busy, v.line.passed, v.line.least)
	}
}
