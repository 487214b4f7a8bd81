package echoflow_test

import (
	"net/http"
	"testing"

	"github.com/labstack/echo/v4"

	"github.com/exactflow/exactflow/core"
	"github.com/exactflow/exactflow/echoflow"
	"github.com/exactflow/exactflow/flowtest"
	"github.com/exactflow/exactflow/internal/longlived"
)

func TestConformance(t *testing.T) { flowtest.RunHTTP(t, adapter) }

func TestLongLived(t *testing.T) { longlived.Run(t, adapter) }

var adapter = flowtest.HTTP{
	Handler: func(l *core.Limiter, o flowtest.Options, next http.Handler) http.Handler {
		e := echo.New()
		e.Use(echoflow.Middleware(l, options(o)))
		e.Any("/a/:id", echo.WrapHandler(next))
		e.Any("/b/:id", echo.WrapHandler(next))
		return e
	},
	Resources: [2]string{"POST /a/:id", "POST /b/:id"},
}

func options(o flowtest.Options) echoflow.Options {
	header := func(c echo.Context) flowtest.Header { return c.Request().Header.Get }
	options := echoflow.Options{
		Resource: flowtest.Lift(o.Resource, header),
		Cost:     flowtest.Lift(o.Cost, header),
		Priority: flowtest.Lift(o.Priority, header),
		Skip:     flowtest.Lift(o.Skip, header),
		Carry:    o.Carry,
	}
	for _, k := range o.Keys {
		options.Keys = append(options.Keys, echoflow.Key{By: k.By, Of: flowtest.Lift(k.Of, header)})
	}
	return options
}
