package grpcflow_test

import (
	"context"
	"net"
	"testing"

	"github.com/exactflow/exactflow/core"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

const (
	unaryMethod  = "/test.Test/Unary"
	streamMethod = "/test.Test/Stream"
)

type text = wrapperspb.StringValue

// A service is what generated code would register: a unary method and a stream
// in both directions. A nil function returns at once.
type service struct {
	unary  func(context.Context, *text) error
	stream func(grpc.ServerStream) error
}

func (s service) register(to grpc.ServiceRegistrar) {
	to.RegisterService(&grpc.ServiceDesc{
		ServiceName: "test.Test",
		HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{{
			MethodName: "Unary",
			Handler: func(srv any, ctx context.Context, decode func(any) error, in grpc.UnaryServerInterceptor) (any, error) {
				req := new(text)
				if err := decode(req); err != nil {
					return nil, err
				}
				handler := func(ctx context.Context, req any) (any, error) {
					if s.unary != nil {
						if err := s.unary(ctx, req.(*text)); err != nil {
							return nil, err
						}
					}
					return req, nil
				}
				if in == nil {
					return handler(ctx, req)
				}
				return in(ctx, req, &grpc.UnaryServerInfo{Server: srv, FullMethod: unaryMethod}, handler)
			},
		}},
		Streams: []grpc.StreamDesc{{
			StreamName:    "Stream",
			ServerStreams: true,
			ClientStreams: true,
			Handler: func(_ any, ss grpc.ServerStream) error {
				if s.stream == nil {
					return nil
				}
				return s.stream(ss)
			},
		}},
	}, nil)
}

// A backend is a server in memory and a client of it. Both end with the test.
type backend struct {
	server []grpc.ServerOption
	client []grpc.DialOption
	also   func(*grpc.Server) // registers more services
}

func (b backend) start(t testing.TB, s service) *grpc.ClientConn {
	t.Helper()
	server := grpc.NewServer(append(b.server, grpc.WaitForHandlers(true))...)
	s.register(server)
	if b.also != nil {
		b.also(server)
	}
	lis := bufconn.Listen(1 << 16)
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(lis) // ErrServerStopped
	}()
	conn, err := grpc.NewClient("passthrough:///memory", append(b.client,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }),
	)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		server.Stop()
		<-served
	})
	return conn
}

// limiter fails the test if the rules are wrong.
func limiter(t testing.TB, rules ...core.Rule) *core.Limiter {
	t.Helper()
	l, err := core.New(rules...)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// An answer is all that a client gets to see of a unary call.
type answer struct {
	err             error
	header, trailer metadata.MD
}

func call(ctx context.Context, conn *grpc.ClientConn, opts ...grpc.CallOption) answer {
	var a answer
	opts = append(opts, grpc.Header(&a.header), grpc.Trailer(&a.trailer))
	a.err = conn.Invoke(ctx, unaryMethod, wrapperspb.String("hello"), new(text), opts...)
	return a
}

// open opens a stream; it is refused, if it is, at the first message.
func open(t testing.TB, ctx context.Context, conn *grpc.ClientConn) grpc.ClientStream {
	t.Helper()
	cs, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, streamMethod)
	if err != nil {
		t.Fatal(err)
	}
	return cs
}

// stat is what the only rule has counted.
func stat(l *core.Limiter) core.Stat { return l.Stats()[0] }

// A contextStream is nothing but its context.
type contextStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s contextStream) Context() context.Context { return s.ctx }

// silent is a stream on which all is well.
type silent struct{ contextStream }

func (silent) RecvMsg(any) error { return nil }
func (silent) SendMsg(any) error { return nil }
