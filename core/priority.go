package core

import (
	"errors"
	"fmt"
)

// A Priority is how important a request is. In a [Queue] the more important wait
// before the less important, and a [Reserve] keeps units for them. The zero value
// is [Default]. Values below [Sheddable] count as [Sheddable], values above
// [Critical] as [Critical].
type Priority int8

const (
	Sheddable Priority = iota - 1 // may be refused first: prefetches, batches, retries of those
	Default                       // what does not say
	Critical                      // must pass if anything does: payments, health, operators
)

// String is "sheddable", "default" or "critical".
func (p Priority) String() string {
	return [...]string{"sheddable", "default", "critical"}[p.level()]
}

// level is 0 to 2.
func (p Priority) level() int { return int(min(max(p, Sheddable), Critical)) + 1 }

// levels is how many priorities there are.
const levels = 3

// A Reserve is how much of a rule's N is kept for the more important: of each N
// of the rule, that of Limit and those in For. The zero value keeps nothing.
//
// A request passes only where its rule would have room also if N were smaller by
// what is kept from it: nothing from a [Critical] one, Critical units from a
// [Default] one, Default and Critical units from a [Sheddable] one. So when a
// request has passed, with k kept from it,
//
//	units in (t-Per, t], or in flight  <=  N - k
//
// For a [WarmUp], L stands for N here. For a [Pace] it has instead kept the gap of N-k
// from the one before, so that those from whom k is kept do not pass faster than N-k.
// More than N-k at once is never for it. In quotas it sees what is left to it.
//
// Together Default and Critical are no more than N, of Limit and of each limit in For
// that does not block.
type Reserve struct {
	Default  int // units for Default and Critical requests
	Critical int // units for Critical requests
}

// A withheld is how much of N is kept from each level.
type withheld [levels]int

func (r Reserve) levels() withheld { return withheld{r.Default + r.Critical, r.Critical, 0} }

// check says what is wrong, for a limit of n.
func (r Reserve) check(n int) error {
	if r.Default < 0 || r.Critical < 0 {
		return errors.New("neither Default nor Critical can be below 0")
	}
	if r.Critical > n || r.Default > n-r.Critical {
		return fmt.Errorf("together they are more than N, %d", n)
	}
	return nil
}

// top is the highest level from which as much is kept as from this one: that to
// which a waiter can rise.
func (r *withheld) top(level int) int {
	for level+1 < levels && r[level+1] == r[level] {
		level++
	}
	return level
}
