package grpcflow

import (
	"context"
	"errors"

	"github.com/exactflow/exactflow/core"
	"github.com/exactflow/exactflow/internal/options"
	"google.golang.org/grpc"
)

// A Limiter is exactflow behind an interface with the one method Limit, as the
// ratelimit interceptors of go-grpc-middleware take it, for servers that have
// these already. Make it with [NewLimiter]. What is lost that way, against
// [UnaryServerInterceptor] and [StreamServerInterceptor]:
//
//   - The end of the call, which nobody tells. So rules that hold units until then, in
//     flight or to charge them by outcome, cannot be kept: NewLimiter panics for them,
//     unless they are Shadow, and a call that meets one that has come in by Replace is
//     refused, with an error that says so.
//   - The error. The middleware answers ResourceExhausted with a text of its own,
//     which ends with that of ours, and without details: it names the rule and the
//     wait, but [RetryAfter] does not find it. A call whose context is done while it
//     waits is answered so, too.
//   - The request: Cost and Priority get nil.
//   - Status, Refuse, Carry and Messages: they are not looked at.
//
// The method is not lost, nor are the keys, nor the pushback trailer. For clients
// use [UnaryClientInterceptor]: the interface is the same there, but nobody tells
// Limit the method that is called, and inside of a handler it takes the handler's.
type Limiter struct{ gate *gate }

// NewLimiter panics for a nil limiter, for keys that cannot work, and for a rule that
// holds units until a call ends.
func NewLimiter(l *core.Limiter, o Options) Limiter {
	g := newGate(l, o, Peer())
	options.Held("grpcflow", "Limiter", "the interceptors", l)
	return Limiter{g}
}

// Limit asks for the call of a server whose context it is. The error is a
// [core.Refusal], or that of the context, or tells that the rules are not for a Limiter.
func (l Limiter) Limit(ctx context.Context) error {
	if l.gate == nil {
		panic("grpcflow: the Limiter was not made by NewLimiter")
	}
	method, _ := grpc.Method(ctx)
	if l.gate.o.Skip(ctx, method) {
		return nil
	}
	permit, err := l.gate.wait(ctx, l.gate.call(ctx, method, nil))
	if errors.Is(err, core.ErrRefused) {
		_ = grpc.SetTrailer(ctx, pushback(ctx, permit)) // fails without a server, as in somebody's unit test
		return permit.Refusal()
	}
	defer permit.Release()
	if permit.Holds() {
		permit.Settle(0)
		return errHeld
	}
	return err
}

// errHeld is for whoever has put the wrong rules behind a Limiter.
var errHeld = errors.New("grpcflow: a rule holds units until the call ends, which a Limiter is not told; want rules without InFlight, and rates with ChargeAll, or the interceptors")
