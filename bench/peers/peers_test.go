package peers

import (
	"context"
	"testing"
	"time"
)

// A table that compares limiters is worth nothing if one of them is configured
// to do something else. Each is asked far more often than it may admit, in far
// less than its window, in which each but the pacing one lets n pass and no more.
// The window is an hour, so that no machine is slow enough to see its end.
func TestPeersAreConfiguredToAdmitNAndRefuseTheRest(t *testing.T) {
	const n = 20
	for _, m := range Rates() {
		t.Run(m.Name, func(t *testing.T) {
			p := m.New(n, time.Hour)
			want := n
			if p.Kind == "pacing" {
				want = 1 // one in each twentieth of the hour
			}
			admitted := p.Run("192.0.2.7", n/2)
			for range 5 * n {
				if _, ok := p.Try(context.Background(), "192.0.2.7"); ok {
					admitted++
				}
			}
			if admitted != want {
				t.Errorf("%d of %d admitted at %d per hour; want %d", admitted, n/2+5*n, n, want)
			}
		})
	}
}

// The same for a second, which is what the tables use, and again when all have
// been idle for more than two: at most one end of a window falls into each
// burst, so that N to 2N pass. A burst that took half a second says nothing.
func TestPeersAreConfiguredToAdmitNEachSecond(t *testing.T) {
	const n = 20
	var all []Peer
	for _, m := range Rates() {
		all = append(all, m.New(n, time.Second))
	}
	for volley := 0; volley < 2; {
		begin := time.Now()
		admitted := make([]int, len(all))
		for i, p := range all {
			admitted[i] = p.Run("192.0.2.7", 5*n)
		}
		if time.Since(begin) < time.Second/2 {
			volley++
			for i, p := range all {
				low, high := n, 2*n
				if p.Kind == "pacing" {
					low, high = 1, n/2+1
				}
				if admitted[i] < low || admitted[i] > high {
					t.Errorf("%s: %d of %d admitted at once at %d per second", p.Name, admitted[i], 5*n, n)
				}
			}
		}
		time.Sleep(2100 * time.Millisecond)
	}
}

// What is in flight is given back by done, and by Run after each.
func TestPeersAreConfiguredToHoldNInFlight(t *testing.T) {
	const n = 20
	for _, m := range InFlights() {
		t.Run(m.Name, func(t *testing.T) {
			p := m.New(n, time.Hour)
			if admitted := p.Run("192.0.2.7", 5*n); admitted != 5*n {
				t.Fatalf("%d of %d admitted one after another", admitted, 5*n)
			}
			for round := range 2 {
				var held []func()
				for range 5 * n {
					if done, ok := p.Try(context.Background(), "192.0.2.7"); ok {
						held = append(held, done)
					}
				}
				if len(held) != n {
					t.Fatalf("round %d: %d held at once; want %d", round, len(held), n)
				}
				if admitted := p.Run("192.0.2.7", n); admitted != 0 {
					t.Fatalf("round %d: %d admitted beside %d held", round, admitted, n)
				}
				for _, done := range held {
					done()
				}
			}
		})
	}
}

// Both: each call is charged to the rate and to what is in flight.
func TestPeersAreConfiguredToDecideBoth(t *testing.T) {
	const n = 2 * both
	for _, m := range Boths() {
		t.Run(m.Name, func(t *testing.T) {
			if admitted := m.New(n, time.Hour).Run("192.0.2.7", 2*n); admitted != n {
				t.Errorf("%d admitted one after another; want the rate's %d", admitted, n)
			}
			p, held := m.New(n, time.Hour), 0
			for range n {
				if _, ok := p.Try(context.Background(), "192.0.2.7"); ok {
					held++
				}
			}
			if held != both {
				t.Errorf("%d held at once; want %d", held, both)
			}
		})
	}
}

// Both, where calls wait: who comes alone is admitted up to n, and no sooner than
// the pace lets it.
func TestPeersAreConfiguredToPace(t *testing.T) {
	const n = 20
	// There are n-1 gaps, of which exactflow may make up for 4 ms.
	const least = (n-1)*time.Second/Pace - 4*time.Millisecond
	for _, c := range []struct {
		name string
		all  []Maker
	}{{"rate", RatesPaced()}, {"in flight", InFlightsPaced()}} {
		for _, m := range c.all {
			t.Run(c.name+"/"+m.Name, func(t *testing.T) {
				p := m.New(n, time.Hour)
				began := time.Now()
				for i := range n {
					if _, ok := p.Try(context.Background(), "192.0.2.7"); !ok {
						t.Fatalf("call %d of %d was refused", i+1, n)
					}
				}
				if took := time.Since(began); took < least {
					t.Errorf("%d calls passed in %v; want %v at least", n, took, least)
				}
				for range n {
					if _, ok := p.Try(context.Background(), "192.0.2.7"); ok {
						t.Errorf("one more than %d passed", n)
					}
				}
			})
		}
	}
}
