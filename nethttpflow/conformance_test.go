package nethttpflow_test

import (
	"net/http"
	"testing"

	"github.com/exactflow/exactflow/core"
	"github.com/exactflow/exactflow/flowtest"
	"github.com/exactflow/exactflow/internal/longlived"
	"github.com/exactflow/exactflow/nethttpflow"
)

func TestConformance(t *testing.T) { everywhere(t, flowtest.RunHTTP) }

func TestLongLived(t *testing.T) { everywhere(t, longlived.Run) }

// everywhere examines the middleware around a mux, and around each of its handlers.
func everywhere(t *testing.T, run func(*testing.T, flowtest.HTTP)) {
	for name, around := range map[string]bool{"around a mux": true, "around handlers": false} {
		t.Run(name, func(t *testing.T) {
			run(t, flowtest.HTTP{
				Handler: func(l *core.Limiter, o flowtest.Options, next http.Handler) http.Handler {
					limited := nethttpflow.Middleware(l, options(o))
					mux := http.NewServeMux()
					if around {
						mux.Handle("/a/{id}", next)
						mux.Handle("/b/{id}", next)
						return limited(mux)
					}
					mux.Handle("/a/{id}", limited(next))
					mux.Handle("/b/{id}", limited(next))
					mux.Handle("/", limited(http.NotFoundHandler()))
					return mux
				},
				Resources: [2]string{"POST /a/{id}", "POST /b/{id}"},
				Blind:     true,
			})
		})
	}
}

func options(o flowtest.Options) nethttpflow.Options {
	header := func(r *http.Request) flowtest.Header { return r.Header.Get }
	options := nethttpflow.Options{
		Resource: flowtest.Lift(o.Resource, header),
		Cost:     flowtest.Lift(o.Cost, header),
		Priority: flowtest.Lift(o.Priority, header),
		Skip:     flowtest.Lift(o.Skip, header),
		Carry:    o.Carry,
	}
	for _, k := range o.Keys {
		options.Keys = append(options.Keys, nethttpflow.Key{By: k.By, Of: flowtest.Lift(k.Of, header)})
	}
	return options
}
