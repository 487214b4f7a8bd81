package flowtest

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing/synctest"
	"time"

	"github.com/exactflow/exactflow/core"
)

// The promises of adapters for HTTP alone.

func httpPromises() []promise {
	return []promise{
		{"a refusal is told by status headers and document", toldInFull},
		{"RetryAfter is whole seconds and never too early", wholeSeconds},
		{"an admitted answer says nothing of limits", admittedIsSilent},
		{"HEAD gets no body", headHasNoBody},
		{"a refused body is not read", bodyIsNotRead},
		{"what no route matches is one resource", unmatchedIsOne},
		{"what a client invents makes no new resource", inventedIsOne},
		{"a context that is done is no refusal", doneIsNoRefusal},
		{"by default a client is its peer", clientIsPeer},
		{"by default an IPv6 client is its network", clientIsNetwork},
		{"a panic goes on unchanged", panicGoesOn},
		{"what is written can be flushed", canFlush},
		{"a connection can be hijacked and is held", canHijack},
	}
}

// site starts a server with a handler of net/http.
func (x *exam) site(l *core.Limiter, o Options, next http.Handler) site {
	return open(x.t, http1, x.http.Handler(l, o, next))
}

// request is one without a body.
func (x *exam) request(method, path string) *http.Request {
	r, err := http.NewRequestWithContext(x.ctx, method, "http://in.memory"+path, nil)
	if err != nil {
		panic(err)
	}
	return r
}

// do is one request and its response.
func (x *exam) do(s site, method, path string) *http.Response {
	x.t.Helper()
	res, err := s.client.Do(x.request(method, path))
	if err != nil {
		x.Fatalf("%s %s: %v", method, path, err)
	}
	return res
}

// ask is one request and its response, whose body has been read.
func (x *exam) ask(s site, method, path string) (*http.Response, string) {
	x.t.Helper()
	res := x.do(s, method, path)
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		x.Fatalf("%s %s: %v", method, path, err)
	}
	synctest.Wait() // for what the server does when it has answered
	return res, string(body)
}

// fine is a handler that answers 200.
var fine = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "fine") })

// tells are the headers of a refusal.
func tells() []string {
	return []string{"Retry-After", "Cache-Control", "RateLimit-Policy", "RateLimit"}
}

// What refuses says the status: 503 while what is in flight for all clients together
// is at its limit, 429 else. Headers and document say which rule, and until when; no
// cache keeps it.
func toldInFull(x *exam) {
	const exceeded, reduced = "quota-exceeded", "temporary-reduced-capacity"
	for _, c := range []struct {
		rule   core.Rule
		status int
		kind   string
		want   []string
	}{
		{core.Rule{Name: "each", By: "client", Limit: core.Rate{N: 1, Per: time.Minute}}, 429, exceeded,
			[]string{"60", "no-store", `"each";q=1;w=60`, `"each";r=0;t=60`}},
		{core.Rule{Name: `sub"second\s`, Limit: core.Rate{N: 1, Per: 1500 * time.Millisecond}}, 429, exceeded,
			[]string{"2", "no-store", `"sub\"second\\s";q=1`, `"sub\"second\\s";r=0;t=2`}},
		{core.Rule{Name: "none", Limit: core.Rate{N: 0, Per: time.Minute}}, 429, exceeded,
			[]string{"", "no-store", `"none";q=0;w=60`, `"none";r=0`}},
		{core.Rule{Name: "all", Limit: core.InFlight{N: 1}}, 503, reduced,
			[]string{"", "no-store", `"all";q=1;qu="concurrent-requests"`, `"all";r=0`}},
		{core.Rule{Name: "each", By: "client", Limit: core.InFlight{N: 1}}, 429, exceeded,
			[]string{"", "no-store", `"each";q=1;qu="concurrent-requests"`, `"each";r=0`}},
	} {
		l := x.limiter(c.rule)
		w := x.work()
		o := Options{Keys: []Key{{By: "client", Of: func(h Header) string { return h(clientHeader) }}}}
		s := x.site(l, o, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) { w.handle(r.Context(), r.Header.Get) }))
		first := make(chan Answer, 1)
		go func() { first <- s.call(x.ctx, Call{}) }()
		synctest.Wait()
		res, body := x.ask(s, "POST", "/a/2")
		what := fmt.Sprintf("a refusal by rule %q, %s", c.rule.Name, describe(c.rule.Limit))
		if res.StatusCode != c.status {
			x.Errorf("%s: %s; want %d", what, res.Status, c.status)
		}
		for i, name := range tells() {
			if got := strings.Join(res.Header.Values(name), ", "); got != c.want[i] {
				x.Errorf("%s: %s is %q; want %q", what, name, got, c.want[i])
			}
		}
		if got := res.Header.Get("Content-Type"); got != "application/problem+json" {
			x.Errorf("%s: Content-Type is %q; want application/problem+json", what, got)
		}
		w.let(OK)
		<-first
		var p problem
		if err := json.Unmarshal([]byte(body), &p); err != nil {
			x.Errorf("%s: the document %q: %v", what, body, err)
			continue
		}
		if kind := "https://iana.org/assignments/http-problem-types#" + c.kind; p.Type != kind || p.Status != c.status ||
			p.Title == "" || p.Detail == "" || !slices.Equal(p.Violated, []string{c.rule.Name}) {
			x.Errorf("%s: the document %s; want type %s, status %d, a title, a detail, and the rule among violated-policies", what, body, kind, c.status)
		}
	}
}

// Some send 0, or the whole window, or a time at which they refuse again.
func wholeSeconds(x *exam) {
	for _, per := range []time.Duration{
		1, 300 * time.Millisecond, time.Second, 2500 * time.Millisecond, time.Minute, 24 * time.Hour,
	} {
		l := x.limiter(core.Rule{Name: "r", Limit: core.Rate{N: 2, Per: per}})
		s := x.site(l, Options{}, fine)
		for range 3 {
			x.ask(s, "GET", "/a/1")
			time.Sleep(per / 3)
			x.ask(s, "GET", "/a/1")
			res, _ := x.ask(s, "GET", "/a/1")
			wait := max(1, (per-per/3+time.Second-1)/time.Second) * time.Second
			want := fmt.Sprint(int64(wait / time.Second))
			if got := res.Header.Get("Retry-After"); res.StatusCode != 429 || got != want {
				x.Fatalf("the third of 2 per %v, after a third of it: %s, Retry-After %q; want 429, %s", per, res.Status, got, want)
			}
			if wait > time.Second {
				time.Sleep(wait - time.Second)
				if res, _ := x.ask(s, "GET", "/a/1"); res.StatusCode != 429 || res.Header.Get("Retry-After") != "1" {
					x.Errorf("of 2 per %v, a second before Retry-After: %s, Retry-After %q; want 429, 1", per, res.Status, res.Header.Get("Retry-After"))
				}
				wait = time.Second
			}
			time.Sleep(wait)
			if res, _ := x.ask(s, "GET", "/a/1"); res.StatusCode != 200 {
				x.Errorf("of 2 per %v, after Retry-After: %s; want 200", per, res.Status)
			}
			time.Sleep(per)
		}
	}
}

func admittedIsSilent(x *exam) {
	l := x.limiter(core.Rule{Name: "r", Limit: core.Rate{N: 1, Per: time.Minute}})
	s := x.site(l, Options{}, fine)
	res, body := x.ask(s, "GET", "/a/1")
	if res.StatusCode != 200 || body != "fine" {
		x.Errorf("an admitted request: %s, %q; want 200 and what the handler has written", res.Status, body)
	}
	for _, name := range tells() {
		if got := res.Header.Get(name); got != "" {
			x.Errorf("an admitted answer has %s: %s; want none by default", name, got)
		}
	}
}

func headHasNoBody(x *exam) {
	l := x.limiter(core.Rule{Name: "none", Limit: core.Rate{N: 0, Per: time.Second}})
	h := x.http.Handler(l, Options{}, fine)
	for _, path := range []string{"/a/1", "/nowhere"} {
		// A server would hide a body from its client.
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("HEAD", path, nil))
		if w.Code != 429 || w.Body.Len() != 0 {
			x.Errorf("HEAD %s: %d, body %q; want 429 and none", path, w.Code, w.Body)
		}
	}
}

// unread is a body that must not be read.
type unread struct{ read atomic.Bool }

func (u *unread) Read([]byte) (int, error) {
	u.read.Store(true)
	return 0, io.EOF
}

// A refused upload costs nobody its bytes: a client that asks first, by Expect, never
// starts to send, since the server says 100 Continue only when somebody reads.
func bodyIsNotRead(x *exam) {
	l := x.limiter(core.Rule{Name: "none", Limit: core.Rate{N: 0, Per: time.Second}})
	body := new(unread)
	w := httptest.NewRecorder()
	x.http.Handler(l, Options{}, fine).ServeHTTP(w, httptest.NewRequest("POST", "/a/1", body))
	if body.read.Load() || w.Code != 429 {
		x.Errorf("the body of a refused request was read: %v; status %d; want false and 429", body.read.Load(), w.Code)
	}

	s := x.site(l, Options{}, fine)
	body = new(unread)
	r := x.request("POST", "/a/1")
	r.Body, r.ContentLength = io.NopCloser(body), 8<<20
	r.Header.Set("Expect", "100-continue")
	res, err := s.client.Do(r)
	if err == nil {
		res.Body.Close()
	}
	if body.read.Load() {
		x.Errorf("the client was told to send the body of a refused request")
	} else if err != nil || res.StatusCode != 429 {
		x.Errorf("a refused upload: %v, %v; want 429", res, err)
	}
}

// Paths that clients invent are one resource, and are refused as others are.
func unmatchedIsOne(x *exam) {
	l := x.limiter(core.Rule{Name: "each", By: "resource", Limit: core.Rate{N: 1, Per: time.Minute}})
	s := x.site(l, Options{}, fine)
	for i, c := range []struct {
		path   string
		status int
	}{{"/a/1", 200}, {"/a/2", 429}, {"/b/1", 200}, {"/nowhere", 404}, {"/nowhere", 429}, {"/else/where", 429}, {"/", 429}} {
		res, body := x.ask(s, "POST", c.path)
		if res.StatusCode != c.status {
			x.Errorf("request %d, POST %s, where each resource may have one: %s; want %d", i, c.path, res.Status, c.status)
		} else if c.status == 429 && !json.Valid([]byte(body)) {
			x.Errorf("request %d, POST %s: the document is %q", i, c.path, body) // or two
		}
	}
}

// A client can invent methods, paths and queries without end. Each kind of them is
// one resource, whatever the adapter calls it: else a rule By "resource" would give
// every request a limit of its own, and the memory of one.
func inventedIsOne(x *exam) {
	const invented = 50
	for _, c := range []struct{ what, method, target string }{
		{"methods on a route", "FLOW%d", "/a/1"},
		{"methods on no route", "FLOW%d", "/nowhere"},
		{"paths on a route", "POST", "/a/%d"},
		{"paths on no route", "POST", "/nowhere/%d"},
		{"queries on a route", "POST", "/a/1?q=%d"},
		{"queries on no route", "POST", "/nowhere?q=%d"},
	} {
		l := x.limiter(core.Rule{Name: "each", By: "resource", Limit: core.Rate{N: invented, Per: time.Hour}})
		h := x.http.Handler(l, Options{}, fine)
		number := func(s string, i int) string { return strings.ReplaceAll(s, "%d", fmt.Sprint(i)) }
		for i := range invented {
			h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(number(c.method, i), number(c.target, i), nil))
		}
		if s := x.stat(l, "each"); s.Keys != 1 || s.Admitted != invented {
			x.Errorf("%d %s, such as %s %s: the limiter was asked for %d, which are %d resources; want all, and one",
				invented, c.what, number(c.method, 0), number(c.target, 0), s.Admitted, s.Keys)
		}
	}
}

// A context that ends, before the request is decided or while it waits, is answered
// 503, since an answer that nobody writes becomes 200; and no client is told of a
// limit that has not refused it.
func doneIsNoRefusal(x *exam) {
	for _, when := range []string{"before", "while it waits"} {
		l := x.limiter(core.Rule{Name: "one", Limit: core.InFlight{N: 1}, Queue: core.Queue{Len: 1, Wait: time.Hour}})
		var ran atomic.Int32
		h := x.http.Handler(l, Options{}, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { ran.Add(1) }))
		ctx, cancel := context.WithCancel(x.ctx)
		release := func() {}
		if when == "before" {
			cancel()
		} else {
			release = x.hold(l)
			time.AfterFunc(time.Second, cancel)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequestWithContext(ctx, "POST", "/a/1", nil))
		cancel()
		if ran.Load() != 0 || w.Code != 503 {
			x.Errorf("a context that ends %s: %d have run, status %d; want none and 503", when, ran.Load(), w.Code)
		}
		for _, name := range append(tells(), "Content-Type") {
			if got := w.Header().Get(name); got != "" && (name != "Content-Type" || strings.Contains(got, "problem")) {
				x.Errorf("a context that ends %s is told %s: %s", when, name, got)
			}
		}
		release()
		admitted := uint64(0)
		if when != "before" {
			admitted = 1 // by hold
		}
		if s := x.stat(l, "one"); len(s.Refused) != 0 || s.InFlight != 0 || s.Admitted != admitted {
			x.Errorf("a context that ends %s: refused %v, %d in flight, admitted %d; want none", when, s.Refused, s.InFlight, s.Admitted-admitted)
		}
		w = httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequestWithContext(x.ctx, "POST", "/a/1", nil))
		if ran.Load() != 1 || w.Code != 200 {
			x.Errorf("the next: status %d, %d have run; want 200 and 1", w.Code, ran.Load())
		}
	}
}

// Without Keys a client is known by "ip", the address of its connection's other end,
// whatever headers say and whichever port it has.
func clientIsPeer(x *exam) {
	l := x.limiter(core.Rule{Name: "each", By: "ip", Limit: core.Rate{N: 1, Per: time.Minute}})
	h := x.http.Handler(l, Options{}, fine)
	for _, c := range []struct {
		peer   string
		status int
	}{{"192.0.2.1:1234", 200}, {"192.0.2.1:4321", 429}, {"192.0.2.2:1234", 200}, {"[2001:db8::1]:1", 200}, {"[2001:db8::1]:2", 429}} {
		r := httptest.NewRequest("POST", "/a/1", nil)
		r.RemoteAddr = c.peer
		r.Header.Set("X-Forwarded-For", "198.51.100."+fmt.Sprint(c.status%256))
		w := httptest.NewRecorder()
		if h.ServeHTTP(w, r); w.Code != c.status {
			x.Errorf("a request from %s, where each client may have one: %d; want %d", c.peer, w.Code, c.status)
		}
	}
	if n := x.stat(l, "each").Empty; n != 0 {
		x.Errorf("%d requests were of nobody", n)
	}
}

// A host has all the addresses of its /64 to ask from, and its neighbour those of
// another.
func clientIsNetwork(x *exam) {
	const hosts, addresses = 2, 20
	l := x.limiter(core.Rule{Name: "each", By: "ip", Limit: core.Rate{N: 1, Per: time.Minute}})
	h := x.http.Handler(l, Options{}, fine)
	for host := range hosts {
		passed := 0
		for i := range addresses {
			r := httptest.NewRequest("POST", "/a/1", nil)
			r.RemoteAddr = fmt.Sprintf("[2001:db8:0:%x:%x::%x]:1234", host, i<<11, i)
			w := httptest.NewRecorder()
			if h.ServeHTTP(w, r); w.Code == 200 {
				passed++
			}
		}
		if passed != 1 {
			x.Errorf("from %d addresses of 2001:db8:0:%x::/64 %d requests have passed, where each client may have one", addresses, host, passed)
		}
	}
}

// Who stands outside gets the very value, and the server closes the connection, as
// it would without the limiter.
func panicGoesOn(x *exam) {
	mine := errors.New("this very one")
	for name, c := range map[string]struct {
		end  func()
		want any
	}{
		"panic":           {func() { panic(mine) }, mine},
		"ErrAbortHandler": {func() { panic(http.ErrAbortHandler) }, http.ErrAbortHandler},
		"Goexit":          {runtime.Goexit, nil},
	} {
		l := x.limiter(core.Rule{Name: "one", Limit: core.InFlight{N: 1}})
		h := x.http.Handler(l, Options{}, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { c.end() }))
		returned := false
		var went any
		s := open(x.t, http1, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			defer func() {
				if went = recover(); went != nil {
					panic(went)
				}
			}()
			h.ServeHTTP(w, r)
			returned = true
		}))
		res, err := s.client.Do(x.request("POST", "/a/1"))
		if err == nil {
			res.Body.Close()
			x.Errorf("%s: the client got %s; want a connection that is closed", name, res.Status)
		}
		if returned || went != c.want {
			x.Errorf("%s: outside, it returned: %v, recover has %v; want false and %v", name, returned, went, c.want)
		}
		if s := x.stat(l, "one"); s.Failed != 1 || s.InFlight != 0 {
			x.Errorf("%s: %d failed, %d in flight; want 1 and 0", name, s.Failed, s.InFlight)
		}
	}
}

// An event is at the client before the handler returns, whichever way it flushes.
func canFlush(x *exam) {
	l := x.limiter(core.Rule{Name: "one", Limit: core.InFlight{N: 1}})
	for name, flush := range map[string]func(http.ResponseWriter) error{
		"Flusher": func(w http.ResponseWriter) error {
			f, ok := w.(http.Flusher)
			if !ok {
				return fmt.Errorf("%T is no http.Flusher", w)
			}
			f.Flush()
			return nil
		},
		"ResponseController": func(w http.ResponseWriter) error { return http.NewResponseController(w).Flush() },
	} {
		seen := make(chan struct{})
		s := x.site(l, Options{}, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			for range 3 {
				io.WriteString(w, "data: now\n")
				if err := flush(w); err != nil {
					x.Errorf("%s: %v", name, err)
					return
				}
				select { // nothing more is sent until the client has seen it
				case <-seen:
				case <-x.over:
					return
				}
			}
		}))
		res := x.do(s, "GET", "/a/1")
		lines := bufio.NewReader(res.Body)
		for i := range 3 {
			if line, err := lines.ReadString('\n'); line != "data: now\n" {
				x.Errorf("%s: event %d: %q, %v", name, i, line, err)
				break
			}
			select {
			case seen <- struct{}{}:
			case <-x.ctx.Done():
			}
		}
		res.Body.Close()
		synctest.Wait()
	}
}

// An upgraded connection, such as a WebSocket, holds its slot as long as its handler
// serves it.
func canHijack(x *exam) {
	const upgrade = "flowtest"
	l := x.limiter(core.Rule{Name: "one", Limit: core.InFlight{N: 1}})
	s := x.site(l, Options{}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h, ok := w.(http.Hijacker)
		if !ok {
			x.Errorf("%T is no http.Hijacker", w)
			return
		}
		conn, rw, err := h.Hijack()
		if err != nil {
			x.Errorf("Hijack: %v", err)
			return
		}
		defer conn.Close()
		fmt.Fprintf(rw, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", upgrade)
		for rw.Flush() == nil {
			line, err := rw.ReadString('\n')
			if err != nil {
				return
			}
			rw.WriteString(line)
		}
	}))
	dial := func() *http.Response {
		r := x.request("GET", "/a/1")
		r.Header.Set("Connection", "Upgrade")
		r.Header.Set("Upgrade", upgrade)
		res, err := s.client.Do(r)
		if err != nil {
			x.Fatalf("an upgrade: %v", err)
		}
		return res
	}
	for range 2 { // the second has the slot of the first
		res := dial()
		conn, ok := res.Body.(io.ReadWriteCloser)
		if !ok || res.StatusCode != http.StatusSwitchingProtocols {
			res.Body.Close()
			x.Fatalf("an upgrade: %s; want 101", res.Status)
		}
		lines := bufio.NewReader(conn)
		for _, want := range []string{"hello\n", strings.Repeat("long ", 20_000) + "\n"} {
			go io.WriteString(conn, want)
			if got, err := lines.ReadString('\n'); got != want {
				x.Errorf("of %d bytes %d came back: %v", len(want), len(got), err)
			}
		}
		time.Sleep(time.Hour)
		if n := x.stat(l, "one").InFlight; n != 1 {
			x.Errorf("while the connection is open, %d in flight; want 1", n)
		}
		second := dial()
		second.Body.Close()
		if second.StatusCode != 503 {
			x.Errorf("a second beside it: %s; want 503", second.Status)
		}
		conn.Close()
		if n := x.stat(l, "one").InFlight; n != 0 {
			x.Errorf("when it is closed, %d in flight; want 0", n)
		}
	}
}
