//go:build !race

package nethttpflow_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/exactflow/exactflow/core"
	"github.com/exactflow/exactflow/nethttpflow"
)

// The body that holds the permit is all that a call allocates, and what makes the
// context tell it of its end, if that comes.
func TestACallAllocatesItsBodyOnly(t *testing.T) {
	for name, most := range map[string]struct {
		body   bool
		target string
		ends   bool
		most   float64
	}{
		"with a body":                  {true, "https://api.example.com/a", false, 1},
		"a context that can end":       {true, "https://api.example.com/a", true, 4},
		"that can, and without a body": {false, "https://api.example.com/a", true, 0},
		"without":                      {false, "https://api.example.com/a", false, 0},
		"its own port":                 {false, "https://api.example.com:443/a", false, 0},
		"another port":                 {false, "https://api.example.com:8443/a", false, 0},
		"a dot at last":                {false, "https://api.example.com./a", false, 0},
		"capitals":                     {false, "https://API.example.com/a", false, 2}, // the key and the resource
		"an address":                   {false, "http://192.0.2.7/a", false, 0},
		"an IPv6 address":              {false, "http://[2001:db8::1]:8080/a", false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			l := limiter(t,
				core.Rule{Name: "hosts", By: "host", Limit: core.Rate{N: 10_000, Per: time.Hour}},
				core.Rule{Name: "calls", Limit: core.InFlight{N: 10}})
			body := text("")
			res := &http.Response{StatusCode: 200, ProtoMajor: 1}
			made := nethttpflow.Transport(transport(func(*http.Request) (*http.Response, error) {
				if res.Body = http.NoBody; most.body {
					res.Body = body
				}
				return res, nil
			}), l, nethttpflow.TransportOptions{HoldBack: time.Minute})
			ctx := context.Background()
			if most.ends {
				ctx = t.Context()
			}
			r := call(t, "GET", most.target, nil).WithContext(ctx)
			ask := func() {
				if res, err := made.RoundTrip(r); err != nil {
					t.Fatal(err)
				} else {
					res.Body.Close()
				}
			}
			for range 5000 { // grow the ring first
				ask()
			}
			if n := testing.AllocsPerRun(1000, ask); n > most.most {
				t.Errorf("%v allocations, want %v", n, most.most)
			}
		})
	}
}
