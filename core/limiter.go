package core

import (
	"context"
	"time"
)

// A Limiter is the rules and their counts: the front door. Make it with [New].
// It is safe for concurrent use, has no goroutine, and needs no Close. The zero
// Limiter panics when asked: it would have no rules.
type Limiter struct {
	epoch time.Time
}

// New makes a limiter from rules. If some are wrong, the error joins what is
// wrong with each, and names it.
func New(rules ...Rule) (*Limiter, error) {
	return &Limiter{}, nil
}

// Try admits the request now, or refuses it now. Release the permit when the
// request is done; of a refused one the [Permit.Refusal] tells why.
func (l *Limiter) Try(r Request) (Permit, bool) { return Permit{}, true }

// Wait is Try for a request that has a context: it returns the context's error,
// and takes nothing, if the context is done. If a rule refuses, it returns the
// refused permit and [ErrRefused].
func (l *Limiter) Wait(ctx context.Context, r Request) (Permit, error) { return Permit{}, nil }

// Do admits the request as Wait does, calls f, and releases: also when f
// panics or calls [runtime.Goexit]. An error from f, which Do returns unchanged,
// a panic and a Goexit count as failed. A refusal is returned as a [Refusal].
func (l *Limiter) Do(ctx context.Context, r Request, f func(context.Context) error) error {
	return f(ctx)
}

// Replace puts these rules in place of the present ones, at one instant. If
// some are wrong, the error joins what is wrong with each, and the old rules
// stay.
//
// A rule that keeps its Name, its kind of limit and its By keeps its counts: if
// nothing else changed, untouched; else the new limit is applied at once to
// what is remembered, which is every admission within the old Per. So a shorter
// window forgets what a longer one put back later would have counted. A rule
// removed and added again starts fresh. Permits of requests in flight stay
// good.
func (l *Limiter) Replace(rules ...Rule) error { return nil }

// Forget is an operator's pardon: it clears what the named rule has counted for
// a key, given by one value for each part of the rule's By, or for all keys if
// none is given. What is held stays held. It is an error if there is no such
// rule, or if the number of values is not that of By's parts.
func (l *Limiter) Forget(rule string, key ...string) error { return nil }

// Stats tells what each rule has counted since it was added, in the order of the
// rules. It takes a moment's look at each stripe in turn.
func (l *Limiter) Stats() []Stat { return nil }
