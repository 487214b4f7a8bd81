package core

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"time"
)

// A Limit says how much of something may pass: [Rate], [Pace], [WarmUp],
// [InFlight] or [Unlimited]. The interface is sealed: its kinds are those of this
// package, one file each.
type Limit interface {
	// check says what is wrong with the limit's own numbers.
	check() error
	// kind is the limit's name in messages; limits of two kinds do not share
	// counts. It is empty where the limit counts nothing.
	kind() string
	// size is how many units fit at most, and in which window: 0 means at once.
	size() (n int, per time.Duration)
	// meter makes an empty count under the limit, compiled as b.
	meter(b *bound) meter
}

// A meter is the count that one limit keeps for one key. Every kind answers the
// one question "from when could n more pass?" and obeys the one order "n pass
// now". All methods need the lock of the entry's stripe. No instant given to a
// meter is before one given to it earlier.
type meter interface {
	// opens is at most now exactly when n more fit; n is above 0. Else it is a later instant,
	// which may be early but never late; or [unknown]: it opens when somebody is
	// done; or [never]: n does not fit the limit at all. It may note that n waits, if
	// n is above the bound's cold. Here and below, kept is how much of N, which is no
	// less, is not for the one who asks.
	opens(now int64, n, kept int) int64
	// take lets n pass now, and tells what is left of all N. What is open stays open
	// until somebody takes.
	take(now int64, n, kept int) (left int, more int64)
	// left is how many units are free now, and from when more are: an instant as
	// of opens, unknown, or never.
	left(now int64, kept int) (n int, more int64)
	// soonest is an instant before which n cannot pass after ahead more units have,
	// whatever happens: for who asks how long a line is. Of these units, as much is
	// kept from alike many. Where that cannot be known, now.
	soonest(now int64, ahead, alike, n, kept int) int64
	// idles is from when a fresh meter would answer alike, so that this one can be
	// forgotten: at most now if it would already, an instant, or unknown.
	idles() int64
	// copy is another count that answers alike. Not asked of holders.
	copy() meter
	// change goes on under another limit of the same kind. What was counted at or
	// before floor is forgotten, except what is held.
	change(b *bound, floor int64)
	// forget clears the count, except what is held.
	forget(now int64)
	// undo takes back n of took units that passed together at the instant at, as if
	// these n had not: as far as they still count, and can be told from others.
	undo(at int64, took, n int)
}

// A holder is a meter whose units come back when the request is done.
type holder interface {
	meter
	// give brings n units back. The answer is what opens says of 1 unit at any
	// instant from then on: [open], unknown or never.
	give(n int) int64
}

// A charger is a meter that can count units for which there is no room.
type charger interface {
	meter
	// charge counts n more units, n at most N. Of those whose time has to run the
	// latest N are kept.
	charge(now int64, n int)
}

// Instants are nanoseconds since the limiter was made, so none is negative.
// These stand for what is no instant.
const (
	open    = math.MinInt64     // at any time
	unsaid  = math.MinInt64 + 1 // only the lock knows
	unknown = math.MaxInt64 - 1 // when somebody is done
	never   = math.MaxInt64

	latest = math.MaxInt64 - 2 // where sums of instants saturate
)

// A bound is a limit as compiled for the keys of one rule: immutable, and shared
// by the meters of all keys that it binds. A rule has one for most keys, and one
// for each value in its For.
type bound struct {
	clause *clause
	limit  Limit
	n      int
	cold   int      // how much of n fits an empty count: From, if the limit warms up
	over   int64    // how long it warms up, in nanoseconds; 0: not at all
	per    int64    // the window in nanoseconds; 0 for what is in flight
	kept   withheld // how much of n is not for a request of each priority
	slice  int64    // see [slice]
	named  bool     // for a value in For
	added  bool     // which was not there before the last change of the rule
	free   bool     // Unlimited
	holds  bool     // its meters are holders
	setup  bool     // which hold only until Ready
	tries  bool     // its meters are trials
	owes   bool     // one of both: there is something to do at the end of a request
	tally  []tally  // the ledger's
}

// later is t + d, saturating: neither is negative.
func later(t, d int64) int64 {
	if t > latest-d {
		return latest
	}
	return t + d
}

// mulUp is d·n/of, rounded up, saturating: none is negative, and of is above 0.
func mulUp(n int, d int64, of int) int64 {
	hi, lo := bits.Mul64(uint64(n), uint64(d))
	lo, carry := bits.Add64(lo, uint64(of)-1, 0)
	if hi += carry; hi >= uint64(of) {
		return latest
	}
	q, _ := bits.Div64(hi, lo, uint64(of))
	return int64(min(q, latest))
}

// Unlimited lets everything pass and counts nothing, in statistics neither. In [Rule].For it exempts a
// value; as a rule's Limit it leaves only the values in For limited.
type Unlimited struct{}

func (Unlimited) check() error               { return nil }
func (Unlimited) kind() string               { return "" }
func (Unlimited) size() (int, time.Duration) { return math.MaxInt, 0 }
func (Unlimited) meter(*bound) meter         { panic("core: Unlimited has no meter") }
func (Unlimited) String() string             { return "unlimited" }

// checkRate is the rule that all kinds with a window share for that and N.
func checkRate(kind string, n int, per time.Duration) error {
	var wrong error
	if per <= 0 {
		wrong = fmt.Errorf("%s.Per is %v; want a duration above 0, such as time.Second", kind, per)
	}
	return errors.Join(checkN(kind, n), wrong)
}

// checkN is the rule that all kinds share for their number of units.
func checkN(kind string, n int) error {
	if n < 0 {
		return fmt.Errorf("%s.N is %d; want 0, which blocks, or more", kind, n)
	}
	return nil
}
