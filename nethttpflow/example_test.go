package nethttpflow_test

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/exactflow/exactflow/core"
	"github.com/exactflow/exactflow/nethttpflow"
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

	mux := http.NewServeMux()
	mux.HandleFunc("POST /orders", func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusCreated) })
	mux.HandleFunc("GET /orders/{id}", func(w http.ResponseWriter, r *http.Request) {})

	server := httptest.NewServer(nethttpflow.Middleware(limiter, nethttpflow.Options{Mux: mux})(mux))
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

// One route, counted by API key, with a line in the log for each refusal.
func ExampleMiddleware() {
	limiter, err := core.New(
		core.Rule{Name: "keys", By: "key", Limit: core.Rate{N: 1, Per: time.Hour}},
	)
	if err != nil {
		log.Fatal(err)
	}
	limited := nethttpflow.Middleware(limiter, nethttpflow.Options{
		Keys: []nethttpflow.Key{nethttpflow.Header("key", "X-API-Key")},
		Refuse: func(w http.ResponseWriter, r *http.Request, p core.Permit) {
			fmt.Println("refused by", p.Refusal().Rule)
			nethttpflow.Answer{}.Write(w, r, p)
		},
	})

	mux := http.NewServeMux()
	mux.Handle("GET /report", limited(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "all is well")
	})))

	for range 2 {
		r := httptest.NewRequest("GET", "/report", nil)
		r.Header.Set("X-API-Key", "one")
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, r)
		fmt.Println(w.Code)
	}
	// Output:
	// 200
	// refused by keys
	// 429
}
