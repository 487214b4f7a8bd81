package grpcflow_test

import (
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/exactflow/exactflow/core"
	"github.com/exactflow/exactflow/grpcflow"
	"google.golang.org/grpc"
)

// A handler to whom the permit is carried can say what its return does not: that
// it has failed, what it has cost, and that its work goes on.
func TestAHandlerHasItsPermitWhereItIsCarried(t *testing.T) {
	for kind, way := range map[string]func(func(context.Context)) service{
		"unary": func(f func(context.Context)) service {
			return service{unary: func(ctx context.Context, _ *text) error { f(ctx); return nil }}
		},
		"stream": func(f func(context.Context)) service {
			return service{stream: func(ss grpc.ServerStream) error { f(ss.Context()); return nil }}
		},
	} {
		for _, carry := range []bool{true, false} {
			l := limiter(t,
				core.Rule{Name: "slots", Limit: core.InFlight{N: 9}},
				core.Rule{Name: "rate", Limit: core.Rate{N: 100, Per: time.Hour}})
			var detached core.Permit
			conn := backend{server: both(l, grpcflow.Options{Carry: carry})}.start(t, way(func(ctx context.Context) {
				p := core.PermitFrom(ctx)
				p.Fail()
				if ok := p.Settle(7); !ok {
					t.Errorf("%s: it cannot be settled", kind)
				}
				detached = p.Detach()
			}))
			if err := ends(conn)[kind](t.Context()); err != nil {
				t.Fatal(err)
			}
			s := counts(l)
			if carry && (s["slots"].InFlight != 7 || s["slots"].Failed != 0 || s["slots"].Admitted != 1) {
				t.Errorf("%s: while the work goes on: %+v", kind, s)
			}
			if detached != (core.Permit{}) != carry {
				t.Errorf("%s: carried is %v, the permit is %+v", kind, carry, detached)
			}
			detached.Release()
			want := uint64(0)
			if carry {
				want = 1
			}
			if s := counts(l); s["slots"].InFlight != 0 || s["slots"].Failed != want || s["rate"].Failed != want {
				t.Errorf("%s: after the work: %+v", kind, s)
			}
		}
	}
}

// Without Carry a handler gets the very context and stream that came.
func TestNothingIsWrappedWithoutCarry(t *testing.T) {
	l := limiter(t, core.Rule{Name: "slots", Limit: core.InFlight{N: 9}})
	ctx := t.Context()
	if _, err := grpcflow.UnaryServerInterceptor(l, grpcflow.Options{})(ctx, nil, &grpc.UnaryServerInfo{FullMethod: unaryMethod}, func(got context.Context, _ any) (any, error) {
		if got != ctx {
			t.Errorf("the context is %v", got)
		}
		return nil, nil
	}); err != nil {
		t.Error(err)
	}
	ss := contextStream{ctx: ctx}
	if err := grpcflow.StreamServerInterceptor(l, grpcflow.Options{})(nil, ss, &grpc.StreamServerInfo{FullMethod: streamMethod}, func(_ any, got grpc.ServerStream) error {
		if got != ss {
			t.Errorf("the stream is %v", got)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// With both, the messages are asked for and the stream has its permit.
func TestAPermitIsCarriedBesideMessages(t *testing.T) {
	l := limiter(t, core.Rule{Name: "all", Limit: core.InFlight{N: 9}})
	conn := backend{server: both(l, grpcflow.Options{Carry: true, Messages: grpcflow.MessagesReceived})}.start(t, service{stream: func(ss grpc.ServerStream) error {
		if err := ss.RecvMsg(new(text)); err != nil {
			return err
		}
		core.PermitFrom(ss.Context()).Fail()
		return nil
	}})
	cs := open(t, t.Context(), conn)
	if err := errors.Join(cs.SendMsg(new(text)), cs.RecvMsg(new(text))); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
	if s := stat(l); s.InFlight != 0 || s.Admitted != 2 || s.Failed != 1 {
		t.Errorf("%+v", s)
	}
}

// A client's permit reaches the interceptors further in.
func TestAClientsPermitIsCarriedInwards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, core.Rule{Name: "slots", Limit: core.InFlight{N: 1}})
		var detached core.Permit
		conn := backend{client: append(calling(l, grpcflow.Options{Carry: true},
			func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, next grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
				detached = core.PermitFrom(ctx).Detach()
				return next(ctx, desc, cc, method, opts...)
			}),
			grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, next grpc.UnaryInvoker, opts ...grpc.CallOption) error {
				detached = core.PermitFrom(ctx).Detach()
				return next(ctx, method, req, reply, cc, opts...)
			}))}.start(t, service{})
		for kind, ask := range ends(conn) {
			if err := ask(t.Context()); err != nil {
				t.Fatal(err)
			}
			if n := stat(l).InFlight; n != 1 {
				t.Errorf("%s: %d are held", kind, n)
			}
			detached.Release()
			if n := stat(l).InFlight; n != 0 {
				t.Errorf("%s, released: %d are held", kind, n)
			}
		}
	})
}
