package flowtest

import (
	"testing"

	"github.com/exactflow/exactflow/core"
)

// Fill takes all that l has for requests such as r: the next is refused, or waits. So
// a test of a service meets the service's own rules, with the limits that they have:
//
//	flowtest.Fill(t, limiter, core.Request{On: "GET /orders/{id}", Keys: []core.Key{{By: "ip", Value: "192.0.2.1"}}})
//
// What is in flight is released at the test's end. Rates are spent, and open when
// their time has come. If no rule limits r, the test ends.
func Fill(t testing.TB, l *core.Limiter, r core.Request) {
	t.Helper()
	var held []core.Permit
	t.Cleanup(func() {
		for _, p := range held {
			p.Release()
		}
	})
	const most = 1 << 24
	for range most {
		p, ok := l.Try(r)
		if !ok {
			return
		}
		held = append(held, p)
		if p.Quota().Rule == "" {
			t.Fatalf("flowtest: no rule limits a request on %q", r.On)
		}
	}
	t.Fatalf("flowtest: %d requests on %q have passed; is its limit above that, or its window too short?", most, r.On)
}
