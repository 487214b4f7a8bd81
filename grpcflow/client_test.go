package grpcflow_test

import (
	"context"
	"errors"
	"io"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/exactflow/exactflow/core"
	"github.com/exactflow/exactflow/grpcflow"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// calling is the two client interceptors on one limiter, with others further in.
func calling(l *core.Limiter, o grpcflow.Options, inner ...grpc.StreamClientInterceptor) []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithChainUnaryInterceptor(grpcflow.UnaryClientInterceptor(l, o)),
		grpc.WithChainStreamInterceptor(append([]grpc.StreamClientInterceptor{grpcflow.StreamClientInterceptor(l, o)}, inner...)...),
	}
}

var (
	bidi     = &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}
	requests = &grpc.StreamDesc{ClientStreams: true}
)

// ends are the two kinds of call, to their end, for clients that may not get a
// stream at all.
func ends(conn *grpc.ClientConn) map[string]func(context.Context) error {
	return map[string]func(context.Context) error{
		"unary": func(ctx context.Context) error { return call(ctx, conn).err },
		"stream": func(ctx context.Context) error {
			cs, err := conn.NewStream(ctx, bidi, streamMethod)
			if err == nil {
				err = cs.RecvMsg(new(text))
			}
			if err == io.EOF {
				return nil
			}
			return err
		},
	}
}

// hang is a stream's handler that does nothing until its client is gone.
func hang(ss grpc.ServerStream) error {
	<-ss.Context().Done()
	return nil
}

// A client opens 20 streams at once against its own limit of 1: one is open, the
// others never reach the server.
func TestOneOfTwentyClientStreamsIsOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, core.Rule{Name: "one", Limit: core.InFlight{N: 1}})
		var reached atomic.Int32
		conn := backend{client: calling(l, grpcflow.Options{})}.start(t, service{stream: func(ss grpc.ServerStream) error {
			reached.Add(1)
			return hang(ss)
		}})
		for round := range 3 {
			ctx, cancel := context.WithCancel(t.Context())
			opened := 0
			for range 20 {
				_, err := conn.NewStream(ctx, bidi, streamMethod)
				switch {
				case err == nil:
					opened++
				case !errors.Is(err, core.ErrRefused):
					t.Error(err)
				}
			}
			synctest.Wait()
			if n := int(reached.Load()); opened != 1 || n != round+1 || stat(l).InFlight != 1 {
				t.Errorf("round %d: %d opened, %d reached the server, %+v", round, opened, n, stat(l))
			}
			cancel()
			synctest.Wait()
			if s := stat(l); s.InFlight != 0 {
				t.Errorf("round %d, after the streams: %+v", round, s)
			}
		}
	})
}

// A client's stream ends in any of many ways, and its slot comes back at the first
// of them and never again, or the next stream would lose its own.
func TestAClientStreamGivesItsSlotBackOnce(t *testing.T) {
	send := func(m any) func(*testing.T, grpc.ClientStream) error {
		return func(_ *testing.T, cs grpc.ClientStream) error { return cs.SendMsg(m) }
	}
	receive := func(_ *testing.T, cs grpc.ClientStream) error { return cs.RecvMsg(new(text)) }
	header := func(t *testing.T, cs grpc.ClientStream) error {
		if md, err := cs.Header(); md != nil || err != nil {
			t.Errorf("the header is %v, %v", md, err)
		}
		return nil
	}
	end := func(code codes.Code) func(grpc.ServerStream) error {
		return func(grpc.ServerStream) error { return status.Error(code, "the end") }
	}
	answer := func(ss grpc.ServerStream) error { return ss.SendMsg(new(text)) }
	for name, tt := range map[string]struct {
		desc   *grpc.StreamDesc
		server func(grpc.ServerStream) error
		ends   func(*testing.T, grpc.ClientStream) error
		around func(cancel func(), conn *grpc.ClientConn, stop func()) // before ends
		code   codes.Code                                              // of the error that ends returns; EOF is OK
		failed uint64
	}{
		"the last message was read":   {bidi, end(codes.OK), receive, nil, codes.OK, 0},
		"the server failed":           {bidi, end(codes.Unavailable), receive, nil, codes.Unavailable, 1},
		"the server said no":          {bidi, end(codes.NotFound), receive, nil, codes.NotFound, 0},
		"the only answer":             {requests, answer, receive, nil, codes.OK, 0},
		"the only answer is an error": {requests, end(codes.Internal), receive, nil, codes.Internal, 1},
		"a message nobody can encode": {bidi, hang, send(7), nil, codes.Internal, 1},
		"no header, for a failure":    {bidi, end(codes.Unavailable), header, nil, codes.OK, 1},
		"no header, for all is well":  {bidi, end(codes.OK), header, nil, codes.OK, 0},
		"the caller has canceled":     {bidi, hang, receive, func(cancel func(), _ *grpc.ClientConn, _ func()) { cancel() }, codes.Canceled, 0},
		"canceled, and nobody reads":  {bidi, hang, nil, func(cancel func(), _ *grpc.ClientConn, _ func()) { cancel() }, codes.OK, 0},
		"late, and nobody reads":      {bidi, hang, nil, func(func(), *grpc.ClientConn, func()) { time.Sleep(time.Hour) }, codes.OK, 1},
		"closed, and nobody reads":    {bidi, hang, nil, func(_ func(), conn *grpc.ClientConn, _ func()) { conn.Close() }, codes.OK, 0},
		"the connection is lost":      {bidi, hang, receive, func(_ func(), _ *grpc.ClientConn, stop func()) { stop() }, codes.Unavailable, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := limiter(t, core.Rule{Name: "one", Limit: core.InFlight{N: 1}})
				var server *grpc.Server
				conn := backend{
					client: calling(l, grpcflow.Options{}),
					also:   func(s *grpc.Server) { server = s },
				}.start(t, service{stream: tt.server})
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				cs, err := conn.NewStream(ctx, tt.desc, streamMethod)
				if err != nil {
					t.Fatal(err)
				}
				if err := cs.CloseSend(); tt.desc == requests && err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				if s := stat(l); s.InFlight != 1 {
					t.Errorf("before the end: %+v", s)
				}
				if tt.around != nil {
					tt.around(cancel, conn, server.Stop)
				}
				if tt.ends != nil {
					if err := tt.ends(t, cs); status.Code(err) != tt.code && !(err == io.EOF && tt.code == codes.OK) {
						t.Errorf("it ended with %v, want %v", err, tt.code)
					}
				} else {
					synctest.Wait()
				}
				if s := stat(l); s.InFlight != 0 || s.Failed != tt.failed || s.Admitted != 1 {
					t.Errorf("after the end: %+v", s)
				}

				// Another one has the slot now.
				other, _ := l.Try(core.Request{})
				_ = cs.RecvMsg(new(text))
				_ = cs.RecvMsg(new(text))
				_, _ = cs.Header()
				cancel()
				_ = conn.Close()
				synctest.Wait()
				if s := stat(l); s.InFlight != 1 || s.Failed != tt.failed {
					t.Errorf("after all the other ends: %+v", s)
				}
				other.Release()
			})
		})
	}
}

// To send, to end what is sent, and to read what is not the last message, is no
// end; nor is it that the server ends a stream that nobody has read to its end.
func TestAClientStreamHoldsItsSlotWhileItTalks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, core.Rule{Name: "one", Limit: core.InFlight{N: 1}})
		conn := backend{client: calling(l, grpcflow.Options{})}.start(t, service{stream: func(ss grpc.ServerStream) error {
			for {
				m := new(text)
				if err := ss.RecvMsg(m); err != nil {
					return status.Error(codes.Aborted, "enough")
				}
				if err := ss.SendMsg(m); err != nil {
					return err
				}
			}
		}})
		cs := open(t, t.Context(), conn)
		held := func(when string) {
			t.Helper()
			synctest.Wait()
			if s := stat(l); s.InFlight != 1 {
				t.Errorf("%s: %+v", when, s)
			}
		}
		for range 3 {
			if err := cs.SendMsg(new(text)); err != nil {
				t.Fatal(err)
			}
			held("sent")
			if md, err := cs.Header(); err != nil || md == nil {
				t.Fatal(md, err)
			}
			held("header")
			if err := cs.RecvMsg(new(text)); err != nil {
				t.Fatal(err)
			}
			held("received")
		}
		if err := cs.CloseSend(); err != nil {
			t.Fatal(err)
		}
		held("all is sent")
		if err := cs.RecvMsg(new(text)); status.Code(err) != codes.Aborted {
			t.Error(err)
		}
		if s := stat(l); s.InFlight != 0 || s.Failed != 0 {
			t.Errorf("%+v", s)
		}

		cs = open(t, t.Context(), conn)
		second, err := conn.NewStream(t.Context(), bidi, streamMethod)
		if !errors.Is(err, core.ErrRefused) {
			t.Errorf("a second stream: %v, %v", second, err)
		}
		if err := conn.Close(); err != nil {
			t.Fatal(err)
		}
		if err := cs.SendMsg(new(text)); err == nil {
			t.Error("it could be sent on a connection that is closed")
		}
		synctest.Wait()
		if s := stat(l); s.InFlight != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// A timeout in the service config ends a stream whose own context never ends, and
// of which nobody asks any more.
func TestAClientStreamEndsByTheServiceConfig(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, core.Rule{Name: "one", Limit: core.InFlight{N: 1}})
		conn := backend{client: append(calling(l, grpcflow.Options{}),
			grpc.WithDefaultServiceConfig(`{"methodConfig":[{"name":[{}],"timeout":"10s"}]}`),
		)}.start(t, service{stream: hang})
		open(t, t.Context(), conn)
		time.Sleep(9 * time.Second)
		if s := stat(l); s.InFlight != 1 {
			t.Errorf("before: %+v", s)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if s := stat(l); s.InFlight != 0 || s.Failed != 1 {
			t.Errorf("after: %+v", s)
		}
	})
}

// SendMsg answers io.EOF when the server has ended the stream: why, RecvMsg tells,
// and the stream holds its slot until it has.
func TestSendingIntoAnEndedStreamIsNoEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, core.Rule{Name: "one", Limit: core.InFlight{N: 1}})
		conn := backend{client: calling(l, grpcflow.Options{})}.start(t, service{stream: func(grpc.ServerStream) error {
			return status.Error(codes.DataLoss, "oops")
		}})
		cs := open(t, t.Context(), conn)
		synctest.Wait()
		if err := cs.SendMsg(new(text)); err != io.EOF {
			t.Fatal(err)
		}
		if s := stat(l); s.InFlight != 1 {
			t.Errorf("%+v", s)
		}
		if err := cs.RecvMsg(new(text)); status.Code(err) != codes.DataLoss {
			t.Error(err)
		}
		if s := stat(l); s.InFlight != 0 || s.Failed != 1 {
			t.Errorf("%+v", s)
		}
	})
}

// A server that is gone ends a stream for who asks whether it has ended. Nobody is
// told who does not, nor by SendMsg, nor by a header that had come before.
func TestAServerThatIsGoneEndsAStreamForWhoAsks(t *testing.T) {
	greet := func(ss grpc.ServerStream) error { return errors.Join(ss.SendHeader(nil), hang(ss)) }
	header := func(cs grpc.ClientStream) error {
		_, err := cs.Header()
		return err
	}
	for name, tt := range map[string]struct {
		server func(grpc.ServerStream) error
		asks   func(grpc.ClientStream) error
		told   error // the code is enough
		held   int
	}{
		"nobody":               {hang, func(grpc.ClientStream) error { return nil }, nil, 1},
		"who sends":            {hang, func(cs grpc.ClientStream) error { return cs.SendMsg(new(text)) }, io.EOF, 1},
		"who has sent all":     {hang, grpc.ClientStream.CloseSend, nil, 1},
		"who knows the header": {greet, header, nil, 1},
		"who wants a header":   {hang, header, nil, 0},
		"who reads":            {hang, func(cs grpc.ClientStream) error { return cs.RecvMsg(new(text)) }, status.Error(codes.Unavailable, ""), 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := limiter(t, core.Rule{Name: "one", Limit: core.InFlight{N: 1}})
				var server *grpc.Server
				conn := backend{
					client: calling(l, grpcflow.Options{}),
					also:   func(s *grpc.Server) { server = s },
				}.start(t, service{stream: tt.server})
				cs := open(t, t.Context(), conn)
				synctest.Wait()
				server.Stop()
				synctest.Wait()
				if err := tt.asks(cs); status.Code(err) != status.Code(tt.told) {
					t.Errorf("told %v", err)
				}
				synctest.Wait()
				if n := stat(l).InFlight; n != tt.held {
					t.Errorf("%d are held", n)
				}
				if err := conn.Close(); err != nil {
					t.Error(err)
				}
				synctest.Wait()
				if n := stat(l).InFlight; n != 0 {
					t.Errorf("after the ClientConn, %d are held", n)
				}
			})
		})
	}
}

// An interceptor further in that breaks its contract, and returns no stream and no
// error, is handed through, and holds nothing.
func TestAStreamThatIsNoneHoldsNothing(t *testing.T) {
	l := limiter(t, core.Rule{Name: "one", Limit: core.InFlight{N: 1}})
	for _, m := range []grpcflow.Messages{grpcflow.MessagesNone, grpcflow.MessagesBoth} {
		in := grpcflow.StreamClientInterceptor(l, grpcflow.Options{Messages: m})
		ctx := &watched{Context: t.Context(), done: make(chan struct{})}
		cs, err := in(ctx, bidi, nil, streamMethod, func(context.Context, *grpc.StreamDesc, *grpc.ClientConn, string, ...grpc.CallOption) (grpc.ClientStream, error) {
			return nil, nil
		})
		if s := stat(l); cs != nil || err != nil || s.InFlight != 0 || ctx.watchers.Load() != 0 {
			t.Errorf("%v, %v: %+v, %d watch", cs, err, s, ctx.watchers.Load())
		}
	}
}

// scripted is a stream that an interceptor has made of nothing.
type scripted struct {
	grpc.ClientStream
	ends error
}

func (s scripted) RecvMsg(any) error { return s.ends }

// Whatever interceptors further in do, the slot comes back when what the caller
// sees has ended: also if grpc-go never hears of the call.
func TestAClientStreamEndsAsItsCallerSeesIt(t *testing.T) {
	oops := func(context.Context, *grpc.StreamDesc, *grpc.ClientConn, string, grpc.Streamer, ...grpc.CallOption) (grpc.ClientStream, error) {
		panic("oops")
	}
	for name, tt := range map[string]struct {
		inner  grpc.StreamClientInterceptor
		failed uint64
	}{
		"it fails by itself": {func(context.Context, *grpc.StreamDesc, *grpc.ClientConn, string, grpc.Streamer, ...grpc.CallOption) (grpc.ClientStream, error) {
			return nil, status.Error(codes.Unavailable, "not even tried")
		}, 1},
		"it says no": {func(context.Context, *grpc.StreamDesc, *grpc.ClientConn, string, grpc.Streamer, ...grpc.CallOption) (grpc.ClientStream, error) {
			return nil, status.Error(codes.PermissionDenied, "no")
		}, 0},
		"it panics": {oops, 1},
		"it exits": {func(context.Context, *grpc.StreamDesc, *grpc.ClientConn, string, grpc.Streamer, ...grpc.CallOption) (grpc.ClientStream, error) {
			runtime.Goexit()
			return nil, nil
		}, 1},
		"it opens a stream and fails": {func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, next grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			if _, err := next(ctx, desc, cc, method, opts...); err != nil {
				return nil, err
			}
			return nil, status.Error(codes.Internal, "and then it failed")
		}, 1},
		"it answers by itself": {func(context.Context, *grpc.StreamDesc, *grpc.ClientConn, string, grpc.Streamer, ...grpc.CallOption) (grpc.ClientStream, error) {
			return scripted{ends: io.EOF}, nil
		}, 0},
		"grpc-go cannot open it": {func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, next grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			return next(metadata.AppendToOutgoingContext(ctx, "no key", "x"), desc, cc, method, opts...)
		}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := limiter(t, core.Rule{Name: "one", Limit: core.InFlight{N: 1}})
				conn := backend{client: calling(l, grpcflow.Options{}, tt.inner)}.start(t, service{stream: hang})
				var wg sync.WaitGroup
				wg.Go(func() {
					defer func() { _ = recover() }()
					if cs, err := conn.NewStream(t.Context(), bidi, streamMethod); err == nil {
						_ = cs.RecvMsg(new(text))
					}
				})
				wg.Wait()
				if s := stat(l); s.InFlight != 0 || s.Admitted != 1 || s.Failed != tt.failed {
					t.Errorf("%+v", s)
				}
			})
		})
	}
}

// again is an interceptor that opens a stream anew when the server was not
// available, as people's retries do.
func again(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, next grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	cs, err := next(ctx, desc, cc, method, opts...)
	return &reopened{cs, func() (grpc.ClientStream, error) { return next(ctx, desc, cc, method, opts...) }}, err
}

func againUnary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, next grpc.UnaryInvoker, opts ...grpc.CallOption) (err error) {
	for range 5 {
		if err = next(ctx, method, req, reply, cc, opts...); status.Code(err) != codes.Unavailable {
			break
		}
	}
	return err
}

type reopened struct {
	grpc.ClientStream
	open func() (grpc.ClientStream, error)
}

func (r *reopened) RecvMsg(m any) (err error) {
	for range 5 {
		if err = r.ClientStream.RecvMsg(m); status.Code(err) != codes.Unavailable {
			return err
		}
		if r.ClientStream, err = r.open(); err != nil {
			return err
		}
	}
	return err
}

// A call that is tried again further in, by grpc-go or by an interceptor, is one
// call: it holds one slot all the while, and is asked for once.
func TestACallThatIsTriedAgainHoldsOneSlot(t *testing.T) {
	policy := grpc.WithDefaultServiceConfig(`{"methodConfig":[{"name":[{}],"retryPolicy":{
		"maxAttempts":4,"initialBackoff":"1s","maxBackoff":"1s","backoffMultiplier":1,"retryableStatusCodes":["UNAVAILABLE"]}}]}`)
	for name, options := range map[string]func(*core.Limiter) []grpc.DialOption{
		"by grpc-go": func(l *core.Limiter) []grpc.DialOption {
			return append(calling(l, grpcflow.Options{}), policy)
		},
		"by grpc-go, asked for messages": func(l *core.Limiter) []grpc.DialOption {
			return append(calling(l, grpcflow.Options{Messages: grpcflow.MessagesBoth}), policy)
		},
		"by an interceptor": func(l *core.Limiter) []grpc.DialOption {
			return append(calling(l, grpcflow.Options{}, again), grpc.WithChainUnaryInterceptor(againUnary))
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := limiter(t, core.Rule{Name: "one", Limit: core.InFlight{N: 1}})
				var attempts int
				fail := func() error {
					if n := stat(l).InFlight; n != 1 {
						t.Errorf("%d slots are held", n)
					}
					if attempts++; attempts < 4 {
						return status.Error(codes.Unavailable, "try again")
					}
					return nil
				}
				conn := backend{client: options(l)}.start(t, service{
					unary:  func(context.Context, *text) error { return fail() },
					stream: func(grpc.ServerStream) error { return fail() },
				})
				for kind, ask := range ends(conn) {
					attempts = 0
					before := stat(l).Admitted
					if err := ask(t.Context()); err != nil {
						t.Errorf("%s: %v", kind, err)
					}
					if s := stat(l); attempts != 4 || s.Admitted != before+1 || s.InFlight != 0 || s.Failed != 0 {
						t.Errorf("%s: %d attempts, %+v", kind, attempts, s)
					}
				}
			})
		})
	}
}

// A unary call holds its slot until it has ended, in whatever way, and counts as
// failed by the same codes as on a server. That the caller gave up is no failure.
func TestAClientsUnaryCallHoldsItsSlotToTheEnd(t *testing.T) {
	for name, tt := range map[string]struct {
		within time.Duration // 0: canceled after a second
		err    error
		failed uint64
	}{
		"well":      {time.Hour, nil, 0},
		"failed":    {time.Hour, status.Error(codes.Unavailable, ""), 1},
		"said no":   {time.Hour, status.Error(codes.InvalidArgument, ""), 0},
		"too late":  {time.Second, nil, 1},
		"gave up":   {0, nil, 0},
		"plain one": {time.Hour, errors.New("oops"), 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := limiter(t, core.Rule{Name: "one", Limit: core.InFlight{N: 1}})
				conn := backend{client: calling(l, grpcflow.Options{})}.start(t, service{unary: func(context.Context, *text) error {
					if n := stat(l).InFlight; n != 1 {
						t.Errorf("%d slots are held", n)
					}
					time.Sleep(2 * time.Second)
					return tt.err
				}})
				ctx, cancel := context.WithCancel(t.Context())
				if tt.within > 0 {
					ctx, cancel = context.WithTimeout(t.Context(), tt.within)
				} else {
					time.AfterFunc(time.Second, cancel)
				}
				defer cancel()
				a := call(ctx, conn)
				if s := stat(l); s.InFlight != 0 || s.Admitted != 1 || s.Failed != tt.failed {
					t.Errorf("%v: %+v", a.err, s)
				}
			})
		})
	}
}

func TestAClientsUnaryCallGivesItsSlotBackWhenAnInterceptorPanics(t *testing.T) {
	l := limiter(t, core.Rule{Name: "one", Limit: core.InFlight{N: 1}})
	in := grpcflow.UnaryClientInterceptor(l, grpcflow.Options{})
	func() {
		defer func() {
			if p := recover(); p != "oops" {
				t.Errorf("the panic became %v", p)
			}
		}()
		_ = in(t.Context(), unaryMethod, nil, nil, nil, func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error {
			panic("oops")
		})
	}()
	if s := stat(l); s.InFlight != 0 || s.Failed != 1 {
		t.Errorf("%+v", s)
	}
}

// A caller must be able to tell its own limit, which it can do something about,
// from the server's; and code that knows only servers must understand both.
func TestAClientTellsItsOwnLimitFromTheServers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rule := core.Rule{Name: "theirs", Limit: core.Rate{N: 1, Per: time.Minute}}
		theirs, ours := limiter(t, rule), limiter(t, core.Rule{Name: "ours", Limit: core.Rate{N: 4, Per: time.Hour}})
		conn := backend{
			server: both(theirs, grpcflow.Options{}),
			client: calling(ours, grpcflow.Options{}),
		}.start(t, service{})
		for kind, ask := range ends(conn) {
			if err := ask(t.Context()); err != nil {
				t.Fatal(err)
			}
			err := ask(t.Context())
			if wait, ok := grpcflow.RetryAfter(err); status.Code(err) != codes.ResourceExhausted || errors.Is(err, core.ErrRefused) || !ok || wait != time.Minute {
				t.Errorf("%s: the server's limit: %v, %v, %v", kind, err, wait, ok)
			}
			time.Sleep(time.Minute)
		}
		for kind, ask := range ends(conn) {
			err := ask(t.Context())
			var r core.Refusal
			wait, ok := grpcflow.RetryAfter(err)
			if status.Code(err) != codes.ResourceExhausted || !errors.Is(err, core.ErrRefused) || !errors.As(err, &r) ||
				r.Rule != "ours" || r.Reason != core.ReasonRate || !ok || wait != r.RetryAfter || wait != time.Hour-2*time.Minute {
				t.Errorf("%s: our own limit: %v, %+v, %v, %v", kind, err, r, wait, ok)
			}
			if got := err.Error(); got != "rpc error: code = ResourceExhausted desc = rate limit exceeded: ours" {
				t.Errorf("%s: %s", kind, got)
			}
			if got := told(t, err); got["rule"] != "ours" || got["limit"] != "4" {
				t.Errorf("%s: it told %v", kind, got)
			}
		}
		if s := stat(theirs); s.Admitted+s.Refused[core.ReasonRate] != 4 {
			t.Errorf("what we refused reached the server: %+v", s)
		}
	})
}

// A client's Refuse and Status make the error, as a server's do.
func TestAClientsRefusalIsMadeFromOptions(t *testing.T) {
	l := limiter(t, core.Rule{Name: "closed", Limit: core.InFlight{N: 0}})
	fine := errors.New("not today")
	for name, tt := range map[string]struct {
		o    grpcflow.Options
		want func(error) bool
	}{
		"Refuse": {grpcflow.Options{Refuse: func(context.Context, core.Permit) error { return fine }}, func(err error) bool { return err == fine }},
		"Status": {grpcflow.Options{Status: func(core.Permit) codes.Code { return codes.Unavailable }}, func(err error) bool {
			return status.Code(err) == codes.Unavailable && errors.Is(err, core.ErrRefused)
		}},
	} {
		if err := grpcflow.UnaryClientInterceptor(l, tt.o)(t.Context(), unaryMethod, nil, nil, nil, nil); !tt.want(err) {
			t.Errorf("%s, unary: %v", name, err)
		}
		if _, err := grpcflow.StreamClientInterceptor(l, tt.o)(t.Context(), bidi, nil, streamMethod, nil); !tt.want(err) {
			t.Errorf("%s, stream: %v", name, err)
		}
	}
}

// A client that waits for its own limit leaves when its context ends, and passes
// when there is room.
func TestAClientsCallWaitsInItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, core.Rule{Name: "one", Limit: core.InFlight{N: 1}, Queue: core.Queue{Len: 9, Wait: time.Hour}})
		conn := backend{client: calling(l, grpcflow.Options{})}.start(t, service{})
		for kind, ask := range ends(conn) {
			before := stat(l)
			holds, _ := l.Try(core.Request{})
			for _, tt := range []struct {
				end  func(context.Context) (context.Context, context.CancelFunc)
				code codes.Code
			}{
				{func(ctx context.Context) (context.Context, context.CancelFunc) {
					ctx, cancel := context.WithCancel(ctx)
					time.AfterFunc(time.Second, cancel)
					return ctx, cancel
				}, codes.Canceled},
				{func(ctx context.Context) (context.Context, context.CancelFunc) {
					return context.WithTimeout(ctx, time.Second)
				}, codes.DeadlineExceeded},
			} {
				ctx, cancel := tt.end(t.Context())
				defer cancel()
				begin := time.Now()
				if err := ask(ctx); status.Code(err) != tt.code || errors.Is(err, core.ErrRefused) || time.Since(begin) != time.Second {
					t.Errorf("%s: %v after %v, want %v", kind, err, time.Since(begin), tt.code)
				}
			}
			time.AfterFunc(time.Second, holds.Release)
			begin := time.Now()
			if err := ask(t.Context()); err != nil || time.Since(begin) != time.Second {
				t.Errorf("%s: %v after %v", kind, err, time.Since(begin))
			}
			if s := stat(l); s.InFlight != 0 || s.Waiting != 0 || s.Canceled != before.Canceled+2 || len(s.Refused) != 0 {
				t.Errorf("%s: %+v", kind, s)
			}
		}
	})
}

// Calls to several servers, by one limiter, are counted apart by where they go.
func TestAClientsCallsAreKnownByTheirTarget(t *testing.T) {
	l := limiter(t, core.Rule{Name: "per-target", By: "target", Limit: core.Rate{N: 1, Per: time.Hour}})
	unary := grpcflow.UnaryClientInterceptor(l, grpcflow.Options{Keys: []grpcflow.Key{
		{By: "a", Of: func(context.Context) string { return "x" }},
		{By: "b", Of: func(context.Context) string { return "x" }},
	}})
	stream := grpcflow.StreamClientInterceptor(l, grpcflow.Options{})
	memory := backend{}.start(t, service{})
	invoked := func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error { return nil }
	streamed := func(context.Context, *grpc.StreamDesc, *grpc.ClientConn, string, ...grpc.CallOption) (grpc.ClientStream, error) {
		return scripted{ends: io.EOF}, nil
	}
	elsewhere, err := grpc.NewClient("passthrough:///elsewhere", grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer elsewhere.Close()
	for i, tt := range []struct {
		conn *grpc.ClientConn
		want bool
	}{{memory, true}, {memory, false}, {elsewhere, true}, {elsewhere, false}, {nil, true}, {nil, false}} {
		var err error
		if i%2 == 0 {
			err = unary(t.Context(), unaryMethod, nil, nil, tt.conn, invoked)
		} else {
			_, err = stream(t.Context(), bidi, tt.conn, streamMethod, streamed)
		}
		if (err == nil) != tt.want {
			t.Errorf("call %d: %v", i, err)
		}
	}
	if s := stat(l); s.Empty != 2 || s.Admitted != 3 {
		t.Errorf("%+v", s)
	}
}

func TestWrongWiringOfAClientPanicsAtOnce(t *testing.T) {
	l := limiter(t)
	key := func(context.Context) string { return "" }
	for name, f := range map[string]func(){
		"no limiter":           func() { grpcflow.UnaryClientInterceptor(nil, grpcflow.Options{}) },
		"no limiter, streams":  func() { grpcflow.StreamClientInterceptor(nil, grpcflow.Options{}) },
		"a key without its Of": func() { grpcflow.StreamClientInterceptor(l, grpcflow.Options{Keys: []grpcflow.Key{{By: "x"}}}) },
		"a target of one's own": func() {
			grpcflow.UnaryClientInterceptor(l, grpcflow.Options{Keys: []grpcflow.Key{{By: "target", Of: key}}})
		},
		"messages of no kind": func() { grpcflow.StreamClientInterceptor(l, grpcflow.Options{Messages: 9}) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			f()
		}()
	}
}

// A stream costs no goroutine of ours, and one that is skipped costs nothing.
func TestAClientStreamHasNoGoroutine(t *testing.T) {
	l := limiter(t, core.Rule{Name: "many", Limit: core.InFlight{N: 1000}})
	in := grpcflow.StreamClientInterceptor(l, grpcflow.Options{Messages: grpcflow.MessagesBoth})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	next := func(context.Context, *grpc.StreamDesc, *grpc.ClientConn, string, ...grpc.CallOption) (grpc.ClientStream, error) {
		return scripted{}, nil
	}
	before := runtime.NumGoroutine()
	for range 100 {
		if _, err := in(ctx, bidi, nil, streamMethod, next); err != nil {
			t.Fatal(err)
		}
	}
	if n := runtime.NumGoroutine(); n > before || stat(l).InFlight != 100 {
		t.Errorf("%d goroutines for 100 streams, %+v", n-before, stat(l))
	}
	cs, err := in(ctx, bidi, nil, "/grpc.health.v1.Health/Watch", next)
	if _, plain := cs.(scripted); !plain || err != nil || stat(l).Admitted != 100 {
		t.Errorf("a stream that is exempt: %T, %v, %+v", cs, err, stat(l))
	}
}

// A context that outlives its streams must not keep them: none is watched longer
// than it lasts.
func TestAClientStreamLeavesNothingInItsContext(t *testing.T) {
	l := limiter(t, core.Rule{Name: "many", Limit: core.InFlight{N: 1000}})
	for _, m := range []grpcflow.Messages{grpcflow.MessagesNone, grpcflow.MessagesBoth} {
		in := grpcflow.StreamClientInterceptor(l, grpcflow.Options{Messages: m})
		ctx := &watched{Context: t.Context(), done: make(chan struct{})}
		for range 3 {
			cs, err := in(ctx, bidi, nil, streamMethod, func(context.Context, *grpc.StreamDesc, *grpc.ClientConn, string, ...grpc.CallOption) (grpc.ClientStream, error) {
				return scripted{ends: io.EOF}, nil
			})
			if n := ctx.watchers.Load(); err != nil || n != 1 {
				t.Errorf("an open stream: %v, %d watch", err, n)
			}
			if err := cs.RecvMsg(nil); err != io.EOF {
				t.Error(err)
			}
			if n := ctx.watchers.Load(); n != 0 {
				t.Errorf("after the stream, %d watch", n)
			}
		}
	}
}

// A watched context counts who watches it.
type watched struct {
	context.Context
	done     chan struct{}
	watchers atomic.Int32
}

func (w *watched) Done() <-chan struct{} { return w.done }

func (w *watched) AfterFunc(func()) (stop func() bool) {
	w.watchers.Add(1)
	return sync.OnceValue(func() bool {
		w.watchers.Add(-1)
		return true
	})
}

// Many real goroutines on real time, whose streams end in several ways at once.
func TestClientStreamsHoldUnderLoad(t *testing.T) {
	const limit = 3
	l := limiter(t, core.Rule{Name: "few", Limit: core.InFlight{N: limit}, Queue: core.Queue{Len: 100, Wait: time.Minute}})
	conn := backend{client: calling(l, grpcflow.Options{})}.start(t, service{stream: func(ss grpc.ServerStream) error {
		if err := ss.RecvMsg(new(text)); err != nil {
			return err
		}
		return ss.SendMsg(new(text))
	}})
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for range 30 {
				ctx, cancel := context.WithCancel(t.Context())
				cs, err := conn.NewStream(ctx, bidi, streamMethod)
				if err != nil {
					t.Error(err)
					cancel()
					return
				}
				if n := stat(l).InFlight; n > limit {
					t.Errorf("%d in flight, the limit is %d", n, limit)
				}
				if i%2 == 0 {
					go cancel()
				}
				_ = cs.SendMsg(new(text))
				for cs.RecvMsg(new(text)) == nil {
				}
				cancel()
			}
		})
	}
	wg.Wait()
	if s := stat(l); s.InFlight != 0 || s.Admitted != 8*30 {
		t.Errorf("%+v", s)
	}
}
