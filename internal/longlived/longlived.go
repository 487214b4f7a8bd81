// Package longlived tests adapters to frameworks of net/http with what lives longer than
// a request, and with what is known later than at its begin: in real time, through real
// connections. It is for their tests; what exact time can tell is in package flowtest.
package longlived

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/websocket"

	"github.com/exactflow/exactflow/core"
	"github.com/exactflow/exactflow/flowtest"
)

// Run examines the adapter: one subtest for each promise.
func Run(t *testing.T, a flowtest.HTTP) {
	t.Run("who hijacks and returns holds what it detaches", func(t *testing.T) { hijacks(t, a) })
	t.Run("a handshake holds its slot until ready", func(t *testing.T) { shakesHands(t, a) })
	t.Run("a stream of events holds its slot until the client goes", func(t *testing.T) { streams(t, a) })
	t.Run("only wrong passwords count", func(t *testing.T) { logsIn(t, a) })
	t.Run("a cost that is known later is settled", func(t *testing.T) { settles(t, a) })
	t.Run("the innermost permit is carried alone", func(t *testing.T) { carriesInnermost(t, a) })
}

var carry = flowtest.Options{Carry: true}

// path is of the first route.
const path = "/a/7"

// A handler that takes its connection over, leaves it to a goroutine and returns has
// given its slot back, and more are open than may; unless it detaches the permit,
// which is then held until the goroutine releases it.
func hijacks(t *testing.T, a flowtest.HTTP) {
	for _, detach := range []bool{false, true} {
		t.Run(fmt.Sprintf("detach %v", detach), func(t *testing.T) {
			l := limiter(t,
				core.Rule{Name: "handshakes", Limit: core.InFlight{N: 1, SetUp: true}},
				core.Rule{Name: "open", Limit: core.InFlight{N: 1}},
			)
			closed := make(chan struct{}, 9)
			site := watch(t, a.Handler(l, carry, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				conn, buffered, err := http.NewResponseController(w).Hijack()
				if err != nil {
					t.Error(err)
					return
				}
				var permit core.Permit
				if detach {
					permit = core.PermitFrom(r.Context()).Detach()
				}
				go func() {
					permit.Ready()
					io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
					io.Copy(conn, buffered)
					conn.Close()
					permit.Release()
					closed <- struct{}{}
				}()
			})))

			second, held := http.StatusSwitchingProtocols, 0
			if detach {
				second, held = http.StatusServiceUnavailable, 1
			}
			first := site.upgrade(t)
			h, o := stat(t, l, "handshakes").InFlight, stat(t, l, "open").InFlight
			if first.StatusCode != http.StatusSwitchingProtocols || h != 0 || o != held {
				t.Fatalf("%s, %d handshakes, %d open when its handler has returned; want 101, 0, %d", first.Status, h, o, held)
			}
			if res := site.upgrade(t); res.StatusCode != second {
				t.Fatalf("another while it is open: %s; want %d", res.Status, second)
			} else if res.Body.Close(); !detach {
				<-closed
			}
			conn := first.Body.(io.ReadWriteCloser)
			back := make([]byte, 5)
			io.WriteString(conn, "hello")
			if _, err := io.ReadFull(conn, back); err != nil || string(back) != "hello" {
				t.Fatalf("%q came back, %v", back, err)
			}
			conn.Close()
			<-closed
			if n := stat(t, l, "open").InFlight; n != 0 {
				t.Fatalf("%d in flight when all are closed", n)
			}
			if res := site.upgrade(t); res.StatusCode != http.StatusSwitchingProtocols {
				t.Fatalf("the next: %s", res.Status)
			} else if res.Body.Close(); true {
				<-closed
			}
		})
	}
}

// A slot for handshakes is free when the connection is open; that for connections when
// it is closed.
func shakesHands(t *testing.T, a flowtest.HTTP) {
	l := limiter(t,
		core.Rule{Name: "handshakes", Limit: core.InFlight{N: 1, SetUp: true}},
		core.Rule{Name: "open", Limit: core.InFlight{N: 2}},
	)
	shaking, shake, opened := make(chan struct{}), make(chan struct{}), make(chan struct{})
	site := watch(t, a.Handler(l, carry, websocket.Server{
		Handshake: func(*websocket.Config, *http.Request) error {
			shaking <- struct{}{}
			<-shake
			return nil
		},
		Handler: func(c *websocket.Conn) {
			core.PermitFrom(c.Request().Context()).Ready()
			opened <- struct{}{}
			io.Copy(io.Discard, c)
		},
	}))
	url := "ws" + strings.TrimPrefix(site.URL, "http") + path
	open := func(meanwhile string) *websocket.Conn {
		t.Helper()
		dialed := make(chan *websocket.Conn)
		go func() {
			c, err := websocket.Dial(url, "", site.URL)
			if err != nil {
				t.Error(err)
			}
			dialed <- c
		}()
		<-shaking
		if by := site.refusedBy(t); by != meanwhile {
			t.Fatalf("while it shakes hands another is refused by %q; want %q", by, meanwhile)
		}
		shake <- struct{}{}
		c := <-dialed
		<-opened
		return c
	}

	first := open("handshakes")
	if h, c := stat(t, l, "handshakes").InFlight, stat(t, l, "open").InFlight; h != 0 || c != 1 {
		t.Fatalf("one open: %d handshakes, %d open; want 0 and 1", h, c)
	}
	second := open("handshakes")
	if by := site.refusedBy(t); by != "open" {
		t.Fatalf("two open: another is refused by %q", by)
	}
	first.Close()
	<-site.returned
	third := open("handshakes")
	for _, conn := range []*websocket.Conn{second, third} {
		conn.Close()
		<-site.returned
	}
	if h, c := stat(t, l, "handshakes").InFlight, stat(t, l, "open").InFlight; h != 0 || c != 0 {
		t.Fatalf("all closed: %d handshakes, %d open", h, c)
	}
}

// A stream of events holds its slot until its client goes away, and that of the set-up
// until the first event is out.
func streams(t *testing.T, a flowtest.HTTP) {
	l := limiter(t,
		core.Rule{Name: "starting", Limit: core.InFlight{N: 1, SetUp: true}},
		core.Rule{Name: "streams", Limit: core.InFlight{N: 1}},
	)
	started, event, ready := make(chan struct{}), make(chan struct{}), make(chan struct{})
	site := watch(t, a.Handler(l, carry, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		started <- struct{}{}
		for {
			select {
			case <-r.Context().Done():
				return
			case <-event:
			}
			io.WriteString(w, "data: now\n\n")
			http.NewResponseController(w).Flush()
			core.PermitFrom(r.Context()).Ready()
			ready <- struct{}{}
		}
	})))

	for range 2 {
		ctx, goAway := context.WithCancel(t.Context())
		defer goAway()
		lines := make(chan string)
		go func() {
			r, _ := http.NewRequestWithContext(ctx, "GET", site.URL+path, nil)
			res, err := site.Client().Do(r)
			if err != nil {
				t.Error(err)
				return
			}
			defer res.Body.Close()
			for s := bufio.NewScanner(res.Body); s.Scan(); {
				lines <- s.Text()
			}
		}()
		<-started
		if s, o := stat(t, l, "starting").InFlight, stat(t, l, "streams").InFlight; s != 1 || o != 1 {
			t.Fatalf("before the first event: %d starting, %d streams; want 1 and 1", s, o)
		}
		for range 3 {
			event <- struct{}{}
			<-ready
			if line := <-lines; line != "data: now" {
				t.Fatalf("%q", line)
			}
			<-lines
			if s, o := stat(t, l, "starting").InFlight, stat(t, l, "streams").InFlight; s != 0 || o != 1 {
				t.Fatalf("after an event: %d starting, %d streams; want 0 and 1", s, o)
			}
			if by := site.refusedBy(t); by != "streams" {
				t.Fatalf("another is refused by %q", by)
			}
		}
		goAway()
		<-site.returned
		if s, o := stat(t, l, "starting").InFlight, stat(t, l, "streams").InFlight; s != 0 || o != 0 {
			t.Fatalf("the client has gone: %d starting, %d streams", s, o)
		}
	}
}

// Five failed tries for an account, and the sixth is refused until the first of them is
// 15 minutes old. Failed are those that the handler calls so, and those that the server
// could not answer; a 401 alone is not. Right passwords never count.
func logsIn(t *testing.T, a flowtest.HTTP) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, core.Rule{Name: "wrong-passwords", By: "account",
			Limit: core.Rate{N: 5, Per: 15 * time.Minute, Charge: core.ChargeFailed}})
		h := a.Handler(l, flowtest.Options{
			Carry: true,
			Keys: []flowtest.Key{{By: "account", Of: func(h flowtest.Header) string {
				r := http.Request{Header: http.Header{"Authorization": {h("authorization")}}}
				name, _, _ := r.BasicAuth()
				return name
			}}},
		}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch _, password, _ := r.BasicAuth(); password {
			case "right":
				w.WriteHeader(http.StatusOK)
			case "expired":
				w.WriteHeader(http.StatusUnauthorized)
			case "broken":
				w.WriteHeader(http.StatusInternalServerError)
			default:
				core.PermitFrom(r.Context()).Fail()
				w.WriteHeader(http.StatusUnauthorized)
			}
		}))
		try := func(account, password string, want int, retryAfter string) {
			t.Helper()
			res := ask(h, "POST", func(r *http.Request) { r.SetBasicAuth(account, password) })
			if got := res.Header.Get("Retry-After"); res.StatusCode != want || got != retryAfter {
				t.Fatalf("%s with %q: %s, Retry-After %q; want %d and %q", account, password, res.Status, got, want, retryAfter)
			}
		}
		for i := range 5 {
			for range 20 {
				try("ann", "right", 200, "")
				try("ann", "expired", 401, "")
			}
			if i == 2 && !a.Blind {
				try("ann", "broken", 500, "")
			} else {
				try("ann", "guess", 401, "")
			}
			time.Sleep(time.Minute)
		}
		try("ann", "guess", 429, "600")
		try("ann", "right", 429, "600")
		try("bob", "right", 200, "")
		time.Sleep(10*time.Minute - 1)
		try("ann", "right", 429, "1")
		time.Sleep(time.Nanosecond)
		try("ann", "right", 200, "")
		try("ann", "guess", 401, "")
		try("ann", "right", 429, "60")
	})
}

// A request is admitted for what it may cost, and pays what it does: less comes back at
// once; more is there or not, and the handler is told.
func settles(t *testing.T, a flowtest.HTTP) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, core.Rule{Name: "bytes", Limit: core.Rate{N: 1000, Per: time.Minute}})
		h := a.Handler(l, flowtest.Options{
			Carry: true,
			Cost:  func(flowtest.Header) int { return 100 },
		}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			if !core.PermitFrom(r.Context()).Settle(len(body)) {
				w.WriteHeader(http.StatusRequestEntityTooLarge)
			}
		}))
		upload := func(n, want, left int) {
			t.Helper()
			res := ask(h, "POST", func(r *http.Request) { r.Body = io.NopCloser(strings.NewReader(strings.Repeat("x", n))) })
			p, _ := l.Peek(core.Request{})
			if res.StatusCode != want || p.Quota().Remaining != left {
				t.Fatalf("%d bytes: %s, and %d left; want %d and %d", n, res.Status, p.Quota().Remaining, want, left)
			}
		}
		upload(10, 200, 990)
		upload(0, 200, 990)
		upload(700, 200, 290)
		upload(291, 413, 190) // it stays charged for what it was admitted
		upload(190, 200, 0)
		upload(1, 429, 0)
		time.Sleep(time.Minute)
		upload(1000, 200, 0)
	})
}

// Of limiters behind each other the handler has the permit of the innermost that
// carries; what it does to that leaves the other's alone.
func carriesInnermost(t *testing.T, a flowtest.HTTP) {
	for _, c := range []struct {
		inner                  bool // carries
		outerHeld, innerHeld   int
		outerFails, innerFails uint64
	}{
		{inner: true, innerHeld: 1, innerFails: 1},
		{inner: false, outerHeld: 1, outerFails: 1},
	} {
		t.Run(fmt.Sprintf("inner carries: %v", c.inner), func(t *testing.T) {
			outer := limiter(t, core.Rule{Name: "outer", Limit: core.InFlight{N: 9}})
			inner := limiter(t, core.Rule{Name: "inner", Limit: core.InFlight{N: 9}})
			var kept core.Permit
			h := a.Handler(outer, carry, a.Handler(inner, flowtest.Options{Carry: c.inner}, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				core.PermitFrom(r.Context()).Fail()
				kept = core.PermitFrom(r.Context()).Detach()
			})))
			ask(h, "GET")
			if o, i := stat(t, outer, "outer").InFlight, stat(t, inner, "inner").InFlight; o != c.outerHeld || i != c.innerHeld {
				t.Errorf("detached: outer %d, inner %d in flight; want %d and %d", o, i, c.outerHeld, c.innerHeld)
			}
			kept.Release()
			o, i := stat(t, outer, "outer"), stat(t, inner, "inner")
			if o.InFlight != 0 || i.InFlight != 0 || o.Failed != c.outerFails || i.Failed != c.innerFails {
				t.Errorf("released: %d and %d in flight, %d and %d failed; want 0, 0, %d, %d",
					o.InFlight, i.InFlight, o.Failed, i.Failed, c.outerFails, c.innerFails)
			}
		})
	}
}

// limiter makes one.
func limiter(t testing.TB, rules ...core.Rule) *core.Limiter {
	t.Helper()
	l, err := core.New(rules...)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// stat is the named rule's.
func stat(t testing.TB, l *core.Limiter, rule string) core.Stat {
	t.Helper()
	for _, s := range l.Stats() {
		if s.Rule == rule {
			return s
		}
	}
	t.Fatalf("there is no rule %q", rule)
	return core.Stat{}
}

// ask is one request, without a network.
func ask(h http.Handler, method string, with ...func(*http.Request)) *http.Response {
	r := httptest.NewRequest(method, path, nil)
	for _, change := range with {
		change(r)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result()
}

// A watched is a server of which a test can await that handlers, and the limiter
// around them, have returned.
type watched struct {
	*httptest.Server
	returned chan struct{}
}

func watch(t testing.TB, h http.Handler) watched {
	returned := make(chan struct{}, 99)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() { returned <- struct{}{} }()
		h.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	return watched{server, returned}
}

// upgrade asks for a connection without HTTP.
func (s watched) upgrade(t testing.TB) *http.Response {
	t.Helper()
	r, _ := http.NewRequest("GET", s.URL+path, nil)
	r.Header.Set("Connection", "Upgrade")
	r.Header.Set("Upgrade", "echo")
	res, err := s.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	<-s.returned
	return res
}

// refusedBy is the rule that refuses one more request.
func (s watched) refusedBy(t testing.TB) string {
	t.Helper()
	res, err := s.Client().Get(s.URL + path)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	<-s.returned
	rule, _, _ := strings.Cut(res.Header.Get("RateLimit-Policy"), ";")
	rule, _ = strconv.Unquote(rule)
	return rule
}
