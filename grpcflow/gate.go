package grpcflow

import (
	"context"
	"errors"
	"hash/maphash"
	"slices"

	"github.com/exactflow/exactflow/core"
	"github.com/exactflow/exactflow/internal/options"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// A gate is what all the doors of this package have behind them.
type gate struct {
	limiter  *core.Limiter
	o        Options // with Skip
	client   bool    // its errors go to the caller, and not to the wire
	verdicts verdicts
}

// newGate checks the options. A call is known by the given keys if the options
// name none.
func newGate(l *core.Limiter, o Options, keys ...Key) *gate {
	if l == nil {
		panic("grpcflow: the limiter is nil")
	}
	if o.Keys == nil {
		o.Keys = keys
	}
	options.Keys("grpcflow", o.Keys, func(k Key) (string, bool) { return k.By, k.Of != nil })
	options.Constant("grpcflow", "Messages", o.Messages, MessagesBoth)
	o.Keys = slices.Clone(o.Keys)
	if o.Skip == nil {
		o.Skip = SkipHealthAndReflection
	}
	return &gate{limiter: l, o: o, verdicts: verdicts{seed: maphash.MakeSeed()}}
}

// An ask is a call, or a message of one, on its way to the limiter.
type ask struct {
	method string
	on     string // the resource
	target string // of a client's connection; "" for a server
	req    any
}

// call is the ask for a call.
func (g *gate) call(ctx context.Context, method string, req any) ask {
	return ask{method: method, on: g.resource(ctx, method), req: req}
}

func (g *gate) resource(ctx context.Context, method string) string {
	if g.o.Resource != nil {
		return g.o.Resource(ctx, method)
	}
	return method
}

// wait decides. The error is the limiter's, or the context's.
func (g *gate) wait(ctx context.Context, a ask) (core.Permit, error) {
	var few [5]core.Key // on the stack: the limiter copies what it keeps
	r := g.request(ctx, a, few[:0])
	if g.o.Cost != nil {
		r.Cost = g.o.Cost(ctx, a.method, a.req)
	}
	return g.limiter.Wait(ctx, r)
}

// peek looks whether wait would refuse even one unit.
func (g *gate) peek(ctx context.Context, a ask) (core.Permit, bool) {
	var few [5]core.Key
	return g.limiter.Peek(g.request(ctx, a, few[:0]))
}

// request is all but the cost. The keys are put into the room.
func (g *gate) request(ctx context.Context, a ask, room []core.Key) core.Request {
	if a.target != "" {
		room = append(room, core.Key{By: target, Value: a.target})
	}
	for _, k := range g.o.Keys {
		room = append(room, core.Key{By: k.By, Value: k.Of(ctx)})
	}
	r := core.Request{On: a.on, Keys: room}
	if g.o.Priority != nil {
		r.Priority = g.o.Priority(ctx, a.method, a.req)
	}
	return r
}

// admit decides. The error is what the call ends with.
func (g *gate) admit(ctx context.Context, a ask) (core.Permit, error) {
	permit, err := g.wait(ctx, a)
	switch {
	case err == nil:
		return permit, nil
	case errors.Is(err, core.ErrRefused):
		return permit, g.refuse(ctx, permit)
	}
	return permit, status.FromContextError(err).Err()
}

// done ends what was admitted.
func done(permit core.Permit, fail bool) {
	if fail {
		permit.Fail()
	}
	permit.Release()
}

// failed reports that the error is a server's fault: the codes that OpenTelemetry
// counts as errors of the server. The code is the one that grpc-go is going to
// send, which knows the errors of package context, and takes others for Unknown.
func failed(err error) bool {
	if err == nil {
		return false
	}
	st, ok := status.FromError(err)
	if !ok {
		st = status.FromContextError(err)
	}
	switch st.Code() {
	case codes.Unknown, codes.DeadlineExceeded, codes.Unimplemented,
		codes.Internal, codes.Unavailable, codes.DataLoss:
		return true
	}
	return false
}
