package flowtest

import (
	"testing"

	"github.com/exactflow/exactflow/core"
)

// Fill takes all that l has for requests such as r: the next of that cost, or of a
// smaller one, is refused, or waits. So a test of a service meets the service's own
// rules, with the limits that they have:
//
//	flowtest.Fill(t, limiter, core.Request{On: "GET /orders/{id}", Keys: []core.Key{{By: "ip", Value: "192.0.2.1"}}})
//
// On and Keys must be what the service's adapter makes of the test's requests. By
// default the value of "ip" is 192.0.2.1 for a request of [net/http/httptest.NewRequest],
// 127.0.0.1 for one to a [net/http/httptest.Server], and an IPv6 client's /64, as
// "2001:db8:1:2::/64".
//
// It takes in units of r's cost while there are as many, then in smaller ones, always
// with r's priority. What is in flight is released at the test's end. Rates are spent,
// and open when their time has come. If no rule limits r, or one never lets it pass,
// the test ends.
func Fill(t testing.TB, l *core.Limiter, r core.Request) {
	t.Helper()
	if r.Cost < 0 {
		t.Fatalf("flowtest: no request has cost %d; want 0, which is 1, or above", r.Cost)
	}
	var held []core.Permit
	t.Cleanup(func() {
		for _, p := range held {
			p.Release()
		}
	})
	const most = 1 << 24
	r.Cost = max(r.Cost, 1)
	for len(held) < most {
		p, ok := l.Try(r)
		switch why := p.Refusal(); {
		case ok:
			held = append(held, p)
			if p.Quota().Rule == "" {
				t.Fatalf("flowtest: no rule limits a request on %q", r.On)
			}
		case why.Reason == core.ReasonNever:
			t.Fatalf("flowtest: rule %q never lets a request on %q of cost %d pass: there is nothing to fill", why.Rule, r.On, r.Cost)
		case r.Cost == 1:
			return
		default:
			r.Cost /= 2 // less than Cost is left, so at 1 nothing is
		}
	}
	t.Fatalf("flowtest: %d requests on %q have passed; is its limit above that, or its window too short?", most, r.On)
}
