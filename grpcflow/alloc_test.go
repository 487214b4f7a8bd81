//go:build !race

package grpcflow_test

import (
	"context"
	"io"
	"net"
	"testing"
	"time"

	"github.com/exactflow/exactflow/core"
	"github.com/exactflow/exactflow/grpcflow"
	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/tap"
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

// Nor does a client's call, whatever its target is.
func TestAClientsAdmittedCallsAllocateNothing(t *testing.T) {
	l := limiter(t,
		core.Rule{Name: "service", Limit: core.InFlight{N: 100}},
		core.Rule{Name: "per-target", By: "target", Limit: core.Rate{N: 1 << 12, Per: time.Millisecond}},
	)
	in := grpcflow.UnaryClientInterceptor(l, grpcflow.Options{})
	conn := backend{}.start(t, service{})
	var req any = new(text)
	invoker := func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error { return nil }
	ctx := t.Context()
	if n := testing.AllocsPerRun(1000, func() {
		if err := in(ctx, unaryMethod, req, req, conn, invoker); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// What is watched, asked for or carried beside has its price, which the package
// comment tells.
func TestStreamsAllocateNoMoreThanIsSaid(t *testing.T) {
	l := limiter(t, core.Rule{Name: "service", Limit: core.InFlight{N: 100}})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var ended grpc.ClientStream = scripted{ends: io.EOF}
	streamer := func(context.Context, *grpc.StreamDesc, *grpc.ClientConn, string, ...grpc.CallOption) (grpc.ClientStream, error) {
		return ended, nil
	}
	var ss grpc.ServerStream = contextStream{ctx: ctx}
	for _, tt := range []struct {
		o              grpcflow.Options
		client, server float64
	}{
		{grpcflow.Options{}, 6, 0},
		{grpcflow.Options{Messages: grpcflow.MessagesBoth}, 6 + 8, 4},
		{grpcflow.Options{Carry: true}, 6 + 2, 3},
	} {
		client, server := grpcflow.StreamClientInterceptor(l, tt.o), grpcflow.StreamServerInterceptor(l, tt.o)
		if n := testing.AllocsPerRun(1000, func() {
			cs, err := client(ctx, bidi, nil, streamMethod, streamer)
			if err != nil {
				t.Fatal(err)
			}
			if err := cs.RecvMsg(nil); err != io.EOF {
				t.Fatal(err)
			}
		}); n > tt.client {
			t.Errorf("a client's, Messages %v, Carry %v: %v allocations", tt.o.Messages, tt.o.Carry, n)
		}
		info := &grpc.StreamServerInfo{FullMethod: streamMethod}
		if n := testing.AllocsPerRun(1000, func() {
			if err := server(nil, ss, info, func(any, grpc.ServerStream) error { return nil }); err != nil {
				t.Fatal(err)
			}
		}); n > tt.server {
			t.Errorf("a server's, Messages %v, Carry %v: %v allocations", tt.o.Messages, tt.o.Carry, n)
		}
	}
}

// Nor do a stream's messages, nor what the tap lets through.
func TestMessagesAndTheTapAllocateNothing(t *testing.T) {
	l := limiter(t,
		core.Rule{Name: "service", Limit: core.InFlight{N: 100}},
		core.Rule{Name: "per-ip", By: "ip", Limit: core.Rate{N: 1 << 12, Per: time.Millisecond}},
	)
	ctx := peer.NewContext(t.Context(), &peer.Peer{Addr: tcp("192.0.2.7")})
	var m any = new(text)
	in := grpcflow.StreamServerInterceptor(l, grpcflow.Options{Messages: grpcflow.MessagesBoth})
	if err := in(nil, silent{contextStream{ctx: ctx}}, &grpc.StreamServerInfo{FullMethod: streamMethod}, func(_ any, ss grpc.ServerStream) error {
		if n := testing.AllocsPerRun(1000, func() {
			if err := ss.RecvMsg(m); err != nil {
				t.Fatal(err)
			}
			if err := ss.SendMsg(m); err != nil {
				t.Fatal(err)
			}
		}); n != 0 {
			t.Errorf("messages: %v allocations", n)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	handle := grpcflow.InTapHandle(l, grpcflow.Options{Known: ofTest})
	info := &tap.Info{FullMethodName: unaryMethod}
	if n := testing.AllocsPerRun(1000, func() {
		if _, err := handle(ctx, info); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("the tap: %v allocations", n)
	}
}
