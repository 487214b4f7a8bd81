package grpcflow

import (
	"context"

	"github.com/exactflow/exactflow/core"
	"google.golang.org/grpc"
)

// carry is the context with the permit, where that is asked for.
func (g *gate) carry(ctx context.Context, permit core.Permit) context.Context {
	if !g.o.Carry {
		return ctx
	}
	return core.WithPermit(ctx, permit)
}

// A carried stream has a context with its permit.
type carried struct {
	grpc.ServerStream
	ctx context.Context
}

func (c carried) Context() context.Context { return c.ctx }
