package grpcflow_test

import (
	"context"
	"io"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/exactflow/exactflow/core"
	"github.com/exactflow/exactflow/flowtest"
	"github.com/exactflow/exactflow/grpcflow"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
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

// What a queue refuses is told by reason and in words, and paced where the wait is
// known: what is never for the call says so.
func TestWhatIsRefusedIsToldInWords(t *testing.T) {
	for _, tt := range []struct {
		why      core.Reason
		after    time.Duration
		reason   string
		message  string
		pushback []string
	}{
		{core.ReasonNever, 0, "REQUEST_EXCEEDS_LIMIT", "request exceeds the limit: flowtest", []string{"-1"}},
		{core.ReasonInFlight, 0, "CONCURRENCY_LIMIT_EXCEEDED", "concurrency limit exceeded: flowtest", nil},
		{core.ReasonRate, time.Minute, "RATE_LIMIT_EXCEEDED", "rate limit exceeded: flowtest", []string{"60000"}},
		{core.ReasonKeys, 0, "KEY_LIMIT_EXCEEDED", "too many clients at once: flowtest", nil},
		{core.ReasonQueued, 0, "QUEUED", "others wait already: flowtest", nil},
		{core.ReasonQueueFull, 0, "QUEUE_FULL", "too many wait already: flowtest", nil},
		{core.ReasonQueueFull, time.Minute, "QUEUE_FULL", "too many wait already: flowtest", []string{"60000"}},
		{core.ReasonQueueTimeout, 0, "QUEUE_TIMEOUT", "wait too long: flowtest", nil},
		{core.ReasonQueueTimeout, time.Minute, "QUEUE_TIMEOUT", "wait too long: flowtest", []string{"60000"}},
	} {
		t.Run(tt.why.String()+" "+tt.after.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				conn := backend{server: both(flowtest.Refusing(t, tt.why, tt.after), grpcflow.Options{})}.start(t, service{})
				cs := open(t, t.Context(), conn)
				stream := answer{err: cs.RecvMsg(new(text)), trailer: cs.Trailer()}
				for kind, a := range map[string]answer{"unary": call(t.Context(), conn), "stream": stream} {
					st := status.Convert(a.err)
					if st.Code() != codes.ResourceExhausted || st.Message() != tt.message || !slices.Equal(a.trailer.Get(pushback), tt.pushback) {
						t.Errorf("%s: %v, pushback %q; want %q, %q", kind, a.err, a.trailer.Get(pushback), tt.message, tt.pushback)
					}
					info, _ := st.Details()[0].(*errdetails.ErrorInfo)
					if info.GetReason() != tt.reason {
						t.Errorf("%s: reason %q, want %q", kind, info.GetReason(), tt.reason)
					}
				}
			})
		})
	}
}
