// Package bench times exactflow beside its peers: go test -bench . ./...
//
// Each loop is checked: a refusing one that admits once, or an admitting one that
// refuses once, fails. With -cpu 2 two goroutines share each loop and its one key.
package bench

import (
	"runtime"
	"testing"

	"github.com/exactflow/exactflow/bench/loops"
	"github.com/exactflow/exactflow/bench/peers"
)

func measure(b *testing.B, l loops.Loop) {
	b.Run(l.Name, func(b *testing.B) {
		if err := l.Check(1000); err != nil { // warm
			b.Fatal(err)
		}
		b.ReportAllocs()
		b.ResetTimer()
		if err := l.Parallel(runtime.GOMAXPROCS(0), b.N); err != nil {
			b.Fatal(err)
		}
	})
}

func BenchmarkClock(b *testing.B) { measure(b, loops.Clock()) }

func BenchmarkExactflow(b *testing.B) {
	for _, l := range loops.Exactflow() {
		measure(b, l)
	}
}

func BenchmarkKinds(b *testing.B) {
	for _, l := range loops.Kinds() {
		measure(b, l)
	}
}

func BenchmarkRefuseRate(b *testing.B)     { each(b, peers.Rates(), loops.RefuseRate) }
func BenchmarkAdmitRate(b *testing.B)      { each(b, peers.Rates(), loops.AdmitRate) }
func BenchmarkRefuseInFlight(b *testing.B) { each(b, peers.InFlights(), loops.RefuseInFlight) }
func BenchmarkAdmitInFlight(b *testing.B)  { each(b, peers.InFlights(), loops.AdmitInFlight) }

// A rate and a limit in flight decided by one call.
func BenchmarkRefuseBoth(b *testing.B) { each(b, peers.Boths(), loops.RefuseRate) }
func BenchmarkAdmitBoth(b *testing.B)  { each(b, peers.Boths(), loops.AdmitRate) }

func each(b *testing.B, makers []peers.Maker, loop func(peers.Maker) loops.Loop) {
	for _, m := range makers {
		measure(b, loop(m))
	}
}

// The bare framework is the first of each.
func BenchmarkAdmitService(b *testing.B)  { services(b, true) }
func BenchmarkRefuseService(b *testing.B) { services(b, false) }

func services(b *testing.B, admit bool) {
	for _, s := range loops.Services(admit) {
		b.Run(s.Name, func(b *testing.B) {
			for _, l := range s.All() {
				measure(b, l)
			}
		})
	}
}
