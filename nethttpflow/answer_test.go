package nethttpflow_test

import (
	"encoding/json"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/exactflow/exactflow/core"
	"github.com/exactflow/exactflow/nethttpflow"
)

// told are the fields of a response that a limiter sets by default.
func told(res *http.Response) string {
	var b strings.Builder
	for _, name := range []string{"Retry-After", "Cache-Control", "RateLimit-Policy", "RateLimit"} {
		for _, v := range res.Header.Values(name) {
			b.WriteString(name + ": " + v + "\n")
		}
	}
	return b.String()
}

// The whole answer, to the letter.
func TestARefusalIsToldInFull(t *testing.T) {
	for _, c := range []struct {
		name    string
		rule    core.Rule
		cost    int
		status  int
		headers string
		body    string
	}{
		{
			"rate",
			core.Rule{Name: "per-client", By: "ip", Limit: core.Rate{N: 1, Per: time.Minute}}, 1,
			429,
			"Retry-After: 60\nCache-Control: no-store\nRateLimit-Policy: \"per-client\";q=1;w=60\nRateLimit: \"per-client\";r=0;t=60\n",
			`{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Quota exceeded","status":429,"detail":"There are more requests than the limit allows. Try again in 60 s.","violated-policies":["per-client"]}`,
		},
		{
			"rate of a window that is not whole seconds",
			core.Rule{Name: "half", Limit: core.Rate{N: 1, Per: 1500 * time.Millisecond}}, 1,
			429,
			"Retry-After: 2\nCache-Control: no-store\nRateLimit-Policy: \"half\";q=1\nRateLimit: \"half\";r=0;t=2\n",
			`{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Quota exceeded","status":429,"detail":"There are more requests than the limit allows. Try again in 2 s.","violated-policies":["half"]}`,
		},
		{
			"rate of a nanosecond",
			core.Rule{Name: "short", Limit: core.Rate{N: 1, Per: time.Nanosecond}}, 1,
			429,
			"Retry-After: 1\nCache-Control: no-store\nRateLimit-Policy: \"short\";q=1\nRateLimit: \"short\";r=0;t=1\n",
			`{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Quota exceeded","status":429,"detail":"There are more requests than the limit allows. Try again in 1 s.","violated-policies":["short"]}`,
		},
		{
			"in flight, for all",
			core.Rule{Name: "service", Limit: core.InFlight{N: 1}}, 1,
			503,
			"Cache-Control: no-store\nRateLimit-Policy: \"service\";q=1;qu=\"concurrent-requests\"\nRateLimit: \"service\";r=0\n",
			`{"type":"https://iana.org/assignments/http-problem-types#temporary-reduced-capacity","title":"Temporarily reduced capacity","status":503,"detail":"As many requests are being served as the limit allows.","violated-policies":["service"]}`,
		},
		{
			"in flight, for each client",
			core.Rule{Name: "slots", By: "ip", Limit: core.InFlight{N: 1}}, 1,
			429,
			"Cache-Control: no-store\nRateLimit-Policy: \"slots\";q=1;qu=\"concurrent-requests\"\nRateLimit: \"slots\";r=0\n",
			`{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Quota exceeded","status":429,"detail":"As many requests are being served as the limit allows.","violated-policies":["slots"]}`,
		},
		{
			"never",
			core.Rule{Name: "small", Limit: core.Rate{N: 2, Per: time.Minute}}, 3,
			429,
			"Cache-Control: no-store\nRateLimit-Policy: \"small\";q=2;w=60\nRateLimit: \"small\";r=1\n",
			`{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Quota exceeded","status":429,"detail":"The request asks for more than the limit allows at any time.","violated-policies":["small"]}`,
		},
		{
			"a name with marks",
			core.Rule{Name: `a"b\c, <d>;`, Limit: core.Rate{N: 1, Per: time.Minute}}, 1,
			429,
			"Retry-After: 60\nCache-Control: no-store\nRateLimit-Policy: \"a\\\"b\\\\c, <d>;\";q=1;w=60\nRateLimit: \"a\\\"b\\\\c, <d>;\";r=0;t=60\n",
			`{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Quota exceeded","status":429,"detail":"There are more requests than the limit allows. Try again in 60 s.","violated-policies":["a\"b\\c, <d>;"]}`,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := limiter(t, c.rule)
				costs := []int{1, c.cost}
				var h http.Handler
				var refused *http.Response
				h = nethttpflow.Middleware(l, nethttpflow.Options{
					Cost: func(*http.Request) int { n := costs[0]; costs = costs[1:]; return n },
				})(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					refused = ask(h, "GET", "/") // while the first is in flight, and at the same instant
				}))
				if res := ask(h, "GET", "/"); res.StatusCode != 200 || told(res) != "" {
					t.Fatalf("first: %s\n%s", res.Status, told(res))
				}
				body, _ := io.ReadAll(refused.Body)
				if refused.StatusCode != c.status || refused.Header.Get("Content-Type") != "application/problem+json" {
					t.Errorf("%s, %s", refused.Status, refused.Header.Get("Content-Type"))
				}
				if got := told(refused); got != c.headers {
					t.Errorf("headers\n%swant\n%s", got, c.headers)
				}
				if got := strings.TrimSpace(string(body)); got != c.body {
					t.Errorf("body\n%s\nwant\n%s", got, c.body)
				}
				var problem struct {
					Status   int
					Policies []string `json:"violated-policies"`
				}
				if err := json.Unmarshal(body, &problem); err != nil {
					t.Error(err)
				}
				if problem.Status != refused.StatusCode || !slices.Equal(problem.Policies, []string{c.rule.Name}) {
					t.Errorf("read back: %+v", problem)
				}
			})
		})
	}
}

// To HEAD everything is told but the document.
func TestHeadGetsNoBody(t *testing.T) {
	l := limiter(t, core.Rule{Name: "r", Limit: core.Rate{N: 0, Per: time.Second}})
	h := nethttpflow.Middleware(l, nethttpflow.Options{})(ok)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("HEAD", "/", nil))
	if w.Code != 429 || w.Body.Len() != 0 || w.Header().Get("RateLimit") != `"r";r=0` {
		t.Fatalf("%d, %d bytes\n%s", w.Code, w.Body.Len(), told(w.Result()))
	}
}

// always asks a fresh limiter with this one rule for one request, and returns
// its response when fields are told always.
func always(t *testing.T, limit core.Limit, o nethttpflow.Options) *http.Response {
	l := limiter(t, core.Rule{Name: "r", Limit: limit})
	o.Headers = nethttpflow.HeadersAlways
	return ask(nethttpflow.Middleware(l, o)(ok), "GET", "/")
}

// What the draft cannot say is left out or cut to what it can.
func TestNumbersBeyondTheDraft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			limit core.Limit
			want  string
		}{
			{core.Rate{N: math.MaxInt, Per: time.Second}, "RateLimit-Policy: \"r\";q=999999999999999;w=1\nRateLimit: \"r\";r=999999999999999;t=1\n"},
			{core.Rate{N: 2, Per: math.MaxInt64}, "RateLimit-Policy: \"r\";q=2\nRateLimit: \"r\";r=1;t=9223372037\n"},
			{core.Rate{N: 2, Per: time.Millisecond}, "RateLimit-Policy: \"r\";q=2\nRateLimit: \"r\";r=1;t=1\n"},
			{core.Rate{N: 2, Per: time.Second + 1}, "RateLimit-Policy: \"r\";q=2\nRateLimit: \"r\";r=1;t=2\n"},
			{core.InFlight{N: 3}, "RateLimit-Policy: \"r\";q=3;qu=\"concurrent-requests\"\nRateLimit: \"r\";r=2\n"},
			{core.Unlimited{}, ""},
		} {
			if got := told(always(t, c.limit, nethttpflow.Options{})); got != c.want {
				t.Errorf("%v: told\n%swant\n%s", c.limit, got, c.want)
			}
		}
	})
}

func TestHeadersSaysWhenFieldsAreTold(t *testing.T) {
	const all = "0123456789" + "a" // of ten requests and a refused one
	for _, c := range []struct {
		headers nethttpflow.Headers
		want    string
	}{
		{nethttpflow.HeadersOnRefusal, "a"},
		{nethttpflow.HeadersAlways, all},
		{nethttpflow.HeadersNear, "9a"}, // 1 of 10 is a tenth, 0 of 10 is less
		{nethttpflow.HeadersNever, ""},
	} {
		l := limiter(t, core.Rule{Name: "r", Limit: core.Rate{N: 10, Per: time.Hour}})
		h := nethttpflow.Middleware(l, nethttpflow.Options{Headers: c.headers, Legacy: nethttpflow.LegacyXDelta})(ok)
		var got []byte
		for i := range all {
			res := ask(h, "GET", "/")
			has := res.Header.Get("RateLimit") != ""
			if has {
				got = append(got, all[i])
			}
			if (res.Header.Get("RateLimit-Policy") != "") != has || (res.Header.Get("X-RateLimit-Limit") != "") != has {
				t.Errorf("%d, request %c: not all or none of the fields\n%s", c.headers, all[i], told(res))
			}
			if refused := all[i] == 'a'; (res.Header.Get("Retry-After") != "") != refused || (res.StatusCode == 429) != refused {
				t.Errorf("%d, request %c: %s, Retry-After %q", c.headers, all[i], res.Status, res.Header.Get("Retry-After"))
			}
		}
		if string(got) != c.want {
			t.Errorf("%d: told on %q, want %q", c.headers, got, c.want)
		}
	}
}

// A request that costs more than is left is refused far from the limit, and told
// so.
func TestNearTellsOfEveryRefusal(t *testing.T) {
	l := limiter(t, core.Rule{Name: "r", Limit: core.Rate{N: 10, Per: time.Hour}})
	cost := 5
	h := nethttpflow.Middleware(l, nethttpflow.Options{
		Headers: nethttpflow.HeadersNear,
		Cost:    func(*http.Request) int { return cost },
	})(ok)
	if res := ask(h, "GET", "/"); res.StatusCode != 200 || res.Header.Get("RateLimit") != "" {
		t.Fatalf("%s\n%s", res.Status, told(res))
	}
	cost = 6
	if res := ask(h, "GET", "/"); res.StatusCode != 429 || !strings.HasPrefix(res.Header.Get("RateLimit"), `"r";r=5;t=`) {
		t.Fatalf("%s\n%s", res.Status, told(res))
	}
}

// A handler can see, change and extend what is told: it is set before it runs.
func TestFieldsAreThereBeforeTheHandlerRuns(t *testing.T) {
	l := limiter(t, core.Rule{Name: "r", Limit: core.Rate{N: 10, Per: time.Hour}})
	var before string
	h := nethttpflow.Middleware(l, nethttpflow.Options{Headers: nethttpflow.HeadersAlways})(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		before = w.Header().Get("RateLimit")
	}))
	if ask(h, "GET", "/"); before != `"r";r=9;t=3600` {
		t.Fatalf("%q", before)
	}
}

// Of two limiters on one way each is heard.
func TestStackedLimitersAreBothTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := nethttpflow.Options{Headers: nethttpflow.HeadersAlways}
		outer := nethttpflow.Middleware(limiter(t, core.Rule{Name: "outer", Limit: core.Rate{N: 9, Per: time.Hour}}), o)
		inner := nethttpflow.Middleware(limiter(t, core.Rule{Name: "inner", Limit: core.Rate{N: 1, Per: time.Minute}}), o)
		h := outer(inner(ok))
		ask(h, "GET", "/")
		want := "Retry-After: 60\nCache-Control: no-store\n" +
			"RateLimit-Policy: \"outer\";q=9;w=3600\nRateLimit-Policy: \"inner\";q=1;w=60\n" +
			"RateLimit: \"outer\";r=7;t=3600\nRateLimit: \"inner\";r=0;t=60\n"
		if got := told(ask(h, "GET", "/")); got != want {
			t.Fatalf("told\n%swant\n%s", got, want)
		}
	})
}

// Others ask the store again to fill the fields, and so disturb it: with fields
// on, a part of the requests that fit is refused.
func TestTellingHasNoSideEffect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		passed := func(headers nethttpflow.Headers) (when []int) {
			l := limiter(t, core.Rule{Name: "r", By: "ip", Limit: core.Rate{N: 7, Per: time.Second}})
			h := nethttpflow.Middleware(l, nethttpflow.Options{Headers: headers})(ok)
			for i := range 1000 {
				if ask(h, "GET", "/").StatusCode == 200 {
					when = append(when, i)
				}
				time.Sleep(11 * time.Millisecond)
			}
			return when
		}
		if never, always := passed(nethttpflow.HeadersNever), passed(nethttpflow.HeadersAlways); !slices.Equal(never, always) || len(always) < 70 {
			t.Fatalf("without fields %v\nwith fields %v", never, always)
		}
	})
}

// Reset is a Unix time for some clients and a wait for others; both are rounded
// up, so that whoever comes then is not early.
func TestLegacyFamilies(t *testing.T) {
	for _, c := range []struct {
		legacy            nethttpflow.Legacy
		limit             core.Limit
		admitted, refused string // the latter half a second later
	}{
		{nethttpflow.LegacyNone, core.Rate{N: 1, Per: time.Minute}, "", ""},
		{nethttpflow.LegacyXEpoch, core.Rate{N: 1, Per: time.Minute}, "X 1 0 946684860", "X 1 0 946684860"},
		{nethttpflow.LegacyXEpoch, core.Rate{N: 1, Per: 1700 * time.Millisecond}, "X 1 0 946684802", "X 1 0 946684802"},
		{nethttpflow.LegacyXEpoch, core.Rate{N: 3, Per: time.Minute}, "X 3 2 946684860", ""},
		{nethttpflow.LegacyXDelta, core.Rate{N: 1, Per: time.Minute}, "X 1 0 60", "X 1 0 60"},
		{nethttpflow.LegacyXDelta, core.Rate{N: 1, Per: 1300 * time.Millisecond}, "X 1 0 2", "X 1 0 1"},
		{nethttpflow.LegacyXDelta, core.InFlight{N: 1}, "X 1 0", "X 1 0"},
		{nethttpflow.LegacyDraft06, core.Rate{N: 1, Per: time.Second}, "1 0 1", "1 0 1"},
	} {
		synctest.Test(t, func(t *testing.T) { // begins at 946684800
			l := limiter(t, core.Rule{Name: "r", Limit: c.limit})
			var h http.Handler
			refused := ""
			h = nethttpflow.Middleware(l, nethttpflow.Options{Headers: nethttpflow.HeadersAlways, Legacy: c.legacy})(
				http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if r.URL.Path == "/" {
						time.Sleep(500 * time.Millisecond)
						if res := ask(h, "GET", "/again"); res.StatusCode != 200 {
							refused = legacy(res)
						}
					}
				}))
			if admitted := legacy(ask(h, "GET", "/")); admitted != c.admitted {
				t.Errorf("%d, %v, admitted: %q, want %q", c.legacy, c.limit, admitted, c.admitted)
			}
			if refused != c.refused {
				t.Errorf("%d, %v, refused: %q, want %q", c.legacy, c.limit, refused, c.refused)
			}
		})
	}
}

// legacy are the values of the two old families.
func legacy(res *http.Response) string {
	var b []string
	for _, prefix := range []string{"X-RateLimit-", "RateLimit-"} {
		if prefix[0] == 'X' && res.Header.Get(prefix+"Limit") != "" {
			b = append(b, "X")
		}
		for _, name := range []string{"Limit", "Remaining", "Reset"} {
			b = append(b, res.Header.Values(prefix+name)...)
		}
	}
	return strings.Join(b, " ")
}

func TestStatusDecides(t *testing.T) {
	l := limiter(t,
		core.Rule{Name: "a", On: "a", Limit: core.Rate{N: 1, Per: time.Hour}},
		core.Rule{Name: "b", On: "b", Limit: core.Rate{N: 1, Per: time.Hour}})
	h := nethttpflow.Middleware(l, nethttpflow.Options{
		Resource: func(r *http.Request) string { return r.URL.Path[1:] },
		Status: func(p core.Permit) int {
			if p.Refusal().Rule == "a" {
				return 503
			}
			return 0 // as by default
		},
	})(ok)
	for path, want := range map[string]string{
		"/a": `503 {"type":"https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",`,
		"/b": `429 {"type":"https://iana.org/assignments/http-problem-types#quota-exceeded",`,
	} {
		ask(h, "GET", path)
		res := ask(h, "GET", path)
		body, _ := io.ReadAll(res.Body)
		if got := res.Status[:4] + string(body); !strings.HasPrefix(got, want) {
			t.Errorf("%s: %s", path, got)
		}
	}
}

// A refusal told as a success, or as nothing that HTTP has, would be none.
func TestAStatusThatIsNoErrorIsNotTold(t *testing.T) {
	for status, want := range map[int]int{
		-1: 429, 0: 429, 99: 429, 100: 429, 200: 429, 204: 429, 304: 429, 399: 429, 600: 429, 1000: 429,
		400: 400, 404: 404, 500: 500, 599: 599,
	} {
		l := limiter(t, core.Rule{Name: "r", Limit: core.Rate{N: 0, Per: time.Second}})
		h := nethttpflow.Middleware(l, nethttpflow.Options{Status: func(core.Permit) int { return status }})(ok)
		if res := ask(h, "GET", "/"); res.StatusCode != want {
			t.Errorf("%d: %s, want %d", status, res.Status, want)
		}
	}
}

// Capacity that is short for now comes back. What is asked for beyond the limit
// does not: no client should try it elsewhere, or again.
func TestOnlyAFullServiceIsUnavailable(t *testing.T) {
	const never = "The request asks for more than the limit allows at any time."
	for _, c := range []struct {
		name   string
		rule   core.Rule
		cost   int
		status func(core.Permit) int
		want   string
		detail string
	}{
		{"more than the limit", core.Rule{Limit: core.InFlight{N: 2}}, 3, nil, "429 quota-exceeded", never},
		{"a limit of 0", core.Rule{Limit: core.InFlight{N: 0}}, 1, nil, "429 quota-exceeded", never},
		{"a cost below 0", core.Rule{Limit: core.InFlight{N: 2}}, -1, nil, "429 quota-exceeded", never},
		{"never, told as 503", core.Rule{Limit: core.InFlight{N: 0}}, 1, func(core.Permit) int { return 503 }, "503 quota-exceeded", never},
		{
			"full", core.Rule{Limit: core.InFlight{N: 2}}, 2, nil,
			"503 temporary-reduced-capacity", "As many requests are being served as the limit allows.",
		},
		{
			"a client too many", core.Rule{By: "ip", Limit: core.InFlight{N: 2}, MaxKeys: 1}, 1, nil,
			"429 quota-exceeded", "As many different clients are being served as the limit has places for, and this is a further one.",
		},
	} {
		c.rule.Name = "r"
		l := limiter(t, c.rule)
		p, admitted := l.Try(core.Request{Keys: []core.Key{{By: "ip", Value: "other"}}})
		if never := c.detail == never && c.rule.Limit == (core.InFlight{N: 0}); admitted == never {
			t.Fatalf("%s: the first is admitted: %t", c.name, admitted)
		}
		h := nethttpflow.Middleware(l, nethttpflow.Options{Cost: func(*http.Request) int { return c.cost }, Status: c.status})(ok)
		res := ask(h, "GET", "/")
		p.Release()
		var told struct{ Type, Detail string }
		if err := json.NewDecoder(res.Body).Decode(&told); err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		_, kind, _ := strings.Cut(told.Type, "#")
		if got := res.Status[:4] + kind; got != c.want || told.Detail != c.detail {
			t.Errorf("%s: %s, %q; want %s, %q", c.name, got, told.Detail, c.want, c.detail)
		}
	}
}

// A length that was set for the handler's body would cut ours off, or leave the
// client waiting for more.
func TestALengthSetForAnotherBodyIsDeleted(t *testing.T) {
	l := limiter(t, core.Rule{Name: "r", Limit: core.Rate{N: 0, Per: time.Second}})
	limited := nethttpflow.Middleware(l, nethttpflow.Options{})(ok)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "5")
		limited.ServeHTTP(w, r)
	}))
	defer server.Close()
	res, err := server.Client().Get(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != 429 || !strings.HasSuffix(string(body), "]}\n") {
		t.Fatalf("%s, %v\n%s", res.Status, err, body)
	}
}

// A cost below 0 is refused also where no rule applies. There is no policy to
// name then, and the service is not full.
func TestARefusalByNoRuleIsTheRequestsOwnFault(t *testing.T) {
	h := nethttpflow.Middleware(limiter(t), nethttpflow.Options{Cost: func(*http.Request) int { return -1 }})(ok)
	res := ask(h, "GET", "/")
	body, _ := io.ReadAll(res.Body)
	want := `{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Quota exceeded","status":429,"detail":"The request asks for more than the limit allows at any time.","violated-policies":[]}` + "\n"
	if res.StatusCode != 429 || told(res) != "Cache-Control: no-store\n" || string(body) != want {
		t.Fatalf("%s\n%s%s", res.Status, told(res), body)
	}
}

// A refusal tells of policies, not of how the server is made.
func TestARefusalTellsNoInternals(t *testing.T) {
	l := limiter(t, core.Rule{Name: "r", By: "ip,resource", Limit: core.Rate{N: 0, Per: time.Second}})
	res := ask(nethttpflow.Middleware(l, nethttpflow.Options{})(ok), "GET", "/secret", from("192.0.2.7:80"))
	body, _ := io.ReadAll(res.Body)
	for _, internal := range []string{"core", "exactflow", "192.0.2.7", "secret", "unmatched", "resource", "ip,"} {
		if strings.Contains(strings.ReplaceAll(string(body), "http-problem-types", "")+told(res), internal) {
			t.Errorf("told %q:\n%s%s", internal, told(res), body)
		}
	}
}
