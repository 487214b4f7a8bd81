package echoflow_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"
	"golang.org/x/net/websocket"

	"github.com/exactflow/exactflow/core"
	"github.com/exactflow/exactflow/echoflow"
	"github.com/exactflow/exactflow/nethttpflow"
)

var none = core.Rate{N: 0, Per: time.Second}

// A real client against a real server, with echo's own error handler: what
// passes, what is refused, and how.
func TestARefusalReachesTheClientInFull(t *testing.T) {
	l := limiter(t, core.Rule{Name: "per-client", By: "ip", Limit: core.Rate{N: 2, Per: time.Hour}})
	e := echo.New()
	e.Use(echoflow.Middleware(l, echoflow.Options{}))
	e.GET("/orders/:id", ok)
	server := serve(t, e)

	for i, want := range []int{200, 200, 429, 429} {
		res, err := server.Client().Get(fmt.Sprint(server.URL, "/orders/", i))
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if res.StatusCode != want {
			t.Fatalf("request %d: %s", i, res.Status)
		}
		if want == 200 {
			continue
		}
		wait := res.Header.Get("Retry-After")
		for name, want := range map[string]string{
			"Content-Type":     "application/problem+json",
			"Cache-Control":    "no-store",
			"RateLimit-Policy": `"per-client";q=2;w=3600`,
			"RateLimit":        `"per-client";r=0;t=` + wait,
		} {
			if got := res.Header.Get(name); got != want {
				t.Errorf("%s: %q, want %q", name, got, want)
			}
		}
		if n, _ := strconv.Atoi(wait); n < 3590 || n > 3600 {
			t.Errorf("Retry-After: %q", wait)
		}
		if s := string(body); !strings.HasPrefix(s, `{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded",`) ||
			!strings.HasSuffix(s, `"violated-policies":["per-client"]}`+"\n") {
			t.Errorf("body %s", body)
		}
	}
}

// A client that is told to wait and does so gets in.
func TestAfterExactlyRetryAfterTheRequestPasses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, core.Rule{Name: "r", By: "ip", Limit: core.Rate{N: 2, Per: 90 * time.Second}})
		e := echo.New()
		e.Use(echoflow.Middleware(l, echoflow.Options{}))
		e.GET("/", ok)
		for range 5 {
			ask(e, "GET", "/")
			time.Sleep(30 * time.Second)
			ask(e, "GET", "/")
			res := ask(e, "GET", "/")
			wait, _ := strconv.Atoi(res.Header.Get("Retry-After"))
			if res.StatusCode != 429 || wait != 60 {
				t.Fatalf("%s, Retry-After %d", res.Status, wait)
			}
			time.Sleep(time.Duration(wait)*time.Second - 1)
			if res := ask(e, "GET", "/"); res.StatusCode != 429 {
				t.Fatalf("a nanosecond early: %s", res.Status)
			}
			time.Sleep(time.Nanosecond)
			if res := ask(e, "GET", "/"); res.StatusCode != 200 {
				t.Fatalf("after Retry-After: %s", res.Status)
			}
			time.Sleep(90 * time.Second)
		}
	})
}

// The middleware limits what it is used on: a server, a group, a route.
func TestItLimitsWhatItIsUsedOn(t *testing.T) {
	build := func(on string) http.Handler {
		limited := echoflow.Middleware(limiter(t, core.Rule{Name: "none", Limit: none}), echoflow.Options{})
		e := echo.New()
		if on == "server" {
			e.Use(limited)
		}
		e.GET("/", ok)
		group := e.Group("/group")
		if on == "group" {
			group.Use(limited)
		}
		group.GET("/a", ok)
		if on == "route" {
			group.GET("/b", ok, limited)
		} else {
			group.GET("/b", ok)
		}
		group.POST("/b", ok)
		return e
	}
	for on, want := range map[string]string{
		"server": "429 429 429 429 429",
		"group":  "200 429 429 429 429", // echo routes what a group does not know to the group
		"route":  "200 200 429 200 404",
	} {
		e := build(on)
		var got []string
		for _, request := range []string{"GET /", "GET /group/a", "GET /group/b", "POST /group/b", "GET /group/none"} {
			method, path, _ := strings.Cut(request, " ")
			got = append(got, strconv.Itoa(ask(e, method, path).StatusCode))
		}
		if got := strings.Join(got, " "); got != want {
			t.Errorf("on %s: %s, want %s", on, got, want)
		}
	}
}

// A hook writes and returns nil, or returns an error for the error handler;
// the headers are there either way.
func TestRefuseReplacesTheAnswer(t *testing.T) {
	for _, c := range []struct {
		name   string
		hook   func(echo.Context, core.Permit) error
		status int
		body   string
	}{
		{"writes", func(c echo.Context, p core.Permit) error {
			return c.JSON(http.StatusTeapot, map[string]string{"rule": p.Refusal().Rule})
		}, 418, `{"rule":"r"}`},
		{"returns an error", func(echo.Context, core.Permit) error {
			return echo.NewHTTPError(http.StatusForbidden, "come back later")
		}, 403, `{"message":"come back later"}`},
		{"returns an error that is not echo's", func(_ echo.Context, p core.Permit) error {
			return p.Refusal()
		}, 500, `{"message":"Internal Server Error"}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := limiter(t, core.Rule{Name: "r", Limit: core.Rate{N: 1, Per: time.Hour}})
			e := echo.New()
			e.Use(echoflow.Middleware(l, echoflow.Options{Refuse: c.hook}))
			ran := 0
			e.GET("/", func(echo.Context) error { ran++; return nil })
			ask(e, "GET", "/")
			res := ask(e, "GET", "/")
			body, _ := io.ReadAll(res.Body)
			if res.StatusCode != c.status || strings.TrimSpace(string(body)) != c.body || ran != 1 {
				t.Fatalf("%s, %q, ran %d times", res.Status, body, ran)
			}
			if res.Header.Get("Retry-After") != "3600" || res.Header.Get("Content-Type") != "application/json" {
				t.Fatalf("%v", res.Header)
			}
		})
	}
}

// Middlewares outside see an error with the status and the refusal in it, and
// echo's two loggers log the status that the client gets.
func TestMiddlewaresOutsideSeeTheRefusal(t *testing.T) {
	l := limiter(t, core.Rule{Name: "none", Limit: none})
	e := echo.New()
	var logged int
	var old strings.Builder
	e.Use(
		//lint:ignore SA1019 services still use the old logger, and it reads the status otherwise than the new one
		middleware.LoggerWithConfig(middleware.LoggerConfig{Format: "${status}", Output: &old}),
		middleware.RequestLoggerWithConfig(middleware.RequestLoggerConfig{
			LogStatus:     true,
			HandleError:   true,
			LogValuesFunc: func(_ echo.Context, v middleware.RequestLoggerValues) error { logged = v.Status; return nil },
		}),
		func(next echo.HandlerFunc) echo.HandlerFunc {
			return func(c echo.Context) error {
				err := next(c)
				var refusal core.Refusal
				var status *echo.HTTPError
				if !errors.Is(err, core.ErrRefused) || !errors.As(err, &refusal) || refusal.Rule != "none" {
					t.Errorf("error %v", err)
				}
				if !errors.As(err, &status) || status.Code != 429 || c.Response().Status != 429 {
					t.Errorf("status of %v; response %d", err, c.Response().Status)
				}
				return err
			}
		},
		echoflow.Middleware(l, echoflow.Options{}))
	e.GET("/", ok)
	res := ask(e, "GET", "/")
	body, _ := io.ReadAll(res.Body)
	if res.StatusCode != 429 || logged != 429 || old.String() != "429" || strings.Count(string(body), "}") != 1 {
		t.Fatalf("%s, logged %d and %q\n%s", res.Status, logged, old.String(), body)
	}
}

// What ends a handler other than returning gives its slot back, goes on, and
// counts as failed. So does an error that becomes a 500; the error is passed on
// as it is.
func TestWhateverEndsTheHandlerGivesThePermitBack(t *testing.T) {
	for _, c := range []struct {
		name   string
		end    echo.HandlerFunc
		status int // 0: the connection is closed
		failed uint64
	}{
		{"panic", func(echo.Context) error { panic("at the disco") }, 0, 1},
		{"ErrAbortHandler", func(echo.Context) error { panic(http.ErrAbortHandler) }, 0, 1},
		{"Goexit", func(echo.Context) error { runtime.Goexit(); return nil }, 0, 1},
		{"error", func(echo.Context) error { return errors.New("no") }, 500, 1},
		{"error after writing", func(c echo.Context) error { c.String(200, "half"); return io.ErrUnexpectedEOF }, 200, 1},
		{"500", func(echo.Context) error { return echo.ErrInternalServerError }, 500, 1},
		{"503 written", func(c echo.Context) error { return c.NoContent(503) }, 503, 1},
		{"500 told by c.Error", func(c echo.Context) error { c.Error(errors.New("no")); return nil }, 500, 1},
		{"404", func(echo.Context) error { return echo.ErrNotFound }, 404, 0},
		{"500 within 404", func(echo.Context) error { return echo.ErrNotFound.WithInternal(echo.ErrBadGateway) }, 502, 1},
		{"404 within 500", func(echo.Context) error { return echo.ErrBadGateway.WithInternal(echo.ErrNotFound) }, 404, 0},
		{"an error within 400", func(echo.Context) error { return echo.ErrBadRequest.WithInternal(io.EOF) }, 400, 0},
		{"404 wrapped, which echo does not unwrap", func(echo.Context) error { return fmt.Errorf("so: %w", echo.ErrNotFound) }, 500, 1},
		{"200", ok, 200, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := limiter(t, core.Rule{Name: "one", Limit: core.InFlight{N: 1}})
			e := echo.New()
			type outcome struct{ returned, passedOn error }
			outside := make(chan outcome, 2)
			e.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
				return func(x echo.Context) error {
					var seen outcome
					defer func() { outside <- seen }()
					x.Set("seen", &seen)
					seen.passedOn = next(x)
					return seen.passedOn
				}
			}, echoflow.Middleware(l, echoflow.Options{}))
			e.POST("/end", func(x echo.Context) error {
				err := c.end(x)
				x.Get("seen").(*outcome).returned = err
				return err
			})
			e.GET("/", ok)
			server := serve(t, e)

			res, err := server.Client().Post(server.URL+"/end", "", nil)
			switch {
			case err != nil && c.status != 0:
				t.Fatal(err)
			case err == nil:
				res.Body.Close()
				if res.StatusCode != c.status {
					t.Fatalf("%s, want %d", res.Status, c.status)
				}
			}
			if seen := <-outside; seen.passedOn != seen.returned {
				t.Errorf("the handler returned %v, and %v was passed on", seen.returned, seen.passedOn)
			}
			res, err = server.Client().Get(server.URL + "/")
			if err != nil {
				t.Fatal(err)
			}
			res.Body.Close()
			if s := stat(t, l, "one"); res.StatusCode != 200 || s.Failed != c.failed || s.InFlight != 0 {
				t.Fatalf("afterwards %s; failed %d, want %d; in flight %d", res.Status, s.Failed, c.failed, s.InFlight)
			}
		})
	}
}

// A panic that echo's own Recover, further in, turns into an error is failed
// too.
func TestARecoveredPanicHasFailed(t *testing.T) {
	l := limiter(t, core.Rule{Name: "one", Limit: core.InFlight{N: 1}})
	e := echo.New()
	e.Logger.SetOutput(io.Discard)
	e.Use(echoflow.Middleware(l, echoflow.Options{}), middleware.Recover())
	e.GET("/", func(echo.Context) error { panic("at the disco") })
	if res := ask(e, "GET", "/"); res.StatusCode != 500 {
		t.Fatal(res.Status)
	}
	if s := stat(t, l, "one"); s.Failed != 1 || s.InFlight != 0 {
		t.Fatalf("failed %d, in flight %d", s.Failed, s.InFlight)
	}
}

// A request whose context is done is not run, takes nothing, and is told 503.
func TestADoneContextIsNotRun(t *testing.T) {
	l := limiter(t, core.Rule{Name: "r", Limit: core.Rate{N: 1, Per: time.Hour}})
	e := echo.New()
	var passedOn error
	e.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error { passedOn = next(c); return passedOn }
	}, echoflow.Middleware(l, echoflow.Options{}))
	ran := false
	e.GET("/", func(echo.Context) error { ran = true; return nil })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	res := ask(e, "GET", "/", func(r *http.Request) { *r = *r.WithContext(ctx) })
	if ran || res.StatusCode != 503 || !errors.Is(passedOn, context.Canceled) {
		t.Fatalf("ran: %v; %s; error %v", ran, res.Status, passedOn)
	}
	if res := ask(e, "GET", "/"); res.StatusCode != 200 || !ran {
		t.Fatalf("the one unit was taken: %s", res.Status)
	}
}

// A client that hangs up gives the slot back when the handler returns.
func TestAHandlerWhoseClientHasGoneHoldsUntilItReturns(t *testing.T) {
	l := limiter(t, core.Rule{Name: "one", Limit: core.InFlight{N: 1}})
	e := echo.New()
	started, gone, returned := make(chan struct{}), make(chan struct{}), make(chan struct{})
	e.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error { defer close(returned); return next(c) }
	}, echoflow.Middleware(l, echoflow.Options{}))
	e.GET("/", func(c echo.Context) error {
		close(started)
		<-c.Request().Context().Done()
		<-gone
		return nil
	})
	server := serve(t, e)
	ctx, hangUp := context.WithCancel(t.Context())
	go func() {
		<-started
		hangUp()
	}()
	r, _ := http.NewRequestWithContext(ctx, "GET", server.URL, nil)
	if _, err := server.Client().Do(r); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if n := stat(t, l, "one").InFlight; n != 1 {
		t.Fatalf("before it returns: %d in flight", n)
	}
	close(gone)
	<-returned
	if n := stat(t, l, "one").InFlight; n != 0 {
		t.Fatalf("afterwards: %d in flight", n)
	}
}

// A WebSocket holds its slot as long as it is open.
func TestAWebSocketHoldsItsPermitWhileOpen(t *testing.T) {
	l := limiter(t, core.Rule{Name: "sockets", Limit: core.InFlight{N: 1}})
	e := echo.New()
	done := make(chan struct{})
	e.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			err := next(c)
			done <- struct{}{}
			return err
		}
	}, echoflow.Middleware(l, echoflow.Options{}))
	e.GET("/ws", echo.WrapHandler(websocket.Handler(func(c *websocket.Conn) {
		for text := ""; websocket.Message.Receive(c, &text) == nil; {
			websocket.Message.Send(c, text)
		}
	})))
	server := serve(t, e)
	url := "ws" + strings.TrimPrefix(server.URL, "http") + "/ws"

	for range 2 {
		c, err := websocket.Dial(url, "", server.URL)
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range []string{"hello", strings.Repeat("long ", 20_000)} {
			var echoed string
			if err := websocket.Message.Send(c, text); err != nil {
				t.Fatal(err)
			}
			if err := websocket.Message.Receive(c, &echoed); err != nil || echoed != text {
				t.Fatalf("came back: %d bytes of %d, %v", len(echoed), len(text), err)
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
	for name, flush := range map[string]func(echo.Context) error{
		"Flusher":            func(c echo.Context) error { c.Response().Flush(); return nil },
		"ResponseController": func(c echo.Context) error { return http.NewResponseController(c.Response()).Flush() },
	} {
		t.Run(name, func(t *testing.T) {
			seen := make(chan struct{})
			e := echo.New()
			e.Use(echoflow.Middleware(l, echoflow.Options{}))
			e.GET("/", func(c echo.Context) error {
				c.Response().Header().Set("Content-Type", "text/event-stream")
				for range 3 {
					io.WriteString(c.Response(), "data: now\n\n")
					if err := flush(c); err != nil {
						t.Error(err)
						return err
					}
					<-seen // nothing more is sent until the client has seen it
				}
				return nil
			})
			server := serve(t, e)
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
			io.Copy(io.Discard, res.Body) // until the handler has returned
		})
	}
}

// unread is a body that must not be read.
type unread struct{ t *testing.T }

func (u unread) Read([]byte) (int, error) {
	u.t.Error("the body was read")
	return 0, io.EOF
}

// A refused upload costs nobody its bytes: the client asks first, and never
// starts to send.
func TestARefusedBodyIsNotRead(t *testing.T) {
	l := limiter(t, core.Rule{Name: "none", Limit: none})
	e := echo.New()
	e.Use(echoflow.Middleware(l, echoflow.Options{}))
	e.POST("/upload", ok)
	server := serve(t, e)
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

func TestHeadGetsNoBody(t *testing.T) {
	l := limiter(t, core.Rule{Name: "none", Limit: none})
	e := echo.New()
	e.Use(echoflow.Middleware(l, echoflow.Options{}))
	e.HEAD("/", ok)
	for _, path := range []string{"/", "/unmatched"} {
		res := ask(e, "HEAD", path)
		if body, _ := io.ReadAll(res.Body); res.StatusCode != 429 || len(body) != 0 {
			t.Fatalf("%s: %s, body %q", path, res.Status, body)
		}
	}
}

func TestSkipCostAndResource(t *testing.T) {
	l := limiter(t, core.Rule{Name: "r", On: "mine", Limit: core.Rate{N: 10, Per: time.Hour}})
	e := echo.New()
	e.Use(echoflow.Middleware(l, echoflow.Options{
		Skip:     func(c echo.Context) bool { return c.Path() == "/healthz" },
		Cost:     func(c echo.Context) int { n, _ := strconv.Atoi(c.QueryParam("n")); return n },
		Resource: func(echo.Context) string { return "mine" },
	}))
	e.GET("/", ok)
	e.GET("/healthz", ok)
	for _, c := range []struct {
		target string
		want   int
	}{{"/?n=7", 200}, {"/?n=4", 429}, {"/?n=3", 200}, {"/", 429}, {"/healthz", 200}} {
		if res := ask(e, "GET", c.target); res.StatusCode != c.want {
			t.Fatalf("%s: %s, want %d", c.target, res.Status, c.want)
		}
	}
}

func TestStatusHeadersAndLegacyArePassedOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, core.Rule{Name: "r", Limit: core.Rate{N: 1, Per: time.Minute}})
		e := echo.New()
		e.Use(echoflow.Middleware(l, echoflow.Options{
			Status:  func(core.Permit) int { return 503 },
			Headers: nethttpflow.HeadersAlways,
			Legacy:  nethttpflow.LegacyXDelta,
		}))
		e.GET("/", ok)
		for _, want := range []int{200, 503} {
			res := ask(e, "GET", "/")
			if res.StatusCode != want || res.Header.Get("RateLimit") != `"r";r=0;t=60` || res.Header.Get("X-RateLimit-Reset") != "60" {
				t.Fatalf("%s, want %d\n%v", res.Status, want, res.Header)
			}
		}
	})
}

func TestWrongOptionsPanicWhenTheMiddlewareIsMade(t *testing.T) {
	l := limiter(t)
	of := func(echo.Context) string { return "" }
	for want, build := range map[string]func(){
		"echoflow: the limiter is nil": func() { echoflow.Middleware(nil, echoflow.Options{}) },
		"echoflow: Options.Keys[0] lacks its By or its Of": func() {
			echoflow.Middleware(l, echoflow.Options{Keys: []echoflow.Key{{Of: of}}})
		},
		"echoflow: Options.Keys[1] lacks its By or its Of": func() {
			echoflow.Middleware(l, echoflow.Options{Keys: []echoflow.Key{echoflow.Peer(), {By: "a"}}})
		},
		`echoflow: two of Options.Keys are By "ip"`: func() {
			echoflow.Middleware(l, echoflow.Options{Keys: []echoflow.Key{echoflow.Peer(), {By: "ip", Of: of}}})
		},
		`echoflow: Options.Keys[0] is By "resource", which is the request's own`: func() {
			echoflow.Middleware(l, echoflow.Options{Keys: []echoflow.Key{{By: "resource", Of: of}}})
		},
		`echoflow: Options.Keys[0] is By "a,b", which no rule can name; want no comma, and no space around it`: func() {
			echoflow.Middleware(l, echoflow.Options{Keys: []echoflow.Key{echoflow.Header("a,b", "A")}})
		},
		`echoflow: Options.Keys[0] is By "a ", which no rule can name; want no comma, and no space around it`: func() {
			echoflow.Middleware(l, echoflow.Options{Keys: []echoflow.Key{echoflow.Param("a ", "a")}})
		},
		"echoflow: Options.Headers is 4, which is none of the constants": func() {
			echoflow.Middleware(l, echoflow.Options{Headers: nethttpflow.HeadersNever + 1})
		},
		"echoflow: Options.Legacy is 4, which is none of the constants": func() {
			echoflow.Middleware(l, echoflow.Options{Legacy: nethttpflow.LegacyDraft06 + 1})
		},
		"echoflow: Param needs the name of the part it reads":       func() { echoflow.Param("a", "") },
		"nethttpflow: Header needs the name of the header it reads": func() { echoflow.Header("a", "") },
	} {
		t.Run(want, func(t *testing.T) {
			defer func() {
				if got := recover(); got != want {
					t.Fatalf("panicked with %v", got)
				}
			}()
			build()
		})
	}
}

// What Priority says of a request reaches the rules, which keep units for the more
// important ones.
func TestPriorityReachesTheRules(t *testing.T) {
	rule := core.Rule{Name: "r", Limit: core.Rate{N: 3, Per: time.Hour}, Reserve: core.Reserve{Default: 1, Critical: 1}}
	priority := func(c echo.Context) core.Priority {
		switch c.Path() {
		case "/prefetch":
			return core.Sheddable
		case "/pay":
			return core.Critical
		}
		return core.Default
	}
	for _, c := range []struct {
		name     string
		priority func(echo.Context) core.Priority
		want     string
	}{
		{"as it says", priority, "200 429 200 429 200 429"},
		{"none: all are as important", nil, "200 200 429 429 429 429"},
	} {
		h := echo.New()
		h.Use(echoflow.Middleware(limiter(t, rule), echoflow.Options{Priority: c.priority}))
		for _, path := range []string{"/prefetch", "/", "/pay"} {
			h.GET(path, ok)
		}
		var got []string
		for _, path := range []string{"/prefetch", "/prefetch", "/", "/", "/pay", "/pay"} {
			got = append(got, strconv.Itoa(ask(h, "GET", path).StatusCode))
		}
		if got := strings.Join(got, " "); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}
