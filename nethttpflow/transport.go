package nethttpflow

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/exactflow/exactflow/core"
	"github.com/exactflow/exactflow/internal/options"
)

// TransportOptions say what a call is, and whether it obeys its server's answers.
// The zero value works: the key is [Host], the resource is method and host, the cost
// is 1. They are copied when the transport is made; the functions are called by many
// goroutines at once, and must not change the request.
type TransportOptions struct {
	// Keys is what a call is known by: at most one for each By. nil means Host().
	// More than four cost an allocation for each call. Peer and PathValue, which
	// are about requests that come in, are the empty key here.
	Keys []Key

	// Resource, if given, says what rules see as the resource, instead of method
	// and host. Return names of your own making, "GET /orders/{id}", not raw paths.
	// Without it, a method that is none of RFC 9110's nor PATCH is _OTHER, though the
	// program itself has chosen it: a rule On "PROPFIND dav.example.com" is for no
	// call, unless this returns that.
	Resource func(*http.Request) string

	// Cost, if given, is how many units the call takes; 0 means 1.
	Cost func(*http.Request) int

	// Priority, if given, is how important the call is to rules with a Queue or a
	// Reserve; nil means core.Default for all.
	Priority func(*http.Request) core.Priority

	// Skip, if given, lets those calls for which it is true pass by the limiter,
	// and by HoldBack.
	Skip func(*http.Request) bool

	// HoldBack, if above 0, holds calls back from a host that has asked to wait, for
	// as long as it asks, but no longer than this: ten minutes are plenty. 0 leaves
	// it to the caller, who has RetryAfter; below 0 panics.
	//
	// A host asks with status 429 or 503 and Retry-After, or with any status and a
	// RateLimit that has nothing left. What RetryAfter ignores is ignored; of all
	// that a host asks for, what ends last counts, and no answer ends it earlier.
	//
	// Calls to it that begin before that wait, holding nothing, and then ask the
	// limiter: so all of them come to it at one instant, and its rules, a core.Pace
	// with a queue for instance, say who is let on, and how fast. Those that the
	// limiter has admitted when the host asks, and that are not under way yet, give
	// back what they have taken, as Permit.Settle(0) does, wait too, and ask again; so
	// Stat.Admitted counts them once more. A call whose context would end before it may
	// go, or that is held back beyond HoldBack since it was first, fails at once with a
	// HeldBack.
	//
	// A host is what the key of Host tells, so calls with other credentials or to
	// other paths of it wait too; where that is wrong, make a transport for each.
	// Up to 65536 hosts are held back at once. Of further ones some that would be
	// called again soon are called at once, and will ask again. One with a name above
	// 260 bytes, which DNS cannot have, is never held back.
	HoldBack time.Duration
}

// Host is the key "host": the server that a client's request is sent to, from its
// URL, "api.example.com" or "api.example.com:8443": in lower case, without a port
// that is its scheme's own, 80 or 443, and without the dot that may end a name.
// Names are not looked up or converted: an address is another host than its name.
//
// It is not for requests that a server has received: their URL has no host, which is
// the empty key, or one that is the client's word.
func Host() Key { return Key{By: "host", Of: called} }

// called allocates only for a name with capitals, or with a dot before its port.
func called(r *http.Request) string {
	if r.URL == nil {
		return ""
	}
	host, port := r.URL.Host, r.URL.Port()
	host = strings.TrimSuffix(strings.TrimSuffix(host, port), ":")
	dotless := strings.TrimSuffix(host, ".")
	switch {
	case port == "", port == "80" && r.URL.Scheme == "http", port == "443" && r.URL.Scheme == "https":
		host = dotless
	case dotless == host:
		host = r.URL.Host
	default:
		host = dotless + ":" + port
	}
	return strings.ToLower(host)
}

// Transport makes calls of an [http.Client] ask l first, and go out by next only if
// it admits; a next of nil is [http.DefaultTransport]. Each RoundTrip is a call, so
// each hop of a redirect is one, while what next repeats below, as net/http does where
// an idle connection turns out to be closed, is a part of the same. Rules see it as
// "GET api.example.com", but PROPFIND, and all else that is none of RFC 9110's
// methods nor PATCH, as "_OTHER api.example.com"; see TransportOptions.Resource.
//
//	client := &http.Client{Transport: nethttpflow.Transport(nil, limiter, nethttpflow.TransportOptions{})}
//
// The permit is held until the response's body has been read to its end or to an
// error, or closed, or the request's context has ended, its deadline or the client's
// Timeout too, whichever is first; until the response, if that has no body; until
// next returns an error, panics or calls [runtime.Goexit], which go on unchanged.
// Somebody who neither reads a body to its end nor closes it, with a context that
// never ends, keeps the permit for ever, as he keeps the connection.
//
// A body that can be written to, that of 101 Switching Protocols, stays one, and
// holds the permit until it is closed. The context's end means nothing there: who
// opens a WebSocket often has it for the handshake alone. Close it, but some cannot:
// [net/http/httputil.ReverseProxy] drops a 101 that is not the upgrade asked for, or
// that it may not hijack the client's connection for, as inside [http.TimeoutHandler].
// Of one that nobody has any more the garbage collector gives the permit back, as it
// closes the connection, which may take minutes.
//
// A status of 500 or above counts as failed, and so does an error from next or from
// reading the body, or a deadline that passes before the body's end; but not what
// comes after the body was closed or the request's context canceled: whoever did that
// is not interested.
//
// The error of a call that a rule refuses is a [core.Refusal], for which
// errors.As and errors.Is with [core.ErrRefused] look through what http.Client and
// Transport say around it. If the request's context is done first, it is the
// context's error. Either way nothing is sent, and the request's body is closed.
// A [net/http/httputil.ReverseProxy] hears of it in its ErrorHandler.
// The deprecated Request.Cancel is not heeded while a call waits.
//
// What Transport returns is safe for concurrent use if next is, changes no request,
// and hands CloseIdleConnections on. Transport panics if l is nil, HoldBack is
// below 0, or a key lacks its By or its function, or has another's By, or one that
// no rule can name.
func Transport(next http.RoundTripper, l *core.Limiter, o TransportOptions) http.RoundTripper {
	if l == nil {
		panic("nethttpflow: the limiter is nil")
	}
	if next == nil {
		next = http.DefaultTransport
	}
	if o.Keys == nil {
		o.Keys = []Key{Host()}
	}
	o.Keys = slices.Clone(o.Keys)
	options.Keys("nethttpflow", o.Keys, func(k Key) (string, bool) { return k.By, k.Of != nil })
	t := &transport{next: next, limiter: l, o: o}
	switch {
	case o.HoldBack < 0:
		panic(fmt.Sprintf("nethttpflow: TransportOptions.HoldBack is %v; want 0 or more", o.HoldBack))
	case o.HoldBack > 0:
		t.holds = &holds{most: o.HoldBack, until: map[string]time.Time{}}
	}
	return t
}

type transport struct {
	next    http.RoundTripper
	limiter *core.Limiter
	o       TransportOptions
	known   Resources
	holds   *holds
}

func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	var permit core.Permit                  // harmless until there is one
	sent, failed, over := false, true, true // a panic or Goexit, of an option too, which goes on
	defer func() {
		if !sent && r.Body != nil {
			r.Body.Close()
		}
		if failed {
			permit.Fail()
		}
		if over {
			permit.Release()
		}
	}()
	if t.o.Skip != nil && t.o.Skip(r) {
		sent = true
		return t.next.RoundTrip(r)
	}
	host := called(r)
	permit, err := t.ask(r, host)
	if err != nil {
		return nil, err
	}
	sent = true
	res, err := t.next.RoundTrip(r)
	if err != nil || res == nil {
		failed = !canceled(r.Context())
		return res, err
	}
	failed = res.StatusCode >= 500
	t.holds.note(host, res)
	if bodiless(r, res) {
		return res, nil
	}
	if failed {
		permit.Fail() // now: the body may end at once
	}
	res.Body, over = hold(res.Body, permit, r.Context()), false
	return res, nil
}

// CloseIdleConnections is what [http.Client.CloseIdleConnections] calls.
func (t *transport) CloseIdleConnections() {
	if next, ok := t.next.(interface{ CloseIdleConnections() }); ok {
		next.CloseIdleConnections()
	}
}

// ask returns a permit, or why the call may not be made.
func (t *transport) ask(r *http.Request, host string) (core.Permit, error) {
	var few [4]core.Key // on the stack
	ask := core.Request{Keys: few[:0]}
	for _, k := range t.o.Keys {
		ask.Keys = append(ask.Keys, core.Key{By: k.By, Value: k.Of(r)})
	}
	method := r.Method
	if method == "" {
		method = http.MethodGet
	}
	if t.o.Resource != nil {
		ask.On = t.o.Resource(r)
	} else {
		ask.On = t.known.Of(method, host)
	}
	if t.o.Cost != nil {
		ask.Cost = t.o.Cost(r)
	}
	if t.o.Priority != nil {
		ask.Priority = t.o.Priority(r)
	}

	var last time.Time // when it must have stopped waiting
	for {
		if err := t.holds.wait(r.Context(), host, &last); err != nil {
			return core.Permit{}, err
		}
		permit, err := t.limiter.Wait(r.Context(), ask)
		if errors.Is(err, core.ErrRefused) {
			return permit, fmt.Errorf("nethttpflow: %s %s: %w", method, host, permit.Refusal())
		}
		if err != nil {
			return permit, err
		}
		// While it stood in the limiter's line, another call may have been told to wait.
		if until, _ := t.holds.end(host); until.IsZero() {
			return permit, nil
		}
		permit.Settle(0) // it has cost nothing so far
		permit.Release()
	}
}

// canceled reports that the caller gave up. A deadline is not that: it says what he
// expected of the server.
func canceled(ctx context.Context) bool { return errors.Is(ctx.Err(), context.Canceled) }

// bodiless reports a response that has no body to be closed. The body that net/http
// has for that by HTTP/2 is one of its own, with a length of 0, which also those
// have, by HTTP/1, who forgot to set one.
func bodiless(r *http.Request, res *http.Response) bool {
	switch {
	case res.Body == nil, res.Body == http.NoBody, r.Method == http.MethodHead,
		res.StatusCode == http.StatusNoContent, res.StatusCode == http.StatusNotModified:
		return true
	}
	return res.ContentLength == 0 && res.ProtoMajor >= 2
}

// hold is the body of a response with the permit, which ends with it.
func hold(of io.ReadCloser, permit core.Permit, ctx context.Context) io.ReadCloser {
	if w, ok := of.(io.Writer); ok {
		d := &duplex{of, w, permit}
		runtime.AddCleanup(d, core.Permit.Release, permit) // the permit does not lead to d
		return d
	}
	b := &body{ReadCloser: of, permit: permit, ctx: ctx}
	if ctx.Done() != nil {
		b.stop = context.AfterFunc(ctx, b.broken)
	}
	return b
}

// A body is a response's body, which holds the permit until its end.
type body struct {
	io.ReadCloser
	permit core.Permit
	ctx    context.Context
	stop   func() bool // that the context's end ends it; nil if the context never ends
	closed atomic.Bool
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	switch err {
	case nil:
		return n, nil
	case io.EOF:
		b.permit.Release()
	default:
		b.broken()
	}
	b.unwatched()
	return n, err
}

func (b *body) Close() error {
	b.closed.Store(true) // before who reads it sees an error for that
	defer b.unwatched()
	defer b.permit.Release()
	return b.ReadCloser.Close()
}

// broken ends a body before its end. It may run before stop is set.
func (b *body) broken() {
	if !b.closed.Load() && !canceled(b.ctx) {
		b.permit.Fail()
	}
	b.permit.Release()
}

// unwatched lets the context forget the body.
func (b *body) unwatched() {
	if b.stop != nil {
		b.stop()
	}
}

// A duplex is the body of a response after which the connection is used both ways:
// that nothing more comes does not mean that nothing more is sent. One that is
// dropped is collected, and its permit given back; so what uses the connection keeps
// the duplex until it is done.
type duplex struct {
	io.ReadCloser
	io.Writer
	permit core.Permit
}

func (d *duplex) Read(p []byte) (int, error) {
	defer runtime.KeepAlive(d)
	return d.ReadCloser.Read(p)
}

func (d *duplex) Write(p []byte) (int, error) {
	defer runtime.KeepAlive(d)
	return d.Writer.Write(p)
}

func (d *duplex) Close() error {
	defer runtime.KeepAlive(d)
	defer d.permit.Release()
	return d.ReadCloser.Close()
}

// CloseWrite is what [net/http/httputil.ReverseProxy] calls.
func (d *duplex) CloseWrite() error {
	if w, ok := d.Writer.(interface{ CloseWrite() error }); ok {
		return w.CloseWrite()
	}
	return fmt.Errorf("nethttpflow: CloseWrite: %w", http.ErrNotSupported)
}
