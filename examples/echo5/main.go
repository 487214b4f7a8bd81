// Command echo5 is a small echo v5 service that limits what it serves.
package main

import (
	"flag"
	"log"
	"net"
	"net/http"
	"time"

	"github.com/labstack/echo/v5"
	"github.com/labstack/echo/v5/middleware"

	"github.com/exactflow/exactflow/core"
	"github.com/exactflow/exactflow/echo5flow"
)

func main() {
	addr := flag.String("addr", "127.0.0.1:8080", "listen on this `address`")
	flag.Parse()
	ln, err := net.Listen("tcp", *addr)
	if err != nil {
		log.Fatal(err)
	}
	log.Printf("listening on %s", ln.Addr())
	log.Fatal(serve(ln))
}

func serve(ln net.Listener) error {
	limiter, err := core.New(
		core.Rule{Name: "per-client", By: "ip", Limit: core.Rate{N: 100, Per: time.Minute}},
		core.Rule{Name: "exports", On: "POST /exports", Limit: core.Rate{N: 5, Per: time.Minute}},
		core.Rule{Name: "service", Limit: core.InFlight{N: 200}},
	)
	if err != nil {
		return err
	}

	e := echo.New()
	e.Use(middleware.Recover(), echo5flow.Middleware(limiter, echo5flow.Options{
		Skip: func(c *echo.Context) bool { return c.Path() == "/healthz" },
	}))
	e.GET("/orders/:id", func(c *echo.Context) error { return c.String(http.StatusOK, "order "+c.Param("id")+"\n") })
	e.POST("/exports", func(c *echo.Context) error { return c.String(http.StatusOK, "exported\n") })
	e.GET("/healthz", func(c *echo.Context) error { return c.String(http.StatusOK, "fine\n") })

	server := &http.Server{Handler: e, ReadHeaderTimeout: 5 * time.Second}
	return server.Serve(ln)
}
