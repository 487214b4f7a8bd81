// Command nethttp is a small net/http service that limits what it serves.
package main

import (
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"time"

	"github.com/exactflow/exactflow/core"
	"github.com/exactflow/exactflow/nethttpflow"
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
		core.Rule{Name: "service", Limit: core.InFlight{N: 200}, Queue: core.Queue{Len: 100, Wait: time.Second}},
	)
	if err != nil {
		return err
	}

	mux := http.NewServeMux()
	mux.HandleFunc("GET /orders/{id}", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "order %s\n", r.PathValue("id"))
	})
	mux.HandleFunc("POST /exports", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, "exported")
	})
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, "fine")
	})

	limited := nethttpflow.Middleware(limiter, nethttpflow.Options{
		Mux:  mux,
		Skip: func(r *http.Request) bool { return r.URL.Path == "/healthz" },
	})
	server := &http.Server{Handler: limited(mux), ReadHeaderTimeout: 5 * time.Second}
	return server.Serve(ln)
}
