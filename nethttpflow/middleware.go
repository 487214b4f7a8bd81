package nethttpflow

import (
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/exactflow/exactflow/core"
)

// Options say what a request is, and how a refusal is told. The zero value
// works: the key is [Peer], the resource is the route, the cost is 1. They are
// copied when the middleware is made; the functions are called by many
// goroutines at once.
type Options struct {
	// Keys is what a request is known by: at most one for each By. nil means
	// Peer(). More than four cost an allocation for each request.
	Keys []Key

	// Mux, if given, is asked for the route: a *http.ServeMux around which the
	// middleware stands. Else the route is the request's Pattern.
	Mux interface {
		Handler(*http.Request) (h http.Handler, pattern string)
	}

	// Resource, if given, says what rules see as the resource, instead of method
	// and route. Return names of your own making, not raw paths.
	Resource func(*http.Request) string

	// Cost, if given, is how many units the request takes; 0 means 1.
	Cost func(*http.Request) int

	// Skip, if given, lets those requests for which it is true pass by the
	// limiter: health checks.
	Skip func(*http.Request) bool

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
// panics if l is nil, or if a key lacks its By or its function, or has another's
// By.
func Middleware(l *core.Limiter, o Options) func(http.Handler) http.Handler {
	if l == nil {
		panic("nethttpflow: the limiter is nil")
	}
	if o.Keys == nil {
		o.Keys = []Key{Peer()}
	}
	o.Keys = slices.Clone(o.Keys)
	for i, k := range o.Keys {
		if k.By == "" || k.Of == nil {
			panic(fmt.Sprintf("nethttpflow: Options.Keys[%d] lacks its By or its Of", i))
		}
		if slices.ContainsFunc(o.Keys[:i], func(other Key) bool { return other.By == k.By }) {
			panic(fmt.Sprintf("nethttpflow: two of Options.Keys are By %q", k.By))
		}
	}
	resource := o.Resource
	if resource == nil {
		resource = (&routes{mux: o.Mux}).resource
	}
	answer := Answer{Status: o.Status, Headers: o.Headers, Legacy: o.Legacy}

	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if o.Skip != nil && o.Skip(r) {
				next.ServeHTTP(w, r)
				return
			}

			var few [4]core.Key // on the stack, as is all that an admitted request needs
			keys := few[:0]
			for _, k := range o.Keys {
				keys = append(keys, core.Key{By: k.By, Value: k.Of(r)})
			}
			ask := core.Request{On: resource(r), Keys: keys}
			if o.Cost != nil {
				ask.Cost = o.Cost(r)
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
			next.ServeHTTP(w, r)
			returned = true
		})
	}
}
