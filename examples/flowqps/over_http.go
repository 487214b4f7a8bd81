package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/labstack/echo/v4"
	echo5 "github.com/labstack/echo/v5"

	"github.com/exactflow/exactflow/echo5flow"
	"github.com/exactflow/exactflow/echoflow"
	"github.com/exactflow/exactflow/ginflow"
	"github.com/exactflow/exactflow/nethttpflow"
)

func (g guard) netHTTP(l *load) http.Handler {
	handler := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { l.work(witnessOf(r.Context())) })
	if g.flow != nil {
		return nethttpflow.Middleware(g.flow, nethttpflow.Options{})(handler)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !g.xtime.Allow() {
			w.WriteHeader(http.StatusTooManyRequests)
			return
		}
		handler.ServeHTTP(w, r)
	})
}

func (g guard) gin(l *load) http.Handler {
	gin.SetMode(gin.ReleaseMode) // else it writes its routes between our lines
	e := gin.New()
	if g.flow != nil {
		e.Use(ginflow.Middleware(g.flow, ginflow.Options{}))
	} else {
		e.Use(func(c *gin.Context) {
			if !g.xtime.Allow() {
				c.AbortWithStatus(http.StatusTooManyRequests)
			}
		})
	}
	e.GET("/", func(c *gin.Context) { l.work(witnessOf(c.Request.Context())) })
	return e
}

func (g guard) echo(l *load) http.Handler {
	e := echo.New()
	if g.flow != nil {
		e.Use(echoflow.Middleware(g.flow, echoflow.Options{}))
	} else {
		e.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
			return func(c echo.Context) error {
				if !g.xtime.Allow() {
					return echo.ErrTooManyRequests
				}
				return next(c)
			}
		})
	}
	e.GET("/", func(c echo.Context) error {
		l.work(witnessOf(c.Request().Context()))
		return c.NoContent(http.StatusOK)
	})
	return e
}

func (g guard) echo5(l *load) http.Handler {
	e := echo5.New()
	if g.flow != nil {
		e.Use(echo5flow.Middleware(g.flow, echo5flow.Options{}))
	} else {
		e.Use(func(next echo5.HandlerFunc) echo5.HandlerFunc {
			return func(c *echo5.Context) error {
				if !g.xtime.Allow() {
					return echo5.ErrTooManyRequests
				}
				return next(c)
			}
		})
	}
	e.GET("/", func(c *echo5.Context) error {
		l.work(witnessOf(c.Request().Context()))
		return c.NoContent(http.StatusOK)
	})
	return e
}

// overHTTP serves h, before which each request gets its witness, and asks it over as
// many connections as there are callers.
func overHTTP(ln net.Listener, h http.Handler, l *load) (asker, func()) {
	callers := len(l.callers)
	watched := http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w := l.watch(r.Context())
		defer w.leave()
		h.ServeHTTP(rw, r.WithContext(w))
	})
	server := &http.Server{Handler: watched, ReadHeaderTimeout: 10 * time.Second}
	served := make(chan struct{})
	go func() {
		defer close(served)
		server.Serve(ln)
	}()
	transport := &http.Transport{MaxIdleConns: callers, MaxIdleConnsPerHost: callers}
	client := http.Client{Transport: transport}
	url := "http://" + ln.Addr().String() + "/"

	ask := func() (answer, error) {
		resp, err := client.Get(url)
		if err != nil {
			return 0, err
		}
		defer resp.Body.Close()
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			return 0, err
		}
		switch resp.StatusCode {
		case http.StatusOK:
			return admitted, nil
		case http.StatusTooManyRequests:
			return refusedByRate, nil
		case http.StatusServiceUnavailable: // the adapters' answer when the service itself is full
			return refusedByInFlight, nil
		}
		return 0, fmt.Errorf("the server answered %s", resp.Status)
	}
	return ask, func() {
		transport.CloseIdleConnections()
		server.Close()
		<-served
	}
}
