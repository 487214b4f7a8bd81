package echoflow_test

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

	"github.com/labstack/echo/v4"
	"google.golang.org/grpc/test/bufconn"

	"github.com/exactflow/exactflow/core"
	"github.com/exactflow/exactflow/echoflow"
)

// What a queue refuses is answered, and told to those outside, as any refusal.
func TestWhatAQueueRefusesIsToldInFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, core.Rule{Name: "service", Limit: core.InFlight{N: 1}, Queue: core.Queue{Len: 1, Wait: time.Minute}})
		if _, ok := l.Try(core.Request{}); !ok {
			t.Fatal("refused")
		}
		e := echo.New()
		reasons := make(chan core.Reason, 2)
		e.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
			return func(c echo.Context) error {
				err := next(c)
				var refusal core.Refusal
				errors.As(err, &refusal)
				reasons <- refusal.Reason
				return err
			}
		}, echoflow.Middleware(l, echoflow.Options{}))
		e.GET("/", func(echo.Context) error { t.Error("the handler ran"); return nil })

		refused := func(reason core.Reason, detail string) {
			res := ask(e, "GET", "/")
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
// nothing, its handler never runs, and nobody is told of a refusal.
func TestAWaitingRequestWhoseClientHasGoneLeaves(t *testing.T) {
	l := limiter(t, core.Rule{Name: "one", Limit: core.InFlight{N: 1}, Queue: core.Queue{Len: 1, Wait: time.Minute}})
	e := echo.New()
	left := make(chan error, 2)
	told := make(chan http.Header, 2)
	e.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			err := next(c)
			told <- c.Response().Header().Clone()
			left <- err
			return err
		}
	}, echoflow.Middleware(l, echoflow.Options{Refuse: func(echo.Context, core.Permit) error { t.Error("refused"); return nil }}))
	var ran atomic.Int32
	e.GET("/", func(echo.Context) error { ran.Add(1); return nil })
	server := serve(t, e)

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
	if h, err := <-told, <-left; !errors.Is(err, context.Canceled) || errors.Is(err, core.ErrRefused) || len(h) != 0 {
		t.Errorf("error %v, headers %v", err, h)
	}
	if s := stat(t, l, "one"); s.Waiting != 0 || s.Canceled != 1 || s.Admitted != 1 || len(s.Refused) != 0 {
		t.Errorf("afterwards: %+v", s)
	}

	holds.Release()
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
		e := echo.New()
		e.HideBanner, e.HidePort = true, true
		e.Use(echoflow.Middleware(l, echoflow.Options{}))
		e.GET("/", func(echo.Context) error { time.Sleep(4 * time.Second); return nil })
		ln := bufconn.Listen(1 << 16)
		e.Listener = ln
		var served sync.WaitGroup
		served.Go(func() {
			if err := e.Start(""); err != http.ErrServerClosed {
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
		if err := e.Shutdown(t.Context()); err != nil {
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
