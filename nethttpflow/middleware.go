package nethttpflow

import (
	"errors"
	"net/http"
	"slices"

	"github.com/exactflow/exactflow/core"
	"github.com/exactflow/exactflow/internal/options"
)

// Options say what a request is, and how a refusal is told. The zero value
// works: the key is [Peer], the resource is the route, the cost is 1. They are
// copied when the middleware is made; the functions are called by many
// goroutines at once.
type Options struct {
	// Keys is what a request is known by: at most one for each By. nil means
	// Peer(). More than four cost an allocation for each request.
	Keys []Key

	// Mux is asked for the route: a *http.ServeMux around which the middleware
	// stands. nil means the next handler, if that is one itself; if not, the
	// route is the request's Pattern.
	Mux interface {
		Handler(*http.Request) (h http.Handler, pattern string)
	}

	// Resource, if given, says what rules see as the resource, instead of method
	// and route. Return names of your own making, not raw paths.
	Resource func(*http.Request) string

	// Cost, if given, is how many units the request takes; 0 means 1.
	Cost func(*http.Request) int

	// Priority, if given, is how important the request is to rules with a Queue or
	// a Reserve; nil means core.Default for all. It should not be the client's own
	// word.
	Priority func(*http.Request) core.Priority

	// Skip, if given, lets those requests for which it is true pass by the
	// limiter: health checks.
	Skip func(*http.Request) bool

	// Carry lets the permit travel in the request's context, for handlers that have
	// more to say than that they return: core.PermitFrom(r.Context()) tells it. Mark
	// it failed by Fail, settle a cost that was not known by Settle, and Detach it when
	// work goes on after the handler has returned. It costs a copy of the request,
	// and what stands around the middleware does not see the Pattern that a mux inside
	// sets on that copy.
	Carry bool

	// Refuse, if given, answers a refused request; the handler never runs. The
	// headers of [Answer.Announce] are set already, and may be changed. It must
	// write a status: what is not written becomes 200. [Answer.Write] writes what
	// would have been written without it.
	Refuse func(http.ResponseWriter, *http.Request, core.Permit)

	Status  func(core.Permit) int // see Answer
	Headers Headers               // see Answer
	Legacy  Legacy                // see Answer
}

// Middleware makes handlers that ask l first, and run only if it admits. It
// panics for options that cannot work: if l is nil, or Mux a nil *http.ServeMux;
// if a key lacks its By or its function, or has another's By, or one that no rule
// can name; if Headers or Legacy is none of the constants. What it returns panics
// if the handler is nil.
func Middleware(l *core.Limiter, o Options) func(http.Handler) http.Handler {
	if l == nil {
		panic("nethttpflow: the limiter is nil")
	}
	if o.Keys == nil {
		o.Keys = []Key{Peer()}
	}
	o.Keys = slices.Clone(o.Keys)
	options.Keys("nethttpflow", o.Keys, func(k Key) (string, bool) { return k.By, k.Of != nil })
	options.Constant("nethttpflow", "Headers", o.Headers, HeadersNever)
	options.Constant("nethttpflow", "Legacy", o.Legacy, LegacyDraft06)
	if isNil(o.Mux) {
		panic("nethttpflow: Options.Mux is a nil *http.ServeMux")
	}
	answer := Answer{Status: o.Status, Headers: o.Headers, Legacy: o.Legacy}
	known := new(Resources)

	return func(next http.Handler) http.Handler {
		if next == nil || isNil(next) {
			panic("nethttpflow: the next handler is nil")
		}
		resource := o.Resource
		if resource == nil {
			m := o.Mux
			if m == nil {
				m, _ = next.(router)
			}
			resource = routes{m, known}.resource
		}

		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if o.Skip != nil && o.Skip(r) {
				next.ServeHTTP(w, r)
				return
			}

			var few [4]core.Key // on the stack, as is all that an admitted request needs
			ask := core.Request{Keys: few[:0]}
			for _, k := range o.Keys {
				ask.Keys = append(ask.Keys, core.Key{By: k.By, Value: k.Of(r)})
			}
			ask.On = resource(r)
			if o.Cost != nil {
				ask.Cost = o.Cost(r)
			}
			if o.Priority != nil {
				ask.Priority = o.Priority(r)
			}

			permit, err := l.Wait(r.Context(), ask)
			if err != nil && !errors.Is(err, core.ErrRefused) {
				w.WriteHeader(http.StatusServiceUnavailable)
				return
			}
			if err != nil {
				answer.Announce(w.Header(), permit)
				if o.Refuse != nil {
					o.Refuse(w, r, permit)
				} else {
					answer.Write(w, r, permit)
				}
				return
			}

			returned := false
			defer func() {
				if !returned { // a panic or Goexit, which goes on
					permit.Fail()
				}
				permit.Release()
			}()
			answer.Announce(w.Header(), permit)
			if o.Carry {
				r = r.WithContext(core.WithPermit(r.Context(), permit))
			}
			next.ServeHTTP(w, r)
			returned = true
		})
	}
}

// isNil reports a *http.ServeMux that is nil, which an interface hides.
func isNil(v any) bool {
	mux, ok := v.(*http.ServeMux)
	return ok && mux == nil
}
