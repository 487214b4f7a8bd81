package grpcflow_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/exactflow/exactflow/core"
	"github.com/exactflow/exactflow/grpcflow"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/reflection"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
)

// both is the two interceptors on one limiter, with others further out.
func both(l *core.Limiter, o grpcflow.Options, outer ...grpc.UnaryServerInterceptor) []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ChainUnaryInterceptor(append(outer, grpcflow.UnaryServerInterceptor(l, o))...),
		grpc.ChainStreamInterceptor(grpcflow.StreamServerInterceptor(l, o)),
	}
}

// A stream is one call, however long it is open and however much it says.
func TestStreamHoldsItsSlotUntilItsHandlerReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, core.Rule{Name: "one", Limit: core.InFlight{N: 1}})
		conn := backend{server: both(l, grpcflow.Options{})}.start(t, service{stream: func(ss grpc.ServerStream) error {
			for range 60 {
				if err := ss.SendMsg(new(text)); err != nil {
					return err
				}
				time.Sleep(time.Second)
			}
			return nil
		}})

		long := open(t, t.Context(), conn)
		for s := range 60 {
			if err := long.RecvMsg(new(text)); err != nil {
				t.Fatal(err)
			}
			if a := call(t.Context(), conn); status.Code(a.err) != codes.ResourceExhausted {
				t.Errorf("after %d s: a call passed beside the stream: %v", s, a.err)
			}
		}
		if err := long.RecvMsg(new(text)); err != io.EOF {
			t.Error(err)
		}
		if a := call(t.Context(), conn); a.err != nil {
			t.Errorf("after the stream: %v", a.err)
		}
	})
}

// Who stands outside gets the very panic, as without the interceptors.
func TestAPanicGoesOnUnchanged(t *testing.T) {
	l := limiter(t, core.Rule{Name: "one", Limit: core.InFlight{N: 1}})
	value := errors.New("this very one")
	recovered := func(call func()) (got any) {
		defer func() { got = recover() }()
		call()
		return nil
	}
	unary := grpcflow.UnaryServerInterceptor(l, grpcflow.Options{})
	if got := recovered(func() {
		unary(t.Context(), nil, &grpc.UnaryServerInfo{FullMethod: unaryMethod}, func(context.Context, any) (any, error) { panic(value) })
	}); got != value {
		t.Errorf("unary: recovered %v", got)
	}
	stream := grpcflow.StreamServerInterceptor(l, grpcflow.Options{})
	if got := recovered(func() {
		stream(nil, within{nil, t.Context()}, &grpc.StreamServerInfo{FullMethod: streamMethod}, func(any, grpc.ServerStream) error { panic(value) })
	}); got != value {
		t.Errorf("stream: recovered %v", got)
	}
	if s := stat(l); s.Admitted != 2 || s.Failed != 2 || s.InFlight != 0 {
		t.Errorf("%+v", s)
	}
}

// An orchestrator that cannot ask for health restarts the server that is merely
// full; and a health Watch, open for ever, would hold a slot for ever.
func TestHealthAndReflectionAreExempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, core.Rule{Name: "closed", Limit: core.InFlight{N: 0}})
		conn := backend{server: both(l, grpcflow.Options{}), also: func(s *grpc.Server) {
			healthpb.RegisterHealthServer(s, health.NewServer())
			reflection.Register(s)
		}}.start(t, service{})

		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		probe := healthpb.NewHealthClient(conn)
		if _, err := probe.Check(ctx, &healthpb.HealthCheckRequest{}); err != nil {
			t.Error("Check:", err)
		}
		watch, err := probe.Watch(ctx, &healthpb.HealthCheckRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := watch.Recv(); err != nil {
			t.Error("Watch:", err)
		}
		info, err := reflectionpb.NewServerReflectionClient(conn).ServerReflectionInfo(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := info.Send(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}}); err != nil {
			t.Fatal(err)
		}
		if _, err := info.Recv(); err != nil {
			t.Error("reflection:", err)
		}
		if s := stat(l); s.Refused[core.ReasonNever] != 0 {
			t.Errorf("the rule was asked: %+v", s)
		}
		if a := call(ctx, conn); status.Code(a.err) != codes.ResourceExhausted {
			t.Errorf("another method: %v", a.err)
		}
	})
}

// A Skip of one's own stands in the place of the default.
func TestSkipReplacesTheExemption(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, core.Rule{Name: "closed", Limit: core.InFlight{N: 0}})
		o := grpcflow.Options{Skip: func(_ context.Context, method string) bool { return method == unaryMethod }}
		conn := backend{server: both(l, o), also: func(s *grpc.Server) {
			healthpb.RegisterHealthServer(s, health.NewServer())
		}}.start(t, service{})
		if a := call(t.Context(), conn); a.err != nil {
			t.Error(a.err)
		}
		if _, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{}); status.Code(err) != codes.ResourceExhausted {
			t.Error(err)
		}
	})
}

func TestSkipHealthAndReflection(t *testing.T) {
	for method, want := range map[string]bool{
		"/grpc.health.v1.Health/Check":                                   true,
		"/grpc.health.v1.Health/Watch":                                   true,
		"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo":      true,
		"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": true,
		"/grpc.health.v1.Healthy/Check":                                  false,
		"/grpc.reflections.Mirror/Look":                                  false,
		"/shop.grpc.health.v1.Health/Check":                              false,
		"/shop.Catalog/Search":                                           false,
	} {
		if got := grpcflow.SkipHealthAndReflection(t.Context(), method); got != want {
			t.Errorf("%s: %v, want %v", method, got, want)
		}
	}
}

type grpcError struct{ *status.Status }

func (grpcError) Error() string                { return "an error that knows its status" }
func (e grpcError) GRPCStatus() *status.Status { return e.Status }

// What counts as failed is what the client is told, judged as traces judge it.
func TestFailedIsWhatTheClientSeesAsTheServersFault(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, core.Rule{Name: "all", Limit: core.InFlight{N: 10}})
		var fails error
		conn := backend{server: both(l, grpcflow.Options{})}.start(t, service{
			unary:  func(context.Context, *text) error { return fails },
			stream: func(grpc.ServerStream) error { return fails },
		})
		type outcome struct {
			err    error
			code   codes.Code
			failed bool
		}
		outcomes := []outcome{
			{nil, codes.OK, false},
			{errors.New("plain"), codes.Unknown, true},
			{io.EOF, codes.Unknown, true},
			{context.Canceled, codes.Canceled, false},
			{context.DeadlineExceeded, codes.DeadlineExceeded, true},
			{fmt.Errorf("wrapped: %w", context.DeadlineExceeded), codes.DeadlineExceeded, true},
			{fmt.Errorf("wrapped: %w", context.Canceled), codes.Canceled, false},
			{fmt.Errorf("wrapped: %w", status.Error(codes.NotFound, "")), codes.NotFound, false},
			{fmt.Errorf("wrapped: %w", status.Error(codes.DataLoss, "")), codes.DataLoss, true},
			{grpcError{status.New(codes.Internal, "")}, codes.Internal, true},
			{grpcError{status.New(codes.Aborted, "")}, codes.Aborted, false},
			{grpcError{}, codes.Unknown, true},
		}
		for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
			o := outcome{err: status.Error(code, ""), code: code}
			switch code {
			case codes.Unknown, codes.DeadlineExceeded, codes.Unimplemented, codes.Internal, codes.Unavailable, codes.DataLoss:
				o.failed = true
			}
			outcomes = append(outcomes, o)
		}
		for _, o := range outcomes {
			fails = o.err
			before := stat(l).Failed
			if a := call(t.Context(), conn); status.Code(a.err) != o.code {
				t.Errorf("unary %v: the client saw %v, want %v", o.err, status.Code(a.err), o.code)
			}
			err := open(t, t.Context(), conn).RecvMsg(new(text))
			if err == io.EOF {
				err = nil
			}
			if status.Code(err) != o.code {
				t.Errorf("stream %v: the client saw %v, want %v", o.err, status.Code(err), o.code)
			}
			want := uint64(0)
			if o.failed {
				want = 2
			}
			synctest.Wait()
			if got := stat(l).Failed - before; got != want {
				t.Errorf("%v: %d of 2 counted as failed, want %d", o.err, got, want)
			}
		}
	})
}

// The caller's context is what ends a call that nobody refused: the code says so,
// nothing is taken, and the handler does not run.
func TestContextThatIsDoneIsNoRefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, core.Rule{Name: "all", Limit: core.Rate{N: 1, Per: time.Hour}})
		in := grpcflow.UnaryServerInterceptor(l, grpcflow.Options{})
		canceled, cancel := context.WithCancel(t.Context())
		cancel()
		late, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		time.Sleep(2 * time.Second)
		for ctx, want := range map[context.Context]codes.Code{canceled: codes.Canceled, late: codes.DeadlineExceeded} {
			_, err := in(ctx, nil, &grpc.UnaryServerInfo{FullMethod: unaryMethod}, func(context.Context, any) (any, error) {
				t.Error("the handler ran")
				return nil, nil
			})
			if status.Code(err) != want {
				t.Errorf("%v, want %v", err, want)
			}
		}
		if s := stat(l); s.Admitted != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// Keys, cost and priority are made of what the call is: the context that interceptors
// further out have made, and the request, which a stream has not yet.
func TestRequestIsMadeFromOptions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t,
			core.Rule{Name: "unary", On: "Unary", By: "tenant", Limit: core.Rate{N: 7, Per: time.Hour}, Reserve: core.Reserve{Critical: 5}},
			core.Rule{Name: "stream", On: "Stream", Limit: core.Rate{N: 2, Per: time.Hour}},
			core.Rule{Name: "raw", On: "/test.Test/*", Limit: core.InFlight{N: 0}},
		)
		type tenant struct{}
		value := func(ctx context.Context, method string, req any) string {
			switch req := req.(type) {
			case *text:
				if s, ok := ctx.Value(tenant{}).(string); !ok {
					t.Errorf("%s: the context has no tenant: %v", method, s)
				}
				return req.Value
			case nil:
				if method != streamMethod {
					t.Errorf("%s has no request", method)
				}
			default:
				t.Errorf("%s: request %T", method, req)
			}
			return ""
		}
		authenticate := func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			md, _ := metadata.FromIncomingContext(ctx)
			return next(context.WithValue(ctx, tenant{}, md.Get("authorization")[0]), req)
		}
		conn := backend{server: both(l, grpcflow.Options{
			Keys: []grpcflow.Key{{By: "tenant", Of: func(ctx context.Context) string {
				s, _ := ctx.Value(tenant{}).(string)
				return s
			}}},
			Resource: func(_ context.Context, method string) string { return method[len("/test.Test/"):] },
			Cost:     func(ctx context.Context, method string, req any) int { return len(value(ctx, method, req)) }, // "hello"
			Priority: func(ctx context.Context, method string, req any) core.Priority {
				if value(ctx, method, req) == "hello" {
					return core.Critical // its rule keeps 5 for these
				}
				return core.Default
			},
		}, authenticate)}.start(t, service{})

		for _, who := range []string{"a", "b"} {
			ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", who)
			for i, want := range []codes.Code{codes.OK, codes.ResourceExhausted} { // 5 of 7, 10 of 7
				if a := call(ctx, conn); status.Code(a.err) != want {
					t.Errorf("%s, call %d: %v, want %v", who, i, a.err, want)
				}
			}
		}
		for i, want := range []error{io.EOF, io.EOF, nil} {
			if err := open(t, t.Context(), conn).RecvMsg(new(text)); err != want && status.Code(err) != codes.ResourceExhausted {
				t.Errorf("stream %d: %v", i, err)
			}
		}
	})
}

// grpc-go runs no interceptor for what it does not know, so names that clients
// invent reach no rule.
func TestUnknownMethodsReachNoRule(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, core.Rule{Name: "closed", Limit: core.InFlight{N: 0}})
		conn := backend{server: both(l, grpcflow.Options{})}.start(t, service{})
		for _, method := range []string{"/test.Test/Nope", "/nope.Nope/Nope"} {
			if err := conn.Invoke(t.Context(), method, new(text), new(text)); status.Code(err) != codes.Unimplemented {
				t.Errorf("%s: %v", method, err)
			}
		}
		if s := stat(l); s.Refused[core.ReasonNever] != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// A server that lives inside net/http is limited like any other; its peers have
// addresses, its refusals details and the pushback.
func TestLimitsUnderServeHTTP(t *testing.T) {
	l := limiter(t, core.Rule{Name: "per-ip", By: "ip", Limit: core.Rate{N: 0, Per: time.Hour},
		For: map[string]core.Limit{"127.0.0.1": core.Rate{N: 2, Per: time.Hour}}})
	var seen attempts
	server := grpc.NewServer(both(l, grpcflow.Options{}, seen.unary)...)
	service{}.register(server)
	lis, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h2c := new(http.Protocols)
	h2c.SetUnencryptedHTTP2(true)
	web := &http.Server{Handler: server, Protocols: h2c}
	go func() { _ = web.Serve(lis) }()
	defer web.Close()
	conn, err := grpc.NewClient(lis.Addr().String(), append(retries, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()

	if a := call(t.Context(), conn); a.err != nil {
		t.Error(a.err)
	}
	if err := open(t, t.Context(), conn).RecvMsg(new(text)); err != io.EOF {
		t.Error(err)
	}
	// The client has a retry policy. If grpc-go came to send refusals without a
	// header here too, it would wait for an hour, and our docs would be wrong.
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	seen.at = nil
	unary := call(ctx, conn)
	if len(seen.at) != 1 {
		t.Errorf("%d attempts, want 1", len(seen.at))
	}
	cs := open(t, ctx, conn)
	stream := answer{err: cs.RecvMsg(new(text)), trailer: cs.Trailer()}
	for kind, a := range map[string]answer{"unary": unary, "stream": stream} {
		if st := status.Convert(a.err); st.Code() != codes.ResourceExhausted || len(st.Details()) != 3 {
			t.Errorf("%s: %v with %v", kind, a.err, st.Details())
		}
		if got := a.trailer.Get(pushback); len(got) != 1 {
			t.Errorf("%s: pushback %q", kind, got)
		}
	}
}
