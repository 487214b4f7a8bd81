package main

import (
	"context"
	"net"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/exactflow/exactflow/grpcflow"
)

const method = "/flowqps.Load/Work"

// grpc is a server with one method, before which each request gets its witness. The
// descriptor is what generated code would have in it.
func (g guard) grpc(l *load) *grpc.Server {
	var guarded grpc.UnaryServerInterceptor
	if g.flow != nil {
		guarded = grpcflow.UnaryServerInterceptor(g.flow, grpcflow.Options{})
	} else {
		guarded = func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			if !g.xtime.Allow() {
				return nil, status.Error(codes.ResourceExhausted, "rate limit exceeded")
			}
			return handler(ctx, req)
		}
	}

	watched := func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		w := l.watch(ctx)
		defer w.leave()
		return handler(w, req)
	}
	handler := func(ctx context.Context, _ any) (any, error) {
		l.work(witnessOf(ctx))
		return new(emptypb.Empty), nil
	}
	s := grpc.NewServer(grpc.ChainUnaryInterceptor(watched, guarded))
	s.RegisterService(&grpc.ServiceDesc{
		ServiceName: "flowqps.Load",
		HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{{
			MethodName: "Work",
			Handler: func(srv any, ctx context.Context, decode func(any) error, in grpc.UnaryServerInterceptor) (any, error) {
				req := new(emptypb.Empty)
				if err := decode(req); err != nil {
					return nil, err
				}
				return in(ctx, req, &grpc.UnaryServerInfo{Server: srv, FullMethod: method}, handler)
			},
		}},
	}, nil)
	return s
}

// overGRPC runs the server, and asks it over one connection.
func overGRPC(ln net.Listener, s *grpc.Server) (asker, func(), error) {
	conn, err := grpc.NewClient(ln.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		ln.Close()
		return nil, nil, err
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		s.Serve(ln)
	}()
	ask := func() (answer, error) {
		err := conn.Invoke(context.Background(), method, new(emptypb.Empty), new(emptypb.Empty))
		if err == nil {
			return admitted, nil
		}
		refusal := status.Convert(err)
		if refusal.Code() != codes.ResourceExhausted {
			return 0, err
		}
		for _, d := range refusal.Details() {
			if info, ok := d.(*errdetails.ErrorInfo); ok {
				return named(info.Reason == "CONCURRENCY_LIMIT_EXCEEDED"), nil
			}
		}
		return refusedByRate, nil
	}
	return ask, func() {
		conn.Close()
		s.Stop()
		<-served
	}, nil
}
