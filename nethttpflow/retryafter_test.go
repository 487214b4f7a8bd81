package nethttpflow_test

import (
	"fmt"
	"math"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/exactflow/exactflow/core"
	"github.com/exactflow/exactflow/nethttpflow"
)

// header is one of "Name: value" lines.
func header(lines ...string) http.Header {
	h := http.Header{}
	for _, line := range lines {
		name, value, _ := strings.Cut(line, ":")
		h.Add(name, strings.TrimPrefix(value, " "))
	}
	return h
}

// A bubble begins at midnight UTC, 2000-01-01, a Saturday.
func TestRetryAfterIsWhatTheServerAsks(t *testing.T) {
	const none = -1
	longest := time.Duration(math.MaxInt64) / time.Second * time.Second
	for _, c := range []struct {
		header http.Header
		want   time.Duration
	}{
		{header(), none},

		// Seconds, which are digits and nothing else.
		{header("Retry-After: 7"), 7 * time.Second},
		{header("Retry-After: 0"), 0},
		{header("Retry-After: 007"), 7 * time.Second},
		{header("Retry-After: 9999999999"), longest},
		{header("Retry-After: 99999999999999999999999999"), longest},
		{header("Retry-After: -7"), none},
		{header("Retry-After: +7"), none},
		{header("Retry-After: 7.5"), none},
		{header("Retry-After: 7s"), none},
		{header("Retry-After: 7,7"), none},
		{header("Retry-After: ", "Retry-After: 7"), none},
		{header("Retry-After: 7", "Retry-After: 8"), none},
		{header("Retry-After: "), none},
		{header("Retry-After: soon"), none},

		// A date, in the three forms of HTTP.
		{header("Retry-After: Sat, 01 Jan 2000 00:01:00 GMT"), time.Minute},
		{header("Retry-After: Saturday, 01-Jan-00 00:01:00 GMT"), time.Minute},
		{header("Retry-After: Sat Jan  1 00:01:00 2000"), time.Minute},
		{header("Retry-After: Fri, 31 Dec 1999 23:59:59 GMT"), 0},
		{header("Retry-After: Fri, 31 Dec 9999 23:59:59 GMT"), math.MaxInt64},
		{header("Retry-After: 2000-01-01T00:01:00Z"), none},
		// By the server's clock, where it tells it.
		{header("Retry-After: Tue, 01 Jan 2019 00:01:00 GMT", "Date: Tue, 01 Jan 2019 00:00:30 GMT"), 30 * time.Second},
		{header("Retry-After: Fri, 01 Jan 1999 00:01:00 GMT", "Date: Fri, 01 Jan 1999 00:00:30 GMT"), 30 * time.Second},
		{header("Retry-After: Sat, 01 Jan 2000 00:01:00 GMT", "Date: yesterday"), time.Minute},
		{header("Retry-After: 7", "Date: Tue, 01 Jan 2019 00:00:30 GMT"), 7 * time.Second},

		// The policies that have nothing left.
		{header(`RateLimit: "a";r=0;t=7`), 7 * time.Second},
		{header(`RateLimit: "a";r=0;t=0`), 0},
		{header(`RateLimit: "a";t=7;r=0`), 7 * time.Second},
		{header(`RateLimit: "a";r=1;t=7`), none},
		{header(`RateLimit: "a";r=0`), none},
		{header(`RateLimit: "a";r=0;t=999999999999999`), longest},
		{header(`RateLimit: "a";r=0;t=7, "b";r=0;t=9,"c";r=0;t=8`), 9 * time.Second},
		{header(`RateLimit: "a";r=1;t=7, "b";r=0;t=5, "c";r=0`), 5 * time.Second},
		{header(`RateLimit: "a";r=0;t=7`, `RateLimit: "b";r=0;t=9`), 9 * time.Second},
		{header(`RateLimit:    "a"; r=0;  t=7	,	 "b";r=3  `), 7 * time.Second},
		{header(`RateLimit: "a, \"b\";r=1\\";r=0;t=7`), 7 * time.Second},
		{header(`RateLimit: "";r=0;t=7`), 7 * time.Second},
		{header(`RateLimit: "a";r=3;r=0;t=1;t=7`), 7 * time.Second}, // the last counts
		{header(`RateLimit: "a";r=x;r=0;t;t=7`), 7 * time.Second},
		{header(`RateLimit: "a";r=-0;t=-0`), 0},
		{header(`RateLimit: "a";r=0;t=7;pk=:QQ==:;acme-x=1.5;y=-2.125;z;b=?0;on=@17;d=%"gr%c3%bc%c3%9fe";*k=*to/k:en;s="r=9"`), 7 * time.Second},

		// Of what is malformed, nothing counts.
		{header("RateLimit: "), none},
		{header(`RateLimit: "a";r=0;t=7,`), none},
		{header(`RateLimit: ,"a";r=0;t=7`), none},
		{header(`RateLimit: "a";r=0;t=7`, "RateLimit: "), none},
		{header(`RateLimit: "a";r=0;t=7`, `RateLimit: b`), none},
		{header(`RateLimit: "a";r=0;t=7 "b"`), none},
		{header(`RateLimit: "a";r=0 ;t=7`), none},
		{header(`RateLimit: "a";r =0;t=7`), none},
		{header(`RateLimit: "a";r= 0;t=7`), none},
		{header(`RateLimit: a;r=0;t=7`), none}, // a Token, as in older drafts
		{header(`RateLimit: ("a");r=0;t=7`), none},
		{header(`RateLimit: limit=10, remaining=0, reset=7`), none},
		{header(`RateLimit: "a";t=7`), none},
		{header(`RateLimit: "a";r=0;t=7, "b"`), none},
		{header(`RateLimit: "a";r=0;t=7.0`), none},
		{header(`RateLimit: "a";r=0;t="7"`), none},
		{header(`RateLimit: "a";r=0;t=-7`), none},
		{header(`RateLimit: "a";r=-1;t=7`), none},
		{header(`RateLimit: "a";r=0;t`), none},
		{header(`RateLimit: "a";r=0;t=`), none},
		{header(`RateLimit: "a";r=0;t=7;`), none},
		{header(`RateLimit: "a";r=0;T=7`), none},
		{header(`RateLimit: "a";r=0;t=1000000000000000`), none}, // 16 digits
		{header(`RateLimit: "a";r=0;t=7;x=1.2345`), none},
		{header(`RateLimit: "a";r=0;t=7;x=1234567890123.1`), none},
		{header(`RateLimit: "a";r=0;t=7;x=1.`), none},
		{header(`RateLimit: "a";r=0;t=7;x=-`), none},
		{header(`RateLimit: "a";r=0;t=7;x=?2`), none},
		{header(`RateLimit: "a";r=0;t=7;x=:?:`), none},
		{header(`RateLimit: "a";r=0;t=7;x=:QQ==`), none},
		{header(`RateLimit: "a";r=0;t=7;x=@1.5`), none},
		{header(`RateLimit: "a";r=0;t=7;x=%"%C3%BC"`), none},
		{header(`RateLimit: "a";r=0;t=7;x=%"%c3"`), none},
		{header(`RateLimit: "a";r=0;t=7;x=%"%c`), none},
		{header(`RateLimit: "a";r=0;t=7;x=%a`), none},
		{header(`RateLimit: "a`), none},
		{header(`RateLimit: "a\n";r=0;t=7`), none},
		{header(`RateLimit: "ä";r=0;t=7`), none},
		{header("RateLimit: \"a\x7f\";r=0;t=7"), none},

		// Retry-After comes before RateLimit, unless it is malformed.
		{header("Retry-After: 3", `RateLimit: "a";r=0;t=7`), 3 * time.Second},
		{header("Retry-After: 0", `RateLimit: "a";r=0;t=7`), 0},
		{header("Retry-After: 9", `RateLimit: "a";r=5;t=7`), 9 * time.Second},
		{header("Retry-After: soon", `RateLimit: "a";r=0;t=7`), 7 * time.Second},

		// What a cache has kept is no answer to this request.
		{header("Retry-After: 7", "Age: 1"), none},
		{header(`RateLimit: "a";r=0;t=7`, "Age: 1"), none},
		{header("Retry-After: 7", "Age: 99999999999999999999"), none},
		{header("Retry-After: 7", "Age: 0"), 7 * time.Second},
		{header("Retry-After: 7", "Age: young"), 7 * time.Second},
	} {
		t.Run(fmt.Sprint(c.header), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				wait, ok := nethttpflow.RetryAfter(&http.Response{StatusCode: 429, Header: c.header})
				if c.want == none {
					if ok || wait != 0 {
						t.Errorf("%v, %v", wait, ok)
					}
				} else if !ok || wait != c.want {
					t.Errorf("%v, %v; want %v", wait, ok, c.want)
				}
			})
		})
	}
	if _, ok := nethttpflow.RetryAfter(nil); ok {
		t.Error("of no response")
	}
}

// What the middleware tells is what RetryAfter reads, and who obeys it gets in.
func TestRetryAfterReadsWhatTheMiddlewareTells(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, core.Rule{Name: "r", Limit: core.Rate{N: 2, Per: 2500 * time.Millisecond}}, core.Rule{Name: "room", Limit: core.InFlight{N: 9}})
		client := bubble(t, nethttpflow.Middleware(l, nethttpflow.Options{Headers: nethttpflow.HeadersAlways})(ok))
		for i, want := range []time.Duration{-1, 3 * time.Second, 3 * time.Second} {
			res, err := client.Get("http://in.bubble/")
			if err != nil {
				t.Fatal(err)
			}
			res.Body.Close()
			if wait, ok := nethttpflow.RetryAfter(res); ok != (want > 0) || ok && wait != want {
				t.Errorf("call %d: %s, %v, %v", i, res.Status, wait, ok)
			}
		}
		time.Sleep(3 * time.Second)
		res, err := client.Get("http://in.bubble/")
		if err != nil || res.StatusCode != 200 {
			t.Fatal(res, err)
		}
		res.Body.Close()
	})
}

func ExampleRetryAfter() {
	res := &http.Response{StatusCode: 429, Header: http.Header{"Retry-After": {"7"}}}
	if wait, ok := nethttpflow.RetryAfter(res); ok {
		fmt.Println("again in", wait)
	}
	// Output: again in 7s
}
