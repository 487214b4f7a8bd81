package core

import (
	"context"
	"errors"
	"hash/maphash"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// A Limiter is the rules and their counts: the front door. Make it with [New].
// It is safe for concurrent use, has no goroutine, and needs no Close. It must not
// be copied. The zero Limiter has no rules to hold, so it panics when asked.
//
// In a bubble of testing/synctest, whose time is its own, use only limiters made
// inside.
type Limiter struct {
	epoch   time.Time
	seed    maphash.Seed
	book    atomic.Pointer[book]
	stripes []stripe
	grants  sync.Pool
	tickets atomic.Uint64 // of those who began to wait

	// refusals are grants of nothing, one for each reason, looked included: a refused
	// permit has one, so that it need not have the reason itself.
	refusals [looked + 1]grant

	changing sync.Mutex // held by Replace and Forget, before any stripe
}

// New makes a limiter from rules. If some are wrong, the error joins what is
// wrong with each, and names it.
func New(rules ...Rule) (*Limiter, error) {
	n := 64
	for n < 4*runtime.GOMAXPROCS(0) {
		n *= 2
	}
	l := &Limiter{epoch: time.Now(), seed: maphash.MakeSeed(), stripes: make([]stripe, n)}
	for why := range l.refusals {
		l.refusals[why].why = Reason(why)
	}
	if err := l.replace(rules, bind(nil, n)); err != nil {
		return nil, err
	}
	return l, nil
}

// now is the instant, in nanoseconds since New. The clock is monotonic: no step
// of the wall clock reaches it.
func (l *Limiter) now() int64 { return int64(time.Since(l.epoch)) }

// rules is the present book.
func (l *Limiter) rules() *book {
	if l == nil {
		panic("core: the Limiter is nil; make one with New")
	}
	b := l.book.Load()
	if b == nil {
		panic("core: the Limiter was not made by New")
	}
	return b
}

// Try admits the request now, or refuses it now. Release the permit when the
// request is done; of a refused one the [Permit.Refusal] tells why.
func (l *Limiter) Try(r Request) (Permit, bool) {
	var p Permit
	ok := l.decide(&r, &p, 0)
	return p, ok
}

// Peek looks what Wait would do now, and takes nothing. It is false where Wait would
// refuse at once: the permit tells why, and [Limiter.Stats] counts the refusal. Else
// it is true, also where Wait would let the request wait; the permit then tells the
// [Permit.Quota] as it is, and there is nothing to release or to settle. It is for
// refusing early what costs much to receive, and for showing quotas: by the time of
// Wait somebody else may have come.
func (l *Limiter) Peek(r Request) (Permit, bool) {
	var p Permit
	ok := l.decide(&r, &p, patient|looking)
	return p, ok || p.Refusal().Reason == ReasonNone
}

// Wait is Try for a request that has a context and may wait where rules have a
// [Queue]. It returns the context's error, and takes nothing, if the context is
// done before the request is admitted. If a rule refuses, it returns the refused
// permit and [ErrRefused].
func (l *Limiter) Wait(ctx context.Context, r Request) (Permit, error) {
	var p Permit
	err := ctx.Err()
	switch {
	case err != nil:
	case l.decide(&r, &p, patient):
	case p.grant != nil:
		err = ErrRefused
	default:
		err = l.wait(ctx, &r, &p)
	}
	return p, err
}

// Do admits the request as Wait does, calls f, and releases: also when f
// panics or calls [runtime.Goexit]. An error from f, which Do returns unchanged,
// a panic and a Goexit count as failed. A refusal is returned as a [Refusal]. The
// context that f gets carries the permit, for [PermitFrom].
func (l *Limiter) Do(ctx context.Context, r Request, f func(context.Context) error) error {
	p, err := l.Wait(ctx, r)
	if errors.Is(err, ErrRefused) {
		return p.Refusal()
	}
	if err != nil {
		return err
	}
	failed := true
	defer func() {
		if failed {
			p.Fail()
		}
		p.Release()
	}()
	err = f(WithPermit(ctx, p))
	failed = err != nil
	return err
}
