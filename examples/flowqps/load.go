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

// An asker makes one call, which began at begin, and returns its answer when the
// call is over. Where the call is admitted, the asker sees to it that work(begin)
// runs between the admission and the release.
type asker func(begin int64) (answer, error)

// A load is many callers, and what they have seen. Its instants are nanoseconds
// since epoch.
type load struct {
	epoch   time.Time
	span    time.Duration
	hold    time.Duration
	callers []caller

	first  chan struct{} // closed at the first admission
	over   chan struct{} // closed when the callers stop
	until  atomic.Int64  // no call begins at or after it
	sample atomic.Int64  // the next refusal at or after it is kept

	inside, peak atomic.Int64

	mu       sync.Mutex
	admitted []call // only appended to
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

// work is what an admitted call does, inside: it tells the load that a decision
// lies between begin and now, and takes a random part of the load's hold.
func (l *load) work(begin int64) {
	end := l.now()
	inside := l.inside.Add(1)
	defer l.inside.Add(-1)
	for {
		peak := l.peak.Load()
		if inside <= peak || l.peak.CompareAndSwap(peak, inside) {
			break
		}
	}

	l.mu.Lock()
	l.admitted = append(l.admitted, call{begin, end})
	if len(l.admitted) == 1 {
		l.until.CompareAndSwap(math.MaxInt64, begin+int64(l.span))
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
	var callers sync.WaitGroup
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
	for {
		begin := l.now()
		if begin >= l.until.Load() {
			return nil
		}
		a, err := ask(begin)
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
		limit:    c.limit,
		inFlight: c.inFlight,
		stop:     l.until.Load(),
		admitted: l.passes(),
		refused:  l.refused(),
		peak:     int(l.peak.Load()),
	}
	e.start = start(e.admitted)
	if c.limit > 4096 {
		e.late = (second + 4094) / 4095 // above 4096 a unit may come back one slice late
	}
	return e
}

// start is when the first of the calls began.
func start(calls []call) int64 {
	if len(calls) == 0 {
		return 0
	}
	first := calls[0].begin
	for _, c := range calls {
		first = min(first, c.begin)
	}
	return first
}
