// Package gmtest puts grpcflow's Limiter behind the interceptors it is made for,
// those of go-grpc-middleware. It is a module of its own, so that nobody else needs
// that one.
package gmtest

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/ratelimit"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/exactflow/exactflow/core"
	"github.com/exactflow/exactflow/grpcflow"
)

var _ ratelimit.Limiter = grpcflow.Limiter{}

// Calls pass as the rules of their method say; the next one is refused in the
// middleware's words, which name the rule and the wait, and with our pushback.
func TestTheMiddlewareHoldsOurRates(t *testing.T) {
	l, err := core.New(
		core.Rule{Name: "check", On: "/grpc.health.v1.Health/Check", Limit: core.Rate{N: 2, Per: time.Hour}},
		core.Rule{Name: "watch", On: "/grpc.health.v1.Health/Watch", Limit: core.Rate{N: 1, Per: time.Hour}},
	)
	if err != nil {
		t.Fatal(err)
	}
	limiter := grpcflow.NewLimiter(l, grpcflow.Options{Skip: func(context.Context, string) bool { return false }})
	server := grpc.NewServer(
		grpc.ChainUnaryInterceptor(ratelimit.UnaryServerInterceptor(limiter)),
		grpc.ChainStreamInterceptor(ratelimit.StreamServerInterceptor(limiter)),
	)
	healthpb.RegisterHealthServer(server, health.NewServer())
	lis := bufconn.Listen(1 << 16)
	go server.Serve(lis)
	defer server.Stop()
	conn, err := grpc.NewClient("passthrough:///memory",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	client := healthpb.NewHealthClient(conn)

	check := func() (metadata.MD, error) {
		var trailer metadata.MD
		_, err := client.Check(t.Context(), &healthpb.HealthCheckRequest{}, grpc.Trailer(&trailer))
		return trailer, err
	}
	watch := func() (metadata.MD, error) {
		cs, err := client.Watch(t.Context(), &healthpb.HealthCheckRequest{})
		if err != nil {
			return nil, err
		}
		if _, err = cs.Recv(); err != nil {
			return cs.Trailer(), err
		}
		return nil, nil
	}
	for _, tt := range []struct {
		rule string
		n    int
		ask  func() (metadata.MD, error)
	}{{"check", 2, check}, {"watch", 1, watch}} {
		for range tt.n {
			if _, err := tt.ask(); err != nil {
				t.Errorf("%s: %v", tt.rule, err)
			}
		}
		trailer, err := tt.ask()
		if status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), `rule "`+tt.rule+`": rate, retry after 59m`) {
			t.Errorf("%s: %v", tt.rule, err)
		}
		if len(trailer["grpc-retry-pushback-ms"]) != 1 {
			t.Errorf("%s: the trailer is %v", tt.rule, trailer)
		}
		if len(status.Convert(err).Details()) != 0 {
			t.Errorf("%s: the details are kept, so the documentation is wrong", tt.rule)
		}
	}
	for _, s := range l.Stats() {
		if s.Refused[core.ReasonRate] != 1 {
			t.Errorf("%+v", s)
		}
	}
}
