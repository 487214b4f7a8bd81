package interop

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/exactflow/exactflow/core"
	"github.com/exactflow/exactflow/nethttpflow"
)

// refuseRPC is an Options.Refuse for handlers of Connect: clients of its protocol,
// of gRPC and of gRPC-Web see resource_exhausted, and others what they always see.
// Without the option, the GET of a browser would be taken for a call.
func refuseRPC() func(http.ResponseWriter, *http.Request, core.Permit) {
	rpc := connect.NewErrorWriter(connect.WithRequireConnectProtocolHeader())
	return func(w http.ResponseWriter, r *http.Request, p core.Permit) {
		if !rpc.IsSupported(r) {
			nethttpflow.Answer{}.Write(w, r, p)
			return
		}
		refusal := p.Refusal()
		err := connect.NewError(connect.CodeResourceExhausted, refusal)
		if refusal.Known {
			if wait, e := connect.NewErrorDetail(&errdetails.RetryInfo{RetryDelay: durationpb.New(refusal.RetryAfter)}); e == nil {
				err.AddDetail(wait)
			}
		}
		rpc.Write(w, r, err) // an error is the client's going away
	}
}

// procedures is an Options.Resource for handlers of Connect: what is called, as a
// gRPC server names it, "/shop.Orders/Export". Others than those of the services are
// one.
func procedures(services ...protoreflect.ServiceDescriptor) func(*http.Request) string {
	known := map[string]bool{}
	for _, s := range services {
		for i := range s.Methods().Len() {
			known["/"+string(s.FullName())+"/"+string(s.Methods().Get(i).Name())] = true
		}
	}
	return func(r *http.Request) string {
		if known[r.URL.Path] {
			return r.URL.Path
		}
		return nethttpflow.Unmatched
	}
}

type (
	in  = grpc_health_v1.HealthCheckRequest
	out = grpc_health_v1.HealthCheckResponse
)

const (
	check = "/grpc.health.v1.Health/Check"
	watch = "/grpc.health.v1.Health/Watch"
)

var health = grpc_health_v1.File_grpc_health_v1_health_proto.Services().ByName("Health")

// service serves all four kinds of procedures, behind the limiter. Two of them are
// no part of the service that procedures knows.
func service(t *testing.T, l *core.Limiter, o nethttpflow.Options) *httptest.Server {
	mux := http.NewServeMux()
	for path, h := range map[string]http.Handler{
		check: connect.NewUnaryHandler(check, func(context.Context, *connect.Request[in]) (*connect.Response[out], error) {
			return connect.NewResponse(&out{}), nil
		}, connect.WithIdempotency(connect.IdempotencyNoSideEffects)),
		watch: connect.NewServerStreamHandler(watch, func(_ context.Context, _ *connect.Request[in], s *connect.ServerStream[out]) error {
			return s.Send(&out{})
		}),
		"/test/Collect": connect.NewClientStreamHandler("/test/Collect", func(_ context.Context, s *connect.ClientStream[in]) (*connect.Response[out], error) {
			for s.Receive() {
			}
			return connect.NewResponse(&out{}), s.Err()
		}),
		"/test/Talk": connect.NewBidiStreamHandler("/test/Talk", func(_ context.Context, s *connect.BidiStream[in, out]) error {
			if _, err := s.Receive(); err != nil {
				return err
			}
			return s.Send(&out{})
		}),
	} {
		mux.Handle(path, h)
	}
	server := httptest.NewUnstartedServer(nethttpflow.Middleware(l, o)(mux))
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	return server
}

// calls are the kinds of calls, each to its end.
var calls = map[string]func(*httptest.Server, ...connect.ClientOption) (http.Header, error){
	"unary": func(s *httptest.Server, o ...connect.ClientOption) (http.Header, error) {
		res, err := connect.NewClient[in, out](s.Client(), s.URL+check, o...).CallUnary(context.Background(), connect.NewRequest(&in{}))
		if err != nil {
			return nil, err
		}
		return res.Header(), nil
	},
	"server stream": func(s *httptest.Server, o ...connect.ClientOption) (http.Header, error) {
		stream, err := connect.NewClient[in, out](s.Client(), s.URL+watch, o...).CallServerStream(context.Background(), connect.NewRequest(&in{}))
		if err != nil {
			return nil, err
		}
		defer stream.Close()
		for stream.Receive() {
		}
		return stream.ResponseHeader(), stream.Err()
	},
	"client stream": func(s *httptest.Server, o ...connect.ClientOption) (http.Header, error) {
		stream := connect.NewClient[in, out](s.Client(), s.URL+"/test/Collect", o...).CallClientStream(context.Background())
		if err := stream.Send(&in{}); err != nil && err != io.EOF {
			_, err = stream.CloseAndReceive()
			return nil, err
		}
		res, err := stream.CloseAndReceive()
		if err != nil {
			return nil, err
		}
		return res.Header(), nil
	},
	"two-way stream": func(s *httptest.Server, o ...connect.ClientOption) (http.Header, error) {
		stream := connect.NewClient[in, out](s.Client(), s.URL+"/test/Talk", o...).CallBidiStream(context.Background())
		defer stream.CloseResponse()
		stream.Send(&in{}) // if it fails, Receive tells why
		stream.CloseRequest()
		_, err := stream.Receive()
		return stream.ResponseHeader(), err
	},
}

var protocols = map[string][]connect.ClientOption{
	"Connect":                 {},
	"Connect with JSON":       {connect.WithProtoJSON()},
	"Connect with GET":        {connect.WithHTTPGet(), connect.WithIdempotency(connect.IdempotencyNoSideEffects)},
	"gRPC":                    {connect.WithGRPC()},
	"gRPC-Web":                {connect.WithGRPCWeb()},
	"gRPC-Web with gzip":      {connect.WithGRPCWeb(), connect.WithSendGzip()},
	"Connect with gzip":       {connect.WithSendGzip()},
	"gRPC with gzip and JSON": {connect.WithGRPC(), connect.WithProtoJSON(), connect.WithSendGzip()},
}

// Of two calls the first passes, and the client of the second sees
// resource_exhausted, which rule refused it, how long to wait, and the headers,
// whatever it speaks and however it calls.
func TestConnectClientsSeeResourceExhausted(t *testing.T) {
	for protocol, o := range protocols {
		for kind, call := range calls {
			t.Run(protocol+", "+kind, func(t *testing.T) {
				l := limiter(t, core.Rule{Name: "calls", Limit: core.Rate{N: 1, Per: time.Hour}})
				server := service(t, l, nethttpflow.Options{Refuse: refuseRPC()})
				if _, err := call(server, o...); err != nil {
					t.Fatalf("the first: %v", err)
				}
				header, err := call(server, o...)
				var told *connect.Error
				if !asError(err, &told) || told.Code() != connect.CodeResourceExhausted || !strings.Contains(told.Message(), `refused by rule "calls"`) {
					t.Fatalf("the second: %v", err)
				}
				if header == nil {
					header = told.Meta()
				}
				if !strings.HasPrefix(header.Get("RateLimit"), `"calls";r=0;t=`) || header.Get("RateLimit-Policy") != `"calls";q=1;w=3600` ||
					header.Get("Retry-After") == "" || header.Get("Cache-Control") != "no-store" {
					t.Errorf("headers %v", header)
				}
				if len(told.Details()) != 1 {
					t.Fatalf("%d details", len(told.Details()))
				}
				detail, err := told.Details()[0].Value()
				if err != nil {
					t.Fatal(err)
				}
				wait := detail.(*errdetails.RetryInfo).RetryDelay.AsDuration()
				if wait < 55*time.Minute || wait > time.Hour {
					t.Errorf("RetryInfo says %v", wait)
				}
			})
		}
	}
}

// What is refused until somebody is done has no wait to tell.
func TestConnectIsToldNoWaitThatIsNotKnown(t *testing.T) {
	l := limiter(t, core.Rule{Name: "slots", Limit: core.InFlight{N: 1}})
	server := service(t, l, nethttpflow.Options{Refuse: refuseRPC()})
	p, _ := l.Try(core.Request{})
	defer p.Release()
	for kind, call := range calls {
		_, err := call(server, connect.WithGRPC())
		var told *connect.Error
		if !asError(err, &told) || told.Code() != connect.CodeResourceExhausted || len(told.Details()) != 0 {
			t.Errorf("%s: %v", kind, err)
		}
	}
}

// This is why: the plain answer is unavailable to all of them, which many clients
// take for a server that is down, and ask again at once.
func TestThePlainAnswerIsUnavailableToConnect(t *testing.T) {
	for protocol, o := range protocols {
		for kind, call := range calls {
			l := limiter(t, core.Rule{Name: "none", Limit: core.Rate{N: 0, Per: time.Hour}})
			_, err := call(service(t, l, nethttpflow.Options{}), o...)
			if got := connect.CodeOf(err); got != connect.CodeUnavailable {
				t.Errorf("%s, %s: %v: %v", protocol, kind, got, err)
			}
		}
	}
}

// Browsers and others that ask the same server for something else get the answer
// of HTTP.
func TestOthersThanConnectGetTheProblem(t *testing.T) {
	l := limiter(t, core.Rule{Name: "none", Limit: core.Rate{N: 0, Per: time.Hour}})
	server := service(t, l, nethttpflow.Options{Refuse: refuseRPC()})
	for _, c := range []struct{ method, kind string }{{"GET", ""}, {"POST", "text/plain"}, {"POST", "application/json"}, {"DELETE", ""}} {
		r, _ := http.NewRequest(c.method, server.URL+"/", nil)
		r.Header.Set("Content-Type", c.kind)
		res, err := server.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		var problem struct{ Status int }
		err = json.NewDecoder(res.Body).Decode(&problem)
		res.Body.Close()
		if err != nil || res.StatusCode != 429 || problem.Status != 429 || res.Header.Get("Content-Type") != "application/problem+json" {
			t.Errorf("%s %s: %s, %v, %v", c.method, c.kind, res.Status, res.Header, err)
		}
	}
}

// Each procedure has its own count, whatever the protocol; paths that clients
// invent under the mux's pattern have one together.
func TestConnectCountsByProcedure(t *testing.T) {
	l := limiter(t,
		core.Rule{Name: "each", By: "resource", Limit: core.Rate{N: 1000, Per: time.Hour}},
		core.Rule{Name: "check", On: check, Limit: core.Rate{N: 2, Per: time.Hour}})
	server := service(t, l, nethttpflow.Options{Resource: procedures(health), Refuse: refuseRPC()})
	passed := 0
	for _, o := range protocols {
		if _, err := calls["unary"](server, o...); err == nil {
			passed++
		}
		if _, err := calls["server stream"](server, o...); err != nil {
			t.Error(err)
		}
		if _, err := calls["client stream"](server, o...); err != nil {
			t.Error(err)
		}
	}
	for i := range 10 {
		res, err := server.Client().Post(server.URL+"/grpc.health.v1.Health/Check"+strings.Repeat("x", i+1), "application/proto", nil)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
	}
	if keys := l.Stats()[0].Keys; passed != 2 || keys != 3 {
		t.Errorf("%d of 2 passed; %d resources, want 3", passed, keys)
	}
}

func asError(err error, told **connect.Error) bool {
	e, ok := err.(*connect.Error)
	*told = e
	return ok
}
