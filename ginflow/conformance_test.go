package ginflow_test

import (
	"net/http"
	"testing"

	"github.com/gin-gonic/gin"

	"github.com/exactflow/exactflow/core"
	"github.com/exactflow/exactflow/flowtest"
	"github.com/exactflow/exactflow/ginflow"
	"github.com/exactflow/exactflow/internal/longlived"
)

func TestConformance(t *testing.T) { flowtest.RunHTTP(t, adapter) }

func TestLongLived(t *testing.T) { longlived.Run(t, adapter) }

var adapter = flowtest.HTTP{
	Handler: func(l *core.Limiter, o flowtest.Options, next http.Handler) http.Handler {
		router := gin.New()
		router.Use(ginflow.Middleware(l, options(o)))
		router.Any("/a/:id", gin.WrapH(next))
		router.Any("/b/:id", gin.WrapH(next))
		return router
	},
	Resources: [2]string{"POST /a/:id", "POST /b/:id"},
}

func options(o flowtest.Options) ginflow.Options {
	header := func(c *gin.Context) flowtest.Header { return c.GetHeader }
	options := ginflow.Options{
		Resource: flowtest.Lift(o.Resource, header),
		Cost:     flowtest.Lift(o.Cost, header),
		Priority: flowtest.Lift(o.Priority, header),
		Skip:     flowtest.Lift(o.Skip, header),
		Carry:    o.Carry,
	}
	for _, k := range o.Keys {
		options.Keys = append(options.Keys, ginflow.Key{By: k.By, Of: flowtest.Lift(k.Of, header)})
	}
	return options
}
