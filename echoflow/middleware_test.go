package echoflow_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"

	"github.com/exactflow/exactflow/core"
	"github.com/exactflow/exactflow/echoflow"
	"github.com/exactflow/exactflow/nethttpflow"
)

var none = core.Rate{N: 0, Per: time.Second}

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

// An error that becomes a 500 has failed, and one that becomes a 404 has not, as
// echo's own error handler reads them; the error is passed on as it is.
func TestFailedIsWhatEchoMakes500OrAbove(t *testing.T) {
	for _, c := range []struct {
		name   string
		end    echo.HandlerFunc
		status int
		failed uint64
	}{
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
	} {
		t.Run(c.name, func(t *testing.T) {
			l := limiter(t, core.Rule{Name: "one", Limit: core.InFlight{N: 1}})
			e := echo.New()
			var returned, passedOn error
			e.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
				return func(x echo.Context) error { passedOn = next(x); return passedOn }
			}, echoflow.Middleware(l, echoflow.Options{}))
			e.GET("/", func(x echo.Context) error { returned = c.end(x); return returned })
			if res := ask(e, "GET", "/"); res.StatusCode != c.status {
				t.Errorf("%s, want %d", res.Status, c.status)
			}
			if passedOn != returned {
				t.Errorf("the handler returned %v, and %v was passed on", returned, passedOn)
			}
			if s := stat(t, l, "one"); s.Failed != c.failed || s.InFlight != 0 {
				t.Errorf("failed %d, want %d; in flight %d", s.Failed, c.failed, s.InFlight)
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

// A context that ends is no refusal, before the decision or while the request waits:
// no hook is asked and nothing is told but a status; those outside see an error that
// has it and the context's.
func TestADoneContextIsNoRefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, core.Rule{Name: "one", Limit: core.InFlight{N: 1}, Queue: core.Queue{Len: 1, Wait: time.Hour}})
		holds, _ := l.Try(core.Request{})
		defer holds.Release()
		e := echo.New()
		outside := 0
		e.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
			return func(c echo.Context) error {
				err := next(c)
				outside++
				if h := c.Response().Header(); !errors.Is(err, context.Canceled) || errors.Is(err, core.ErrRefused) || len(h) != 0 {
					t.Errorf("error %v, headers %v", err, h)
				}
				return err
			}
		}, echoflow.Middleware(l, echoflow.Options{
			Headers: nethttpflow.HeadersAlways,
			Refuse:  func(echo.Context, core.Permit) error { t.Error("refused"); return nil },
		}))
		e.GET("/", func(echo.Context) error { t.Error("the handler ran"); return nil })
		for _, ends := range []time.Duration{0, time.Minute} {
			ctx, cancel := context.WithCancel(t.Context())
			if ends == 0 {
				cancel()
			} else {
				time.AfterFunc(ends, cancel)
			}
			if res := ask(e, "GET", "/", func(r *http.Request) { *r = *r.WithContext(ctx) }); res.StatusCode != 503 {
				t.Errorf("ends after %v: %s", ends, res.Status)
			}
		}
		if outside != 2 {
			t.Errorf("%d were seen outside", outside)
		}
	})
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
		"echoflow: Options.Keys[0] lacks its By or its Of; want both": func() {
			echoflow.Middleware(l, echoflow.Options{Keys: []echoflow.Key{{Of: of}}})
		},
		"echoflow: Options.Keys[1] lacks its By or its Of; want both": func() {
			echoflow.Middleware(l, echoflow.Options{Keys: []echoflow.Key{echoflow.Peer(), {By: "a"}}})
		},
		`echoflow: two of Options.Keys are By "ip"; want one, since of two only the first would count`: func() {
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
		"echoflow: Options.Headers is 4, which is none of the constants; want 0 to 3": func() {
			echoflow.Middleware(l, echoflow.Options{Headers: nethttpflow.HeadersNever + 1})
		},
		"echoflow: Options.Legacy is 4, which is none of the constants; want 0 to 3": func() {
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
