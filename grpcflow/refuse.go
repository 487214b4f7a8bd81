package grpcflow

import (
	"context"
	"fmt"
	"hash/maphash"
	"math"
	"strconv"
	"strings"
	"sync/atomic"
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
func (g *gate) refuse(ctx context.Context, permit core.Permit) error {
	if g.o.Refuse != nil {
		if err := g.o.Refuse(ctx, permit); err != nil {
			return err
		}
	}
	r, q := permit.Refusal(), permit.Quota()
	c := cause{codes.ResourceExhausted, r.Rule, r.By, r.Reason, q.Limit, q.Window}
	if g.o.Status != nil {
		if code := g.o.Status(permit); codes.OK < code && code <= codes.Unauthenticated {
			c.code = code
		}
	}
	st := g.verdicts.of(c)
	if r.Known {
		st = with(st, &errdetails.RetryInfo{RetryDelay: durationpb.New(r.RetryAfter)})
	}
	if g.client {
		return &refused{r, st}
	}
	return st.Err()
}

// A refused is what a client's own limiter answers: a status, as a server's, for
// code that knows servers, and a [core.Refusal], for code that wants to tell.
type refused struct {
	refusal core.Refusal
	status  *status.Status
}

func (r *refused) Error() string              { return r.status.String() }
func (r *refused) GRPCStatus() *status.Status { return r.status }
func (r *refused) Unwrap() error              { return r.refusal }

// A cause is what is the same for all refusals by one limit of a rule.
type cause struct {
	code     codes.Code
	rule, by string
	reason   core.Reason
	limit    int
	window   time.Duration
}

// status tells the client what the rules' author wrote, and nothing of the
// client's key or of us.
func (c cause) status() *status.Status {
	reason, message := words(c.reason)
	limit := strconv.Itoa(c.limit)
	info := &errdetails.ErrorInfo{Reason: reason, Domain: domain}
	if c.rule == "" { // a cost below 0, where no rule enforces
		return with(status.New(c.code, message), info)
	}
	info.Metadata = map[string]string{"rule": c.rule, "limit": limit}
	description := "at most " + limit + " in flight"
	if c.window > 0 {
		info.Metadata["windowSeconds"] = decimalSeconds(c.window)
		description = "at most " + limit + " per " + c.window.String()
	}
	return with(status.New(c.code, message+": "+c.rule), info, &errdetails.QuotaFailure{
		Violations: []*errdetails.QuotaFailure_Violation{{
			Subject:     c.by,
			Description: description,
			QuotaId:     c.rule,
			QuotaValue:  int64(c.limit),
		}},
	})
}

// decimalSeconds is d in full, without an exponent: "0.0015", "60".
func decimalSeconds(d time.Duration) string {
	whole, part := d/time.Second, d%time.Second
	if part == 0 {
		return strconv.FormatInt(int64(whole), 10)
	}
	return strings.TrimRight(fmt.Sprintf("%d.%09d", whole, part), "0")
}

// with is the status and the details; without them if protobuf cannot write them,
// as for a By that is not UTF-8.
func with(st *status.Status, details ...protoadapt.MessageV1) *status.Status {
	if full, err := st.WithDetails(details...); err == nil {
		return full
	}
	return st
}

// verdicts remembers the statuses of some causes, because writing one costs ten
// times the decision, and a server under attack does little else. Causes that
// share a place push each other out, which costs time and nothing else: so memory
// is bounded, whatever rules come and go. Safe for concurrent use.
type verdicts struct {
	seed  maphash.Seed
	place [64]atomic.Pointer[verdict]
}

type verdict struct {
	cause  cause
	status *status.Status
}

func (v *verdicts) of(c cause) *status.Status {
	place := &v.place[(maphash.String(v.seed, c.rule)+uint64(c.limit)^uint64(c.reason)<<3)%uint64(len(v.place))]
	if known := place.Load(); known != nil && known.cause == c {
		return known.status
	}
	st := c.status()
	place.Store(&verdict{c, st})
	return st
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
	case core.ReasonQueued:
		return "QUEUED", "others wait already"
	case core.ReasonQueueFull:
		return "QUEUE_FULL", "too many wait already"
	case core.ReasonQueueTimeout:
		return "QUEUE_TIMEOUT", "wait too long"
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
