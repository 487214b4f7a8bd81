package main

import (
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
)

// A client may export five times a minute and ask a hundred times in all. What
// is refused by one rule is not counted by another; the health check is always
// fine.
func TestTheServiceKeepsItsRules(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		if err := serve(ln); !errors.Is(err, net.ErrClosed) {
			t.Error(err)
			ln.Close() // so that no client waits for an answer
		}
	}()
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		ln.Close()
		<-served
	})

	ask := func(method, path string, want int, rule string) {
		t.Helper()
		r, err := http.NewRequest(method, "http://"+ln.Addr().String()+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		if resp.StatusCode != want {
			t.Fatalf("%s %s is answered %s, %s; want %d", method, path, resp.Status, body, want)
		}
		if told := resp.Header.Get("RateLimit"); !strings.Contains(told, rule) || (told != "") != (rule != "") {
			t.Fatalf("%s %s names the rule in %q; want %q", method, path, told, rule)
		}
		if (resp.Header.Get("Retry-After") != "") != (rule != "") {
			t.Fatalf("%s %s has Retry-After %q", method, path, resp.Header.Get("Retry-After"))
		}
	}

	for range 5 {
		ask("POST", "/exports", http.StatusOK, "")
	}
	ask("POST", "/exports", http.StatusTooManyRequests, "exports")
	for range 95 {
		ask("GET", "/orders/7", http.StatusOK, "")
	}
	ask("GET", "/orders/8", http.StatusTooManyRequests, "per-client")
	ask("GET", "/healthz", http.StatusOK, "")
}
