package echo5flow_test

import (
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/labstack/echo/v5"

	"github.com/exactflow/exactflow/core"
	"github.com/exactflow/exactflow/echo5flow"
)

// Two orders a minute for each client, and no more than 100 requests at once.
func Example() {
	limiter, err := core.New(
		core.Rule{Name: "service", Limit: core.InFlight{N: 100}},
		core.Rule{Name: "orders", On: "POST /orders", By: "ip", Limit: core.Rate{N: 2, Per: time.Minute}},
	)
	if err != nil {
		log.Fatal(err)
	}

	e := echo.New()
	e.Use(echo5flow.Middleware(limiter, echo5flow.Options{}))
	e.POST("/orders", func(c *echo.Context) error { return c.NoContent(http.StatusCreated) })
	e.GET("/orders/:id", func(c *echo.Context) error { return c.String(http.StatusOK, c.Param("id")) })

	server := httptest.NewServer(e)
	defer server.Close()

	for range 3 {
		res, err := http.Post(server.URL+"/orders", "application/json", nil)
		if err != nil {
			log.Fatal(err)
		}
		res.Body.Close()
		fmt.Println(res.Status)
		if policy := res.Header.Get("RateLimit-Policy"); policy != "" {
			fmt.Println("RateLimit-Policy:", policy)
		}
	}
	res, err := http.Get(server.URL + "/orders/42")
	if err != nil {
		log.Fatal(err)
	}
	res.Body.Close()
	fmt.Println(res.Status)

	// Output:
	// 201 Created
	// 201 Created
	// 429 Too Many Requests
	// RateLimit-Policy: "orders";q=2;w=60
	// 200 OK
}
