package grpcflow_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/exactflow/exactflow/core"
	"github.com/exactflow/exactflow/grpcflow"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// ofTest is what the tests' service has; there is no generated code of it.
func ofTest(method string) bool { return method == unaryMethod || method == streamMethod }

// tapped is the two interceptors behind a tap.
func tapped(l *core.Limiter, o grpcflow.Options) []grpc.ServerOption {
	o.Known = ofTest
	return append(both(l, o), grpc.InTapHandle(grpcflow.InTapHandle(l, o)))
}

// A server that is full must not pay for what it refuses: of a megabyte it reads
// what the client may send before it is asked to, and decodes nothing.
func TestTheTapRefusesBeforeTheMessageIsRead(t *testing.T) {
	const mega = 1 << 20
	for name, tt := range map[string]struct {
		options     func(*core.Limiter, grpcflow.Options) []grpc.ServerOption
		least, most int64
		decoded     int64
	}{
		"by the tap":         {tapped, 0, mega / 4, 0},
		"by the interceptor": {func(l *core.Limiter, o grpcflow.Options) []grpc.ServerOption { return both(l, o) }, mega, 2 * mega, 1},
	} {
		t.Run(name, func(t *testing.T) {
			l := limiter(t, core.Rule{Name: "one", Limit: core.InFlight{N: 1}})
			var wire, decoded atomic.Int64
			server := grpc.NewServer(append(tt.options(l, grpcflow.Options{}), grpc.StatsHandler(payloads{&decoded}))...)
			service{}.register(server)
			lis := &countingListener{bufconn.Listen(1 << 16), &wire}
			go server.Serve(lis)
			defer server.Stop()
			conn, err := grpc.NewClient("passthrough:///memory", grpc.WithTransportCredentials(insecure.NewCredentials()),
				grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if a := call(t.Context(), conn); a.err != nil {
				t.Fatal(a.err)
			}
			holds, _ := l.Try(core.Request{})
			defer holds.Release()
			wire.Store(0)
			decoded.Store(0)
			before := stat(l).Admitted
			err = conn.Invoke(t.Context(), unaryMethod, wrapperspb.String(strings.Repeat("x", mega)), new(text))
			if status.Code(err) != codes.ResourceExhausted || told(t, err)["rule"] != "one" {
				t.Error(err)
			}
			if n := wire.Load(); n < tt.least || n > tt.most {
				t.Errorf("the server read %d bytes", n)
			}
			if n := decoded.Load(); n != tt.decoded {
				t.Errorf("the server decoded %d messages", n)
			}
			if s := stat(l); s.Admitted != before || s.Refused[core.ReasonInFlight] != 1 || s.InFlight != 1 {
				t.Errorf("%+v", s)
			}
		})
	}
}

type countingListener struct {
	*bufconn.Listener
	read *atomic.Int64
}

func (l *countingListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return countingConn{c, l.read}, err
}

type countingConn struct {
	net.Conn
	read *atomic.Int64
}

func (c countingConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.read.Add(int64(n))
	return n, err
}

// payloads counts the messages that a server has decoded.
type payloads struct{ n *atomic.Int64 }

func (p payloads) HandleRPC(_ context.Context, s stats.RPCStats) {
	if _, ok := s.(*stats.InPayload); ok {
		p.n.Add(1)
	}
}
func (payloads) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context   { return ctx }
func (payloads) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (payloads) HandleConn(context.Context, stats.ConnStats)                       {}

// The tap looks and takes nothing: what it lets through is counted once, by the
// interceptor, and what it refuses is refused once.
func TestTheTapTakesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, core.Rule{Name: "one", Limit: core.InFlight{N: 1}},
			core.Rule{Name: "rate", Limit: core.Rate{N: 4, Per: time.Minute}})
		conn := backend{server: tapped(l, grpcflow.Options{})}.start(t, service{})
		for range 2 {
			for kind, ask := range ends(conn) {
				if err := ask(t.Context()); err != nil {
					t.Errorf("%s: %v", kind, err)
				}
			}
		}
		for kind, ask := range ends(conn) {
			if err := ask(t.Context()); status.Code(err) != codes.ResourceExhausted {
				t.Errorf("%s: %v", kind, err)
			}
		}
		for rule, s := range counts(l) {
			refused := uint64(0)
			if rule == "rate" {
				refused = 2
			}
			if s.Admitted != 4 || s.InFlight != 0 || s.Refused[core.ReasonRate] != refused {
				t.Errorf("%s: %+v", rule, s)
			}
		}
	})
}

// What a client sees of a refusal by the tap is what it sees of one by the
// interceptor, but for the trailer, which no tap can send.
func TestTheTapRefusesAsTheInterceptorWould(t *testing.T) {
	rate := core.Rule{Name: "per-ip", By: "ip", Limit: core.Rate{N: 1, Per: time.Minute}}
	for name, tt := range map[string]struct {
		rule core.Rule
		o    grpcflow.Options
	}{
		"rate":              {rate, grpcflow.Options{}},
		"in flight":         {core.Rule{Name: "busy", On: unaryMethod, Limit: core.InFlight{N: 1}}, grpcflow.Options{}},
		"never":             {core.Rule{Name: "closed", On: "/test.*", Limit: core.InFlight{N: 0}}, grpcflow.Options{}},
		"the queue is full": {core.Rule{Name: "q", Limit: core.InFlight{N: 1}, Queue: core.Queue{Len: 1, Wait: time.Hour}}, grpcflow.Options{}},
		"a resource of one's own": {core.Rule{Name: "busy", On: "mine", Limit: core.InFlight{N: 1}}, grpcflow.Options{
			Resource: func(context.Context, string) string { return "mine" },
		}},
		"Status": {rate, grpcflow.Options{Status: func(core.Permit) codes.Code { return codes.Unavailable }}},
		"Refuse": {rate, grpcflow.Options{Refuse: func(_ context.Context, p core.Permit) error {
			return fmt.Errorf("wrapped: %w", status.Error(codes.Aborted, p.Refusal().Rule))
		}}},
		"Refuse without a status": {rate, grpcflow.Options{Refuse: func(context.Context, core.Permit) error { return errors.New("oops") }}},
		"Refuse with a context's": {rate, grpcflow.Options{Refuse: func(context.Context, core.Permit) error { return context.DeadlineExceeded }}},
	} {
		t.Run(name, func(t *testing.T) {
			var statuses [2]*status.Status
			for i, options := range []func(*core.Limiter, grpcflow.Options) []grpc.ServerOption{
				tapped,
				func(l *core.Limiter, o grpcflow.Options) []grpc.ServerOption { return both(l, o) },
			} {
				synctest.Test(t, func(t *testing.T) {
					l := limiter(t, tt.rule)
					conn := backend{server: options(l, tt.o)}.start(t, service{unary: func(ctx context.Context, _ *text) error {
						select {
						case <-time.After(time.Minute - 1):
						case <-ctx.Done():
						}
						return nil
					}})
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					var others sync.WaitGroup
					for range 2 {
						others.Go(func() { _ = call(ctx, conn) })
						synctest.Wait()
					}
					a := call(ctx, conn)
					statuses[i] = status.Convert(a.err)
					if i == 0 && len(a.trailer[pushback]) != 0 {
						t.Errorf("the tap's trailer is %v", a.trailer)
					}
					cancel()
					others.Wait()
				})
			}
			taps, others := statuses[0], statuses[1]
			if taps.Code() == codes.OK || taps.Code() != others.Code() || taps.Message() != others.Message() ||
				!slices.EqualFunc(taps.Details(), others.Details(), func(a, b any) bool { return proto.Equal(a.(proto.Message), b.(proto.Message)) }) {
				t.Errorf("by the tap:\n%v\nby the interceptor:\n%v", taps.Proto(), others.Proto())
			}
		})
	}
}

// What may wait is not refused by the tap, and waits in the interceptor.
func TestTheTapLetsThroughWhatMayWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, core.Rule{Name: "one", Limit: core.InFlight{N: 1}, Queue: core.Queue{Len: 1, Wait: time.Hour}})
		conn := backend{server: tapped(l, grpcflow.Options{})}.start(t, service{})
		for kind, ask := range ends(conn) {
			holds, _ := l.Try(core.Request{})
			time.AfterFunc(time.Second, holds.Release)
			begin := time.Now()
			if err := ask(t.Context()); err != nil || time.Since(begin) != time.Second {
				t.Errorf("%s: %v after %v", kind, err, time.Since(begin))
			}
		}
	})
}

// Methods that clients invent are one resource, which no function of Options gets
// to see as anything else; the server answers them as ever.
func TestMethodsThatNobodyKnowsAreOneResource(t *testing.T) {
	invented := func(conn *grpc.ClientConn, i int) error {
		return conn.Invoke(t.Context(), fmt.Sprintf("/test.Test/Invented%d", i), new(text), new(text))
	}
	o := grpcflow.Options{Resource: func(_ context.Context, method string) string {
		if !ofTest(method) {
			t.Errorf("asked for the resource of %s", method)
		}
		return method
	}}

	l := limiter(t, core.Rule{Name: "each", By: "resource", Limit: core.Rate{N: 1, Per: time.Hour}},
		core.Rule{Name: "invented", On: grpcflow.Unmatched, Limit: core.Rate{N: 1, Per: time.Hour}},
		core.Rule{Name: "at once", On: grpcflow.Unmatched, Limit: core.InFlight{N: 1}})
	conn := backend{server: tapped(l, o)}.start(t, service{})
	for i := range 100 {
		if err := invented(conn, i); status.Code(err) != codes.Unimplemented {
			t.Fatal(err)
		}
	}
	for _, s := range l.Stats() { // a rate of what nobody takes is never reached
		if s.Keys != 0 || s.Admitted != 0 || len(s.Refused) != 0 {
			t.Errorf("invented methods left %+v", s)
		}
	}

	l = limiter(t, core.Rule{Name: "all", Limit: core.Rate{N: 1, Per: time.Hour}})
	conn = backend{server: tapped(l, o)}.start(t, service{})
	for i, want := range []codes.Code{codes.Unimplemented, codes.ResourceExhausted} { // before and after others have filled it
		if err := invented(conn, i); status.Code(err) != want {
			t.Error(err)
		}
		call(t.Context(), conn)
	}

	l = limiter(t, core.Rule{Name: "invented", On: grpcflow.Unmatched, Limit: core.Rate{N: 0, Per: time.Hour}})
	conn = backend{server: tapped(l, o)}.start(t, service{})
	for i := range 3 {
		if err := invented(conn, i); status.Code(err) != codes.ResourceExhausted || told(t, err)["rule"] != "invented" {
			t.Error(err)
		}
	}
	for kind, ask := range ends(conn) {
		if err := ask(t.Context()); err != nil {
			t.Errorf("%s: %v", kind, err)
		}
	}
}

// Without being told, the tap knows the services whose generated code is there.
func TestTheTapKnowsGeneratedServices(t *testing.T) {
	l := limiter(t, core.Rule{Name: "closed", On: "/*", Limit: core.Rate{N: 0, Per: time.Hour}})
	handle := grpcflow.InTapHandle(l, grpcflow.Options{Skip: noneExempt})
	type key struct{}
	ctx := context.WithValue(t.Context(), key{}, "mine")
	for method, known := range map[string]bool{
		"/grpc.health.v1.Health/Check":                              true,
		"/grpc.health.v1.Health/Watch":                              true,
		"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo": true,
		"/grpc.health.v1.Health/Invented":                           false,
		"/grpc.health.v1.Invented/Check":                            false,
		"/grpc.health.v1/Health.Check":                              false,
		"grpc.health.v1.Health/Check":                               false,
		"/":                                                         false,
		"":                                                          false,
		"//":                                                        false,
		unaryMethod:                                                 false, // its service has no generated code
		"/" + strings.Repeat("a.", 1<<20) + "/" + strings.Repeat("b.", 1<<20): false,
	} {
		got, err := handle(ctx, &tap.Info{FullMethodName: method})
		if got != ctx || (status.Code(err) == codes.ResourceExhausted) != known {
			t.Errorf("%.80q: %v, %v", method, got, err)
		}
	}
	handle = grpcflow.InTapHandle(l, grpcflow.Options{})
	if _, err := handle(ctx, &tap.Info{FullMethodName: "/grpc.health.v1.Health/Check"}); err != nil {
		t.Errorf("a health check is exempt: %v", err)
	}
}

// The message is not there when the tap looks: functions that need it are not
// asked, or told so; and a call that costs more than there is left goes on to
// where its cost is known.
func TestTheTapAsksForOneUnit(t *testing.T) {
	l := limiter(t, core.Rule{Name: "r", Limit: core.Rate{N: 10, Per: time.Hour}, Reserve: core.Reserve{Default: 5}})
	o := grpcflow.Options{
		Known: ofTest,
		Cost:  func(_ context.Context, _ string, req any) int { return len(req.(*text).Value) },
		Priority: func(_ context.Context, _ string, req any) core.Priority {
			if req != nil {
				t.Errorf("the request is %v", req)
			}
			return core.Sheddable
		},
	}
	handle := grpcflow.InTapHandle(l, o)
	for taken := range 7 {
		_, err := handle(t.Context(), &tap.Info{FullMethodName: unaryMethod})
		if (err == nil) != (taken < 5) {
			t.Errorf("with %d taken: %v", taken, err)
		}
		l.Try(core.Request{})
	}
}

// Under ServeHTTP grpc-go asks no tap, as the documentation warns; the interceptors
// hold the limit all the same.
func TestTheTapIsNotAskedUnderServeHTTP(t *testing.T) {
	l := limiter(t, core.Rule{Name: "r", Limit: core.Rate{N: 1, Per: time.Hour}})
	o := grpcflow.Options{Known: func(string) bool {
		t.Error("the tap was asked, so the documentation is wrong")
		return true
	}}
	server := grpc.NewServer(append(both(l, o), grpc.InTapHandle(grpcflow.InTapHandle(l, o)))...)
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
	conn, err := grpc.NewClient(lis.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for i, want := range []codes.Code{codes.OK, codes.ResourceExhausted} {
		if a := call(t.Context(), conn); status.Code(a.err) != want {
			t.Errorf("call %d: %v", i, a.err)
		}
	}
}

// A tap is asked on many connections at once, while the interceptors decide.
func TestTheTapUnderLoad(t *testing.T) {
	const limit = 3
	l := limiter(t, core.Rule{Name: "few", Limit: core.InFlight{N: limit}})
	var running, ran atomic.Int64
	s := service{unary: func(context.Context, *text) error {
		defer running.Add(-1)
		ran.Add(1)
		if n := running.Add(1); n > limit {
			t.Errorf("%d in flight, the limit is %d", n, limit)
		}
		return nil
	}}
	server := grpc.NewServer(tapped(l, grpcflow.Options{})...)
	s.register(server)
	lis := bufconn.Listen(1 << 16)
	go server.Serve(lis)
	defer server.Stop()
	var wg sync.WaitGroup
	for range 8 {
		conn, err := grpc.NewClient("passthrough:///memory", grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		wg.Go(func() {
			for range 50 {
				if a := call(t.Context(), conn); a.err != nil && status.Code(a.err) != codes.ResourceExhausted {
					t.Error(a.err)
				}
			}
		})
	}
	wg.Wait()
	if s := stat(l); s.InFlight != 0 || s.Admitted != uint64(ran.Load()) || s.Admitted+s.Refused[core.ReasonInFlight] != 8*50 {
		t.Errorf("%+v, %d ran", s, ran.Load())
	}
}
