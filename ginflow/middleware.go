package ginflow

import (
	"errors"
	"net/http"
	"slices"

	"github.com/gin-gonic/gin"

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
	Resource func(*gin.Context) string

	// Cost, if given, is how many units the request takes; 0 means 1.
	Cost func(*gin.Context) int

	// Priority, if given, is how important the request is to rules with a Queue or
	// a Reserve; nil means core.Default for all. It should not be the client's own
	// word.
	Priority func(*gin.Context) core.Priority

	// Skip, if given, lets those requests for which it is true pass by the
	// limiter: health checks.
	Skip func(*gin.Context) bool

	// Carry lets the permit travel in the request's context, for handlers that have
	// more to say than that they return: core.PermitFrom(c.Request.Context()) tells it. Mark
	// it failed by Fail, settle a cost that was not known by Settle, and Detach it when
	// work goes on after the handler has returned. It costs a copy of the request.
	Carry bool

	// Refuse, if given, answers a refused request, which is aborted already. The
	// headers of [nethttpflow.Answer.Announce] are set, and may be changed. It must
	// write a status: what is not written becomes 200.
	Refuse func(*gin.Context, core.Permit)

	Status  func(core.Permit) int // see nethttpflow.Answer
	Headers nethttpflow.Headers   // see nethttpflow.Answer
	Legacy  nethttpflow.Legacy    // see nethttpflow.Answer
}

// Middleware is a handler that asks l first, and lets the later ones run only if
// it admits. It panics for options that cannot work: if l is nil; if a key lacks
// its By or its function, or has another's By, or one that no rule can name; if
// Headers or Legacy is none of the constants.
func Middleware(l *core.Limiter, o Options) gin.HandlerFunc {
	if l == nil {
		panic("ginflow: the limiter is nil")
	}
	if o.Keys == nil {
		o.Keys = []Key{Peer()}
	}
	o.Keys = slices.Clone(o.Keys)
	options.Keys("ginflow", o.Keys, func(k Key) (string, bool) { return k.By, k.Of != nil })
	options.Constant("ginflow", "Headers", o.Headers, nethttpflow.HeadersNever)
	options.Constant("ginflow", "Legacy", o.Legacy, nethttpflow.LegacyDraft06)
	if o.Resource == nil {
		known := new(nethttpflow.Resources)
		o.Resource = func(c *gin.Context) string { return known.OfRoute(c.Request.Method, c.FullPath()) }
	}
	answer := nethttpflow.Answer{Status: o.Status, Headers: o.Headers, Legacy: o.Legacy}

	return func(c *gin.Context) {
		if o.Skip != nil && o.Skip(c) {
			return // gin goes on to the next handler
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

		permit, err := l.Wait(c.Request.Context(), ask)
		if err != nil && !errors.Is(err, core.ErrRefused) {
			c.AbortWithError(http.StatusServiceUnavailable, err)
			return
		}
		if err != nil {
			c.Abort()
			c.Error(permit.Refusal())
			answer.Announce(c.Writer.Header(), permit)
			if o.Refuse != nil {
				o.Refuse(c, permit)
			} else {
				answer.Write(c.Writer, c.Request, permit)
			}
			return
		}

		returned := false
		defer func() {
			if !returned || c.Writer.Status() >= http.StatusInternalServerError {
				permit.Fail()
			}
			permit.Release()
		}()
		answer.Announce(c.Writer.Header(), permit)
		if o.Carry {
			c.Request = c.Request.WithContext(core.WithPermit(c.Request.Context(), permit))
		}
		c.Next()
		returned = true
	}
}
