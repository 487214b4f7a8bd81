package grpcflow_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/exactflow/exactflow/core"
	"github.com/exactflow/exactflow/grpcflow"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// A oneMethod is the interface of go-grpc-middleware.
type oneMethod interface{ Limit(context.Context) error }

// through asks as go-grpc-middleware does, in words of its own.
func through(l oneMethod) []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ChainUnaryInterceptor(func(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			if err := l.Limit(ctx); err != nil {
				return nil, status.Errorf(codes.ResourceExhausted, "not now: %s", err)
			}
			return next(ctx, req)
		}),
		grpc.ChainStreamInterceptor(func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
			if err := l.Limit(ss.Context()); err != nil {
				return status.Errorf(codes.ResourceExhausted, "not now: %s", err)
			}
			return next(srv, ss)
		}),
	}
}

// Behind the interface of others a rate is a rate: by method, by key, with the
// rule and the wait in the text, and with the pushback.
func TestALimiterOfOneMethodHoldsRates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t,
			core.Rule{Name: "unary", On: unaryMethod, By: "user", Limit: core.Rate{N: 2, Per: time.Minute}},
			core.Rule{Name: "stream", On: streamMethod, By: "user", Limit: core.Rate{N: 2, Per: time.Minute}})
		conn := backend{server: through(grpcflow.NewLimiter(l, grpcflow.Options{
			Keys: []grpcflow.Key{{By: "user", Of: func(context.Context) string { return "ann" }}},
		}))}.start(t, service{})
		for kind, ask := range ends(conn) {
			for range 2 {
				if err := ask(t.Context()); err != nil {
					t.Errorf("%s: %v", kind, err)
				}
			}
			err := ask(t.Context())
			if status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), `refused by rule "`+kind+`": rate, retry after 1m0s`) {
				t.Errorf("%s: %v", kind, err)
			}
			if _, ok := grpcflow.RetryAfter(err); ok {
				t.Errorf("%s: the wait is found, so the documentation is wrong", kind)
			}
		}
		if a := call(t.Context(), conn); !slices.Equal(a.trailer[pushback], []string{"60000"}) {
			t.Errorf("the pushback is %v", a.trailer)
		}
		for rule, s := range counts(l) {
			if s.Admitted != 2 || s.Empty != 0 {
				t.Errorf("%s: %+v", rule, s)
			}
		}
	})
}

// Nobody tells it that a call is over. So it is not made for rules that hold units until then,
// and admits nothing where one comes in later: a limit that silently is none would be
// worse. What it refuses so has spent nothing. A rule in shadow refuses nobody here either.
func TestALimiterOfOneMethodAdmitsNothingThatIsHeld(t *testing.T) {
	for name, limit := range map[string]core.Limit{
		"in flight":  core.InFlight{N: 1},
		"by outcome": core.Rate{N: 1, Per: time.Hour, Charge: core.ChargeFailed},
	} {
		rate := core.Rule{Name: "rate", Limit: core.Rate{N: 3, Per: time.Hour}}
		l := limiter(t, rate, core.Rule{Name: "held", Limit: limit, Shadow: true})
		made := grpcflow.NewLimiter(l, grpcflow.Options{})
		if err := made.Limit(t.Context()); err != nil {
			t.Errorf("%s, in shadow: %v", name, err)
		}
		if err := l.Replace(rate, core.Rule{Name: "held", Limit: limit}); err != nil {
			t.Fatal(err)
		}
		for range 5 {
			if err := made.Limit(t.Context()); err == nil || !strings.HasPrefix(err.Error(), "grpcflow: a rule holds units") {
				t.Errorf("%s: %v; want an error that tells that the rule is not for a Limiter", name, err)
			}
		}
		if q, ok := l.Peek(core.Request{}); !ok || q.Quota().Rule != "rate" || q.Quota().Remaining != 2 {
			t.Errorf("%s: %v, %+v; want all left but the one admitted in shadow", name, ok, q.Quota())
		}
		func() {
			defer func() {
				if told := fmt.Sprint(recover()); !strings.HasPrefix(told, `grpcflow: rule "held" holds units`) {
					t.Errorf("%s: made with such a rule: %s", name, told)
				}
			}()
			_ = grpcflow.NewLimiter(l, grpcflow.Options{})
		}()
	}
}
