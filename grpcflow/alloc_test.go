//go:build !race

package grpcflow_test

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/exactflow/exactflow/core"
	"github.com/exactflow/exactflow/grpcflow"
	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"
)

// What the limiter adds to a call that it admits is time, not garbage.
func TestAdmittedCallsAllocateNothing(t *testing.T) {
	l := limiter(t,
		core.Rule{Name: "service", Limit: core.InFlight{N: 100}},
		core.Rule{Name: "per-ip", By: "ip", Limit: core.Rate{N: 1 << 12, Per: time.Millisecond}},
	)
	unary := grpcflow.UnaryServerInterceptor(l, grpcflow.Options{})
	stream := grpcflow.StreamServerInterceptor(l, grpcflow.Options{})
	var req any = new(text)
	for name, addr := range map[string]net.Addr{
		"IPv4":    tcp("192.0.2.7"),
		"IPv6":    tcp("2001:db8:1:2:3:4:5:6"),
		"as text": textAddr("192.0.2.7:80"),
		"none":    &net.UnixAddr{Name: "@", Net: "unix"},
	} {
		ctx := peer.NewContext(t.Context(), &peer.Peer{Addr: addr})
		info := &grpc.UnaryServerInfo{FullMethod: unaryMethod}
		handler := func(context.Context, any) (any, error) { return req, nil }
		if n := testing.AllocsPerRun(1000, func() {
			if _, err := unary(ctx, req, info, handler); err != nil {
				t.Fatal(err)
			}
		}); n != 0 {
			t.Errorf("unary, %s: %v allocations", name, n)
		}
		var ss grpc.ServerStream = contextStream{ctx: ctx}
		streamInfo := &grpc.StreamServerInfo{FullMethod: streamMethod}
		streamHandler := func(any, grpc.ServerStream) error { return nil }
		if n := testing.AllocsPerRun(1000, func() {
			if err := stream(nil, ss, streamInfo, streamHandler); err != nil {
				t.Fatal(err)
			}
		}); n != 0 {
			t.Errorf("stream, %s: %v allocations", name, n)
		}
	}
}

type contextStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s contextStream) Context() context.Context { return s.ctx }
