package core

import "time"

// A Request is what a caller asks for.
type Request struct {
	// On is the resource: a route template such as "GET /orders/{id}", a gRPC
	// method, or any name of the caller's. Not a raw path: each new resource
	// costs one scan of the rules that have a pattern.
	On string
	// Keys is what the request is known by. Of two with the same By the first
	// counts. The slice and its strings are copied where they are kept.
	Keys []Key
	// Cost is how many units the request takes. 0 means 1; below 0 is refused.
	Cost int
}

// A Key is one thing that a request is known by: By "ip", Value "192.0.2.7".
// Values above 256 bytes are kept as their SHA-256.
type Key struct{ By, Value string }

// A Rule is a sentence: on these requests, by this key, this limit. Rules are
// copied by [New] and [Limiter.Replace]; changing one later changes nothing.
type Rule struct {
	// Name is unique among the rules, and the only name that reaches statistics,
	// headers and refusals. One or more printable ASCII characters.
	Name string
	// On says which resources: "*" stands for any run of characters, an empty one
	// and "*" itself included; everything else for itself. "" is all.
	On string
	// By is what is counted apart: the By of a key, or several joined by commas,
	// as in "tenant,resource", where "resource" is the resource itself. "" counts
	// all requests together. A key that a request lacks counts as "".
	By string
	// Limit is how much.
	Limit Limit
	// For has other limits for particular values of By, which must be a single
	// one: of the same kind, or with N = 0, or [Unlimited]. For[""] is for
	// requests without the key.
	For map[string]Limit
	// MaxKeys bounds the live keys counted apart; 0 means 1<<20. Those named in
	// For come beside. Of further keys, those of a rate share strict counts, and
	// an in-flight limit refuses them.
	MaxKeys int
	// Shadow makes the rule decide and never refuse: it takes when it has room,
	// and else counts the request as shadowed and takes nothing. It judges only
	// requests that all other rules admit.
	Shadow bool
}

// Rate admits at most N units in any half-open stretch of time (t-Per, t], for
// every t: an exact sliding window, whatever the arrival pattern. Units pass at
// the instant of the decision, and a unit leaves the window exactly Per later.
//
// Up to N = 4096 this is exact to the nanosecond. Above, admissions that fall
// into the same slice of ⌈Per/4095⌉ leave together, with the latest of them: a
// unit may come back one slice late, never early.
//
// N = 0 blocks. Per is above 0, from nanoseconds to years. A key costs 16 bytes
// for each admission in its window, 64 KiB at most.
type Rate struct {
	N   int
	Per time.Duration
}

// InFlight admits a request while at most N units, its own included, are held:
// a semaphore. What a request took is given back by its [Permit]'s Release,
// exactly once. N = 0 blocks.
type InFlight struct{ N int }
