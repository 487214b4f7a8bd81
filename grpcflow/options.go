package grpcflow

import (
	"context"
	"strings"

	"github.com/exactflow/exactflow/core"
	"google.golang.org/grpc/codes"
)

// Options says how a call becomes a request to the limiter, and what a refused
// one is answered. The zero value works. The functions are called at the same
// time by many calls; one that panics does so before anything is taken.
type Options struct {
	// Keys is what a call is known by, at most one for each By. nil means [Peer]
	// alone, an empty slice nothing. A rule that counts by something else counts
	// all calls under the empty key.
	Keys []Key

	// Resource names what is called, to be matched by a rule's On. nil means the
	// full method, "/shop.Catalog/Search". It must not return text that clients
	// can choose freely: each new name costs a scan of the rules.
	Resource func(ctx context.Context, fullMethod string) string

	// Cost is how many units the call takes; 0 means 1, and below 0 is refused.
	// nil means 1 for each. For a stream req is nil: the decision comes before the
	// first message.
	Cost func(ctx context.Context, fullMethod string, req any) int

	// Priority is how important the call is to rules with a Queue or a Reserve. nil
	// means core.Default for all. It should not be the client's own word. For a
	// stream req is nil.
	Priority func(ctx context.Context, fullMethod string, req any) core.Priority

	// Skip exempts a call: no rule sees it. nil means
	// [SkipHealthAndReflection], which a function of your own may call.
	Skip func(ctx context.Context, fullMethod string) bool

	// Refuse makes the error of a refused call, in place of the default one; nil,
	// from it or as it, means the default one. The handler never runs. The
	// pushback trailer is set as by default, unless Refuse has set one itself.
	// ctx serves grpc.SetTrailer for streams too.
	Refuse func(ctx context.Context, refused core.Permit) error

	// Status is the code of the default error. nil means ResourceExhausted for
	// all; so does what is no error of gRPC's: OK, and codes above 16.
	//
	// Unavailable for what is full for everybody, with a queue or without, say,
	//
	//	r, inFlight := refused.Refusal(), refused.Quota().Window == 0
	//	inFlight && r.By == "" && r.Reason != core.ReasonNever
	//
	// lets clients that retry by common policies go to another server. But it
	// counts as a server's error in traces and alerts.
	Status func(refused core.Permit) codes.Code
}

// SkipHealthAndReflection is true for the methods of the standard health and
// reflection services. It is the default of [Options].Skip.
func SkipHealthAndReflection(_ context.Context, fullMethod string) bool {
	return strings.HasPrefix(fullMethod, "/grpc.health.v1.Health/") ||
		strings.HasPrefix(fullMethod, "/grpc.reflection.")
}
