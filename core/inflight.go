package core

import (
	"fmt"
	"time"
)

// InFlight admits a request while at most N units, its own included, are held:
// a semaphore. What a request took is given back by its [Permit]'s Release,
// exactly once. N = 0 blocks.
//
// With SetUp, units are held until [Permit.Ready] at the latest: the limit bounds how
// many requests are being set up, such as handshakes of connections that then stay
// open for long. What never calls Ready holds them until Release.
type InFlight struct {
	N     int
	SetUp bool
}

func (f InFlight) check() error               { return checkN("InFlight", f.N) }
func (f InFlight) kind() string               { return "in_flight" }
func (f InFlight) size() (int, time.Duration) { return f.N, 0 }
func (f InFlight) meter(b *bound) meter       { return &semaphore{bound: b} }

// String is "8 in flight", and "8 in set-up".
func (f InFlight) String() string {
	if f.SetUp {
		return fmt.Sprintf("%d in set-up", f.N)
	}
	return fmt.Sprintf("%d in flight", f.N)
}

// A semaphore is the meter of InFlight. Instants mean nothing to it.
type semaphore struct {
	bound *bound
	held  int
}

func (s *semaphore) opens(now int64, n, kept int) int64 {
	switch {
	case n > s.bound.n-kept:
		return never
	case n > s.bound.n-kept-s.held:
		return unknown
	}
	return now
}

func (s *semaphore) take(now int64, n, _ int) (int, int64) {
	s.held += n
	return s.left(now, 0)
}

func (s *semaphore) charge(_ int64, n int) { s.held += n }

func (s *semaphore) left(_ int64, kept int) (int, int64) {
	if s.held == 0 || s.bound.n == kept {
		return s.bound.n - kept, never
	}
	return max(0, s.bound.n-kept-s.held), unknown
}

func (s *semaphore) change(b *bound, _ int64) { s.bound = b }
func (s *semaphore) copy() meter              { panic("core: what is held cannot be copied") }
func (s *semaphore) forget(int64)             {}

func (s *semaphore) undo(_ int64, _, n int) { s.held -= n }

func (s *semaphore) soonest(now int64, _, _, _, _ int) int64 { return now }

func (s *semaphore) idles() int64 {
	if s.held > 0 {
		return unknown
	}
	return open
}

func (s *semaphore) give(n int) int64 {
	s.held -= n
	return s.opens(open, 1, 0)
}
