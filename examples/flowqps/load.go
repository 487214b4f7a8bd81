package main

import (
	"context"
	"math"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// An answer is what a call got.
type answer int

const (
	admitted answer = iota
	refusedByRate
	refusedByInFlight
)

// An asker makes one call, and returns its answer when the call is over. It sees to
// it that the request has a witness and, where it is admitted, that the load's work
// runs between the admission and the release.
type asker func() (answer, error)

// A load is many callers, and what they have seen. Its instants are nanoseconds
// since epoch.
type load struct {
	epoch   time.Time
	span    time.Duration
	hold    time.Duration
	every   time.Duration // all callers ask at once, each so often; 0: each again at once
	callers []caller

	first  chan struct{} // closed at the first admission
	over   chan struct{} // closed when the callers stop
	until  atomic.Int64  // no call begins at or after it
	sample atomic.Int64  // the next refusal at or after it is kept

	inside, peak atomic.Int64
	waited       atomic.Int64 // stood in line, some of them still
	machine      delays

	mu             sync.Mutex
	admitted, asks []call // only appended to
	waits          []wait
}

// A caller is what one goroutine has seen. The padding keeps callers from
// sharing a cache line: they count millions of calls a second.
type caller struct {
	blocked atomic.Int64
	refused []call // a sample
	_       [64]byte
}

// samples is how many refusals a run keeps at most: one in each hundred-thousandth
// of it. There may be millions a second, and these are enough to judge by.
const samples = 100_000

func newLoad(c config) *load {
	l := &load{
		epoch:   time.Now(),
		span:    c.span,
		hold:    c.hold,
		callers: make([]caller, c.goroutines),
		first:   make(chan struct{}),
		over:    make(chan struct{}),
	}
	l.until.Store(math.MaxInt64)
	return l
}

func (l *load) now() int64 { return int64(time.Since(l.epoch)) }

// isOver reports that the callers stop.
func (l *load) isOver() bool {
	select {
	case <-l.over:
		return true
	default:
		return false
	}
}

// work is what an admitted call does, inside: it tells the load that a decision
// lies between the witness's last look and now, and takes a random part of the
// load's hold.
func (l *load) work(w *witness) {
	end := l.now()
	inside := l.inside.Add(1)
	defer l.inside.Add(-1)
	for {
		peak := l.peak.Load()
		if inside <= peak || l.peak.CompareAndSwap(peak, inside) {
			break
		}
	}

	w.passed = true
	l.mu.Lock()
	l.admitted = append(l.admitted, call{w.looked, end})
	l.asks = append(l.asks, call{w.asked, end})
	if w.stood != 0 {
		l.unwait(w, end)
	}
	if len(l.admitted) == 1 {
		l.until.CompareAndSwap(math.MaxInt64, w.looked+int64(l.span))
		close(l.first)
	}
	l.mu.Unlock()

	if l.hold > 0 {
		select {
		case <-time.After(rand.N(l.hold)):
		case <-l.over:
		}
	}
}

// run lets all callers ask until the span is over, or the context is done, or an
// ask fails, and returns when all have stopped. Only the last is an error.
func (l *load) run(outer context.Context, ask asker) error {
	ctx, fail := context.WithCancelCause(outer)
	defer fail(nil)
	var callers, measured sync.WaitGroup
	measuring, measure := context.WithCancel(ctx)
	measured.Go(func() { l.machine.measure(measuring, l.now) })
	defer measured.Wait()
	defer measure()
	for i := range l.callers {
		callers.Go(func() {
			if err := l.askOn(&l.callers[i], ask); err != nil {
				fail(err)
			}
		})
	}

	l.waitUntilOver(ctx)
	l.until.Store(min(l.until.Load(), l.now()))
	close(l.over)
	callers.Wait()
	if err := context.Cause(ctx); err != context.Cause(outer) {
		return err
	}
	return nil
}

// waitUntilOver returns when the span is over, or ctx is done.
func (l *load) waitUntilOver(ctx context.Context) {
	select {
	case <-l.first:
	case <-ctx.Done():
		return
	}
	select {
	case <-time.After(time.Duration(l.until.Load() - l.now())):
	case <-ctx.Done():
	}
}

// askOn asks as one caller, again and again.
func (l *load) askOn(c *caller, ask asker) error {
	every := int64(l.span / samples)
	start := l.now()
	for due := start; ; due += int64(l.every) {
		if l.every > 0 && due-start >= int64(l.span) {
			return nil // where a volley and the end meet, the end is first
		}
		if l.every > 0 {
			select {
			case <-time.After(time.Duration(due - l.now())):
			case <-l.over:
			}
		}
		begin := l.now()
		if begin >= l.until.Load() {
			return nil
		}
		a, err := ask()
		if l.isOver() { // what was cut short, and how, says nothing
			return nil
		}
		if err != nil {
			return err
		}
		if a == admitted {
			continue
		}
		end := l.now()
		c.blocked.Add(1)
		if next := l.sample.Load(); a == refusedByRate && end >= next && l.sample.CompareAndSwap(next, end+every) {
			c.refused = append(c.refused, call{begin, end})
		}
		// At once, but not so that those who were admitted find no processor to
		// leave by.
		runtime.Gosched()
	}
}

// passes are the admitted calls so far.
func (l *load) passes() []call {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.admitted[:len(l.admitted):len(l.admitted)]
}

// passedBy is how many of the calls admitted so far ended before t.
func (l *load) passedBy(t int64) int {
	n := 0
	for _, c := range l.passes() {
		if c.end < t {
			n++
		}
	}
	return n
}

// blocked is how many calls were refused so far.
func (l *load) blocked() int64 {
	n := int64(0)
	for i := range l.callers {
		n += l.callers[i].blocked.Load()
	}
	return n
}

// refused is a sample of the calls that the rate refused. The callers must have
// stopped.
func (l *load) refused() []call {
	var all []call
	for i := range l.callers {
		all = append(all, l.callers[i].refused...)
	}
	return all
}

// evidence is what the load has seen, under the limits of c. The callers must
// have stopped.
func (l *load) evidence(c config) evidence {
	e := evidence{
		terms:    c.terms(),
		inFlight: c.inFlight,
		queue:    c.queue,
		stop:     l.until.Load(),
		admitted: l.passes(),
		refused:  l.refused(),
		peak:     int(l.peak.Load()),
		machine:  l.machine,
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	e.asks, e.waits = l.asks, l.waits
	e.start = first(e.admitted)
	return e
}

// first is when the first of the calls began.
func first(calls []call) int64 {
	if len(calls) == 0 {
		return 0
	}
	t := calls[0].begin
	for _, c := range calls {
		t = min(t, c.begin)
	}
	return t
}
