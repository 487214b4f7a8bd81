package grpcflow_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/exactflow/exactflow/core"
	"github.com/exactflow/exactflow/grpcflow"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"
)

// A caller asks any error when to come back: ours, a server's, or none at all.
func TestRetryAfterIsWhatAnErrorTells(t *testing.T) {
	detailed := func(d ...protoadapt.MessageV1) error {
		st, err := status.New(codes.ResourceExhausted, "no").WithDetails(d...)
		if err != nil {
			t.Fatal(err)
		}
		return st.Err()
	}
	info := func(d time.Duration) *errdetails.RetryInfo {
		return &errdetails.RetryInfo{RetryDelay: durationpb.New(d)}
	}
	known := core.Refusal{Rule: "r", Reason: core.ReasonRate, RetryAfter: 3 * time.Second, Known: true}
	for name, tt := range map[string]struct {
		err  error
		want time.Duration
		ok   bool
	}{
		"nil":                          {nil, 0, false},
		"any error":                    {errors.New("oops"), 0, false},
		"a context's":                  {context.Canceled, 0, false},
		"a status without details":     {status.Error(codes.ResourceExhausted, "no"), 0, false},
		"other details":                {detailed(&errdetails.ErrorInfo{Reason: "X"}), 0, false},
		"RetryInfo":                    {detailed(info(time.Minute)), time.Minute, true},
		"RetryInfo among others":       {detailed(&errdetails.ErrorInfo{Reason: "X"}, info(time.Minute)), time.Minute, true},
		"at once":                      {detailed(info(0)), 0, true},
		"in the past":                  {detailed(info(-time.Minute)), 0, true},
		"RetryInfo that tells no time": {detailed(&errdetails.RetryInfo{}), 0, false},
		"nonsense":                     {detailed(&errdetails.RetryInfo{RetryDelay: &durationpb.Duration{Seconds: math.MaxInt64}}), 0, false},
		"longer than time.Duration":    {detailed(&errdetails.RetryInfo{RetryDelay: &durationpb.Duration{Seconds: 300_000_000_000}}), math.MaxInt64, true},
		"wrapped":                      {fmt.Errorf("shop: %w", detailed(info(time.Minute))), time.Minute, true},
		"joined":                       {errors.Join(errors.New("oops"), detailed(info(time.Minute))), time.Minute, true},
		"a Refusal":                    {known, 3 * time.Second, true},
		"a wrapped Refusal":            {fmt.Errorf("shop: %w", known), 3 * time.Second, true},
		"a Refusal that knows none":    {core.Refusal{Rule: "r", Reason: core.ReasonInFlight}, 0, false},
	} {
		if got, ok := grpcflow.RetryAfter(tt.err); got != tt.want || ok != tt.ok {
			t.Errorf("%s: %v, %v; want %v, %v", name, got, ok, tt.want, tt.ok)
		}
	}
}
