package ginflow_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gin-gonic/gin"
	"google.golang.org/grpc/test/bufconn"

	"github.com/exactflow/exactflow/core"
	"github.com/exactflow/exactflow/ginflow"
)

// What a queue refuses is answered, and told to those outside, as any refusal.
func TestWhatAQueueRefusesIsToldInFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, core.Rule{Name: "service", Limit: core.InFlight{N: 1}, Queue: core.Queue{Len: 1, Wait: time.Minute}})
		if _, ok := l.Try(core.Request{}); !ok {
			t.Fatal("refused")
		}
		router := gin.New()
		reasons := make(chan core.Reason, 2)
		router.Use(func(c *gin.Context) {
			c.Next()
			var refusal core.Refusal
			errors.As(c.Errors.Last(), &refusal)
			reasons <- refusal.Reason
		}, ginflow.Middleware(l, ginflow.Options{}))
		router.GET("/", func(*gin.Context) { t.Error("the handler ran") })

		refused := func(reason core.Reason, detail string) {
			res := ask(router, "GET", "/")
			body, _ := io.ReadAll(res.Body)
			if res.StatusCode != 503 || !strings.Contains(string(body), detail) {
				t.Errorf("%s, %s; want 503, %q", res.Status, body, detail)
			}
			if got := <-reasons; got != reason {
				t.Errorf("outside: %q, want %q", got, reason)
			}
		}
		var wg sync.WaitGroup
		begin := time.Now()
		wg.Go(func() {
			time.Sleep(time.Second)
			refused(core.ReasonQueueFull, `"As many requests wait already as may."`)
		})
		refused(core.ReasonQueueTimeout, `"The wait is longer than it may be."`)
		if took := time.Since(begin); took != time.Minute {
			t.Errorf("it waited %v", took)
		}
		wg.Wait()
	})
}

// A client that hangs up while it waits leaves the line at once. It takes
// nothing, no later handler runs, and nobody is told of a refusal.
func TestAWaitingRequestWhoseClientHasGoneLeaves(t *testing.T) {
	l := limiter(t, core.Rule{Name: "one", Limit: core.InFlight{N: 1}, Queue: core.Queue{Len: 1, Wait: time.Minute}})
	router := gin.New()
	left := make(chan *gin.Context)
	seen := make(chan struct{})
	router.Use(func(c *gin.Context) {
		c.Next()
		left <- c
		<-seen
	}, ginflow.Middleware(l, ginflow.Options{Refuse: func(*gin.Context, core.Permit) { t.Error("refused") }}))
	var ran atomic.Int32
	router.GET("/", func(*gin.Context) { ran.Add(1) })
	server := serve(t, router)

	holds, _ := l.Try(core.Request{})
	ctx, hangUp := context.WithCancel(t.Context())
	gone := make(chan error)
	go func() {
		r, _ := http.NewRequestWithContext(ctx, "GET", server.URL, nil)
		_, err := server.Client().Do(r)
		gone <- err
	}()
	for stat(t, l, "one").Waiting == 0 {
		time.Sleep(time.Millisecond)
	}
	hangUp()
	if err := <-gone; !errors.Is(err, context.Canceled) {
		t.Fatalf("client: %v", err)
	}
	c := <-left
	if err := c.Errors.Last(); !c.IsAborted() || !errors.Is(err, context.Canceled) || errors.Is(err, core.ErrRefused) || len(c.Writer.Header()) != 0 {
		t.Errorf("aborted: %v; errors %v, headers %v", c.IsAborted(), c.Errors, c.Writer.Header())
	}
	seen <- struct{}{}
	if s := stat(t, l, "one"); s.Waiting != 0 || s.Canceled != 1 || s.Admitted != 1 || len(s.Refused) != 0 {
		t.Errorf("afterwards: %+v", s)
	}

	holds.Release()
	go func() { <-left; seen <- struct{}{} }()
	res, err := server.Client().Get(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode != 200 || ran.Load() != 1 {
		t.Errorf("the next: %s; %d handlers ran", res.Status, ran.Load())
	}
}

// A server that is shut down answers all who wait, each in its turn or when its
// time is over, and is done when the last of them is. The bubble sees to it that no
// goroutine is left; its connections are in memory, because a real one would stop
// its clock.
func TestAShutdownEndsWithTheLastWhoWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, core.Rule{Name: "one", Limit: core.InFlight{N: 1}, Queue: core.Queue{Len: 9, Wait: 10 * time.Second}})
		router := gin.New()
		router.Use(ginflow.Middleware(l, ginflow.Options{}))
		router.GET("/", func(*gin.Context) { time.Sleep(4 * time.Second) })
		server := &http.Server{Handler: router}
		ln := bufconn.Listen(1 << 16)
		var served sync.WaitGroup
		served.Go(func() {
			if err := server.Serve(ln); err != http.ErrServerClosed {
				t.Error(err)
			}
		})
		transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return ln.DialContext(ctx) }}
		client := &http.Client{Transport: transport}

		var wg sync.WaitGroup
		var passed, refused atomic.Int32
		for range 10 {
			wg.Go(func() {
				res, err := client.Get("http://in.bubble/")
				if err != nil {
					t.Error(err)
					return
				}
				defer res.Body.Close()
				switch res.StatusCode {
				case 200:
					passed.Add(1)
				case 503:
					refused.Add(1)
				}
			})
		}
		time.Sleep(time.Second)
		if n := stat(t, l, "one").Waiting; n != 9 {
			t.Fatalf("%d wait", n)
		}
		begin := time.Now()
		if err := server.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
		// The third begins after 8 s and ends after 12, of which one is over; Shutdown
		// looks twice a second.
		if took := time.Since(begin); took < 11*time.Second || took > 12*time.Second {
			t.Errorf("it took %v", took)
		}
		wg.Wait()
		served.Wait()
		transport.CloseIdleConnections()
		if passed.Load() != 3 || refused.Load() != 7 {
			t.Errorf("%d passed, %d refused; want 3 and 7", passed.Load(), refused.Load())
		}
		if s := stat(t, l, "one"); s.Waiting != 0 || s.InFlight != 0 || s.Canceled != 0 {
			t.Errorf("%+v", s)
		}
	})
}
