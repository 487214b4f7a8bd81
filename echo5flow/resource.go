package echo5flow

import (
	"net/http"

	"github.com/labstack/echo/v5"

	"github.com/exactflow/exactflow/nethttpflow"
)

// routes knows the resources of echo's requests.
type routes struct{ *nethttpflow.Resources }

func (s routes) resource(c *echo.Context) string {
	method, path := c.Request().Method, c.Path()
	switch method {
	case http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete,
		http.MethodConnect, http.MethodOptions, http.MethodTrace:
		return s.OfRoute(method, path)
	}

	// The route is asked for its method, which costs an allocation where it has
	// parameters. It is empty where only other methods have a route, or none has.
	switch own := c.RouteInfo().Method; {
	case method == http.MethodHead && own == http.MethodGet: // by AutoHandleHEAD
		return s.OfRoute(own, path)
	case method == own && own != echo.RouteAny && own != echo.RouteNotFound: // a client can say these, too
		return s.OfRoute(own, path)
	}
	return s.Of(method, path)
}
