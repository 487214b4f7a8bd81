// Command grpc is a small gRPC service that limits what it serves.
package main

import (
	"context"
	"flag"
	"log"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/exactflow/exactflow/core"
	"github.com/exactflow/exactflow/grpcflow"
)

func main() {
	addr := flag.String("addr", "127.0.0.1:8080", "listen on this `address`")
	flag.Parse()
	ln, err := net.Listen("tcp", *addr)
	if err != nil {
		log.Fatal(err)
	}
	log.Printf("listening on %s", ln.Addr())
	log.Fatal(serve(ln))
}

func serve(ln net.Listener) error {
	limiter, err := core.New(
		core.Rule{Name: "per-client", By: "ip", Limit: core.Rate{N: 100, Per: time.Minute}},
		core.Rule{Name: "exports", On: "/shop.Orders/Export", Limit: core.Rate{N: 5, Per: time.Minute}},
		core.Rule{Name: "service", Limit: core.InFlight{N: 200}},
	)
	if err != nil {
		return err
	}

	// Health checks pass by the limiter, unless Options.Skip says otherwise.
	server := grpc.NewServer(
		grpc.ChainUnaryInterceptor(grpcflow.UnaryServerInterceptor(limiter, grpcflow.Options{})),
		grpc.ChainStreamInterceptor(grpcflow.StreamServerInterceptor(limiter, grpcflow.Options{})),
	)
	RegisterOrdersServer(server, shop{})
	grpc_health_v1.RegisterHealthServer(server, health.NewServer())
	return server.Serve(ln)
}

type shop struct{}

func (shop) Find(_ context.Context, id *Text) (*Text, error) { return id, nil }
func (shop) Export(context.Context, *Text) (*Text, error)    { return new(Text), nil }
