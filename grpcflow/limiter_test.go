package grpcflow_test

import (
	"context"
	"errors"
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

// It is not told when a call is over. So it admits nothing that a rule holds until then,
// and keeps nothing either.
func TestALimiterOfOneMethodAdmitsNothingThatIsHeld(t *testing.T) {
	for name, limit := range map[string]core.Limit{
		"in flight":  core.InFlight{N: 1},
		"by outcome": core.Rate{N: 1, Per: time.Hour, Charge: core.ChargeFailed},
	} {
		l := limiter(t, core.Rule{Name: "one", Limit: limit})
		for range 2 {
			err := grpcflow.NewLimiter(l, grpcflow.Options{}).Limit(t.Context())
			if err == nil || errors.Is(err, core.ErrRefused) || !strings.HasPrefix(err.Error(), "grpcflow: a rule holds units") {
				t.Errorf("%s: %v; want an error that tells that the rule is not for a Limiter", name, err)
			}
		}
		if s := stat(l); s.InFlight != 0 {
			t.Errorf("%s: %+v", name, s)
		}
	}
}
