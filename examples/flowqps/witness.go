package main

import (
	"context"
	"time"
)

// A witness is the context of one request, which notes when the limiter turns to
// it. What the limiter does then is known from no more than what a context is for:
//
//   - before it admits it asks whether the context is done, also after a sleep: so
//     its decision lies between its last question and the work;
//   - it asks for the channel when it is about to sleep: so the request stands in
//     line from then on, and at the last question it still does.
//
// A request belongs to one goroutine, and so does its witness. It is done when the
// load is over, so that nobody waits longer than the run.
type witness struct {
	context.Context
	load   *load
	asked  int64 // when it was made
	looked int64 // when the limiter last asked whether it is done; else asked
	stood  int64 // when the limiter first asked for the channel; 0: never
	passed bool  // the work was done
}

// A wait is what a witness has seen of a request that stood in line: it did for
// certain from stood to looked, and at most from asked to end.
type wait struct {
	asked, stood, looked, end int64
	passed                    bool
}

// watch makes the witness of a request that asks now.
func (l *load) watch(ctx context.Context) *witness {
	now := l.now()
	return &witness{Context: ctx, load: l, asked: now, looked: now}
}

// leave is the witness's end, after the work or without it.
func (w *witness) leave() {
	if w.stood == 0 || w.passed {
		return
	}
	l := w.load
	l.mu.Lock()
	defer l.mu.Unlock()
	l.unwait(w, l.now())
}

// unwait notes what has been seen of a wait that is over. Needs the lock.
func (l *load) unwait(w *witness, end int64) {
	l.waits = append(l.waits, wait{w.asked, w.stood, max(w.stood, w.looked), end, w.passed})
}

type witnessed struct{}

// witnessOf finds the witness that a server has been given.
func witnessOf(ctx context.Context) *witness { return ctx.Value(witnessed{}).(*witness) }

func (w *witness) Value(key any) any {
	if key == (witnessed{}) {
		return w
	}
	return w.Context.Value(key)
}

func (w *witness) Deadline() (time.Time, bool) { return time.Time{}, false }

func (w *witness) Done() <-chan struct{} {
	if w.stood == 0 {
		w.stood = w.load.now()
		w.load.waited.Add(1)
	}
	return w.load.over
}

func (w *witness) Err() error {
	w.looked = w.load.now()
	if w.load.isOver() {
		return context.Canceled
	}
	return nil
}
