package main

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/exactflow/exactflow/bench/judge"
	"github.com/exactflow/exactflow/bench/peers"
)

// A row that can't accuse us is worth nothing: one call more than the limit, or
// less, breaks the word, but only exactflow's.
func TestAPairOfOursMustBeExact(t *testing.T) {
	for _, c := range []struct {
		name   string
		admits int64
		broken bool
	}{
		{"exactflow", 20, false},
		{"exactflow", 21, true},
		{"exactflow", 19, true},
		{"another", 100, false},
	} {
		m := peers.Maker{Name: c.name, New: func(int, time.Duration) peers.Peer {
			var asked atomic.Int64
			return peers.Peer{Name: c.name, Try: func(context.Context, string) (func(), bool) {
				return func() {}, asked.Add(1) <= c.admits
			}}
		}}
		p := newPair(20, "per second", m, func(a []judge.Admission) int { return len(a) })
		if int64(p.least) != c.admits || int64(p.most) != c.admits {
			t.Errorf("%s, which admits %d: %d to %d were counted", c.name, c.admits, p.least, p.most)
		}
		if _, broken := p.row(); broken != c.broken {
			t.Errorf("%s, which admits %d of 20: broken is %v", c.name, c.admits, broken)
		}
	}
}
