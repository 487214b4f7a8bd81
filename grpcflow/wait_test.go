package grpcflow_test

import (
	"context"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/exactflow/exactflow/core"
	"github.com/exactflow/exactflow/grpcflow"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// asks are the two kinds of call, to their end.
func asks(t testing.TB, conn *grpc.ClientConn) map[string]func(context.Context) error {
	return map[string]func(context.Context) error{
		"unary": func(ctx context.Context) error { return call(ctx, conn).err },
		"stream": func(ctx context.Context) error {
			if err := open(t, ctx, conn).RecvMsg(new(text)); err != io.EOF {
				return err
			}
			return nil
		},
	}
}

// within is a stream in another context.
type within struct {
	grpc.ServerStream
	ctx context.Context
}

func (w within) Context() context.Context { return w.ctx }

// A call that waits ends when its client goes away or its deadline passes, with
// the code that says which. It takes nothing, its handler never runs, and it is
// no refusal.
func TestAWaitingCallEndsWithItsContext(t *testing.T) {
	type end func(context.Context) (context.Context, context.CancelFunc)
	timeout := func(ctx context.Context) (context.Context, context.CancelFunc) {
		return context.WithTimeout(ctx, 5*time.Second)
	}
	hangUp := func(ctx context.Context) (context.Context, context.CancelFunc) {
		ctx, cancel := context.WithCancel(ctx)
		time.AfterFunc(5*time.Second, cancel)
		return ctx, cancel
	}
	for name, tt := range map[string]struct {
		client, server end
		code           codes.Code   // which the client sees
		ends           []codes.Code // with which the call ends
	}{
		"the client goes away": {hangUp, context.WithCancel, codes.Canceled, []codes.Code{codes.Canceled}},
		// At that instant the client goes away, too.
		"the client's deadline passes": {timeout, context.WithCancel, codes.DeadlineExceeded, []codes.Code{codes.DeadlineExceeded, codes.Canceled}},
		"a server's deadline passes":   {context.WithCancel, timeout, codes.DeadlineExceeded, []codes.Code{codes.DeadlineExceeded}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := limiter(t, core.Rule{Name: "one", Limit: core.InFlight{N: 1}, Queue: core.Queue{Len: 1, Wait: time.Hour}})
				o := grpcflow.Options{Refuse: func(context.Context, core.Permit) error {
					t.Error("refused")
					return nil
				}}
				ends := make(chan error, 1) // of the interceptor, whatever the client makes of it
				ran := 0
				conn := backend{server: []grpc.ServerOption{
					grpc.ChainUnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
						ctx, cancel := tt.server(ctx)
						defer cancel()
						resp, err := next(ctx, req)
						ends <- err
						return resp, err
					}, grpcflow.UnaryServerInterceptor(l, o)),
					grpc.ChainStreamInterceptor(func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
						ctx, cancel := tt.server(ss.Context())
						defer cancel()
						err := next(srv, within{ss, ctx})
						ends <- err
						return err
					}, grpcflow.StreamServerInterceptor(l, o)),
				}}.start(t, service{
					unary:  func(context.Context, *text) error { ran++; return nil },
					stream: func(grpc.ServerStream) error { ran++; return nil },
				})
				for kind, ask := range asks(t, conn) {
					before := stat(l)
					holds, _ := l.Try(core.Request{})
					ctx, cancel := tt.client(t.Context())
					defer cancel()
					begin := time.Now()
					if err := ask(ctx); status.Code(err) != tt.code {
						t.Errorf("%s: the client saw %v, want %v", kind, err, tt.code)
					}
					if err := <-ends; !slices.Contains(tt.ends, status.Code(err)) {
						t.Errorf("%s: the call ended with %v, want %v", kind, err, tt.ends)
					}
					if took := time.Since(begin).Round(time.Millisecond); took != 5*time.Second {
						t.Errorf("%s: it took %v", kind, took)
					}
					s := stat(l)
					if s.Waiting != 0 || s.Canceled != before.Canceled+1 || s.Admitted != before.Admitted+1 || len(s.Refused) != 0 || ran != 0 {
						t.Errorf("%s: %+v; %d handlers ran", kind, s, ran)
					}
					holds.Release()
					if err := ask(t.Context()); err != nil || ran != 1 {
						t.Errorf("%s: the next: %v; %d handlers ran", kind, err, ran)
					}
					<-ends
					ran = 0
				}
			})
		})
	}
}

// A deadline that comes before the wait can end refuses at once, while the
// client still has the time to do something else.
func TestAWaitThatCannotEndBeforeTheDeadlineIsRefusedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, core.Rule{Name: "r", Limit: core.Rate{N: 1, Per: time.Minute}, Queue: core.Queue{Len: 9, Wait: time.Hour}})
		conn := backend{server: both(l, grpcflow.Options{})}.start(t, service{})
		for kind, ask := range asks(t, conn) {
			if err := ask(t.Context()); err != nil {
				t.Fatal(err)
			}
			for _, c := range []struct {
				within, takes time.Duration
				want          codes.Code
			}{{59 * time.Second, 0, codes.ResourceExhausted}, {61 * time.Second, 60 * time.Second, codes.OK}} {
				begin := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), c.within)
				defer cancel()
				err := ask(ctx)
				if took := time.Since(begin); status.Code(err) != c.want || took != c.takes {
					t.Errorf("%s within %v: %v after %v, want %v after %v", kind, c.within, err, took, c.want, c.takes)
				}
			}
			time.Sleep(time.Minute)
		}
		if s := stat(l); s.Refused[core.ReasonQueueTimeout] != 2 || s.Canceled != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// A stream waits before its handler runs, and then holds its slot as any other.
func TestAStreamThatHasWaitedHoldsItsSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, core.Rule{Name: "one", Limit: core.InFlight{N: 1}, Queue: core.Queue{Len: 2, Wait: time.Hour}})
		conn := backend{server: both(l, grpcflow.Options{})}.start(t, service{
			unary: func(context.Context, *text) error { time.Sleep(3 * time.Second); return nil },
			stream: func(ss grpc.ServerStream) error {
				if err := ss.SendMsg(new(text)); err != nil {
					return err
				}
				time.Sleep(time.Minute)
				return nil
			},
		})
		begin := time.Now()
		after := func(what string, err, want error, took time.Duration) {
			t.Helper()
			if since := time.Since(begin); err != want || since != took {
				t.Errorf("%s: %v after %v, want %v after %v", what, err, since, want, took)
			}
		}
		var wg sync.WaitGroup
		wg.Go(func() { after("the call before", call(t.Context(), conn).err, nil, 3*time.Second) })
		synctest.Wait()
		stream := open(t, t.Context(), conn)
		synctest.Wait()
		wg.Go(func() { after("the call behind", call(t.Context(), conn).err, nil, 66*time.Second) })

		after("the first message", stream.RecvMsg(new(text)), nil, 3*time.Second)
		time.Sleep(time.Minute - 1)
		synctest.Wait()
		if s := stat(l); s.InFlight != 1 || s.Waiting != 1 {
			t.Errorf("just before the stream ends: %+v", s)
		}
		after("the stream", stream.RecvMsg(new(text)), io.EOF, 63*time.Second)
		wg.Wait()
	})
}

// A call that fits, but not before those who wait, and that another rule does not
// let wait, is refused by the rule where they wait.
func TestWhoWouldFitButMayNotWaitIsToldThatOthersDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t,
			core.Rule{Name: "service", Limit: core.InFlight{N: 2}, Queue: core.Queue{Len: 1, Wait: time.Hour}},
			core.Rule{Name: "streams", On: streamMethod, Limit: core.Rate{N: 1, Per: time.Minute}})
		o := grpcflow.Options{Cost: func(_ context.Context, method string, _ any) int {
			if method == unaryMethod {
				return 2
			}
			return 1
		}}
		conn := backend{server: both(l, o)}.start(t, service{stream: func(grpc.ServerStream) error { time.Sleep(time.Second); return nil }})
		var wg sync.WaitGroup
		for _, kind := range []string{"stream", "unary"} {
			wg.Go(func() {
				if err := asks(t, conn)[kind](t.Context()); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		cs := open(t, t.Context(), conn)
		err := cs.RecvMsg(new(text))
		if status.Code(err) != codes.ResourceExhausted || !strings.HasSuffix(err.Error(), "others wait already: service") || len(cs.Trailer().Get(pushback)) != 0 {
			t.Errorf("%v, trailer %v", err, cs.Trailer())
		}
		wg.Wait()
	})
}

// A server that is stopped gracefully answers all who wait, each in its turn or
// when its time is over, and is done when the last of them is. The bubble sees to
// it that no goroutine is left.
func TestAGracefulStopEndsWithTheLastWhoWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, core.Rule{Name: "one", Limit: core.InFlight{N: 1}, Queue: core.Queue{Len: 9, Wait: 10 * time.Second}})
		var server *grpc.Server
		work := func() error { time.Sleep(4 * time.Second); return nil }
		conn := backend{server: both(l, grpcflow.Options{}), also: func(s *grpc.Server) { server = s }}.start(t, service{
			unary:  func(context.Context, *text) error { return work() },
			stream: func(grpc.ServerStream) error { return work() },
		})
		var wg sync.WaitGroup
		var passed, refused atomic.Int32
		for _, ask := range asks(t, conn) {
			for range 5 {
				wg.Go(func() {
					switch err := ask(t.Context()); status.Code(err) {
					case codes.OK:
						passed.Add(1)
					case codes.ResourceExhausted:
						refused.Add(1)
					default:
						t.Error(err)
					}
				})
			}
		}
		time.Sleep(time.Second)
		if n := stat(l).Waiting; n != 9 {
			t.Fatalf("%d wait", n)
		}
		begin := time.Now()
		server.GracefulStop()
		// The third begins after 8 s and ends after 12, of which one is over.
		if took := time.Since(begin); took != 11*time.Second {
			t.Errorf("it took %v", took)
		}
		wg.Wait()
		if passed.Load() != 3 || refused.Load() != 7 {
			t.Errorf("%d passed, %d refused; want 3 and 7", passed.Load(), refused.Load())
		}
		if s := stat(l); s.Waiting != 0 || s.InFlight != 0 || s.Canceled != 0 {
			t.Errorf("%+v", s)
		}
	})
}
