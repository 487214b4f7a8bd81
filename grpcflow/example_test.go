package grpcflow_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/exactflow/exactflow/core"
	"github.com/exactflow/exactflow/grpcflow"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
)

// The service of the examples is that of health checks, which every module has at
// hand; so Skip says that it is not exempt.
func noneExempt(context.Context, string) bool { return false }

// dial serves the health service in memory and returns a client of it.
func dial(opts ...grpc.ServerOption) (client healthpb.HealthClient, stop func()) {
	return dialWith(nil, opts...)
}

func dialWith(client []grpc.DialOption, opts ...grpc.ServerOption) (_ healthpb.HealthClient, stop func()) {
	server := grpc.NewServer(opts...)
	healthpb.RegisterHealthServer(server, health.NewServer())
	lis := bufconn.Listen(1 << 16)
	go server.Serve(lis)
	conn, err := grpc.NewClient("passthrough:///memory", append(client,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }))...)
	if err != nil {
		panic(err)
	}
	return healthpb.NewHealthClient(conn), func() { conn.Close(); server.Stop() }
}

func ExampleUnaryServerInterceptor() {
	limiter, err := core.New(core.Rule{Name: "per-ip", By: "ip", Limit: core.Rate{N: 2, Per: time.Hour}})
	if err != nil {
		panic(err)
	}
	client, stop := dial(grpc.ChainUnaryInterceptor(
		grpcflow.UnaryServerInterceptor(limiter, grpcflow.Options{Skip: noneExempt}),
	))
	defer stop()

	for range 3 {
		_, err := client.Check(context.Background(), &healthpb.HealthCheckRequest{})
		st := status.Convert(err)
		fmt.Printf("%v %q\n", st.Code(), st.Message())
		for _, d := range st.Details() {
			if info, ok := d.(*errdetails.ErrorInfo); ok {
				fmt.Println(info.Reason, info.Metadata)
			}
		}
	}
	// Output:
	// OK ""
	// OK ""
	// ResourceExhausted "rate limit exceeded: per-ip"
	// RATE_LIMIT_EXCEEDED map[limit:2 rule:per-ip windowSeconds:3600]
}

func ExampleStreamServerInterceptor() {
	limiter, err := core.New(core.Rule{Name: "watchers", On: "/grpc.health.v1.Health/Watch", Limit: core.InFlight{N: 1}})
	if err != nil {
		panic(err)
	}
	client, stop := dial(grpc.ChainStreamInterceptor(
		grpcflow.StreamServerInterceptor(limiter, grpcflow.Options{Skip: noneExempt}),
	))
	defer stop()

	for range 2 { // streams that stay open
		watch, err := client.Watch(context.Background(), &healthpb.HealthCheckRequest{})
		if err != nil {
			panic(err)
		}
		_, err = watch.Recv()
		fmt.Println(status.Code(err))
	}
	fmt.Println("open:", limiter.Stats()[0].InFlight)
	// Output:
	// OK
	// ResourceExhausted
	// open: 1
}

func ExampleOptions() {
	limiter, err := core.New(core.Rule{
		Name: "per-tenant", By: "tenant", Limit: core.Rate{N: 1, Per: time.Hour},
		For: map[string]core.Limit{"gold": core.Rate{N: 2, Per: time.Hour}},
	})
	if err != nil {
		panic(err)
	}
	client, stop := dial(grpc.ChainUnaryInterceptor(
		grpcflow.UnaryServerInterceptor(limiter, grpcflow.Options{
			Keys: []grpcflow.Key{grpcflow.Peer(), grpcflow.Metadata("tenant", "x-tenant")},
			Skip: noneExempt,
			Refuse: func(_ context.Context, refused core.Permit) error {
				return status.Errorf(codes.ResourceExhausted, "no more for now (%s)", refused.Refusal().Rule)
			},
		}),
	))
	defer stop()

	for _, tenant := range []string{"tin", "tin", "gold", "gold", "gold"} {
		ctx := metadata.AppendToOutgoingContext(context.Background(), "x-tenant", tenant)
		_, err := client.Check(ctx, &healthpb.HealthCheckRequest{})
		fmt.Printf("%s: %q\n", tenant, status.Convert(err).Message())
	}
	// Output:
	// tin: ""
	// tin: "no more for now (per-tenant)"
	// gold: ""
	// gold: ""
	// gold: "no more for now (per-tenant)"
}

// A client keeps to what it was promised, before the server has to say so.
func ExampleUnaryClientInterceptor() {
	limiter, err := core.New(core.Rule{Name: "contract", By: "target", Limit: core.Rate{N: 2, Per: time.Hour}})
	if err != nil {
		panic(err)
	}
	client, stop := dialWith([]grpc.DialOption{
		grpc.WithChainUnaryInterceptor(grpcflow.UnaryClientInterceptor(limiter, grpcflow.Options{Skip: noneExempt})),
	})
	defer stop()

	for range 3 {
		_, err := client.Check(context.Background(), &healthpb.HealthCheckRequest{})
		fmt.Println(status.Code(err), errors.Is(err, core.ErrRefused))
	}
	// Output:
	// OK false
	// OK false
	// ResourceExhausted true
}

func ExampleStreamClientInterceptor() {
	limiter, err := core.New(core.Rule{Name: "streams", Limit: core.InFlight{N: 1}})
	if err != nil {
		panic(err)
	}
	client, stop := dialWith([]grpc.DialOption{
		grpc.WithChainStreamInterceptor(grpcflow.StreamClientInterceptor(limiter, grpcflow.Options{Skip: noneExempt})),
	})
	defer stop()

	ctx, hangUp := context.WithCancel(context.Background())
	watch, err := client.Watch(ctx, &healthpb.HealthCheckRequest{})
	fmt.Println("the first:", status.Code(err))
	_, err = client.Watch(ctx, &healthpb.HealthCheckRequest{})
	fmt.Println("beside it:", status.Code(err))
	hangUp()
	for err = nil; err == nil; { // the stream has ended when Recv says so
		_, err = watch.Recv()
	}
	_, err = client.Watch(context.Background(), &healthpb.HealthCheckRequest{})
	fmt.Println("after it:", status.Code(err))
	// Output:
	// the first: OK
	// beside it: ResourceExhausted
	// after it: OK
}

func ExampleRetryAfter() {
	limiter, err := core.New(core.Rule{Name: "per-hour", Limit: core.Rate{N: 1, Per: time.Hour}})
	if err != nil {
		panic(err)
	}
	client, stop := dial(grpc.ChainUnaryInterceptor(
		grpcflow.UnaryServerInterceptor(limiter, grpcflow.Options{Skip: noneExempt}),
	))
	defer stop()

	for range 2 {
		_, err := client.Check(context.Background(), &healthpb.HealthCheckRequest{})
		if wait, ok := grpcflow.RetryAfter(err); ok {
			fmt.Println("again in", wait.Round(time.Minute))
		}
	}
	// Output:
	// again in 1h0m0s
}

func ExampleInTapHandle() {
	limiter, err := core.New(core.Rule{Name: "per-hour", Limit: core.Rate{N: 2, Per: time.Hour}})
	if err != nil {
		panic(err)
	}
	options := grpcflow.Options{Skip: noneExempt}
	client, stop := dial(
		grpc.InTapHandle(grpcflow.InTapHandle(limiter, options)),
		grpc.ChainUnaryInterceptor(grpcflow.UnaryServerInterceptor(limiter, options)),
		grpc.ChainStreamInterceptor(grpcflow.StreamServerInterceptor(limiter, options)),
	)
	defer stop()

	for range 3 {
		_, err := client.Check(context.Background(), &healthpb.HealthCheckRequest{})
		fmt.Println(status.Code(err))
	}
	stat := limiter.Stats()[0]
	fmt.Println(stat.Admitted, "admitted,", stat.Refused[core.ReasonRate], "refused")
	// Output:
	// OK
	// OK
	// ResourceExhausted
	// 2 admitted, 1 refused
}

// One rule bounds how many streams are open, another one how many messages come
// in on all of them. A watch has one: what it is to watch.
func ExampleMessages() {
	limiter, err := core.New(
		core.Rule{Name: "streams", On: "/*", Limit: core.InFlight{N: 100}},
		core.Rule{Name: "messages", On: "received *", Limit: core.Rate{N: 1, Per: time.Hour}},
	)
	if err != nil {
		panic(err)
	}
	client, stop := dial(grpc.ChainStreamInterceptor(
		grpcflow.StreamServerInterceptor(limiter, grpcflow.Options{Skip: noneExempt, Messages: grpcflow.MessagesReceived}),
	))
	defer stop()

	for range 2 {
		watch, err := client.Watch(context.Background(), &healthpb.HealthCheckRequest{})
		if err != nil {
			panic(err)
		}
		_, err = watch.Recv()
		fmt.Println(status.Convert(err).Message())
	}
	for _, stat := range limiter.Stats() {
		fmt.Println(stat.Rule, stat.Admitted)
	}
	// Output:
	//
	// rate limit exceeded: messages
	// streams 2
	// messages 1
}
