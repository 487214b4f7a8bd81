package grpcflow_test

import (
	"context"
	"errors"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/exactflow/exactflow/core"
	"github.com/exactflow/exactflow/grpcflow"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

const pushback = "grpc-retry-pushback-ms"

// A client must be able to tell what refused it, why, and from when it is worth
// asking again, without reading English; and nothing else.
func TestRefusalSaysWhichRuleAndWhy(t *testing.T) {
	held := func(ctx context.Context, conn *grpc.ClientConn) {
		go call(ctx, conn)
		synctest.Wait()
	}
	passed := func(ctx context.Context, conn *grpc.ClientConn) {
		go call(ctx, conn)
		time.Sleep(1500*time.Microsecond + 1)
	}
	for _, tt := range []struct {
		name     string
		rule     core.Rule
		before   func(context.Context, *grpc.ClientConn)
		message  string
		reason   string
		metadata map[string]string
		quota    *errdetails.QuotaFailure_Violation
		retry    time.Duration
		pushback []string
	}{
		{
			name:     "rate",
			rule:     core.Rule{Name: "per-ip", By: "ip", Limit: core.Rate{N: 1, Per: 10 * time.Second}},
			before:   passed,
			message:  "rate limit exceeded: per-ip",
			reason:   "RATE_LIMIT_EXCEEDED",
			metadata: map[string]string{"rule": "per-ip", "limit": "1", "windowSeconds": "10"},
			quota:    &errdetails.QuotaFailure_Violation{Subject: "ip", Description: "at most 1 per 10s", QuotaId: "per-ip", QuotaValue: 1},
			retry:    10*time.Second - 1500*time.Microsecond - 1,
			pushback: []string{"9999"}, // 9998.499999 ms, rounded up
		},
		{
			name:     "rate of a window below a second",
			rule:     core.Rule{Name: "burst", Limit: core.Rate{N: 1, Per: 2 * time.Millisecond}},
			before:   passed,
			message:  "rate limit exceeded: burst",
			reason:   "RATE_LIMIT_EXCEEDED",
			metadata: map[string]string{"rule": "burst", "limit": "1", "windowSeconds": "0.002"},
			quota:    &errdetails.QuotaFailure_Violation{Description: "at most 1 per 2ms", QuotaId: "burst", QuotaValue: 1},
			retry:    500*time.Microsecond - 1,
			pushback: []string{"1"},
		},
		{
			name:     "rate of a window beyond what a pushback can say",
			rule:     core.Rule{Name: "yearly", Limit: core.Rate{N: 1, Per: 365 * 24 * time.Hour}},
			before:   passed,
			message:  "rate limit exceeded: yearly",
			reason:   "RATE_LIMIT_EXCEEDED",
			metadata: map[string]string{"rule": "yearly", "limit": "1", "windowSeconds": "31536000"},
			quota:    &errdetails.QuotaFailure_Violation{Description: "at most 1 per 8760h0m0s", QuotaId: "yearly", QuotaValue: 1},
			retry:    365*24*time.Hour - 1500*time.Microsecond - 1,
			pushback: []string{"2147483647"},
		},
		{
			name:     "in flight: nobody knows when",
			rule:     core.Rule{Name: "busy", Limit: core.InFlight{N: 1}},
			before:   held,
			message:  "concurrency limit exceeded: busy",
			reason:   "CONCURRENCY_LIMIT_EXCEEDED",
			metadata: map[string]string{"rule": "busy", "limit": "1"},
			quota:    &errdetails.QuotaFailure_Violation{Description: "at most 1 in flight", QuotaId: "busy", QuotaValue: 1},
		},
		{
			name:     "never",
			rule:     core.Rule{Name: "closed", Limit: core.Rate{N: 0, Per: time.Minute}},
			before:   func(context.Context, *grpc.ClientConn) {},
			message:  "request exceeds the limit: closed",
			reason:   "REQUEST_EXCEEDS_LIMIT",
			metadata: map[string]string{"rule": "closed", "limit": "0", "windowSeconds": "60"},
			quota:    &errdetails.QuotaFailure_Violation{Description: "at most 0 per 1m0s", QuotaId: "closed"},
			pushback: []string{"-1"},
		},
		{
			name: "keys",
			rule: core.Rule{Name: "per-user", By: "user", Limit: core.InFlight{N: 5}, MaxKeys: 1},
			before: func(ctx context.Context, conn *grpc.ClientConn) {
				held(metadata.AppendToOutgoingContext(ctx, "x-user", "somebody"), conn)
			},
			message:  "too many clients at once: per-user",
			reason:   "KEY_LIMIT_EXCEEDED",
			metadata: map[string]string{"rule": "per-user", "limit": "5"},
			quota:    &errdetails.QuotaFailure_Violation{Subject: "user", Description: "at most 5 in flight", QuotaId: "per-user", QuotaValue: 5},
		},
		{
			name: "the queue of a rate is full",
			rule: core.Rule{Name: "slow", Limit: core.Rate{N: 1, Per: 10 * time.Second}, Queue: core.Queue{Len: 1, Wait: time.Hour}},
			before: func(ctx context.Context, conn *grpc.ClientConn) {
				passed(ctx, conn)
				held(ctx, conn)
			},
			message:  "too many wait already: slow",
			reason:   "QUEUE_FULL",
			metadata: map[string]string{"rule": "slow", "limit": "1", "windowSeconds": "10"},
			quota:    &errdetails.QuotaFailure_Violation{Description: "at most 1 per 10s", QuotaId: "slow", QuotaValue: 1},
			retry:    10*time.Second - 1500*time.Microsecond - 1,
			pushback: []string{"9999"},
		},
		{
			name: "the queue of what is in flight is full",
			rule: core.Rule{Name: "busy", Limit: core.InFlight{N: 1}, Queue: core.Queue{Len: 1, Wait: time.Hour}},
			before: func(ctx context.Context, conn *grpc.ClientConn) {
				held(ctx, conn)
				held(ctx, conn)
			},
			message:  "too many wait already: busy",
			reason:   "QUEUE_FULL",
			metadata: map[string]string{"rule": "busy", "limit": "1"},
			quota:    &errdetails.QuotaFailure_Violation{Description: "at most 1 in flight", QuotaId: "busy", QuotaValue: 1},
		},
		{
			name:     "a wait that is too long, as is known from the begin",
			rule:     core.Rule{Name: "slow", Limit: core.Rate{N: 1, Per: 10 * time.Second}, Queue: core.Queue{Len: 1, Wait: 9 * time.Second}},
			before:   passed,
			message:  "wait too long: slow",
			reason:   "QUEUE_TIMEOUT",
			metadata: map[string]string{"rule": "slow", "limit": "1", "windowSeconds": "10"},
			quota:    &errdetails.QuotaFailure_Violation{Description: "at most 1 per 10s", QuotaId: "slow", QuotaValue: 1},
			retry:    10*time.Second - 1500*time.Microsecond - 1,
			pushback: []string{"9999"},
		},
		{
			name:     "a wait that is over",
			rule:     core.Rule{Name: "busy", Limit: core.InFlight{N: 1}, Queue: core.Queue{Len: 1, Wait: 400 * time.Millisecond}},
			before:   held,
			message:  "wait too long: busy",
			reason:   "QUEUE_TIMEOUT",
			metadata: map[string]string{"rule": "busy", "limit": "1"},
			quota:    &errdetails.QuotaFailure_Violation{Description: "at most 1 in flight", QuotaId: "busy", QuotaValue: 1},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := limiter(t, tt.rule)
				o := grpcflow.Options{Keys: []grpcflow.Key{grpcflow.Peer(), grpcflow.Metadata("user", "X-User")}}
				conn := backend{server: []grpc.ServerOption{
					grpc.UnaryInterceptor(grpcflow.UnaryServerInterceptor(l, o)),
					grpc.StreamInterceptor(grpcflow.StreamServerInterceptor(l, o)),
				}}.start(t, service{unary: func(ctx context.Context, _ *text) error {
					time.Sleep(time.Second)
					return nil
				}})
				tt.before(t.Context(), conn)

				ctx := metadata.AppendToOutgoingContext(t.Context(), "x-user", "secret")
				unary := call(ctx, conn)
				cs := open(t, ctx, conn)
				stream := answer{err: cs.RecvMsg(new(text))}
				stream.header, _ = cs.Header()
				stream.trailer = cs.Trailer()

				for kind, a := range map[string]answer{"unary": unary, "stream": stream} {
					st := status.Convert(a.err)
					if st.Code() != codes.ResourceExhausted || st.Message() != tt.message {
						t.Errorf("%s: %v; want ResourceExhausted, %q", kind, a.err, tt.message)
					}
					if len(a.header) != 0 {
						t.Errorf("%s: a header came with the refusal, clients would not retry: %v", kind, a.header)
					}
					if got := a.trailer.Get(pushback); !slices.Equal(got, tt.pushback) {
						t.Errorf("%s: pushback %q, want %q", kind, got, tt.pushback)
					}
					var info *errdetails.ErrorInfo
					var quota *errdetails.QuotaFailure
					var retry *errdetails.RetryInfo
					for _, d := range st.Details() {
						switch d := d.(type) {
						case *errdetails.ErrorInfo:
							info = d
						case *errdetails.QuotaFailure:
							quota = d
						case *errdetails.RetryInfo:
							retry = d
						default:
							t.Errorf("%s: unexpected detail %v", kind, d)
						}
						if s := d.(interface{ String() string }).String(); strings.Contains(s, "secret") {
							t.Errorf("%s: a detail tells the key: %s", kind, s)
						}
					}
					if info.GetReason() != tt.reason || info.GetDomain() != "github.com/exactflow/exactflow" || !maps.Equal(info.GetMetadata(), tt.metadata) {
						t.Errorf("%s: ErrorInfo %v; want %s with %v", kind, info, tt.reason, tt.metadata)
					}
					if v := quota.GetViolations(); len(v) != 1 || v[0].String() != tt.quota.String() {
						t.Errorf("%s: QuotaFailure %v; want %v", kind, v, tt.quota)
					}
					if (retry != nil) != (tt.retry > 0) || retry.GetRetryDelay().AsDuration() != tt.retry {
						t.Errorf("%s: RetryInfo %v; want %v", kind, retry, tt.retry)
					}
				}
			})
		})
	}
}

// told is what a refusal says of the rule.
func told(t testing.TB, err error) map[string]string {
	t.Helper()
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok {
			return info.GetMetadata()
		}
	}
	t.Errorf("%v has no ErrorInfo", err)
	return nil
}

// The number is text so that it can be exact: a float would round what is long,
// and have an exponent for what is short.
func TestTheWindowIsToldToTheNanosecond(t *testing.T) {
	for per, want := range map[time.Duration]string{
		1:                       "0.000000001",
		1500 * time.Microsecond: "0.0015",
		time.Minute:             "60",
		10 * time.Second:        "10",
		math.MaxInt64:           "9223372036.854775807",
		math.MaxInt64 / 1_000_000_000 * 1_000_000_000: "9223372036",
	} {
		in := grpcflow.UnaryServerInterceptor(limiter(t, core.Rule{Name: "r", Limit: core.Rate{N: 0, Per: per}}), grpcflow.Options{})
		_, err := in(t.Context(), nil, &grpc.UnaryServerInfo{}, func(context.Context, any) (any, error) { return nil, nil })
		if got := told(t, err)["windowSeconds"]; got != want {
			t.Errorf("%v: %q, want %q", per, got, want)
		}
	}
}

// Refusals are remembered by what they say. One that said what another rule, or
// the rule of yesterday, allows would be worse than a slow one.
func TestRefusalTellsTheLimitInForce(t *testing.T) {
	rule := core.Rule{Name: "r", By: "user", Limit: core.InFlight{N: 0}, For: map[string]core.Limit{"big": core.InFlight{N: 1}}}
	l := limiter(t, rule)
	in := grpcflow.UnaryServerInterceptor(l, grpcflow.Options{
		Keys: []grpcflow.Key{grpcflow.Metadata("user", "user")},
		Cost: func(context.Context, string, any) int { return 2 },
	})
	ask := func(user, limit, window string) {
		t.Helper()
		ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs("user", user))
		_, err := in(ctx, nil, &grpc.UnaryServerInfo{}, nil)
		if m := told(t, err); m["limit"] != limit || m["windowSeconds"] != window {
			t.Errorf("%s: %v; want %s per %q s", user, m, limit, window)
		}
	}
	for range 2 {
		ask("small", "0", "")
		ask("big", "1", "")
	}
	for _, per := range []time.Duration{time.Second, time.Minute} {
		if err := l.Replace(core.Rule{Name: "r", By: "user", Limit: core.Rate{N: 1, Per: per}}); err != nil {
			t.Fatal(err)
		}
		ask("small", "1", strconv.Itoa(int(per/time.Second)))
	}
}

// More rules than are remembered, refusing at the same time.
func TestRefusalNamesItsRuleAmongMany(t *testing.T) {
	const many = 200
	var rules []core.Rule
	for i := range many {
		name := strconv.Itoa(i)
		rules = append(rules, core.Rule{Name: name, On: name, Limit: core.InFlight{N: 0}})
	}
	in := grpcflow.UnaryServerInterceptor(limiter(t, rules...), grpcflow.Options{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 3 {
				for i := range many {
					_, err := in(t.Context(), nil, &grpc.UnaryServerInfo{FullMethod: strconv.Itoa(i)}, nil)
					if got := told(t, err)["rule"]; got != strconv.Itoa(i) {
						t.Errorf("rule %d refused, the client is told of %q", i, got)
					}
				}
			}
		})
	}
	wg.Wait()
}

// attempts notes when each attempt reached the server, refused or not.
type attempts struct {
	begin time.Time
	at    []time.Duration
}

func (a *attempts) unary(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	a.at = append(a.at, time.Since(a.begin))
	return next(ctx, req)
}

func (a *attempts) stream(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	a.at = append(a.at, time.Since(a.begin))
	return next(srv, ss)
}

// retries is what clients configure to have refusals retried; of the jitter
// nothing is seen, because the pushback goes before the backoff.
var retries = []grpc.DialOption{grpc.WithDefaultServiceConfig(`{"methodConfig": [{
	"name": [{}],
	"retryPolicy": {
		"maxAttempts": 3, "initialBackoff": "0.01s", "maxBackoff": "0.01s", "backoffMultiplier": 1,
		"retryableStatusCodes": ["RESOURCE_EXHAUSTED"]
	}
}]}`)}

// A client with a retry policy needs no code of its own: it waits exactly as long
// as the limiter said, and then it passes.
func TestClientThatRetriesWaitsExactlyThePushback(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, core.Rule{Name: "slow", Limit: core.Rate{N: 1, Per: 3 * time.Second}})
		seen := attempts{begin: time.Now()}
		conn := backend{client: retries, server: []grpc.ServerOption{
			grpc.ChainUnaryInterceptor(seen.unary, grpcflow.UnaryServerInterceptor(l, grpcflow.Options{})),
			grpc.ChainStreamInterceptor(seen.stream, grpcflow.StreamServerInterceptor(l, grpcflow.Options{})),
		}}.start(t, service{})

		for range 2 {
			if a := call(t.Context(), conn); a.err != nil {
				t.Error(a.err)
			}
		}
		if err := open(t, t.Context(), conn).RecvMsg(new(text)); err != io.EOF {
			t.Error(err)
		}
		if want := []time.Duration{0, 0, 3 * time.Second, 3 * time.Second, 6 * time.Second}; !slices.Equal(seen.at, want) {
			t.Errorf("attempts at %v, want %v", seen.at, want)
		}
	})
}

// What can never pass is not worth a second attempt; what may pass at any time is
// left to the client's own backoff.
func TestClientDoesNotRetryWhatCanNeverPass(t *testing.T) {
	for name, tt := range map[string]struct {
		limit core.Limit
		want  int
	}{
		"never":   {core.Rate{N: 0, Per: time.Second}, 1},
		"unknown": {core.InFlight{N: 1}, 3},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := limiter(t, core.Rule{Name: "only", Limit: tt.limit})
				if permit, ok := l.Try(core.Request{}); ok {
					defer permit.Release()
				}
				var seen attempts
				conn := backend{client: retries, server: []grpc.ServerOption{
					grpc.ChainUnaryInterceptor(seen.unary, grpcflow.UnaryServerInterceptor(l, grpcflow.Options{})),
				}}.start(t, service{})
				if a := call(t.Context(), conn); status.Code(a.err) != codes.ResourceExhausted {
					t.Error(a.err)
				}
				if len(seen.at) != tt.want {
					t.Errorf("%d attempts, want %d", len(seen.at), tt.want)
				}
			})
		})
	}
}

// Trailers add up, and a client that gets two pushbacks takes them for none and
// gives up: there is one, whoever else is in the chain.
func TestPushbackIsSetOnce(t *testing.T) {
	one := core.Rule{Name: "one", Limit: core.Rate{N: 1, Per: time.Second}}
	many := core.Rule{Name: "many", Limit: core.Rate{N: 100, Per: time.Hour}}
	again := func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		if resp, err := next(ctx, req); err == nil {
			return resp, nil
		}
		return next(ctx, req)
	}
	againStream := func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
		if err := next(srv, ss); err == nil {
			return nil
		}
		return next(srv, ss)
	}
	own := func(ctx context.Context) error {
		return grpc.SetTrailer(ctx, metadata.Pairs(pushback, "7"))
	}
	for name, tt := range map[string]struct {
		outer  grpc.UnaryServerInterceptor
		stream grpc.StreamServerInterceptor
		rules  []core.Rule // of two limiters, the outer one first
		refuse func(context.Context, core.Permit) error
		want   string
	}{
		"the inner of two limiters refuses": {rules: []core.Rule{many, one}, want: "1000"},
		"the outer of two limiters refuses": {rules: []core.Rule{one, many}, want: "1000"},
		"both would":                        {rules: []core.Rule{one, one}, want: "1000"},
		"an outer interceptor tries twice":  {outer: again, stream: againStream, rules: []core.Rule{many, one}, want: "1000"},
		"an outer interceptor has set one": {
			outer: func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
				if err := own(ctx); err != nil {
					return nil, err
				}
				return next(ctx, req)
			},
			stream: func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
				ss.SetTrailer(metadata.Pairs(pushback, "7"))
				return next(srv, ss)
			},
			rules: []core.Rule{many, one}, want: "7",
		},
		"Refuse has set one": {
			refuse: func(ctx context.Context, _ core.Permit) error { return own(ctx) },
			rules:  []core.Rule{many, one}, want: "7",
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var unary []grpc.UnaryServerInterceptor
				var stream []grpc.StreamServerInterceptor
				if tt.outer != nil {
					unary, stream = append(unary, tt.outer), append(stream, tt.stream)
				}
				for _, rule := range tt.rules {
					l := limiter(t, rule)
					o := grpcflow.Options{Refuse: tt.refuse}
					unary = append(unary, grpcflow.UnaryServerInterceptor(l, o))
					stream = append(stream, grpcflow.StreamServerInterceptor(l, o))
				}
				conn := backend{server: []grpc.ServerOption{
					grpc.ChainUnaryInterceptor(unary...), grpc.ChainStreamInterceptor(stream...),
				}}.start(t, service{})
				if a := call(t.Context(), conn); a.err != nil {
					t.Fatal(a.err)
				}
				refused := call(t.Context(), conn)
				if got := refused.trailer.Get(pushback); !slices.Equal(got, []string{tt.want}) {
					t.Errorf("unary: pushback %q, want %q", got, tt.want)
				}
				cs := open(t, t.Context(), conn)
				if err := cs.RecvMsg(new(text)); status.Code(err) != codes.ResourceExhausted {
					t.Error(err)
				}
				if got := cs.Trailer().Get(pushback); !slices.Equal(got, []string{tt.want}) {
					t.Errorf("stream: pushback %q, want %q", got, tt.want)
				}
			})
		})
	}
}

// A hook that words the refusal does not decide it: whatever it returns, the
// handler does not run.
func TestRefuseReplacesTheErrorAndNothingElse(t *testing.T) {
	full := core.Rule{Name: "full", Limit: core.Rate{N: 1, Per: 2 * time.Second}}
	for name, tt := range map[string]struct {
		o       grpcflow.Options
		code    codes.Code
		message string
	}{
		"an error of its own": {
			o: grpcflow.Options{Refuse: func(_ context.Context, p core.Permit) error {
				return status.Errorf(codes.Unavailable, "come back in %v", p.Refusal().RetryAfter)
			}},
			code: codes.Unavailable, message: "come back in 2s",
		},
		"nil": {
			o:    grpcflow.Options{Refuse: func(context.Context, core.Permit) error { return nil }},
			code: codes.ResourceExhausted, message: "rate limit exceeded: full",
		},
		"another code": {
			o:    grpcflow.Options{Status: func(core.Permit) codes.Code { return codes.Unavailable }},
			code: codes.Unavailable, message: "rate limit exceeded: full",
		},
		"the last code that gRPC has": {
			o:    grpcflow.Options{Status: func(core.Permit) codes.Code { return codes.Unauthenticated }},
			code: codes.Unauthenticated, message: "rate limit exceeded: full",
		},
		"a code that gRPC does not have": {
			o:    grpcflow.Options{Status: func(core.Permit) codes.Code { return codes.Unauthenticated + 1 }},
			code: codes.ResourceExhausted, message: "rate limit exceeded: full",
		},
		"a code that is no error": {
			o:    grpcflow.Options{Status: func(core.Permit) codes.Code { return codes.OK }},
			code: codes.ResourceExhausted, message: "rate limit exceeded: full",
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := limiter(t, full)
				ran := 0
				conn := backend{server: []grpc.ServerOption{
					grpc.UnaryInterceptor(grpcflow.UnaryServerInterceptor(l, tt.o)),
					grpc.StreamInterceptor(grpcflow.StreamServerInterceptor(l, tt.o)),
				}}.start(t, service{
					unary:  func(context.Context, *text) error { ran++; return nil },
					stream: func(grpc.ServerStream) error { ran++; return nil },
				})
				if a := call(t.Context(), conn); a.err != nil {
					t.Fatal(a.err)
				}
				unary := call(t.Context(), conn)
				cs := open(t, t.Context(), conn)
				stream := answer{err: cs.RecvMsg(new(text)), trailer: cs.Trailer()}
				for kind, a := range map[string]answer{"unary": unary, "stream": stream} {
					if st := status.Convert(a.err); st.Code() != tt.code || st.Message() != tt.message {
						t.Errorf("%s: %v; want %v, %q", kind, a.err, tt.code, tt.message)
					}
					if got := a.trailer.Get(pushback); !slices.Equal(got, []string{"2000"}) {
						t.Errorf("%s: pushback %q, want 2000", kind, got)
					}
				}
				if ran != 1 {
					t.Errorf("handlers ran %d times, want 1", ran)
				}
			})
		})
	}
}

// Interceptors are called directly by people's unit tests, without a server: the
// refusal stands, though no trailer can be set.
func TestRefusalNeedsNoServer(t *testing.T) {
	l := limiter(t, core.Rule{Name: "closed", Limit: core.InFlight{N: 0}})
	in := grpcflow.UnaryServerInterceptor(l, grpcflow.Options{})
	_, err := in(t.Context(), nil, &grpc.UnaryServerInfo{FullMethod: unaryMethod}, func(context.Context, any) (any, error) {
		t.Error("the handler ran")
		return nil, nil
	})
	if status.Code(err) != codes.ResourceExhausted {
		t.Error(err)
	}
	if errors.Is(err, core.ErrRefused) || strings.Contains(err.Error(), "core") {
		t.Errorf("the error shows our insides: %v", err)
	}
}

// A cost below 0 is refused also where no rule applies. Then there is no rule to name.
func TestARefusalByNoRuleNamesNone(t *testing.T) {
	in := grpcflow.UnaryServerInterceptor(limiter(t), grpcflow.Options{Cost: func(context.Context, string, any) int { return -1 }})
	_, err := in(t.Context(), nil, &grpc.UnaryServerInfo{FullMethod: unaryMethod}, func(context.Context, any) (any, error) {
		t.Error("the handler ran")
		return nil, nil
	})
	st := status.Convert(err)
	if st.Message() != "request exceeds the limit" || len(st.Details()) != 1 {
		t.Fatalf("%q with %v", st.Message(), st.Details())
	}
	if info, ok := st.Details()[0].(*errdetails.ErrorInfo); !ok || len(info.Metadata) != 0 || info.Reason != "REQUEST_EXCEEDS_LIMIT" {
		t.Errorf("%v", st.Details())
	}
}
