package grpcflow

import (
	"context"
	"math"
	"strconv"
	"time"

	"github.com/exactflow/exactflow/core"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"
)

// domain makes our reasons unique among those of all services.
const domain = "github.com/exactflow/exactflow"

// pushbackKey is the trailer of gRFC A6 by which a server paces a client's
// retries: decimal milliseconds in an int32; below 0 means do not.
const pushbackKey = "grpc-retry-pushback-ms"

// refuse is the error of a refused call.
func (s *server) refuse(ctx context.Context, permit core.Permit) error {
	if s.o.Refuse != nil {
		if err := s.o.Refuse(ctx, permit); err != nil {
			return err
		}
	}
	code := codes.ResourceExhausted
	if s.o.Status != nil {
		if c := s.o.Status(permit); c != codes.OK {
			code = c
		}
	}
	return refusal(code, permit.Refusal(), permit.Quota())
}

// refusal is the default error. It tells the client what the rules' author wrote,
// and nothing of the client's key or of us.
func refusal(code codes.Code, r core.Refusal, q core.Quota) error {
	reason, message := words(r.Reason)
	limit := strconv.Itoa(q.Limit)
	info := &errdetails.ErrorInfo{
		Reason:   reason,
		Domain:   domain,
		Metadata: map[string]string{"rule": r.Rule, "limit": limit},
	}
	description := "at most " + limit + " in flight"
	if q.Window > 0 {
		info.Metadata["windowSeconds"] = strconv.FormatFloat(q.Window.Seconds(), 'f', -1, 64)
		description = "at most " + limit + " per " + q.Window.String()
	}
	details := []protoadapt.MessageV1{info, &errdetails.QuotaFailure{
		Violations: []*errdetails.QuotaFailure_Violation{{
			Subject:     r.By,
			Description: description,
			QuotaId:     r.Rule,
			QuotaValue:  int64(q.Limit),
		}},
	}}
	if r.Known {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(r.RetryAfter)})
	}
	st := status.New(code, message+": "+r.Rule)
	if full, err := st.WithDetails(details...); err == nil {
		st = full
	}
	return st.Err()
}

// words is a reason as ErrorInfo wants it and as people do.
func words(r core.Reason) (reason, message string) {
	switch r {
	case core.ReasonRate:
		return "RATE_LIMIT_EXCEEDED", "rate limit exceeded"
	case core.ReasonInFlight:
		return "CONCURRENCY_LIMIT_EXCEEDED", "concurrency limit exceeded"
	case core.ReasonNever:
		return "REQUEST_EXCEEDS_LIMIT", "request exceeds the limit"
	case core.ReasonKeys:
		return "KEY_LIMIT_EXCEEDED", "too many clients at once"
	}
	return "LIMIT_EXCEEDED", "limit exceeded"
}

// pushback is the trailer that paces the client's retries, or nil: for a permit
// that no rule refused, when no time is known, and when the call has one already.
// The latter happens when an interceptor further out sets one, or calls on again
// after a refusal: trailers add up, and clients take two values for none.
func pushback(ctx context.Context, permit core.Permit) metadata.MD {
	r := permit.Refusal()
	text := "-1"
	switch {
	case r.Known:
		text = strconv.FormatInt(milliseconds(r.RetryAfter), 10)
	case r.Reason != core.ReasonNever:
		return nil
	}
	// The stream that grpc-go puts into the context of its calls shows the
	// trailer it has so far, though the interface it is known by does not say so.
	stream, ok := grpc.ServerTransportStreamFromContext(ctx).(interface{ Trailer() metadata.MD })
	if ok && len(stream.Trailer()[pushbackKey]) > 0 {
		return nil
	}
	return metadata.MD{pushbackKey: {text}}
}

// milliseconds is d rounded up, so that nobody comes early, and cut to an int32,
// which is 24 days.
func milliseconds(d time.Duration) int64 {
	ms := int64(d / time.Millisecond)
	if d%time.Millisecond > 0 {
		ms++
	}
	return min(ms, math.MaxInt32)
}
