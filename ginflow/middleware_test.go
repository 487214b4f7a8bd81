package ginflow_test

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

	"github.com/gin-gonic/gin"
	"golang.org/x/net/websocket"

	"github.com/exactflow/exactflow/core"
	"github.com/exactflow/exactflow/ginflow"
	"github.com/exactflow/exactflow/nethttpflow"
)

var none = core.Rate{N: 0, Per: time.Second}

// A real client against a real server: what passes, what is refused, and how.
func TestARefusalReachesTheClientInFull(t *testing.T) {
	l := limiter(t, core.Rule{Name: "per-client", By: "ip", Limit: core.Rate{N: 2, Per: time.Hour}})
	router := gin.New()
	router.Use(ginflow.Middleware(l, ginflow.Options{}))
	router.GET("/orders/:id", ok)
	server := serve(t, router)

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
		if !strings.HasPrefix(string(body), `{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded",`) {
			t.Errorf("body %s", body)
		}
	}
}

// A client that is told to wait and does so gets in.
func TestAfterExactlyRetryAfterTheRequestPasses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, core.Rule{Name: "r", By: "ip", Limit: core.Rate{N: 2, Per: 90 * time.Second}})
		router := gin.New()
		router.Use(ginflow.Middleware(l, ginflow.Options{}))
		router.GET("/", ok)
		for range 5 {
			ask(router, "GET", "/")
			time.Sleep(30 * time.Second)
			ask(router, "GET", "/")
			res := ask(router, "GET", "/")
			wait, _ := strconv.Atoi(res.Header.Get("Retry-After"))
			if res.StatusCode != 429 || wait != 60 {
				t.Fatalf("%s, Retry-After %d", res.Status, wait)
			}
			time.Sleep(time.Duration(wait)*time.Second - 1)
			if res := ask(router, "GET", "/"); res.StatusCode != 429 {
				t.Fatalf("a nanosecond early: %s", res.Status)
			}
			time.Sleep(time.Nanosecond)
			if res := ask(router, "GET", "/"); res.StatusCode != 200 {
				t.Fatalf("after Retry-After: %s", res.Status)
			}
			time.Sleep(90 * time.Second)
		}
	})
}

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

// What ends a handler other than returning gives its slot back, goes on, and
// counts as failed; so does a status that is the server's fault.
func TestWhateverEndsTheHandlerGivesThePermitBack(t *testing.T) {
	for _, c := range []struct {
		name   string
		end    gin.HandlerFunc
		panics any
		closed bool
		failed uint64
	}{
		{"panic", func(*gin.Context) { panic("at the disco") }, "at the disco", true, 1},
		{"ErrAbortHandler", func(*gin.Context) { panic(http.ErrAbortHandler) }, http.ErrAbortHandler, true, 1},
		{"Goexit", func(*gin.Context) { runtime.Goexit() }, nil, true, 1},
		{"500", func(c *gin.Context) { c.Status(500) }, nil, false, 1},
		{"503 with a body", func(c *gin.Context) { c.String(503, "later") }, nil, false, 1},
		{"404", func(c *gin.Context) { c.Status(404) }, nil, false, 0},
		{"an error that was told as 400", func(c *gin.Context) { c.AbortWithError(400, errors.New("bad")) }, nil, false, 0},
		{"200", ok, nil, false, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := limiter(t, core.Rule{Name: "one", Limit: core.InFlight{N: 1}})
			router := gin.New()
			outside := make(chan any, 2) // what goes by there
			router.Use(func(c *gin.Context) {
				defer func() {
					went := recover()
					outside <- went
					if went != nil {
						panic(went)
					}
				}()
				c.Next()
			}, ginflow.Middleware(l, ginflow.Options{}))
			router.POST("/end", c.end)
			router.GET("/", ok)
			server := serve(t, router)

			res, err := server.Client().Post(server.URL+"/end", "", nil)
			if err == nil {
				res.Body.Close()
			}
			if closed := err != nil; closed != c.closed {
				t.Fatalf("the connection was closed: %v", err)
			}
			if went := <-outside; went != c.panics {
				t.Fatalf("went on: %v, want %v", went, c.panics)
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

// A request whose context is done is not run, takes nothing, and is not told
// 200.
func TestADoneContextIsNotRun(t *testing.T) {
	l := limiter(t, core.Rule{Name: "r", Limit: core.Rate{N: 1, Per: time.Hour}})
	router := gin.New()
	router.Use(ginflow.Middleware(l, ginflow.Options{}))
	ran := false
	router.GET("/", func(*gin.Context) { ran = true })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	res := ask(router, "GET", "/", func(r *http.Request) { *r = *r.WithContext(ctx) })
	if ran || res.StatusCode != 503 {
		t.Fatalf("ran: %v; %s", ran, res.Status)
	}
	if res := ask(router, "GET", "/"); res.StatusCode != 200 || !ran {
		t.Fatalf("the one unit was taken: %s", res.Status)
	}
}

// A client that hangs up gives the slot back when the handler returns.
func TestAHandlerWhoseClientHasGoneHoldsUntilItReturns(t *testing.T) {
	l := limiter(t, core.Rule{Name: "one", Limit: core.InFlight{N: 1}})
	router := gin.New()
	started, gone, returned := make(chan struct{}), make(chan struct{}), make(chan struct{})
	router.Use(func(c *gin.Context) { c.Next(); close(returned) }, ginflow.Middleware(l, ginflow.Options{}))
	router.GET("/", func(c *gin.Context) {
		close(started)
		<-c.Request.Context().Done()
		<-gone
	})
	server := serve(t, router)
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
	router := gin.New()
	done := make(chan struct{})
	router.Use(func(c *gin.Context) { c.Next(); done <- struct{}{} }, ginflow.Middleware(l, ginflow.Options{}))
	router.GET("/ws", func(c *gin.Context) {
		websocket.Handler(func(c *websocket.Conn) {
			for text := ""; websocket.Message.Receive(c, &text) == nil; {
				websocket.Message.Send(c, text)
			}
		}).ServeHTTP(c.Writer, c.Request)
	})
	server := serve(t, router)
	url := "ws" + strings.TrimPrefix(server.URL, "http") + "/ws"

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

// An event is at the client before the handler returns.
func TestServerSentEventsAreFlushed(t *testing.T) {
	l := limiter(t, core.Rule{Name: "one", Limit: core.InFlight{N: 1}})
	seen := make(chan struct{})
	router := gin.New()
	router.Use(ginflow.Middleware(l, ginflow.Options{}))
	router.GET("/gin", func(c *gin.Context) {
		for range 3 {
			c.SSEvent("tick", "now")
			c.Writer.Flush()
			<-seen // nothing more is sent until the client has seen it
		}
	})
	router.GET("/controller", func(c *gin.Context) {
		for range 3 {
			c.SSEvent("tick", "now")
			if err := http.NewResponseController(c.Writer).Flush(); err != nil {
				t.Error(err)
				return
			}
			<-seen
		}
	})
	server := serve(t, router)
	for _, path := range []string{"/gin", "/controller"} {
		res, err := server.Client().Get(server.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewReader(res.Body)
		for range 3 {
			for _, want := range []string{"event:tick\n", "data:now\n", "\n"} {
				if line, err := lines.ReadString('\n'); line != want {
					t.Fatalf("%s: %q, %v", path, line, err)
				}
			}
			seen <- struct{}{}
		}
		io.Copy(io.Discard, res.Body) // until the handler has returned
		res.Body.Close()
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
	router := gin.New()
	router.Use(ginflow.Middleware(l, ginflow.Options{}))
	router.POST("/upload", ok)
	server := serve(t, router)
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
	router := gin.New()
	router.Use(ginflow.Middleware(l, ginflow.Options{}))
	router.HEAD("/", ok)
	for _, path := range []string{"/", "/unmatched"} {
		res := ask(router, "HEAD", path)
		if body, _ := io.ReadAll(res.Body); res.StatusCode != 429 || len(body) != 0 {
			t.Fatalf("%s: %s, body %q", path, res.Status, body)
		}
	}
}

// A refused request that no route matches gets the refusal, not gin's 404.
func TestUnmatchedRequestsAreRefusedAsOthersAre(t *testing.T) {
	l := limiter(t, core.Rule{Name: "none", Limit: none})
	router := gin.New()
	router.Use(ginflow.Middleware(l, ginflow.Options{}))
	res := ask(router, "GET", "/nowhere")
	body, _ := io.ReadAll(res.Body)
	if res.StatusCode != 429 || !strings.Contains(string(body), `"status":429`) || strings.Contains(string(body), "404") {
		t.Fatalf("%s: %s", res.Status, body)
	}
}

func TestSkipCostAndResource(t *testing.T) {
	l := limiter(t, core.Rule{Name: "r", On: "mine", Limit: core.Rate{N: 10, Per: time.Hour}})
	router := gin.New()
	router.Use(ginflow.Middleware(l, ginflow.Options{
		Skip:     func(c *gin.Context) bool { return c.FullPath() == "/healthz" },
		Cost:     func(c *gin.Context) int { n, _ := strconv.Atoi(c.Query("n")); return n },
		Resource: func(*gin.Context) string { return "mine" },
	}))
	router.GET("/", ok)
	router.GET("/healthz", ok)
	for _, c := range []struct {
		target string
		want   int
	}{{"/?n=7", 200}, {"/?n=4", 429}, {"/?n=3", 200}, {"/", 429}, {"/healthz", 200}} {
		if res := ask(router, "GET", c.target); res.StatusCode != c.want {
			t.Fatalf("%s: %s, want %d", c.target, res.Status, c.want)
		}
	}
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
		"ginflow: Options.Keys[0] lacks its By or its Of": func() {
			ginflow.Middleware(l, ginflow.Options{Keys: []ginflow.Key{{Of: of}}})
		},
		"ginflow: Options.Keys[1] lacks its By or its Of": func() {
			ginflow.Middleware(l, ginflow.Options{Keys: []ginflow.Key{ginflow.Peer(), {By: "a"}}})
		},
		`ginflow: two of Options.Keys are By "ip"`: func() {
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
		"ginflow: Options.Headers is 4, which is none of the constants": func() {
			ginflow.Middleware(l, ginflow.Options{Headers: nethttpflow.HeadersNever + 1})
		},
		"ginflow: Options.Legacy is 4, which is none of the constants": func() {
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

// What Priority says of a request reaches the rules, which keep units for the more
// important ones.
func TestPriorityReachesTheRules(t *testing.T) {
	rule := core.Rule{Name: "r", Limit: core.Rate{N: 3, Per: time.Hour}, Reserve: core.Reserve{Default: 1, Critical: 1}}
	priority := func(c *gin.Context) core.Priority {
		switch c.FullPath() {
		case "/prefetch":
			return core.Sheddable
		case "/pay":
			return core.Critical
		}
		return core.Default
	}
	for _, c := range []struct {
		name     string
		priority func(*gin.Context) core.Priority
		want     string
	}{
		{"as it says", priority, "200 429 200 429 200 429"},
		{"none: all are as important", nil, "200 200 429 429 429 429"},
	} {
		h := gin.New()
		h.Use(ginflow.Middleware(limiter(t, rule), ginflow.Options{Priority: c.priority}))
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
