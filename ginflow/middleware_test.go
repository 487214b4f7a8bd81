package ginflow_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/exactflow/exactflow/core"
	"github.com/exactflow/exactflow/ginflow"
	"github.com/exactflow/exactflow/nethttpflow"
)

var none = core.Rate{N: 0, Per: time.Second}

// The middleware limits what it is used on: an engine, a group, a route.
func TestItLimitsWhatItIsUsedOn(t *testing.T) {
	limited := func() gin.HandlerFunc {
		return ginflow.Middleware(limiter(t, core.Rule{Name: "none", Limit: none}), ginflow.Options{})
	}
	build := func(on string) http.Handler {
		router := gin.New()
		if on == "engine" {
			router.Use(limited())
		}
		router.GET("/", ok)
		group := router.Group("/group")
		if on == "group" {
			group.Use(limited())
		}
		group.GET("/a", ok)
		if on == "route" {
			group.GET("/b", limited(), ok)
		} else {
			group.GET("/b", ok)
		}
		group.POST("/b", ok)
		return router
	}
	for on, want := range map[string]string{
		"engine": "429 429 429 429 429",
		"group":  "200 429 429 429 404",
		"route":  "200 200 429 200 404",
	} {
		router := build(on)
		var got []string
		for _, request := range []string{"GET /", "GET /group/a", "GET /group/b", "POST /group/b", "GET /group/none"} {
			method, path, _ := strings.Cut(request, " ")
			got = append(got, strconv.Itoa(ask(router, method, path).StatusCode))
		}
		if got := strings.Join(got, " "); got != want {
			t.Errorf("on %s: %s, want %s", on, got, want)
		}
	}
}

// A hook that forgets to abort, or even calls Next, does not open the door:
// elsewhere the handler then runs in spite of the refusal.
func TestTheHandlerNeverRunsWhateverTheHookDoes(t *testing.T) {
	for name, hook := range map[string]func(*gin.Context, core.Permit){
		"no hook":          nil,
		"does nothing":     func(*gin.Context, core.Permit) {},
		"writes":           func(c *gin.Context, _ core.Permit) { c.JSON(429, gin.H{"wait": true}) },
		"goes on":          func(c *gin.Context, _ core.Permit) { c.Next() },
		"writes, goes on":  func(c *gin.Context, _ core.Permit) { c.String(200, "come in"); c.Next() },
		"aborts, goes on":  func(c *gin.Context, _ core.Permit) { c.Abort(); c.Next() },
		"aborts by itself": func(c *gin.Context, _ core.Permit) { c.AbortWithStatus(418) },
	} {
		t.Run(name, func(t *testing.T) {
			l := limiter(t, core.Rule{Name: "none", Limit: none})
			router := gin.New()
			router.Use(ginflow.Middleware(l, ginflow.Options{Refuse: hook}))
			ran := 0
			run := func(*gin.Context) { ran++ }
			router.Use(run)
			router.GET("/", run, run)
			ask(router, "GET", "/")
			if ran != 0 {
				t.Fatalf("%d handlers ran", ran)
			}
		})
	}
}

func TestRefuseReplacesTheAnswer(t *testing.T) {
	l := limiter(t, core.Rule{Name: "r", Limit: core.Rate{N: 1, Per: time.Hour}})
	router := gin.New()
	router.Use(ginflow.Middleware(l, ginflow.Options{Refuse: func(c *gin.Context, p core.Permit) {
		c.JSON(http.StatusTeapot, gin.H{"rule": p.Refusal().Rule})
	}}))
	router.GET("/", ok)
	ask(router, "GET", "/")
	res := ask(router, "GET", "/")
	body, _ := io.ReadAll(res.Body)
	if res.StatusCode != 418 || string(body) != `{"rule":"r"}` || res.Header.Get("Retry-After") != "3600" ||
		!strings.HasPrefix(res.Header.Get("Content-Type"), "application/json") {
		t.Fatalf("%s, %q\n%v", res.Status, body, res.Header)
	}
}

// Middlewares outside see the status, and the refusal among the errors.
func TestMiddlewaresOutsideSeeTheRefusal(t *testing.T) {
	l := limiter(t, core.Rule{Name: "none", Limit: none})
	router := gin.New()
	var status int
	var refusal core.Refusal
	router.Use(func(c *gin.Context) {
		c.Next()
		status = c.Writer.Status()
		if err := c.Errors.Last(); !errors.Is(err, core.ErrRefused) || !errors.As(err, &refusal) {
			t.Errorf("errors: %v", c.Errors)
		}
	}, ginflow.Middleware(l, ginflow.Options{}))
	router.GET("/", ok)
	ask(router, "GET", "/")
	if status != 429 || refusal.Rule != "none" {
		t.Fatalf("status %d, refusal %v", status, refusal)
	}
}

// A status that is the server's fault has failed, however gin came to write it; an
// error that was told as the client's has not.
func TestFailedIsWhatIsWrittenAs500OrAbove(t *testing.T) {
	for _, c := range []struct {
		name   string
		end    gin.HandlerFunc
		status int
		failed uint64
	}{
		{"503 with a body", func(c *gin.Context) { c.String(503, "later") }, 503, 1},
		{"a status that is not written yet", func(c *gin.Context) { c.Status(500) }, 500, 1},
		{"an error told as 502", func(c *gin.Context) { c.AbortWithError(502, errors.New("gone")) }, 502, 1},
		{"an error told as 400", func(c *gin.Context) { c.AbortWithError(400, errors.New("bad")) }, 400, 0},
		{"an error that is told to nobody", func(c *gin.Context) { c.Error(errors.New("by the way")) }, 200, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := limiter(t, core.Rule{Name: "one", Limit: core.InFlight{N: 1}})
			router := gin.New()
			router.Use(ginflow.Middleware(l, ginflow.Options{}))
			router.GET("/", c.end)
			if res := ask(router, "GET", "/"); res.StatusCode != c.status {
				t.Errorf("%s, want %d", res.Status, c.status)
			}
			if s := stat(t, l, "one"); s.Failed != c.failed || s.InFlight != 0 {
				t.Errorf("failed %d, want %d; in flight %d", s.Failed, c.failed, s.InFlight)
			}
		})
	}
}

// A panic that gin's own Recovery, further in, turns into a 500 is failed too.
func TestARecoveredPanicHasFailed(t *testing.T) {
	l := limiter(t, core.Rule{Name: "one", Limit: core.InFlight{N: 1}})
	router := gin.New()
	router.Use(ginflow.Middleware(l, ginflow.Options{}), gin.RecoveryWithWriter(io.Discard))
	router.GET("/", func(*gin.Context) { panic("at the disco") })
	if res := ask(router, "GET", "/"); res.StatusCode != 500 {
		t.Fatal(res.Status)
	}
	if s := stat(t, l, "one"); s.Failed != 1 || s.InFlight != 0 {
		t.Fatalf("failed %d, in flight %d", s.Failed, s.InFlight)
	}
}

// A context that ends is no refusal, before the decision or while the request waits:
// no hook is asked and nothing is told but a status; those outside see the context's
// error, and that the request is aborted.
func TestADoneContextIsNoRefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, core.Rule{Name: "one", Limit: core.InFlight{N: 1}, Queue: core.Queue{Len: 1, Wait: time.Hour}})
		holds, _ := l.Try(core.Request{})
		defer holds.Release()
		router := gin.New()
		outside := 0
		router.Use(func(c *gin.Context) {
			c.Next()
			outside++
			if err := c.Errors.Last(); !c.IsAborted() || !errors.Is(err, context.Canceled) || errors.Is(err, core.ErrRefused) || len(c.Writer.Header()) != 0 {
				t.Errorf("aborted: %v; errors %v, headers %v", c.IsAborted(), c.Errors, c.Writer.Header())
			}
		}, ginflow.Middleware(l, ginflow.Options{
			Headers: nethttpflow.HeadersAlways,
			Refuse:  func(*gin.Context, core.Permit) { t.Error("refused") },
		}))
		router.GET("/", func(*gin.Context) { t.Error("the handler ran") })
		for _, ends := range []time.Duration{0, time.Minute} {
			ctx, cancel := context.WithCancel(t.Context())
			if ends == 0 {
				cancel()
			} else {
				time.AfterFunc(ends, cancel)
			}
			if res := ask(router, "GET", "/", func(r *http.Request) { *r = *r.WithContext(ctx) }); res.StatusCode != 503 {
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
		router := gin.New()
		router.Use(ginflow.Middleware(l, ginflow.Options{
			Status:  func(core.Permit) int { return 503 },
			Headers: nethttpflow.HeadersAlways,
			Legacy:  nethttpflow.LegacyXDelta,
		}))
		router.GET("/", ok)
		for _, want := range []int{200, 503} {
			res := ask(router, "GET", "/")
			if res.StatusCode != want || res.Header.Get("RateLimit") != `"r";r=0;t=60` || res.Header.Get("X-RateLimit-Reset") != "60" {
				t.Fatalf("%s, want %d\n%v", res.Status, want, res.Header)
			}
		}
	})
}

func TestWrongOptionsPanicWhenTheMiddlewareIsMade(t *testing.T) {
	l := limiter(t)
	of := func(*gin.Context) string { return "" }
	for want, build := range map[string]func(){
		"ginflow: the limiter is nil": func() { ginflow.Middleware(nil, ginflow.Options{}) },
		"ginflow: Options.Keys[0] lacks its By or its Of; want both": func() {
			ginflow.Middleware(l, ginflow.Options{Keys: []ginflow.Key{{Of: of}}})
		},
		"ginflow: Options.Keys[1] lacks its By or its Of; want both": func() {
			ginflow.Middleware(l, ginflow.Options{Keys: []ginflow.Key{ginflow.Peer(), {By: "a"}}})
		},
		`ginflow: two of Options.Keys are By "ip"; want one, since of two only the first would count`: func() {
			ginflow.Middleware(l, ginflow.Options{Keys: []ginflow.Key{ginflow.Peer(), {By: "ip", Of: of}}})
		},
		`ginflow: Options.Keys[0] is By "resource", which is the request's own`: func() {
			ginflow.Middleware(l, ginflow.Options{Keys: []ginflow.Key{{By: "resource", Of: of}}})
		},
		`ginflow: Options.Keys[0] is By "a,b", which no rule can name; want no comma, and no space around it`: func() {
			ginflow.Middleware(l, ginflow.Options{Keys: []ginflow.Key{ginflow.Header("a,b", "A")}})
		},
		`ginflow: Options.Keys[0] is By "a ", which no rule can name; want no comma, and no space around it`: func() {
			ginflow.Middleware(l, ginflow.Options{Keys: []ginflow.Key{ginflow.Param("a ", "a")}})
		},
		"ginflow: Options.Headers is 4, which is none of the constants; want 0 to 3": func() {
			ginflow.Middleware(l, ginflow.Options{Headers: nethttpflow.HeadersNever + 1})
		},
		"ginflow: Options.Legacy is 4, which is none of the constants; want 0 to 3": func() {
			ginflow.Middleware(l, ginflow.Options{Legacy: nethttpflow.LegacyDraft06 + 1})
		},
		"ginflow: Param needs the name of the part it reads":        func() { ginflow.Param("a", "") },
		"nethttpflow: Header needs the name of the header it reads": func() { ginflow.Header("a", "") },
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
