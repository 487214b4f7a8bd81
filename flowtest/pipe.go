package flowtest

import (
	"context"
	"io"
	"log"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"
)

// A protocol is one by which clients come.
type protocol bool

const (
	http1 protocol = false
	http2 protocol = true
)

func (p protocol) protocols() *http.Protocols {
	only := new(http.Protocols)
	only.SetHTTP1(p == http1)
	only.SetUnencryptedHTTP2(p == http2)
	return only
}

// A site is a server of net/http and a client of it, over pipes: a real socket would
// stop the bubble's clock.
type site struct {
	client *http.Client
	server *http.Server
}

// open starts a site, which ends with the test.
func open(t testing.TB, p protocol, h http.Handler) site {
	s := site{server: &http.Server{Handler: h, Protocols: p.protocols(), ErrorLog: log.New(io.Discard, "", 0)}}
	pipes := &pipes{conns: make(chan net.Conn), closed: make(chan struct{})}
	served := make(chan struct{})
	go func() {
		defer close(served)
		s.server.Serve(pipes) // until it is shut down
	}()
	transport := &http.Transport{DialContext: pipes.dial, Protocols: p.protocols(), ExpectContinueTimeout: time.Hour}
	s.client = &http.Client{Transport: transport}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		s.server.Shutdown(ctx) // unlike Close it lets handlers end
		s.server.Close()
		<-served
	})
	return s
}

// pipes are a network of one server.
type pipes struct {
	conns  chan net.Conn
	close  sync.Once
	closed chan struct{}
}

func (p *pipes) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case p.conns <- peered{server}:
		return client, nil
	case <-p.closed:
		return nil, net.ErrClosed
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

func (p *pipes) Close() error   { p.close.Do(func() { close(p.closed) }); return nil }
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

// peered is a pipe with an address at its other end.
type peered struct{ net.Conn }

func (peered) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 7), Port: 1234} }
