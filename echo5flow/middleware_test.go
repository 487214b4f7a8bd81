package echo5flow_test

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

	"github.com/labstack/echo/v5"
	"github.com/labstack/echo/v5/middleware"
	"golang.org/x/net/websocket"

	"github.com/exactflow/exactflow/core"
	"github.com/exactflow/exactflow/echo5flow"
	"github.com/exactflow/exactflow/nethttpflow"
)

var none = core.Rate{N: 0, Per: time.Second}

// A real client against a real server, with echo's own error handler: what
// passes, what is refused, and how.
func TestARefusalReachesTheClientInFull(t *testing.T) {
	l := limiter(t, core.Rule{Name: "per-client", By: "ip", Limit: core.Rate{N: 2, Per: time.Hour}})
	e := echo.New()
	e.Use(echo5flow.Middleware(l, echo5flow.Options{}))
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

// The middleware limits what it is used on: a server, a group, a route.
func TestItLimitsWhatItIsUsedOn(t *testing.T) {
	build := func(on string) http.Handler {
		limited := echo5flow.Middleware(limiter(t, core.Rule{Name: "none", Limit: none}), echo5flow.Options{})
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

// Whatever writes errors in a service, the client gets the answer in full and
// once; middlewares outside see an error that has the status and the refusal in
// it, and is a problem too; and echo's logger logs what the client gets.
func TestARefusalGoesWithEveryErrorHandler(t *testing.T) {
	for name, handler := range map[string]echo.HTTPErrorHandler{
		"default":          nil,
		"default, telling": echo.DefaultHTTPErrorHandler(true),
		"problems":         echo.ProblemDetailsHTTPErrorHandler(true),
		"one's own": func(c *echo.Context, err error) {
			if r, _ := echo.UnwrapResponse(c.Response()); !r.Committed {
				t.Error("the refusal was left to the error handler")
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := limiter(t, core.Rule{Name: "<none>", Limit: none})
			e := echo.NewWithConfig(echo.Config{HTTPErrorHandler: handler})
			logged := 0
			e.Use(
				middleware.RequestLoggerWithConfig(middleware.RequestLoggerConfig{
					LogStatus:     true,
					HandleError:   true,
					LogValuesFunc: func(_ *echo.Context, v middleware.RequestLoggerValues) error { logged = v.Status; return nil },
				}),
				func(next echo.HandlerFunc) echo.HandlerFunc {
					return func(c *echo.Context) error {
						c.Response().Header().Set("Content-Length", "1") // of what was hoped for
						err := next(c)
						var refusal core.Refusal
						if !errors.Is(err, core.ErrRefused) || !errors.As(err, &refusal) || refusal.Rule != "<none>" {
							t.Errorf("error %v", err)
						}
						if _, status := echo.ResolveResponseStatus(c.Response(), err); echo.StatusCode(err) != 429 || status != 429 {
							t.Errorf("status of %v: %d; of the response: %d", err, echo.StatusCode(err), status)
						}
						var problem echo.ProblemErrorer
						if !errors.As(err, &problem) || *problem.ProblemError() != (echo.ProblemError{
							Type:   "https://iana.org/assignments/http-problem-types#quota-exceeded",
							Title:  "Quota exceeded",
							Status: 429,
							Detail: "The request asks for more than the limit allows at any time.",
						}) {
							t.Errorf("problem of %v", err)
						}
						return err
					}
				},
				echo5flow.Middleware(l, echo5flow.Options{}))
			e.GET("/", ok)
			res := ask(e, "GET", "/")
			body, _ := io.ReadAll(res.Body)
			if res.StatusCode != 429 || logged != 429 || res.Header.Get("Content-Type") != "application/problem+json" ||
				res.Header.Get("Content-Length") != "" || strings.Count(string(body), "}") != 1 || !strings.HasSuffix(string(body), `"violated-policies":["<none>"]}`+"\n") {
				t.Fatalf("%s, logged %d, %s\n%s", res.Status, logged, res.Header, body)
			}
		})
	}
}

// A hook writes and returns nil, or returns an error for the error handler; the
// headers are there either way. The refusal itself, returned, is written as the
// service writes its errors.
func TestRefuseReplacesTheAnswer(t *testing.T) {
	refusal := func(_ *echo.Context, p core.Permit) error { return p.Refusal() }
	const wait = `"There are more requests than the limit allows. Try again in 3600 s."`
	const problem = `{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Quota exceeded","status":418,"detail":` + wait
	for _, c := range []struct {
		name    string
		hook    func(*echo.Context, core.Permit) error
		handler echo.HTTPErrorHandler
		status  int
		kind    string
		body    string
	}{
		{"writes", func(c *echo.Context, p core.Permit) error {
			return c.JSON(http.StatusForbidden, map[string]string{"rule": p.Refusal().Rule})
		}, nil, 403, "application/json", `{"rule":"r"}`},
		{"returns an error", func(*echo.Context, core.Permit) error {
			return echo.NewHTTPError(http.StatusForbidden, "come back later")
		}, nil, 403, "application/json", `{"message":"come back later"}`},
		{"returns an error without a status", func(_ *echo.Context, p core.Permit) error {
			return errors.New("no")
		}, nil, 500, "application/json", `{"message":"Internal Server Error"}`},
		{"returns the refusal", refusal, nil, 418, "application/json", problem + `,"violated-policies":["r"]}`},
		{"returns the refusal, all errors are problems", refusal, echo.ProblemDetailsHTTPErrorHandler(false),
			418, "application/problem+json", problem + `}`},
		{"returns the refusal, the service has a form of its own", refusal, func(c *echo.Context, err error) {
			c.String(echo.StatusCode(err), "sorry: "+err.Error())
		}, 418, "text/plain; charset=UTF-8", `sorry: core: refused by rule "r": rate, retry after 1h0m0s`},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := limiter(t, core.Rule{Name: "r", Limit: core.Rate{N: 1, Per: time.Hour}})
				e := echo.NewWithConfig(echo.Config{HTTPErrorHandler: c.handler})
				e.Use(echo5flow.Middleware(l, echo5flow.Options{Refuse: c.hook, Status: func(core.Permit) int { return 418 }}))
				ran := 0
				e.GET("/", func(*echo.Context) error { ran++; return nil })
				ask(e, "GET", "/")
				res := ask(e, "GET", "/")
				body, _ := io.ReadAll(res.Body)
				if res.StatusCode != c.status || strings.TrimSpace(string(body)) != c.body || ran != 1 {
					t.Fatalf("%s, %q, ran %d times", res.Status, body, ran)
				}
				if res.Header.Get("Retry-After") != "3600" || res.Header.Get("Content-Type") != c.kind {
					t.Fatalf("%v", res.Header)
				}
			})
		})
	}
}

// HEAD gets the answer without a body, also where echo runs the handler of GET for
// it and holds back what is written, which it does within a group's middlewares.
func TestHeadGetsNoBody(t *testing.T) {
	for on, build := range map[string]func(e *echo.Echo, limited echo.MiddlewareFunc){
		"server": func(e *echo.Echo, limited echo.MiddlewareFunc) { e.Use(limited); e.GET("/", ok); e.HEAD("/head", ok) },
		"route":  func(e *echo.Echo, limited echo.MiddlewareFunc) { e.GET("/", ok, limited); e.HEAD("/head", ok, limited) },
	} {
		l := limiter(t, core.Rule{Name: "none", Limit: none})
		e := echo.NewWithConfig(echo.Config{Router: echo.NewRouter(echo.RouterConfig{AutoHandleHEAD: true})})
		var passedOn error
		e.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
			return func(c *echo.Context) error { passedOn = next(c); return passedOn }
		})
		build(e, echo5flow.Middleware(l, echo5flow.Options{}))
		server := serve(t, e)
		for _, path := range []string{"/", "/head"} {
			res, err := server.Client().Head(server.URL + path)
			if err != nil {
				t.Fatal(err)
			}
			res.Body.Close()
			if res.StatusCode != 429 || res.Header.Get("Content-Type") != "application/problem+json" || res.ContentLength > 0 || echo.StatusCode(passedOn) != 429 {
				t.Errorf("on the %s, HEAD %s: %s, %v, error %v", on, path, res.Status, res.Header, passedOn)
			}
		}
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
		{"panic", func(*echo.Context) error { panic("at the disco") }, 0, 1},
		{"ErrAbortHandler", func(*echo.Context) error { panic(http.ErrAbortHandler) }, 0, 1},
		{"Goexit", func(*echo.Context) error { runtime.Goexit(); return nil }, 0, 1},
		{"error", func(*echo.Context) error { return errors.New("no") }, 500, 1},
		{"error after writing", func(c *echo.Context) error { c.String(200, "half"); return io.ErrUnexpectedEOF }, 200, 1},
		{"500", func(*echo.Context) error { return echo.ErrInternalServerError }, 500, 1},
		{"500 written", func(c *echo.Context) error { return c.NoContent(500) }, 500, 1},
		{"499 written", func(c *echo.Context) error { return c.NoContent(499) }, 499, 0},
		{"503 written", func(c *echo.Context) error { return c.NoContent(503) }, 503, 1},
		{"404", func(*echo.Context) error { return echo.ErrNotFound }, 404, 0},
		{"500 within 404", func(*echo.Context) error { return echo.ErrNotFound.Wrap(echo.ErrBadGateway) }, 404, 0},
		{"404 within 500", func(*echo.Context) error { return echo.ErrBadGateway.Wrap(echo.ErrNotFound) }, 502, 1},
		{"404 wrapped, which echo unwraps", func(*echo.Context) error { return fmt.Errorf("so: %w", echo.ErrNotFound) }, 404, 0},
		{"an error with a status of its own", func(*echo.Context) error { return coded(422) }, 422, 0},
		{"an error with none", func(*echo.Context) error { return coded(0) }, 500, 1},
		{"503 written behind a writer of one's own", func(c *echo.Context) error {
			c.SetResponse(wrapper{c.Response()})
			return c.NoContent(503)
		}, 503, 1},
		{"503 written behind one that hides what it wraps", func(c *echo.Context) error {
			c.SetResponse(struct{ http.ResponseWriter }{c.Response()})
			return c.NoContent(503)
		}, 503, 0},
		{"200", ok, 200, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := limiter(t, core.Rule{Name: "one", Limit: core.InFlight{N: 1}})
			e := echo.New()
			type outcome struct{ returned, passedOn error }
			outside := make(chan outcome, 2)
			e.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
				return func(x *echo.Context) error {
					var seen outcome
					defer func() { outside <- seen }()
					x.Set("seen", &seen)
					seen.passedOn = next(x)
					return seen.passedOn
				}
			}, echo5flow.Middleware(l, echo5flow.Options{}))
			e.POST("/end", func(x *echo.Context) error {
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

// A handler that carries the permit says more than that it returned: that it
// failed, or that its work goes on.
func TestAHandlerHasThePermitItIsCarried(t *testing.T) {
	for _, carry := range []bool{false, true} {
		l := limiter(t, core.Rule{Name: "slots", Limit: core.InFlight{N: 2}})
		e := echo.New()
		e.Use(echo5flow.Middleware(l, echo5flow.Options{Carry: carry}))
		var goesOn core.Permit
		e.GET("/:end", func(c *echo.Context) error {
			permit := core.PermitFrom(c.Request().Context())
			switch c.Param("end") {
			case "fail":
				permit.Fail()
			case "detach":
				goesOn = permit.Detach()
			}
			return nil
		})
		ask(e, "GET", "/fail")
		ask(e, "GET", "/detach")
		want := 0
		if carry {
			want = 1
		}
		if s := stat(t, l, "slots"); s.Admitted != 2 || s.Failed != uint64(want) || s.InFlight != want {
			t.Errorf("carry %v: admitted %d, failed %d, in flight %d", carry, s.Admitted, s.Failed, s.InFlight)
		}
		goesOn.Release()
		if s := stat(t, l, "slots"); s.InFlight != 0 {
			t.Errorf("carry %v: in flight %d", carry, s.InFlight)
		}
	}
}

// A panic that echo's own Recover, further in, turns into an error is failed
// too.
func TestARecoveredPanicHasFailed(t *testing.T) {
	l := limiter(t, core.Rule{Name: "one", Limit: core.InFlight{N: 1}})
	e := echo.New()
	e.Use(echo5flow.Middleware(l, echo5flow.Options{}), middleware.Recover())
	e.GET("/", func(*echo.Context) error { panic("at the disco") })
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
		return func(c *echo.Context) error { passedOn = next(c); return passedOn }
	}, echo5flow.Middleware(l, echo5flow.Options{}))
	ran := false
	e.GET("/", func(*echo.Context) error { ran = true; return nil })
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

// A WebSocket holds its slot as long as it is open.
func TestAWebSocketHoldsItsPermitWhileOpen(t *testing.T) {
	l := limiter(t, core.Rule{Name: "sockets", Limit: core.InFlight{N: 1}})
	e := echo.New()
	done := make(chan struct{})
	e.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c *echo.Context) error {
			err := next(c)
			done <- struct{}{}
			return err
		}
	}, echo5flow.Middleware(l, echo5flow.Options{}))
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
	for name, flush := range map[string]func(*echo.Context) error{
		"Flusher":            func(c *echo.Context) error { c.Response().(http.Flusher).Flush(); return nil },
		"ResponseController": func(c *echo.Context) error { return http.NewResponseController(c.Response()).Flush() },
	} {
		t.Run(name, func(t *testing.T) {
			seen := make(chan struct{})
			e := echo.New()
			e.Use(echo5flow.Middleware(l, echo5flow.Options{}))
			e.GET("/", func(c *echo.Context) error {
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

func TestWrongOptionsPanicWhenTheMiddlewareIsMade(t *testing.T) {
	l := limiter(t)
	of := func(*echo.Context) string { return "" }
	for want, build := range map[string]func(){
		"echo5flow: the limiter is nil": func() { echo5flow.Middleware(nil, echo5flow.Options{}) },
		"echo5flow: Options.Keys[0] lacks its By or its Of; want both": func() {
			echo5flow.Middleware(l, echo5flow.Options{Keys: []echo5flow.Key{{Of: of}}})
		},
		"echo5flow: Options.Keys[1] lacks its By or its Of; want both": func() {
			echo5flow.Middleware(l, echo5flow.Options{Keys: []echo5flow.Key{echo5flow.Peer(), {By: "a"}}})
		},
		`echo5flow: two of Options.Keys are By "ip"; want one, since of two only the first would count`: func() {
			echo5flow.Middleware(l, echo5flow.Options{Keys: []echo5flow.Key{echo5flow.Peer(), {By: "ip", Of: of}}})
		},
		`echo5flow: Options.Keys[0] is By "resource", which is the request's own`: func() {
			echo5flow.Middleware(l, echo5flow.Options{Keys: []echo5flow.Key{{By: "resource", Of: of}}})
		},
		`echo5flow: Options.Keys[0] is By "a,b", which no rule can name; want no comma, and no space around it`: func() {
			echo5flow.Middleware(l, echo5flow.Options{Keys: []echo5flow.Key{echo5flow.Header("a,b", "A")}})
		},
		`echo5flow: Options.Keys[0] is By "a ", which no rule can name; want no comma, and no space around it`: func() {
			echo5flow.Middleware(l, echo5flow.Options{Keys: []echo5flow.Key{echo5flow.Param("a ", "a")}})
		},
		"echo5flow: Options.Headers is 4, which is none of the constants; want 0 to 3": func() {
			echo5flow.Middleware(l, echo5flow.Options{Headers: nethttpflow.HeadersNever + 1})
		},
		"echo5flow: Options.Legacy is 4, which is none of the constants; want 0 to 3": func() {
			echo5flow.Middleware(l, echo5flow.Options{Legacy: nethttpflow.LegacyDraft06 + 1})
		},
		"echo5flow: Param needs the name of the part it reads":      func() { echo5flow.Param("a", "") },
		"nethttpflow: Header needs the name of the header it reads": func() { echo5flow.Header("a", "") },
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

// coded is an error with a status.
type coded int

func (c coded) Error() string   { return "coded" }
func (c coded) StatusCode() int { return int(c) }

// wrapper is a writer that echo can look through.
type wrapper struct{ http.ResponseWriter }

func (w wrapper) Unwrap() http.ResponseWriter { return w.ResponseWriter }
