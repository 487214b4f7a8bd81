package grpcflow

import (
	"context"
	"strings"

	"github.com/exactflow/exactflow/core"
	"google.golang.org/grpc/codes"
)

// Options says how a call becomes a request to the limiter, and what a refused
// one is answered. The zero value works. The functions are called at the same
// time by many calls; one that panics does so before anything is taken. For a
// client each field means the same, but where it says what is different.
type Options struct {
	// Keys is what a call is known by, at most one for each By. nil means [Peer]
	// alone, an empty slice nothing. A rule that counts by something else counts
	// all calls under the empty key.
	//
	// A client's call has "target" beside, and by default nothing else. Its context
	// is the caller's: in a handler, [Peer] and [Metadata] are about the call that
	// is being handled.
	Keys []Key

	// Resource names what is called, to be matched by a rule's On. nil means the
	// full method, "/shop.Catalog/Search". It must not return text that clients
	// can choose freely: each new name costs a scan of the rules.
	Resource func(ctx context.Context, fullMethod string) string

	// Cost is how many units the call takes; 0 means 1, and below 0 is refused.
	// nil means 1 for each. For a stream req is nil: the decision comes before the
	// first message. [InTapHandle] does not ask it.
	Cost func(ctx context.Context, fullMethod string, req any) int

	// Priority is how important the call is to rules with a Queue or a Reserve. nil
	// means core.Default for all. It should not be the client's own word. For a
	// stream, and for [InTapHandle], req is nil.
	Priority func(ctx context.Context, fullMethod string, req any) core.Priority

	// Skip exempts a call: no rule sees it. nil means
	// [SkipHealthAndReflection], which a function of your own may call.
	Skip func(ctx context.Context, fullMethod string) bool

	// Messages asks the limiter for messages of streams too, beside the stream. Such
	// an ask has the stream's keys, the message as req of Cost and Priority, and a
	// resource of its own: the stream's, behind "received " or "sent ".
	Messages Messages

	// Carry lets the permit travel in the call's context, for handlers that have
	// more to say than that they return: core.PermitFrom(ctx) tells it, of a stream
	// by its Context. Mark the call failed by Fail, say that a stream is set up by
	// Ready, settle a cost that was not known by Settle, and Detach the permit when
	// work goes on after the handler has returned. A client's is for interceptors
	// further in. A message's permit does not travel.
	Carry bool

	// Known tells [InTapHandle] which methods there are, since clients may call what
	// does not exist; nothing else asks it. nil means the methods of all services
	// whose generated code is in the program. It is for servers that have others:
	// what it says of them must not change once the server serves.
	Known func(fullMethod string) bool

	// Refuse makes the error of a refused call or message, in place of the default
	// one; nil, from it or as it, means the default one. The handler of a refused call
	// never runs. The pushback trailer is set as by default, unless Refuse has set one
	// itself. ctx serves grpc.SetTrailer for streams too, where what is set for a
	// message stays, also if the handler drops the message; for a client, and for
	// [InTapHandle], there is no trailer.
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
