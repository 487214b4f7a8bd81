package core

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// A Request is what a caller asks for.
type Request struct {
	// On is the resource: a route template such as "GET /orders/{id}", a gRPC
	// method, or any name of the caller's. Not a raw path: each new resource
	// costs one scan of the rules that have a pattern, and one above 1024 bytes
	// does so at each request.
	On string
	// Keys is what the request is known by. Of two with the same By the first
	// counts. The slice and its strings are copied where they are kept.
	Keys []Key
	// Cost is how many units the request takes. 0 means 1; below 0 is refused.
	Cost int
	// Priority is how important the request is. 0 is [Default].
	Priority Priority
}

// A Key is one thing that a request is known by: By "ip", Value "192.0.2.7".
// Values above 256 bytes are kept as their SHA-256, which takes some memory from
// the heap at each request.
type Key struct{ By, Value string }

// A Rule is a sentence: on these requests, by this key, this limit. Rules are
// copied by [New] and [Limiter.Replace]; changing one later changes nothing.
type Rule struct {
	// Name is unique among the rules, and the only name that reaches statistics,
	// headers and refusals. 1 to 256 printable ASCII characters.
	Name string
	// On says which resources: "*" stands for any run of characters, an empty one
	// and "*" itself included; everything else for itself. "" is all.
	On string
	// By is what is counted apart: the By of a key, or several joined by commas,
	// as in "tenant,resource", where "resource" is the resource itself. "" counts
	// all requests together. A key that a request lacks counts as "".
	By string
	// Count makes the rule count other requests than those it limits. Requests whose
	// resource matches Count, which is written as On is, are counted and never refused
	// by this rule; those that match only On are refused while there is no room, and
	// are not counted: so reads are held back while there are many writes. Of what is
	// counted beyond N only the latest N units are kept; in flight, N of each request.
	// A request that is only counted passes by those who wait, and sees no [Quota] of
	// the rule. In flight, beyond MaxKeys, it passes uncounted, and those that only look
	// are refused as further keys are. "" is the usual: the rule counts what it limits.
	// Only for [Rate], with [ChargeAll], and [InFlight].
	Count string
	// Limit is how much.
	Limit Limit
	// For has other limits for particular values of By, which must be a single
	// one: of the same kind, and the same Charge, or with N = 0, or [Unlimited]. For[""] is for
	// requests without the key.
	For map[string]Limit
	// Queue lets refused requests wait. The zero Queue refuses at once.
	Queue Queue
	// Reserve keeps a part of N for the more important requests. The zero Reserve
	// keeps nothing.
	Reserve Reserve
	// MaxKeys bounds the live keys counted apart; 0 means 1<<20. Those named in
	// For come beside. Of further keys, those of a rate share strict counts, 64 of
	// them or, if that is more, four for each processor; an in-flight limit refuses
	// them. Beyond a thousand keys a newcomer may also share while the place of a
	// key that has gone idle is not found at once.
	MaxKeys int
	// Shadow makes the rule decide and never refuse: it takes when it has room,
	// and else counts the request as shadowed and takes nothing. It judges only
	// requests that all other rules admit, and nobody waits for it. A cost below 0 is
	// refused even so.
	Shadow bool
}

// check is all that is wrong with the rule itself.
func (r *Rule) check() (wrong []error) {
	say := func(format string, args ...any) { wrong = append(wrong, fmt.Errorf(format, args...)) }
	if r.Name == "" {
		say("Name is empty; want a unique name")
	}
	if len(r.Name) > longest {
		say("Name has %d bytes; want %d at most, since names are put into headers", len(r.Name), longest)
	}
	if i := strings.IndexFunc(r.Name, func(c rune) bool { return c < ' ' || c > '~' }); i >= 0 {
		say("Name has %q at byte %d; want printable ASCII, since names are put into headers", r.Name[i:i+1], i)
	}
	parts, kind := strings.Split(r.By, ","), r.kind()
	for i, part := range parts {
		if r.By != "" && (part == "" || strings.TrimSpace(part) != part) {
			say("By is %q; want the names of keys joined by single commas, without spaces, such as \"tenant,resource\"", r.By)
			break
		}
		if slices.Index(parts, part) < i {
			say("By is %q, which has %q twice", r.By, part)
			break
		}
	}
	if r.MaxKeys < 0 {
		say("MaxKeys is %d; want 0, which means 1<<20, or more", r.MaxKeys)
	}
	for _, err := range all(checkLimit(r.Limit)) {
		say("Limit: %w", err)
	}
	if r.Count != "" && kind != "" && kind != (Rate{}).kind() && kind != (InFlight{}).kind() {
		say("Count is %q, and Limit is %v; want a Rate that charges all or an InFlight, or no Count", r.Count, r.Limit)
	}
	switch {
	case r.Count == "":
	case r.Count == r.On || strings.Trim(r.Count, "*") == "":
		say("Count is %q, and On is %q; want a Count that leaves some resources of On, else the rule refuses nobody", r.Count, r.On)
	case slices.Contains(parts, resource):
		say("Count is %q, and By is %q; want a By without %q: what is counted there is never what is limited", r.Count, r.By, resource)
	}
	if err := r.reserves(r.Limit); err != nil {
		say("Reserve is {Default: %d, Critical: %d}: %w", r.Reserve.Default, r.Reserve.Critical, err)
	}
	if err := r.Queue.check(); err != nil {
		say("Queue is {Len: %d, Wait: %v}: %w", r.Queue.Len, r.Queue.Wait, err)
	}
	if r.For != nil && (r.By == "" || len(parts) > 1) {
		say("For has limits for values of By, which is %q; want a single key there", r.By)
	}
	var values []string
	for v := range r.For {
		values = append(values, v)
	}
	slices.Sort(values)
	for _, v := range values {
		limit := r.For[v]
		wrongs := all(checkLimit(limit))
		for _, err := range wrongs {
			say("For[%q]: %w", v, err)
		}
		if len(wrongs) > 0 {
			continue
		}
		if n, _ := limit.size(); n > 0 && limit.kind() != "" && limit.kind() != kind {
			want := kind
			if _, is := limit.(Rate); is && kind == (Rate{}).kind() {
				want += " that charges all"
			}
			say("For[%q] is %v; want the kind of the rule's other limits, %s, or N = 0, or Unlimited", v, limit, want)
		}
		if err := r.reserves(limit); err != nil {
			say("Reserve is {Default: %d, Critical: %d}, For[%q] is %v: %w", r.Reserve.Default, r.Reserve.Critical, v, limit, err)
		}
	}
	return wrong
}

// reserves says what is wrong with the Reserve for one of the rule's limits. One
// that blocks has nothing to keep.
func (r *Rule) reserves(limit Limit) error {
	if checkLimit(limit) != nil || limit.kind() == "" {
		return nil
	}
	n, _ := limit.size()
	if n == 0 {
		n = math.MaxInt
	}
	return r.Reserve.check(n)
}

// all is what errors.Join has joined.
func all(err error) []error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return joined.Unwrap()
	}
	if err == nil {
		return nil
	}
	return []error{err}
}

func checkLimit(limit Limit) error {
	switch limit.(type) {
	case nil:
		return errors.New("there is none; want Rate, Pace, WarmUp, InFlight or Unlimited")
	case Rate, Pace, WarmUp, InFlight, Unlimited:
		return limit.check()
	}
	return fmt.Errorf("it is a %T; want the value of a Rate, Pace, WarmUp, InFlight or Unlimited, not a pointer or a type of your own", limit)
}

// kind is that of the rule's limits: of Limit or, if that is Unlimited, of those
// in For, where a limit that blocks may stand among others.
func (r *Rule) kind() string {
	if checkLimit(r.Limit) == nil && r.Limit.kind() != "" {
		return r.Limit.kind()
	}
	var kind, blocks string
	for _, limit := range r.For {
		if checkLimit(limit) != nil || limit.kind() == "" {
			continue
		}
		if n, _ := limit.size(); n > 0 {
			kind = max(kind, limit.kind()) // any, but always the same
		} else {
			blocks = max(blocks, limit.kind())
		}
	}
	if kind == "" {
		return blocks
	}
	return kind
}

// blocking is the limit of the rule's kind that blocks. A rate that blocks remembers
// as long as any of the rule's.
func (r *Rule) blocking() Limit {
	_, per := r.Limit.size()
	for _, other := range r.For {
		_, p := other.size()
		per = max(per, p)
	}
	per = max(per, time.Nanosecond)
	switch r.kind() {
	case InFlight{}.kind():
		return InFlight{}
	case Pace{}.kind():
		return Pace{Per: per}
	case WarmUp{}.kind():
		return WarmUp{Rate: Rate{Per: per}}
	}
	return Rate{Per: per}
}
