package loops

import (
	"testing"

	"github.com/exactflow/exactflow/bench/peers"
)

// A benchmark that does not do what its name says is worse than none. So each
// loop is asked here as the benchmarks ask it, alone and by two at a time.
func TestEachLoopAdmitsAllOrNothing(t *testing.T) {
	check := func(name string, l Loop) {
		if err := l.Check(1000); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if err := l.Parallel(2, 1001); err != nil {
			t.Errorf("%s, by two: %v", name, err)
		}
	}
	check("clock", Clock())
	check("map", Map("map", []string{"a", "b", "c"}))
	for _, l := range append(Exactflow(), Kinds()...) {
		check("exactflow", l)
	}
	for _, m := range peers.Rates() {
		check("refuse", RefuseRate(m))
		check("admit", AdmitRate(m))
	}
	for _, m := range peers.InFlights() {
		check("refuse in flight", RefuseInFlight(m))
		check("admit in flight", AdmitInFlight(m))
	}
	for _, m := range peers.Boths() {
		check("refuse both", RefuseRate(m))
		check("admit both", AdmitRate(m))
	}
	for _, admit := range []bool{true, false} {
		for _, s := range Services(admit) {
			for _, l := range s.All() {
				check(s.Name, l)
			}
		}
	}
}

// The check itself must fail: for one that refuses once, and for one that admits
// once.
func TestOneWrongAnswerFailsALoop(t *testing.T) {
	for _, l := range []Loop{
		{"admits", true, func(n int) int { return n - 1 }},
		{"refuses", false, func(n int) int { return 1 }},
	} {
		if l.Check(1000) == nil {
			t.Errorf("%s: one wrong answer of a thousand passed", l.Name)
		}
		if l.Parallel(2, 1000) == nil {
			t.Errorf("%s: wrong answers of two passed", l.Name)
		}
	}
}

// All calls are made, however they are shared.
func TestParallelMakesEachCall(t *testing.T) {
	l := Loop{"all", true, func(n int) int { return n }}
	for goroutines := 1; goroutines < 8; goroutines++ {
		for n := range 20 {
			if err := l.Parallel(goroutines, n); err != nil {
				t.Errorf("%d goroutines: %v", goroutines, err)
			}
		}
	}
}
