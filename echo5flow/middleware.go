package echo5flow

import (
	"errors"
	"net/http"
	"slices"

	"github.com/labstack/echo/v5"

	"github.com/exactflow/exactflow/core"
	"github.com/exactflow/exactflow/internal/options"
	"github.com/exactflow/exactflow/nethttpflow"
)

// Options say what a request is, and how a refusal is told. The zero value
// works: the key is [Peer], the resource is the route, the cost is 1. They are
// copied when the middleware is made; the functions are called by many
// goroutines at once.
type Options struct {
	// Keys is what a request is known by: at most one for each By. nil means
	// Peer(). More than four cost an allocation for each request.
	Keys []Key

	// Resource, if given, says what rules see as the resource, instead of method
	// and route. Return names of your own making, not raw paths.
	Resource func(*echo.Context) string

	// Cost, if given, is how many units the request takes; 0 means 1.
	Cost func(*echo.Context) int

	// Priority, if given, is how important the request is to rules with a Queue or
	// a Reserve; nil means core.Default for all. It should not be the client's own
	// word.
	Priority func(*echo.Context) core.Priority

	// Skip, if given, lets those requests for which it is true pass by the
	// limiter: health checks.
	Skip func(*echo.Context) bool

	// Carry lets the permit travel in the request's context, for handlers that have
	// more to say than that they return: core.PermitFrom(c.Request().Context()) tells it. Mark
	// it failed by Fail, settle a cost that was not known by Settle, and Detach it when
	// work goes on after the handler has returned. It costs a copy of the request.
	Carry bool

	// Refuse, if given, answers a refused request; the handler never runs. The
	// headers of [nethttpflow.Answer.Announce] are set, and may be changed. It
	// writes, or returns an error for echo's error handler to write: after nil,
	// what is not written becomes 200. For its permit.Refusal() the handler gets the
	// error of which the package comment tells.
	Refuse func(*echo.Context, core.Permit) error

	Status  func(core.Permit) int // see nethttpflow.Answer
	Headers nethttpflow.Headers   // see nethttpflow.Answer
	Legacy  nethttpflow.Legacy    // see nethttpflow.Answer
}

// Middleware makes handlers that ask l first, and run only if it admits. It
// panics for options that cannot work: if l is nil; if a key lacks its By or its
// function, or has another's By, or one that no rule can name; if Headers or
// Legacy is none of the constants.
func Middleware(l *core.Limiter, o Options) echo.MiddlewareFunc {
	if l == nil {
		panic("echo5flow: the limiter is nil")
	}
	if o.Keys == nil {
		o.Keys = []Key{Peer()}
	}
	o.Keys = slices.Clone(o.Keys)
	options.Keys("echo5flow", o.Keys, func(k Key) (string, bool) { return k.By, k.Of != nil })
	options.Constant("echo5flow", "Headers", o.Headers, nethttpflow.HeadersNever)
	options.Constant("echo5flow", "Legacy", o.Legacy, nethttpflow.LegacyDraft06)
	if o.Resource == nil {
		o.Resource = routes{new(nethttpflow.Resources)}.resource
	}
	answer := nethttpflow.Answer{Status: o.Status, Headers: o.Headers, Legacy: o.Legacy}

	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c *echo.Context) error {
			if o.Skip != nil && o.Skip(c) {
				return next(c)
			}

			var few [4]core.Key // on the stack, as is all that an admitted request needs
			ask := core.Request{Keys: few[:0]}
			for _, k := range o.Keys {
				ask.Keys = append(ask.Keys, core.Key{By: k.By, Value: k.Of(c)})
			}
			ask.On = o.Resource(c)
			if o.Cost != nil {
				ask.Cost = o.Cost(c)
			}
			if o.Priority != nil {
				ask.Priority = o.Priority(c)
			}

			permit, err := l.Wait(c.Request().Context(), ask)
			if err != nil && !errors.Is(err, core.ErrRefused) {
				return echo.ErrServiceUnavailable.Wrap(err)
			}
			if err != nil {
				answer.Announce(c.Response().Header(), permit)
				if o.Refuse == nil {
					e := refusal(answer, permit)
					e.write(c)
					return e
				}
				err = o.Refuse(c, permit)
				if _, bare := err.(core.Refusal); bare {
					return refusal(answer, permit)
				}
				return err
			}

			fail := true
			defer func() {
				if fail {
					permit.Fail()
				}
				permit.Release()
			}()
			answer.Announce(c.Response().Header(), permit)
			if o.Carry {
				c.SetRequest(c.Request().WithContext(core.WithPermit(c.Request().Context(), permit)))
			}
			err = next(c)
			fail = failed(c, err)
			return err
		}
	}
}

// failed reports an outcome of 500 or above, of an error as echo's own error
// handlers read it.
func failed(c *echo.Context, err error) bool {
	if err == nil {
		r, _ := echo.UnwrapResponse(c.Response())
		return r != nil && r.Status >= http.StatusInternalServerError
	}
	status := echo.StatusCode(err)
	return status == 0 || status >= http.StatusInternalServerError
}
