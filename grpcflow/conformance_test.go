package grpcflow_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/exactflow/exactflow/core"
	"github.com/exactflow/exactflow/flowtest"
	"github.com/exactflow/exactflow/grpcflow"
)

// Unary calls, streams, and both on one limiter: route 0 is unary then, and route 1
// a stream.
func TestConformance(t *testing.T) {
	for name, methods := range map[string][2]string{
		"unary":  {unaryMethod, "/test.Other/Unary"},
		"stream": {streamMethod, "/test.Other/Stream"},
		"both":   {unaryMethod, streamMethod},
	} {
		t.Run(name, func(t *testing.T) {
			flowtest.Run(t, flowtest.Adapter{
				Resources: methods,
				Serve: func(t testing.TB, l *core.Limiter, o flowtest.Options, h flowtest.Handler) flowtest.Server {
					return serve(t, methods, l, o, h)
				},
			})
		})
	}
}

func serve(t testing.TB, methods [2]string, l *core.Limiter, o flowtest.Options, h flowtest.Handler) flowtest.Server {
	handle := func(ctx context.Context) error {
		switch h(ctx, header(ctx)) {
		case flowtest.ClientError:
			return status.Error(codes.NotFound, "the handler's")
		case flowtest.ServerError:
			return status.Error(codes.Internal, "the handler's")
		}
		return nil
	}
	both := service{
		unary:  func(ctx context.Context, _ *text) error { return handle(ctx) },
		stream: func(ss grpc.ServerStream) error { return handle(ss.Context()) },
	}
	var server *grpc.Server
	conn := backend{
		server: []grpc.ServerOption{
			grpc.ChainUnaryInterceptor(recoverUnary, grpcflow.UnaryServerInterceptor(l, options(o))),
			grpc.ChainStreamInterceptor(recoverStream, grpcflow.StreamServerInterceptor(l, options(o))),
		},
		also: func(s *grpc.Server) {
			server = s
			both.register(other{s})
		},
	}.start(t, both)
	return flowtest.Server{
		Shutdown: server.GracefulStop,
		Call: func(ctx context.Context, c flowtest.Call) flowtest.Answer {
			for name, value := range c.Header {
				ctx = metadata.AppendToOutgoingContext(ctx, name, value)
			}
			return read(ask(ctx, conn, methods[c.Route]))
		},
	}
}

// other registers a service a second time, as test.Other.
type other struct{ grpc.ServiceRegistrar }

func (o other) RegisterService(d *grpc.ServiceDesc, impl any) {
	d.ServiceName = "test.Other"
	unary := d.Methods[0].Handler
	d.Methods[0].Handler = func(srv any, ctx context.Context, decode func(any) error, in grpc.UnaryServerInterceptor) (any, error) {
		return unary(srv, ctx, decode, func(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			info.FullMethod = "/test.Other/Unary"
			return in(ctx, req, info, next)
		})
	}
	o.ServiceRegistrar.RegisterService(d, impl)
}

func header(ctx context.Context) flowtest.Header {
	return func(name string) string {
		if v := metadata.ValueFromIncomingContext(ctx, name); len(v) > 0 {
			return v[0]
		}
		return ""
	}
}

func options(o flowtest.Options) grpcflow.Options {
	options := grpcflow.Options{Carry: o.Carry}
	for _, k := range o.Keys {
		options.Keys = append(options.Keys, grpcflow.Key{By: k.By, Of: flowtest.Lift(k.Of, header)})
	}
	if o.Resource != nil {
		options.Resource = func(ctx context.Context, _ string) string { return o.Resource(header(ctx)) }
	}
	if o.Skip != nil {
		options.Skip = func(ctx context.Context, _ string) bool { return o.Skip(header(ctx)) }
	}
	if o.Cost != nil {
		options.Cost = func(ctx context.Context, _ string, _ any) int { return o.Cost(header(ctx)) }
	}
	if o.Priority != nil {
		options.Priority = func(ctx context.Context, _ string, _ any) core.Priority { return o.Priority(header(ctx)) }
	}
	return options
}

// ask is one call to its end, and the trailer.
func ask(ctx context.Context, conn *grpc.ClientConn, method string) (metadata.MD, error) {
	if strings.HasSuffix(method, "/Unary") {
		var trailer metadata.MD
		err := conn.Invoke(ctx, method, new(text), new(text), grpc.Trailer(&trailer))
		return trailer, err
	}
	cs, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
	if err != nil {
		return nil, err
	}
	if err = cs.RecvMsg(new(text)); err == io.EOF {
		err = nil
	}
	return cs.Trailer(), err
}

// read makes an answer of what a client gets: of a refusal the status's details and
// the pushback agree.
func read(trailer metadata.MD, err error) flowtest.Answer {
	st := status.Convert(err)
	switch st.Code() {
	case codes.OK:
		return flowtest.Answer{Outcome: flowtest.OK}
	case codes.NotFound:
		return flowtest.Answer{Outcome: flowtest.ClientError}
	case codes.Internal:
		return flowtest.Answer{Outcome: flowtest.ServerError}
	case codes.Canceled, codes.DeadlineExceeded:
		return flowtest.Answer{Outcome: flowtest.Canceled}
	case codes.ResourceExhausted:
	default:
		return flowtest.Answer{Outcome: flowtest.Broken, Err: err}
	}
	a := flowtest.Answer{Outcome: flowtest.Refused}
	var quota, reason string
	for _, d := range st.Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			a.Rule, reason = d.Metadata["rule"], d.Reason
		case *errdetails.QuotaFailure:
			quota = d.Violations[0].QuotaId
		case *errdetails.RetryInfo:
			a.RetryAfter, a.Known = d.RetryDelay.AsDuration(), true
		}
	}
	pushbacks := trailer.Get(pushback)
	want := []string(nil)
	switch {
	case a.Known:
		want = []string{strconv.FormatInt(int64((a.RetryAfter+time.Millisecond-1)/time.Millisecond), 10)}
	case reason == "REQUEST_EXCEEDS_LIMIT": // do not come back
		want = []string{"-1"}
	}
	if quota != a.Rule || a.Rule == "" || !slices.Equal(pushbacks, want) {
		return flowtest.Answer{Outcome: flowtest.Broken, Err: fmt.Errorf("%w, details %v, pushback %q; want the rule in two details, and %q", err, st.Details(), pushbacks, want)}
	}
	return a
}

// recoverUnary keeps the server from a handler's panic.
func recoverUnary(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (_ any, err error) {
	defer recovered(&err)
	return next(ctx, req)
}

func recoverStream(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) (err error) {
	defer recovered(&err)
	return next(srv, ss)
}

// errPanic stands for a panic.
var errPanic = errors.New("a panic")

func recovered(err *error) {
	if p := recover(); p != nil {
		*err = status.Error(codes.Internal, errPanic.Error())
	}
}
