package ginflow_test

import (
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/exactflow/exactflow/core"
	"github.com/exactflow/exactflow/ginflow"
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

	router := gin.New()
	router.Use(ginflow.Middleware(limiter, ginflow.Options{}))
	router.POST("/orders", func(c *gin.Context) { c.Status(http.StatusCreated) })
	router.GET("/orders/:id", func(c *gin.Context) { c.String(http.StatusOK, c.Param("id")) })

	server := httptest.NewServer(router)
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
