package nethttpflow_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/websocket"

	"github.com/exactflow/exactflow/core"
	"github.com/exactflow/exactflow/nethttpflow"
)

// A client that is told to wait and does so gets in. Others send 0, or the whole
// window, or a time that is refused again.
func TestAfterExactlyRetryAfterTheRequestPasses(t *testing.T) {
	for _, per := range []time.Duration{
		time.Nanosecond * 1, 300 * time.Millisecond, time.Second, 2500 * time.Millisecond, time.Minute, 24 * time.Hour,
	} {
		t.Run(per.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := limiter(t, core.Rule{Name: "r", By: "ip", Limit: core.Rate{N: 2, Per: per}})
				client := bubble(t, nethttpflow.Middleware(l, nethttpflow.Options{})(ok))
				status := func() (int, int) {
					res, err := client.Get("http://in.bubble/")
					if err != nil {
						t.Fatal(err)
					}
					defer res.Body.Close()
					io.Copy(io.Discard, res.Body)
					wait, _ := strconv.Atoi(res.Header.Get("Retry-After"))
					return res.StatusCode, wait
				}

				for range 3 {
					status()
					time.Sleep(per / 3)
					status()
					code, wait := status()
					if code != 429 {
						t.Fatalf("third of two: %d", code)
					}
					if least := int((per - per/3 + time.Second - 1) / time.Second); wait != max(1, least) {
						t.Fatalf("Retry-After: %d, want %d", wait, max(1, least))
					}
					if wait > 1 { // a second earlier is too early
						time.Sleep(time.Duration(wait-1) * time.Second)
						if code, again := status(); code != 429 || again != 1 {
							t.Fatalf("a second early: %d, Retry-After %d", code, again)
						}
						time.Sleep(time.Second)
					} else {
						time.Sleep(time.Duration(wait) * time.Second)
					}
					if code, _ := status(); code != 200 {
						t.Fatalf("after Retry-After: %d", code)
					}
					time.Sleep(per)
				}
			})
		})
	}
}

// A handler that does not return normally gives its slot back, and what it
// does goes on: the server closes the connection, as it would without us.
func TestWhateverEndsTheHandlerGivesThePermitBack(t *testing.T) {
	for name, end := range map[string]func(){
		"panic":           func() { panic("at the disco") },
		"ErrAbortHandler": func() { panic(http.ErrAbortHandler) },
		"Goexit":          func() { runtime.Goexit() },
	} {
		t.Run(name, func(t *testing.T) {
			l := limiter(t, core.Rule{Name: "one", Limit: core.InFlight{N: 1}})
			h := nethttpflow.Middleware(l, nethttpflow.Options{})(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/end" {
					end()
				}
			}))
			server := httptest.NewUnstartedServer(h)
			server.Config.ErrorLog = log.New(io.Discard, "", 0)
			server.Start()
			defer server.Close()

			for range 3 {
				// POST, because a client repeats a GET whose connection closes.
				if res, err := server.Client().Post(server.URL+"/end", "", nil); err == nil {
					t.Fatalf("the connection was not closed: %s", res.Status)
				}
			}
			res, err := server.Client().Get(server.URL + "/")
			if err != nil {
				t.Fatal(err)
			}
			res.Body.Close()
			if res.StatusCode != 200 {
				t.Fatalf("afterwards: %s", res.Status)
			}
			if s := stat(t, l, "one"); s.Failed != 3 || s.InFlight != 0 || s.Admitted != 4 {
				t.Fatalf("failed %d, in flight %d, admitted %d; want 3, 0, 4", s.Failed, s.InFlight, s.Admitted)
			}
		})
	}
}

func TestAPanicGoesOnUnchanged(t *testing.T) {
	l := limiter(t, core.Rule{Name: "one", Limit: core.InFlight{N: 1}})
	value := errors.New("this very one")
	h := nethttpflow.Middleware(l, nethttpflow.Options{})(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(value) }))
	defer func() {
		if got := recover(); got != value {
			t.Fatalf("recovered %v", got)
		}
	}()
	ask(h, "GET", "/")
}

// A client that hangs up while its handler runs gives the slot back when the
// handler returns, not before: the work still goes on.
func TestAHandlerWhoseClientHasGoneHoldsUntilItReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, core.Rule{Name: "one", Limit: core.InFlight{N: 1}})
		client := bubble(t, nethttpflow.Middleware(l, nethttpflow.Options{})(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			<-r.Context().Done()
			time.Sleep(time.Second) // cleans up
		})))
		ctx, hangUp := context.WithTimeout(t.Context(), time.Second)
		defer hangUp()
		r, _ := http.NewRequestWithContext(ctx, "GET", "http://in.bubble/", nil)
		if _, err := client.Do(r); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("client: %v", err)
		}
		synctest.Wait()
		if n := stat(t, l, "one").InFlight; n != 1 {
			t.Fatalf("while it cleans up: %d in flight", n)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if s := stat(t, l, "one"); s.InFlight != 0 || s.Failed != 0 {
			t.Fatalf("afterwards: %d in flight, %d failed", s.InFlight, s.Failed)
		}
	})
}

// A request whose context is done is not run, takes nothing, and is not told
// 200 by a response that nobody wrote.
func TestADoneContextIsNotRun(t *testing.T) {
	l := limiter(t, core.Rule{Name: "r", Limit: core.Rate{N: 1, Per: time.Hour}})
	ran := false
	h := nethttpflow.Middleware(l, nethttpflow.Options{})(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { ran = true }))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	res := ask(h, "GET", "/", func(r *http.Request) { *r = *r.WithContext(ctx) })
	if ran || res.StatusCode != 503 || res.Header.Get("Retry-After") != "" {
		t.Fatalf("ran: %v; %s, Retry-After %q", ran, res.Status, res.Header.Get("Retry-After"))
	}
	if res := ask(h, "GET", "/"); res.StatusCode != 200 || !ran {
		t.Fatalf("the one unit was taken: %s", res.Status)
	}
}

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

// A WebSocket holds its slot as long as it is open.
func TestAWebSocketHoldsItsPermitWhileOpen(t *testing.T) {
	l := limiter(t, core.Rule{Name: "sockets", Limit: core.InFlight{N: 1}})
	limited := nethttpflow.Middleware(l, nethttpflow.Options{})(websocket.Handler(func(c *websocket.Conn) {
		for text := ""; websocket.Message.Receive(c, &text) == nil; {
			websocket.Message.Send(c, text)
		}
	}))
	done := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		limited.ServeHTTP(w, r)
		done <- struct{}{}
	}))
	defer server.Close()
	url := "ws" + strings.TrimPrefix(server.URL, "http")

	for range 2 {
		c, err := websocket.Dial(url, "", server.URL)
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range []string{"hello", strings.Repeat("long ", 20_000)} {
			var echo string
			if err := websocket.Message.Send(c, text); err != nil {
				t.Fatal(err)
			}
			if err := websocket.Message.Receive(c, &echo); err != nil || echo != text {
				t.Fatalf("came back: %d bytes of %d, %v", len(echo), len(text), err)
			}
		}
		refused := make(chan error)
		go func() {
			_, err := websocket.Dial(url, "", server.URL)
			refused <- err
		}()
		<-done
		if err := <-refused; err == nil {
			t.Fatal("a second socket was opened")
		}
		c.Close()
		<-done
	}
	if s := stat(t, l, "sockets"); s.Admitted != 2 || s.Refused[core.ReasonInFlight] != 2 || s.InFlight != 0 {
		t.Fatalf("admitted %d, refused %d, in flight %d", s.Admitted, s.Refused[core.ReasonInFlight], s.InFlight)
	}
}

// An event is at the client before the handler returns, whichever way it
// flushes.
func TestServerSentEventsAreFlushed(t *testing.T) {
	l := limiter(t, core.Rule{Name: "one", Limit: core.InFlight{N: 1}})
	for name, flush := range map[string]func(http.ResponseWriter) error{
		"Flusher":            func(w http.ResponseWriter) error { w.(http.Flusher).Flush(); return nil },
		"ResponseController": func(w http.ResponseWriter) error { return http.NewResponseController(w).Flush() },
	} {
		t.Run(name, func(t *testing.T) {
			seen := make(chan struct{})
			server := httptest.NewServer(nethttpflow.Middleware(l, nethttpflow.Options{})(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "text/event-stream")
				for range 3 {
					io.WriteString(w, "data: now\n\n")
					if err := flush(w); err != nil {
						t.Error(err)
						return
					}
					<-seen // nothing more is sent until the client has seen it
				}
			})))
			defer server.Close()
			res, err := server.Client().Get(server.URL)
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			lines := bufio.NewReader(res.Body)
			for range 3 {
				if line, err := lines.ReadString('\n'); line != "data: now\n" {
					t.Fatalf("%q, %v", line, err)
				}
				lines.ReadString('\n')
				seen <- struct{}{}
			}
		})
	}
}

// unread is a body that must not be read.
type unread struct{ t *testing.T }

func (u unread) Read([]byte) (int, error) {
	u.t.Error("the body was read")
	return 0, io.EOF
}

// A refused upload costs nobody its bytes.
func TestARefusedBodyIsNotRead(t *testing.T) {
	l := limiter(t, core.Rule{Name: "none", Limit: core.Rate{N: 0, Per: time.Second}})
	h := nethttpflow.Middleware(l, nethttpflow.Options{})(ok)

	res := ask(h, "POST", "/upload", func(r *http.Request) { r.Body = io.NopCloser(unread{t}) })
	if res.StatusCode != 429 {
		t.Fatal(res.Status)
	}

	// Over a real connection: the client asks first, and never starts to send,
	// because the server says 100 Continue only when somebody reads.
	server := httptest.NewServer(h)
	defer server.Close()
	client := server.Client()
	client.Transport.(*http.Transport).ExpectContinueTimeout = time.Hour
	r, _ := http.NewRequest("POST", server.URL+"/upload", unread{t})
	r.ContentLength = 8 << 20
	r.Header.Set("Expect", "100-continue")
	res, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode != 429 {
		t.Fatal(res.Status)
	}
}

func TestSkippedRequestsAreNotAsked(t *testing.T) {
	l := limiter(t, core.Rule{Name: "none", Limit: core.Rate{N: 0, Per: time.Second}})
	h := nethttpflow.Middleware(l, nethttpflow.Options{
		Skip: func(r *http.Request) bool { return r.URL.Path == "/healthz" },
	})(ok)
	if res := ask(h, "GET", "/healthz"); res.StatusCode != 200 {
		t.Fatalf("health check: %s", res.Status)
	}
	if res := ask(h, "GET", "/"); res.StatusCode != 429 {
		t.Fatalf("other: %s", res.Status)
	}
}

func TestCostIsTaken(t *testing.T) {
	l := limiter(t, core.Rule{Name: "r", Limit: core.Rate{N: 10, Per: time.Hour}})
	h := nethttpflow.Middleware(l, nethttpflow.Options{
		Cost: func(r *http.Request) int { n, _ := strconv.Atoi(r.FormValue("n")); return n },
	})(ok)
	for _, c := range []struct {
		query string
		want  int
	}{{"?n=7", 200}, {"?n=4", 429}, {"?n=2", 200}, {"", 200}, {"", 429}, {"?n=11", 429}, {"?n=-1", 429}} {
		if res := ask(h, "GET", "/"+c.query); res.StatusCode != c.want {
			t.Fatalf("%q: %s, want %d", c.query, res.Status, c.want)
		}
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
		{"nethttpflow: Options.Keys[1] lacks its By or its Of", func() {
			nethttpflow.Middleware(l, nethttpflow.Options{Keys: []nethttpflow.Key{nethttpflow.Peer(), {Of: of}}})
		}},
		{"nethttpflow: Options.Keys[0] lacks its By or its Of", func() {
			nethttpflow.Middleware(l, nethttpflow.Options{Keys: []nethttpflow.Key{{By: "a"}}})
		}},
		{`nethttpflow: two of Options.Keys are By "ip"`, func() {
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
		{"nethttpflow: Options.Headers is 4, which is none of the constants", func() {
			nethttpflow.Middleware(l, nethttpflow.Options{Headers: nethttpflow.HeadersNever + 1})
		}},
		{"nethttpflow: Options.Legacy is 4, which is none of the constants", func() {
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

// What Priority says of a request reaches the rules, which keep units for the more
// important ones.
func TestPriorityReachesTheRules(t *testing.T) {
	rule := core.Rule{Name: "r", Limit: core.Rate{N: 3, Per: time.Hour}, Reserve: core.Reserve{Default: 1, Critical: 1}}
	priority := func(r *http.Request) core.Priority {
		switch r.URL.Path {
		case "/prefetch":
			return core.Sheddable
		case "/pay":
			return core.Critical
		}
		return core.Default
	}
	for _, c := range []struct {
		name     string
		priority func(*http.Request) core.Priority
		want     string
	}{
		{"as it says", priority, "200 429 200 429 200 429"},
		{"none: all are as important", nil, "200 200 429 429 429 429"},
	} {
		h := nethttpflow.Middleware(limiter(t, rule), nethttpflow.Options{Priority: c.priority})(ok)
		var got []string
		for _, path := range []string{"/prefetch", "/prefetch", "/", "/", "/pay", "/pay"} {
			got = append(got, strconv.Itoa(ask(h, "GET", path).StatusCode))
		}
		if got := strings.Join(got, " "); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}
