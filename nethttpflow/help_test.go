package nethttpflow_test

import (
	"context"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/exactflow/exactflow/core"
)

func limiter(t testing.TB, rules ...core.Rule) *core.Limiter {
	t.Helper()
	l, err := core.New(rules...)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func stat(t testing.TB, l *core.Limiter, rule string) core.Stat {
	t.Helper()
	for _, s := range l.Stats() {
		if s.Rule == rule {
			return s
		}
	}
	t.Fatalf("no rule %q", rule)
	return core.Stat{}
}

// bubble serves h in the test's synctest bubble, and returns a client of it.
func bubble(t testing.TB, h http.Handler) *http.Client {
	return run(t, &http.Server{Handler: h})
}

// run runs a server in the test's synctest bubble, over pipes, since a real socket
// would stop the bubble's clock, and returns a client of it.
func run(t testing.TB, server *http.Server) *http.Client {
	pipes := &pipes{conns: make(chan net.Conn), closed: make(chan struct{})}
	server.ErrorLog = log.New(io.Discard, "", 0)
	served := make(chan struct{})
	go func() {
		defer close(served)
		server.Serve(pipes)
	}()
	transport := &http.Transport{DialContext: pipes.dial, Protocols: server.Protocols}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		server.Close()
		<-served
	})
	return &http.Client{Transport: transport}
}

type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
}

func (p *pipes) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case p.conns <- peered{server}:
		return client, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { close(p.closed); return nil }
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

// peered is a pipe with an address at its other end.
type peered struct{ net.Conn }

func (peered) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 7), Port: 1234} }

// ask gives one request to h and returns the response.
func ask(h http.Handler, method, target string, change ...func(*http.Request)) *http.Response {
	r := httptest.NewRequest(method, target, nil)
	for _, f := range change {
		f(r)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result()
}

// from sets the peer's address.
func from(remote string) func(*http.Request) {
	return func(r *http.Request) { r.RemoteAddr = remote }
}

// ok is a handler that answers 200.
var ok = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "ok") })
