package echoflow

import (
	"cmp"
	"errors"

	"github.com/exactflow/exactflow/core"
	"github.com/exactflow/exactflow/internal/options"
)

// A Store is exactflow behind echo's middleware.RateLimiterStore, for servers that
// have middleware.RateLimiter already:
//
//	e.Use(middleware.RateLimiter(echoflow.NewStore(limiter, echoflow.StoreOptions{})))
//
// What is lost that way, against [Middleware]:
//
//   - The end of the request, which nobody tells. So rules that hold units until then,
//     in flight or to charge them by outcome, cannot be kept: NewStore panics for them,
//     unless they are Shadow, and a request that meets one that has come in by Replace
//     is refused, with an error that says so.
//   - The answer, with all that it tells of the wait: a refused request gets what
//     echo's DenyHandler says, by default a bare 429, even where the service as a
//     whole is full. A handler of your own finds the [core.Refusal] in its error.
//   - Waiting. There is no context by which a client could leave the line, so who
//     would have to wait is refused.
//   - The request: its resource is one for all, and it has one key, cost 1 and the
//     default priority.
//
// The key is what echo's IdentifierExtractor finds, by default c.RealIP: before echo
// 4.16.3 that is what clients say, and since then it tells an IPv6 client by each of
// its addresses. So let it be a key of this package:
//
//	client := echoflow.Peer()
//	e.Use(middleware.RateLimiterWithConfig(middleware.RateLimiterConfig{
//		Store:               echoflow.NewStore(limiter, echoflow.StoreOptions{By: client.By}),
//		IdentifierExtractor: func(c echo.Context) (string, error) { return client.Of(c), nil },
//	}))
type Store struct {
	limiter *core.Limiter
	o       StoreOptions
}

// StoreOptions say what rules see of what a [Store] is asked.
type StoreOptions struct {
	By string // what the identifier is, as in Rule.By; "" means "ip"
	On string // the resource of all requests; "" is seen by rules for all alone
}

// NewStore panics if l is nil, for a By that no rule can name, and for a rule that
// holds units until a request ends.
func NewStore(l *core.Limiter, o StoreOptions) Store {
	if l == nil {
		panic("echoflow: the limiter is nil")
	}
	o.By = cmp.Or(o.By, "ip")
	options.By("echoflow", "StoreOptions", o.By)
	options.Held("echoflow", "Store", "Middleware", l)
	return Store{l, o}
}

// Allow asks for a request. The error is a [core.Refusal], or tells that the rules are
// not for a Store.
func (s Store) Allow(identifier string) (bool, error) {
	permit, ok := s.limiter.Try(core.Request{On: s.o.On, Keys: []core.Key{{By: s.o.By, Value: identifier}}})
	if !ok {
		return false, permit.Refusal()
	}
	defer permit.Release()
	if permit.Holds() {
		permit.Settle(0)
		return false, errHeld
	}
	return true, nil
}

// errHeld is for whoever has put the wrong rules behind a Store.
var errHeld = errors.New("echoflow: a rule holds units until the request ends, which a Store is not told; want rules without InFlight, and rates with ChargeAll, or Middleware")
