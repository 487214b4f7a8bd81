package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/labstack/echo/v4"

	"github.com/exactflow/exactflow/echoflow"
	"github.com/exactflow/exactflow/ginflow"
	"github.com/exactflow/exactflow/nethttpflow"
)

// began is the header in which a caller tells when its call began: the decision
// lies between that and the handler's first line, and both are known here.
const began = "Began"

func beginOf(r *http.Request) int64 {
	begin, err := strconv.ParseInt(r.Header.Get(began), 10, 64)
	if err != nil {
		panic(fmt.Sprintf("flowqps: the caller's own header is bad: %v", err))
	}
	return begin
}

func (g guard) netHTTP(work func(begin int64)) http.Handler {
	handler := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { work(beginOf(r)) })
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

func (g guard) gin(work func(begin int64)) http.Handler {
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
	e.GET("/", func(c *gin.Context) { work(beginOf(c.Request)) })
	return e
}

func (g guard) echo(work func(begin int64)) http.Handler {
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
		work(beginOf(c.Request()))
		return c.NoContent(http.StatusOK)
	})
	return e
}

// overHTTP serves h, and asks it over as many connections as there are callers.
func overHTTP(ln net.Listener, h http.Handler, callers int) (asker, func()) {
	server := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}
	served := make(chan struct{})
	go func() {
		defer close(served)
		server.Serve(ln)
	}()
	transport := &http.Transport{MaxIdleConns: callers, MaxIdleConnsPerHost: callers}
	client := http.Client{Transport: transport}
	url := "http://" + ln.Addr().String() + "/"

	ask := func(begin int64) (answer, error) {
		r, err := http.NewRequest(http.MethodGet, url, nil)
		if err != nil {
			return 0, err
		}
		r.Header.Set(began, strconv.FormatInt(begin, 10))
		resp, err := client.Do(r)
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
