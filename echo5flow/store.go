package echo5flow

import (
	"cmp"
	"errors"

	"github.com/labstack/echo/v5"

	"github.com/exactflow/exactflow/core"
	"github.com/exactflow/exactflow/internal/options"
	"github.com/exactflow/exactflow/nethttpflow"
)

// A Store is exactflow behind echo's middleware.RateLimiterStore, for servers that
// have middleware.RateLimiter already:
//
//	e.Use(middleware.RateLimiter(echo5flow.NewStore(limiter, echo5flow.StoreOptions{})))
//
// What is lost that way, against [Middleware]:
//
//   - The end of the request, which nobody tells. So rules that hold units until then,
//     in flight or to charge them by outcome, cannot be kept: NewStore panics for them,
//     unless they are Shadow, and a request that meets one that has come in by Replace
//     is refused, with an error that says so.
//   - The answer: a refused request gets what echo's DenyHandler says, by default a
//     429 without a problem document, even where the service as a whole is full; and
//     so does one whose context is done while it waits. A handler of your own finds
//     the [core.Refusal] in its error. The headers are not lost.
//   - Of the request, all keys but one, its cost and its priority.
//
// The key is what echo's IdentifierExtractor finds, by default c.RealIP, which tells
// an IPv6 client by each of its addresses; [ClientIP] tells more. So let it be one of
// this package:
//
//	client := echo5flow.Peer()
//	e.Use(middleware.RateLimiterWithConfig(middleware.RateLimiterConfig{
//		Store:               echo5flow.NewStore(limiter, echo5flow.StoreOptions{By: client.By}),
//		IdentifierExtractor: func(c *echo.Context) (string, error) { return client.Of(c), nil },
//	}))
type Store struct {
	limiter *core.Limiter
	o       StoreOptions
	routes  routes
	answer  nethttpflow.Answer
}

// StoreOptions say what rules see of what a [Store] is asked, and what is told.
type StoreOptions struct {
	By      string              // what the identifier is, as in Rule.By; "" means "ip"
	On      string              // the resource of all requests; "" means that of each, as in Middleware
	Headers nethttpflow.Headers // see nethttpflow.Answer
	Legacy  nethttpflow.Legacy  // see nethttpflow.Answer
}

// NewStore panics if l is nil, for a By that no rule can name, for a rule that holds
// units until a request ends, and if Headers or Legacy is none of the constants.
func NewStore(l *core.Limiter, o StoreOptions) Store {
	if l == nil {
		panic("echo5flow: the limiter is nil")
	}
	o.By = cmp.Or(o.By, "ip")
	options.By("echo5flow", "StoreOptions", o.By)
	options.Held("echo5flow", "Store", "Middleware", l)
	options.Constant("echo5flow", "Headers", o.Headers, nethttpflow.HeadersNever)
	options.Constant("echo5flow", "Legacy", o.Legacy, nethttpflow.LegacyDraft06)
	return Store{l, o, routes{new(nethttpflow.Resources)}, nethttpflow.Answer{Headers: o.Headers, Legacy: o.Legacy}}
}

// AllowContext asks for a request, which waits where rules have a [core.Queue]. The
// error is a [core.Refusal], or that of the request's context, or tells that the rules
// are not for a Store.
func (s Store) AllowContext(c *echo.Context, identifier string) (bool, error) {
	ask := s.ask(identifier)
	if ask.On == "" {
		ask.On = s.routes.resource(c)
	}
	permit, err := s.limiter.Wait(c.Request().Context(), ask)
	if err != nil && !errors.Is(err, core.ErrRefused) {
		return false, err
	}
	s.answer.Announce(c.Response().Header(), permit)
	return done(permit, err == nil)
}

// Allow is for who has no request at hand; echo calls AllowContext. It does not wait,
// and the resource is On.
func (s Store) Allow(identifier string) (bool, error) {
	return done(s.limiter.Try(s.ask(identifier)))
}

func (s Store) ask(identifier string) core.Request {
	return core.Request{On: s.o.On, Keys: []core.Key{{By: s.o.By, Value: identifier}}}
}

func done(p core.Permit, ok bool) (bool, error) {
	if !ok {
		return false, p.Refusal()
	}
	defer p.Release()
	if p.Holds() {
		p.Settle(0)
		return false, errHeld
	}
	return true, nil
}

// errHeld is for whoever has put the wrong rules behind a Store.
var errHeld = errors.New("echo5flow: a rule holds units until the request ends, which a Store is not told; want rules without InFlight, and rates with ChargeAll, or Middleware")
