package core

import (
	"cmp"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"time"
)

// ErrRefused is what [Limiter.Wait] returns when a rule refuses. The error that
// [Limiter.Do] returns then is a [Refusal], for which errors.Is(err, ErrRefused)
// holds.
var ErrRefused = errors.New("core: refused by a rule")

// A Reason says why a rule refused. Its text is the same in statistics, metrics
// and messages.
type Reason uint8

const (
	ReasonNone         Reason = iota // "": not refused
	ReasonNever                      // "never": the cost is above the limit, or what a Reserve leaves of it, or below 0; or the limit is 0
	ReasonInFlight                   // "in_flight": all units are held; it opens when somebody is done
	ReasonRate                       // "rate": the window is full
	ReasonKeys                       // "keys": an in-flight rule has MaxKeys live keys, and this is a further one
	ReasonQueued                     // "queued": it would fit, but others wait before it
	ReasonQueueFull                  // "queue_full": Queue.Len wait before it already
	ReasonQueueTimeout               // "queue_timeout": it has waited for Queue.Wait, or could not pass within it or before its context ends
)

var reasons = [...]string{"", "never", "in_flight", "rate", "keys", "queued", "queue_full", "queue_timeout"}

// String is the reason's name, as told with each; "" for [ReasonNone].
func (r Reason) String() string {
	if int(r) < len(reasons) {
		return reasons[r]
	}
	return fmt.Sprintf("reason(%d)", uint8(r))
}

// MarshalText is String, so that reasons are words in JSON.
func (r Reason) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText reads what MarshalText has written. Other text is an error.
func (r *Reason) UnmarshalText(text []byte) error {
	i := slices.Index(reasons[:], string(text))
	if i < 0 {
		return fmt.Errorf("core: there is no reason %q", text)
	}
	*r = Reason(i)
	return nil
}

// A Refusal says which rule refused a request, and from when it is worth asking
// again. As an error it is an [ErrRefused].
//
// Of several refusing rules the one that tells most is named: one that says
// never, before one that cannot know, before the one that opens last; of equals
// the first by name.
type Refusal struct {
	Rule   string // the rule's Name
	By     string // the rule's By
	Reason Reason

	// RetryAfter is the time until the latest known instant at which a refusing
	// rule opens: a request that comes earlier is refused again, one that comes
	// then passes if nobody else came first. An outcome, a Settle, Forget or Replace
	// may make room before; of those who wait in line it knows nothing. 0 if no
	// instant is known.
	RetryAfter time.Duration
	// Known is false if some refusing rule cannot tell when it opens: a slot is
	// free when somebody is done, and never is never.
	Known bool
}

// Error names the rule, the reason and, where it is known, the wait.
func (r Refusal) Error() string {
	if r.Reason == ReasonNone {
		return "core: not refused"
	}
	if r.Known {
		return fmt.Sprintf("core: refused by rule %q: %s, retry after %v", r.Rule, r.Reason, r.RetryAfter)
	}
	return fmt.Sprintf("core: refused by rule %q: %s", r.Rule, r.Reason)
}

// Is makes errors.Is(refusal, ErrRefused) true, but for the zero Refusal.
func (r Refusal) Is(target error) bool { return target == ErrRefused && r.Reason != ReasonNone }

// A Quota is what a rule has left for a key, as seen inside the decision.
type Quota struct {
	Rule      string        // the rule's Name; "" if no rule applied
	Limit     int           // N
	Window    time.Duration // Per of a rate; 0 for a limit that counts what is in flight
	Remaining int           // units free after the decision
	// Reset is the time until more than Remaining is free or, in a refused permit,
	// until what was asked for is; 0 when that is not known, as for what is in
	// flight, or when all is free.
	Reset time.Duration
}

// A Permit is the answer to a request: the right to run until Release or, when
// refused, the reason. It is small, and may be copied: the first Release of any
// copy counts. The zero Permit is harmless. Safe for concurrent use.
//
// It has four words: a larger one would not stay in registers.
type Permit struct {
	grant *grant // nil: nothing to release, and not refused
	bound *bound // of the tightest rule, or of the refusing one; nil: of none
	turn  uint64 // which use of the grant is meant; of a refusal, the wait
	left  int
}

// Release gives back what the request holds. The first call counts, on
// whichever copy; later ones, and those on a refused permit, do nothing.
//
// A permit that is never released holds its in-flight units for ever: defer the
// call, or use [Limiter.Do].
func (p Permit) Release() {
	if p.admitted() {
		p.grant.release(p.turn)
	}
}

// Fail marks the request's outcome as failed, for the statistics and for rates that
// charge by outcome; see [Charge]. Only the time before Release counts.
func (p Permit) Fail() {
	if p.admitted() {
		p.grant.fail(p.turn)
	}
}

// admitted reports that the permit is one of an admitted request for which rules apply.
func (p Permit) admitted() bool { return p.grant != nil && p.grant.why == ReasonNone }

// Refusal says why the request was refused; the zero Refusal if it was not.
func (p Permit) Refusal() Refusal {
	if p.grant == nil || p.grant.why == ReasonNone || p.grant.why == looked {
		return Refusal{}
	}
	r := Refusal{Reason: p.grant.why, RetryAfter: time.Duration(p.turn), Known: p.known()}
	if p.bound != nil {
		r.Rule, r.By = p.bound.clause.rule.Name, p.bound.clause.rule.By
	}
	return r
}

// known is Refusal.Known: a queue's refusal knows an instant or has none.
func (p Permit) known() bool {
	return p.grant.why == ReasonRate || p.grant.why >= ReasonQueued && p.turn > 0
}

// looked stands for the reason of a permit from [Limiter.Peek] that is not refused.
const looked = Reason(len(reasons))

// Quota is that of the tightest rule: the one with the smallest part of its
// limit remaining, of equals the first by name. If the request was refused, that
// of the refusing rule. Shadow rules are not told. After Release, Reset is 0.
func (p Permit) Quota() Quota {
	if p.bound == nil {
		return Quota{}
	}
	q := Quota{
		Rule:      p.bound.clause.rule.Name,
		Limit:     p.bound.n,
		Window:    time.Duration(p.bound.per),
		Remaining: p.left,
	}
	switch {
	case p.grant.why == ReasonNone:
		q.Reset = p.grant.quotaReset(p.turn)
	case p.grant.why == looked, p.known():
		q.Reset = time.Duration(p.turn)
	}
	return q
}

// A quota is the tightest rule's, while a decision looks for it.
type quota struct {
	bound *bound
	left  int
	more  int64
}

// tighten makes the quota that of b, if that is tighter.
func (q quota) tighten(b *bound, left int, more int64) quota {
	if q.bound != nil {
		c := compare(left, b.n, q.left, q.bound.n)
		if c > 0 || c == 0 && q.bound.clause.rule.Name < b.clause.rule.Name {
			return q
		}
	}
	return quota{b, left, more}
}

// reset is how long it is until more is free, if that is known.
func (q quota) reset(now int64) int64 {
	if q.bound == nil || q.more >= unknown {
		return 0
	}
	return q.more - now
}

// compare compares a/b with c/d, of numbers that are not negative.
func compare(a, b, c, d int) int {
	hi, lo := bits.Mul64(uint64(a), uint64(d))
	hi2, lo2 := bits.Mul64(uint64(c), uint64(b))
	return cmp.Or(cmp.Compare(hi, hi2), cmp.Compare(lo, lo2))
}
