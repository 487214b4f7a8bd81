package grpcflow

import (
	"context"

	"github.com/exactflow/exactflow/core"
	"google.golang.org/grpc"
)

// UnaryServerInterceptor limits unary calls: the handler runs if the limiter
// admits the call, and holds its permit until it returns. If the call's context
// is done first, the call ends as Canceled or DeadlineExceeded. A nil limiter,
// and keys that cannot work, panic here and not later.
func UnaryServerInterceptor(l *core.Limiter, o Options) grpc.UnaryServerInterceptor {
	g := newGate(l, o, Peer())
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (resp any, err error) {
		if g.o.Skip(ctx, info.FullMethod) {
			return handler(ctx, req)
		}
		permit, err := g.admit(ctx, g.call(ctx, info.FullMethod, req))
		if err != nil {
			// It fails without a server's stream, as in somebody's unit test; the
			// refusal stands.
			_ = grpc.SetTrailer(ctx, pushback(ctx, permit))
			return nil, err
		}
		returned := false // else it panicked or called runtime.Goexit, which go on
		defer func() {
			done(permit, !returned || failed(err))
		}()
		resp, err = handler(g.carry(ctx, permit), req)
		returned = true
		return resp, err
	}
}

// StreamServerInterceptor is [UnaryServerInterceptor] for streams: the handler
// holds its permit until it returns, however many messages it reads and writes.
// [Options].Messages asks for these as well.
func StreamServerInterceptor(l *core.Limiter, o Options) grpc.StreamServerInterceptor {
	g := newGate(l, o, Peer())
	return func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) (err error) {
		ctx := ss.Context()
		if g.o.Skip(ctx, info.FullMethod) {
			return handler(srv, ss)
		}
		call := g.call(ctx, info.FullMethod, nil)
		permit, err := g.admit(ctx, call)
		if err != nil {
			ss.SetTrailer(pushback(ctx, permit))
			return err
		}
		var t *talk
		returned := false
		defer func() {
			// Not returned: it panicked or called runtime.Goexit, which go on.
			fail := !returned || failed(err)
			done(permit, fail)
			t.end(fail)
		}()
		if g.o.Carry {
			ss = carried{ss, g.carry(ctx, permit)}
		}
		if t = g.talk(ctx, call); t != nil {
			ss = serverTalk{ss, t}
		}
		err = handler(srv, ss)
		returned = true
		if md := t.pushback(err); md != nil {
			ss.SetTrailer(md)
		}
		return err
	}
}
