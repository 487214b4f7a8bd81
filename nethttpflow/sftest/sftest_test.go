// Package sftest reads the fields that nethttpflow writes with a parser of
// Structured Fields that others wrote. It is a module of its own, so that
// nobody else needs that parser.
package sftest

import (
	"math"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/dunglas/httpsfv"

	"github.com/exactflow/exactflow/core"
	"github.com/exactflow/exactflow/nethttpflow"
)

// Every value that a rule can have comes back from a strict parser as it was, or
// within what the draft can say.
func TestFieldsAreStructuredFields(t *testing.T) {
	allMarks := ""
	for c := byte(' '); c <= '~'; c++ {
		allMarks += string(c)
	}
	for _, rule := range []core.Rule{
		{Name: "per-client", By: "ip", Limit: core.Rate{N: 2, Per: time.Minute}},
		{Name: allMarks, Limit: core.Rate{N: 2, Per: time.Minute}},
		{Name: `\"\`, Limit: core.Rate{N: 2, Per: time.Hour}},
		{Name: " ", Limit: core.Rate{N: 2, Per: time.Second}},
		{Name: "short", Limit: core.Rate{N: 2, Per: 1}},
		{Name: "odd", Limit: core.Rate{N: 2, Per: 90*time.Second + 1}},
		{Name: "long", Limit: core.Rate{N: math.MaxInt, Per: math.MaxInt64}},
		{Name: "never", Limit: core.Rate{N: 0, Per: time.Minute}},
		{Name: "slots", By: "ip", Limit: core.InFlight{N: 2}},
		{Name: "service", Limit: core.InFlight{N: math.MaxInt}},
		{Name: "closed", Limit: core.InFlight{N: 0}},
	} {
		t.Run(rule.Name, func(t *testing.T) {
			l, err := core.New(rule)
			if err != nil {
				t.Fatal(err)
			}
			h := nethttpflow.Middleware(l, nethttpflow.Options{Headers: nethttpflow.HeadersAlways})(
				http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
			for range 3 {
				w := httptest.NewRecorder()
				h.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
				check(t, w.Result(), rule)
			}
		})
	}
}

func check(t *testing.T, res *http.Response, rule core.Rule) {
	t.Helper()
	policy := only(t, res, "RateLimit-Policy", rule.Name)
	limit := only(t, res, "RateLimit", rule.Name)
	q, _ := policy.Get("q")
	w, hasW := policy.Get("w")
	qu, hasQu := policy.Get("qu")
	r, _ := limit.Get("r")
	wait, hasWait := limit.Get("t")

	const most = 999_999_999_999_999
	switch is := rule.Limit.(type) {
	case core.Rate:
		if q != min(int64(is.N), most) || hasQu {
			t.Errorf("q=%v, qu=%v", q, qu)
		}
		if whole := is.Per%time.Second == 0; hasW != whole || whole && w != int64(is.Per/time.Second) {
			t.Errorf("w=%v for %v", w, is.Per)
		}
	case core.InFlight:
		if q != min(int64(is.N), most) || qu != "concurrent-requests" || hasW || hasWait {
			t.Errorf("q=%v, qu=%v, w=%v, t=%v", q, qu, w, wait)
		}
	}
	if left, ok := r.(int64); !ok || left < 0 || left > q.(int64) {
		t.Errorf("r=%v of %v", r, q)
	}
	if hasWait && wait.(int64) < 1 {
		t.Errorf("t=%v", wait)
	}
}

// only is the parameters of a field's only member, which must be a String.
func only(t *testing.T, res *http.Response, field, name string) *httpsfv.Params {
	t.Helper()
	list, err := httpsfv.UnmarshalList(res.Header.Values(field))
	if err != nil || len(list) != 1 {
		t.Fatalf("%s: %q: %d members, %v", field, res.Header.Values(field), len(list), err)
	}
	item, ok := list[0].(httpsfv.Item)
	if !ok || item.Value != name {
		t.Fatalf("%s: %v, want the String %q", field, list[0], name)
	}
	return item.Params
}

// A list that went through two limiters is one list.
func TestFieldsOfStackedLimitersAreOneList(t *testing.T) {
	h := http.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	for _, name := range []string{"inner", "outer"} {
		l, err := core.New(core.Rule{Name: name, Limit: core.Rate{N: 2, Per: time.Minute}})
		if err != nil {
			t.Fatal(err)
		}
		h = nethttpflow.Middleware(l, nethttpflow.Options{Headers: nethttpflow.HeadersAlways})(h)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
	for _, field := range []string{"RateLimit-Policy", "RateLimit"} {
		list, err := httpsfv.UnmarshalList(w.Result().Header.Values(field))
		if err != nil || len(list) != 2 {
			t.Fatalf("%s: %d members, %v", field, len(list), err)
		}
		for i, name := range []string{"outer", "inner"} {
			if got := list[i].(httpsfv.Item).Value; got != name {
				t.Errorf("%s: member %d is %v", field, i, got)
			}
		}
	}
}
