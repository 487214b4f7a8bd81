package core

// A Priority is how important a request is. In a [Queue] the more important wait
// before the less important, and a [Reserve] keeps units for them. The zero value
// is [Default]. Values below [Sheddable] count as that, values above [Critical] as
// that.
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
