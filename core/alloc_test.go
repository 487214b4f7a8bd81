//go:build !race

package core_test

import (
	"testing"
	"time"

	"github.com/exactflow/exactflow/core"
)

// A limiter that is asked a million times a second must not feed the garbage
// collector, least of all by its refusals.
func TestDecisionsAllocateNothing(t *testing.T) {
	r := core.Request{On: "GET /orders/{id}", Keys: []core.Key{{By: "ip", Value: "192.0.2.7"}}}
	for _, c := range []struct {
		name string
		n    int
		want bool
	}{
		{"admitted", 1 << 20, true},
		{"refused", 1, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			l, err := core.New(
				core.Rule{Name: "service", Limit: core.InFlight{N: c.n}},
				core.Rule{Name: "route", On: "GET /*", Limit: core.Rate{N: c.n, Per: time.Minute}},
				core.Rule{Name: "client", By: "ip", Limit: core.Rate{N: c.n, Per: time.Hour}},
			)
			if err != nil {
				t.Fatal(err)
			}
			for range 5000 { // until the rings have grown
				p, _ := l.Try(r)
				p.Release()
			}
			if n := testing.AllocsPerRun(1000, func() {
				p, ok := l.Try(r)
				if ok != c.want {
					t.Errorf("Try admits: %v; want %v", ok, c.want)
				}
				p.Release()
			}); n != 0 {
				t.Errorf("Try allocates %v times", n)
			}
			if n := testing.AllocsPerRun(1000, func() {
				p, err := l.Wait(t.Context(), r)
				if (err == nil) != c.want {
					t.Errorf("Wait: %v; want admitted: %v", err, c.want)
				}
				p.Release()
			}); n != 0 {
				t.Errorf("Wait allocates %v times", n)
			}
		})
	}
}
