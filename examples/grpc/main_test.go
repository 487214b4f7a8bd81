package main

import (
	"errors"
	"net"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// A client may export five times a minute and ask a hundred times in all. What
// is refused by one rule is not counted by another; the health check is always
// fine.
func TestTheServiceKeepsItsRules(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		if err := serve(ln); !errors.Is(err, net.ErrClosed) {
			t.Error(err)
			ln.Close() // so that no client waits for an answer
		}
	}()
	conn, err := grpc.NewClient(ln.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		conn.Close()
		ln.Close()
		<-served
	})

	ask := func(method string, want codes.Code, rule string) {
		t.Helper()
		err := conn.Invoke(t.Context(), method, wrapperspb.String("7"), new(Text))
		if status.Code(err) != want || err != nil && !strings.HasSuffix(err.Error(), rule) {
			t.Fatalf("%s is answered %v; want %v by rule %q", method, err, want, rule)
		}
	}

	for range 5 {
		ask("/shop.Orders/Export", codes.OK, "")
	}
	ask("/shop.Orders/Export", codes.ResourceExhausted, "exports")
	for range 95 {
		ask("/shop.Orders/Find", codes.OK, "")
	}
	ask("/shop.Orders/Find", codes.ResourceExhausted, "per-client")

	health, err := grpc_health_v1.NewHealthClient(conn).Check(t.Context(), new(grpc_health_v1.HealthCheckRequest))
	if err != nil || health.Status != grpc_health_v1.HealthCheckResponse_SERVING {
		t.Errorf("the health check is answered %v, %v", health, err)
	}
}
