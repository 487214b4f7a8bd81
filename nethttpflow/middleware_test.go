package nethttpflow_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/exactflow/exactflow/core"
	"github.com/exactflow/exactflow/nethttpflow"
)

// The handler gets the very writer that the server gave: whatever it
// implements, and what a ResponseController finds in it, is there.
func TestTheWriterIsNotWrapped(t *testing.T) {
	l := limiter(t, core.Rule{Name: "one", Limit: core.InFlight{N: 1}})
	var got http.ResponseWriter
	h := nethttpflow.Middleware(l, nethttpflow.Options{})(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { got = w }))
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
	if got != http.ResponseWriter(w) {
		t.Fatalf("the handler got a %T", got)
	}
}

// The hook's answer is the answer; the headers are there for it to keep or
// change; the handler does not run.
func TestRefuseReplacesTheAnswer(t *testing.T) {
	l := limiter(t, core.Rule{Name: "r", Limit: core.Rate{N: 1, Per: time.Hour}})
	ran := 0
	h := nethttpflow.Middleware(l, nethttpflow.Options{
		Refuse: func(w http.ResponseWriter, r *http.Request, p core.Permit) {
			w.WriteHeader(http.StatusTeapot)
			io.WriteString(w, p.Refusal().Rule)
		},
	})(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { ran++ }))
	ask(h, "GET", "/")
	res := ask(h, "GET", "/")
	body, _ := io.ReadAll(res.Body)
	if res.StatusCode != http.StatusTeapot || string(body) != "r" || res.Header.Get("Retry-After") != "3600" || ran != 1 {
		t.Fatalf("%s, %q, Retry-After %q, ran %d times", res.Status, body, res.Header.Get("Retry-After"), ran)
	}
}

func TestWrongOptionsPanicWhenTheMiddlewareIsMade(t *testing.T) {
	l := limiter(t)
	of := func(*http.Request) string { return "" }
	for _, c := range []struct {
		want  string
		build func()
	}{
		{"nethttpflow: the limiter is nil", func() { nethttpflow.Middleware(nil, nethttpflow.Options{}) }},
		{"nethttpflow: Options.Keys[1] lacks its By or its Of; want both", func() {
			nethttpflow.Middleware(l, nethttpflow.Options{Keys: []nethttpflow.Key{nethttpflow.Peer(), {Of: of}}})
		}},
		{"nethttpflow: Options.Keys[0] lacks its By or its Of; want both", func() {
			nethttpflow.Middleware(l, nethttpflow.Options{Keys: []nethttpflow.Key{{By: "a"}}})
		}},
		{`nethttpflow: two of Options.Keys are By "ip"; want one, since of two only the first would count`, func() {
			nethttpflow.Middleware(l, nethttpflow.Options{Keys: []nethttpflow.Key{nethttpflow.Peer(), {By: "a", Of: of}, {By: "ip", Of: of}}})
		}},
		{`nethttpflow: Options.Keys[0] is By "resource", which is the request's own`, func() {
			nethttpflow.Middleware(l, nethttpflow.Options{Keys: []nethttpflow.Key{{By: "resource", Of: of}}})
		}},
		{`nethttpflow: Options.Keys[0] is By "a,b", which no rule can name; want no comma, and no space around it`, func() {
			nethttpflow.Middleware(l, nethttpflow.Options{Keys: []nethttpflow.Key{{By: "a,b", Of: of}}})
		}},
		{`nethttpflow: Options.Keys[0] is By " a", which no rule can name; want no comma, and no space around it`, func() {
			nethttpflow.Middleware(l, nethttpflow.Options{Keys: []nethttpflow.Key{{By: " a", Of: of}}})
		}},
		{"nethttpflow: Options.Headers is 4, which is none of the constants; want 0 to 3", func() {
			nethttpflow.Middleware(l, nethttpflow.Options{Headers: nethttpflow.HeadersNever + 1})
		}},
		{"nethttpflow: Options.Legacy is 4, which is none of the constants; want 0 to 3", func() {
			nethttpflow.Middleware(l, nethttpflow.Options{Legacy: nethttpflow.LegacyDraft06 + 1})
		}},
		{"nethttpflow: Options.Mux is a nil *http.ServeMux", func() {
			nethttpflow.Middleware(l, nethttpflow.Options{Mux: (*http.ServeMux)(nil)})
		}},
		{"nethttpflow: the next handler is nil", func() { nethttpflow.Middleware(l, nethttpflow.Options{})(nil) }},
		{"nethttpflow: the next handler is nil", func() { nethttpflow.Middleware(l, nethttpflow.Options{})((*http.ServeMux)(nil)) }},
		{"nethttpflow: Header needs the name of the header it reads", func() { nethttpflow.Header("a", "") }},
		{"nethttpflow: Host is not among net/http's headers; want a Key whose Of returns the request's Host", func() { nethttpflow.Header("a", "host") }},
		{"nethttpflow: PathValue needs the name of the wildcard it reads", func() { nethttpflow.PathValue("a", "") }},
		{"nethttpflow: PeerPrefix(0, 64): want 1 to 32 and 1 to 128 bits", func() { nethttpflow.PeerPrefix(0, 64) }},
		{"nethttpflow: PeerPrefix(33, 64): want 1 to 32 and 1 to 128 bits", func() { nethttpflow.PeerPrefix(33, 64) }},
		{"nethttpflow: PeerPrefix(32, 0): want 1 to 32 and 1 to 128 bits", func() { nethttpflow.PeerPrefix(32, 0) }},
		{"nethttpflow: PeerPrefix(32, 129): want 1 to 32 and 1 to 128 bits", func() { nethttpflow.PeerPrefix(32, 129) }},
	} {
		t.Run(c.want, func(t *testing.T) {
			defer func() {
				if got := recover(); got != c.want {
					t.Fatalf("panicked with %v", got)
				}
			}()
			c.build()
		})
	}
}

// A context that ends is no refusal: no hook is asked, and nothing is told but a
// status, since a response that nobody writes becomes 200. So it is before the
// decision, and for who waits.
func TestADoneContextIsToldNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, core.Rule{Name: "one", Limit: core.InFlight{N: 1}, Queue: core.Queue{Len: 1, Wait: time.Hour}})
		holds, _ := l.Try(core.Request{})
		defer holds.Release()
		h := nethttpflow.Middleware(l, nethttpflow.Options{
			Headers: nethttpflow.HeadersAlways,
			Legacy:  nethttpflow.LegacyXDelta,
			Refuse:  func(http.ResponseWriter, *http.Request, core.Permit) { t.Error("refused") },
		})(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the handler ran") }))
		for _, ends := range []time.Duration{0, time.Minute} {
			ctx, cancel := context.WithCancel(t.Context())
			if ends == 0 {
				cancel()
			} else {
				time.AfterFunc(ends, cancel)
			}
			res := ask(h, "GET", "/", func(r *http.Request) { *r = *r.WithContext(ctx) })
			if res.StatusCode != 503 || len(res.Header) != 0 {
				t.Errorf("ends after %v: %s, %v", ends, res.Status, res.Header)
			}
		}
	})
}

// What the caller does with its slice later changes nothing.
func TestKeysAreCopied(t *testing.T) {
	l := limiter(t, core.Rule{Name: "r", By: "ip", Limit: core.Rate{N: 1, Per: time.Hour}})
	keys := []nethttpflow.Key{nethttpflow.Peer()}
	h := nethttpflow.Middleware(l, nethttpflow.Options{Keys: keys})(ok)
	keys[0].Of = func(*http.Request) string { return "changed" }
	ask(h, "GET", "/", from("192.0.2.1:1"))
	if res := ask(h, "GET", "/", from("192.0.2.2:1")); res.StatusCode != 200 {
		t.Fatal(res.Status)
	}
}
