package main

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/exactflow/exactflow/bench/judge"
	"github.com/exactflow/exactflow/bench/peers"
)

// rounds of a pair are each with a limiter of its own.
const rounds = 10

// A pair is a limiter with two rules for the same calls: the first is a limit of n,
// the second lets one pass per millisecond, and calls wait for it.
type pair struct {
	n     int
	unit  string
	maker peers.Maker
	kind  string

	least int // of all rounds: so many were admitted
	most  int // so many for certain within the limit's own terms
}

// pairs fires at all of them.
func pairs() []*pair {
	var all []*pair
	for _, m := range peers.RatesPaced() {
		all = append(all, newPair(20, "per second", m, func(a []judge.Admission) int { return judge.Most(a, time.Second) }))
	}
	for _, m := range peers.InFlightsPaced() {
		all = append(all, newPair(10, "in flight", m, func(a []judge.Admission) int { return len(a) }))
	}
	return all
}

// newPair has each round judged by most.
func newPair(n int, unit string, m peers.Maker, most func([]judge.Admission) int) *pair {
	fmt.Fprintf(os.Stderr, "pair, %d %s: %s\n", n, unit, m.Name)
	p := &pair{n: n, unit: unit, maker: m, least: goroutines}
	for range rounds {
		peer := m.New(n, time.Second)
		admissions := together(peer)
		p.kind = peer.Kind
		p.least = min(p.least, len(admissions))
		p.most = max(p.most, most(admissions))
	}
	return p
}

// together is one call by each goroutine, all at once. Whoever is admitted is done
// when all are answered, so that then all admitted calls are in flight.
func together(p peers.Peer) (admissions []judge.Admission) {
	var (
		all  sync.WaitGroup
		gate = make(chan struct{})
		mu   sync.Mutex
		ends []func()
	)
	epoch := time.Now()
	for range goroutines {
		all.Go(func() {
			<-gate
			begin := time.Since(epoch)
			done, ok := p.Try(context.Background(), key)
			end := time.Since(epoch)
			if ok {
				mu.Lock()
				defer mu.Unlock()
				admissions = append(admissions, judge.Admission{Begin: begin, End: end})
				ends = append(ends, done)
			}
		})
	}
	close(gate)
	all.Wait()
	for _, done := range ends {
		done()
	}
	return admissions
}

// row is its line of the table, and whether exactflow broke its word: more than the
// limit, or less though more asked.
func (p *pair) row() (line string, broken bool) {
	mark := ""
	if p.most > p.n {
		mark = "over"
	}
	line = fmt.Sprintf("pair\t%5d %s\t%s\t%s\t%13d\t%5s%6d", p.n, p.unit, p.maker.Name, p.kind, p.least, mark, p.most)
	return line, p.maker.Name == "exactflow" && (p.most > p.n || p.least < p.n)
}
