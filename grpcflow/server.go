package grpcflow

import (
	"context"
	"errors"
	"hash/maphash"
	"slices"

	"github.com/exactflow/exactflow/core"
	"github.com/exactflow/exactflow/internal/options"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// UnaryServerInterceptor limits unary calls: the handler runs if the limiter
// admits the call, and holds its permit until it returns. If the call's context
// is done first, the call ends as Canceled or DeadlineExceeded. A nil limiter,
// and keys that cannot work, panic here and not later.
func UnaryServerInterceptor(l *core.Limiter, o Options) grpc.UnaryServerInterceptor {
	s := newServer(l, o)
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (resp any, err error) {
		permit, err := s.admit(ctx, info.FullMethod, req)
		if err != nil {
			// It fails without a server's stream, as in somebody's unit test; the
			// refusal stands.
			_ = grpc.SetTrailer(ctx, pushback(ctx, permit))
			return nil, err
		}
		returned := false
		defer func() {
			done(permit, returned, err)
		}()
		resp, err = handler(ctx, req)
		returned = true
		return resp, err
	}
}

// StreamServerInterceptor is [UnaryServerInterceptor] for streams: the handler
// holds its permit until it returns, however many messages it reads and writes.
func StreamServerInterceptor(l *core.Limiter, o Options) grpc.StreamServerInterceptor {
	s := newServer(l, o)
	return func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) (err error) {
		ctx := ss.Context()
		permit, err := s.admit(ctx, info.FullMethod, nil)
		if err != nil {
			ss.SetTrailer(pushback(ctx, permit))
			return err
		}
		returned := false
		defer func() {
			done(permit, returned, err)
		}()
		err = handler(srv, ss)
		returned = true
		return err
	}
}

// A server is what the interceptors share.
type server struct {
	limiter  *core.Limiter
	o        Options // with Keys and Skip
	verdicts verdicts
}

func newServer(l *core.Limiter, o Options) *server {
	if l == nil {
		panic("grpcflow: the limiter is nil")
	}
	if o.Keys == nil {
		o.Keys = []Key{Peer()}
	}
	options.Keys("grpcflow", o.Keys, func(k Key) (string, bool) { return k.By, k.Of != nil })
	o.Keys = slices.Clone(o.Keys)
	if o.Skip == nil {
		o.Skip = SkipHealthAndReflection
	}
	return &server{limiter: l, o: o, verdicts: verdicts{seed: maphash.MakeSeed()}}
}

// admit decides on a call. The error is what the call ends with.
func (s *server) admit(ctx context.Context, method string, req any) (core.Permit, error) {
	if s.o.Skip(ctx, method) {
		return core.Permit{}, nil
	}
	var few [4]core.Key // on the stack: the limiter copies what it keeps
	r := core.Request{On: method, Keys: few[:0]}
	for _, k := range s.o.Keys {
		r.Keys = append(r.Keys, core.Key{By: k.By, Value: k.Of(ctx)})
	}
	if s.o.Resource != nil {
		r.On = s.o.Resource(ctx, method)
	}
	if s.o.Cost != nil {
		r.Cost = s.o.Cost(ctx, method, req)
	}
	if s.o.Priority != nil {
		r.Priority = s.o.Priority(ctx, method, req)
	}
	permit, err := s.limiter.Wait(ctx, r)
	switch {
	case err == nil:
		return permit, nil
	case errors.Is(err, core.ErrRefused):
		return permit, s.refuse(ctx, permit)
	}
	return permit, status.FromContextError(err).Err()
}

// done ends a call that was admitted. returned is false if the handler panicked
// or called runtime.Goexit, which go on.
func done(permit core.Permit, returned bool, err error) {
	if !returned || failed(err) {
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
