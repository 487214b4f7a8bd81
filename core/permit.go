package core

import (
	"errors"
	"fmt"
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
	ReasonNone     Reason = iota // "": not refused
	ReasonNever                  // "never": the cost is above the limit, or below 0, or the limit is 0
	ReasonInFlight               // "in_flight": all units are held; it opens when somebody is done
	ReasonRate                   // "rate": the window is full
	ReasonKeys                   // "keys": an in-flight rule has MaxKeys live keys, and this is a further one
)

var reasons = [...]string{"", "never", "in_flight", "rate", "keys"}

// String is the reason's name: "never", "in_flight", "rate", "keys"; "" for
// [ReasonNone].
func (r Reason) String() string { return reasons[r] }

// MarshalText is String, so that reasons are words in JSON.
func (r Reason) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

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
	// then passes if nobody else came first. 0 if no instant is known.
	RetryAfter time.Duration
	// Known is false if some refusing rule cannot tell when it opens: a slot is
	// free when somebody is done, and never is never.
	Known bool
}

// Error names the rule, the reason and, where it is known, the wait.
func (r Refusal) Error() string {
	if r.Known {
		return fmt.Sprintf("core: refused by rule %q: %s, retry after %v", r.Rule, r.Reason, r.RetryAfter)
	}
	return fmt.Sprintf("core: refused by rule %q: %s", r.Rule, r.Reason)
}

// Is makes errors.Is(refusal, ErrRefused) true.
func (r Refusal) Is(target error) bool { return target == ErrRefused }

// A Quota is what a rule has left for a key, as seen inside the decision.
type Quota struct {
	Rule      string        // the rule's Name; "" if no rule applied
	Limit     int           // N
	Window    time.Duration // Per of a rate; 0 for a limit that counts what is in flight
	Remaining int           // units free after the decision
	// Reset is the time until more than Remaining is free; 0 when that is not
	// known, as for what is in flight, or when all is free.
	Reset time.Duration
}

// A Permit is the answer to a request: the right to run until Release or, when
// refused, the reason. It is small, and may be copied: the first Release of any
// copy counts. The zero Permit is harmless. Safe for concurrent use.
type Permit struct {
	_ int
}

// Release gives back what the request holds. The first call counts, on
// whichever copy; later ones, and those on a refused permit, do nothing.
func (p Permit) Release() {}

// Fail marks the request's outcome as failed. Call it before Release.
func (p Permit) Fail() {}

// Refusal says why the request was refused; the zero Refusal if it was not.
func (p Permit) Refusal() Refusal { return Refusal{} }

// Quota is that of the tightest rule: the one with the smallest part of its
// limit remaining. If the request was refused, that of the refusing rule.
func (p Permit) Quota() Quota { return Quota{} }
