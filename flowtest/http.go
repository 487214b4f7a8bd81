package flowtest

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/exactflow/exactflow/core"
)

// An HTTP is an adapter for a framework whose servers are handlers of net/http. All
// fields are needed, but Blind.
type HTTP struct {
	// Handler is the framework's server: next behind l, as o says, and behind its
	// router. The router has two routes, for requests of any method: those whose path
	// is /a/ and one more segment, and those of /b/. What no route matches stands
	// behind l too. If l is nil it panics, as the adapter does. What recovers from
	// panics stays out.
	Handler func(l *core.Limiter, o Options, next http.Handler) http.Handler

	// Resources are what the adapter calls a POST request on the first and on the
	// second route.
	Resources [2]string

	// Blind is an adapter's that does not see the status which its handler writes:
	// then 500 and above do not count as failed.
	Blind bool
}

// RunHTTP is [Run], over HTTP/1.1 and over HTTP/2, and more: that refusals are told
// to clients in headers and problem documents, and that nothing stands between a
// handler and its connection.
func RunHTTP(t *testing.T, h HTTP) {
	t.Helper()
	if h.Handler == nil {
		t.Fatal("flowtest: HTTP.Handler is nil")
	}
	t.Run("HTTP1", func(t *testing.T) { Run(t, h.adapter(http1)) })
	t.Run("HTTP2", func(t *testing.T) {
		for _, p := range promises() {
			t.Run(p.name, func(t *testing.T) { p.put(t, h.adapter(http2), h) })
			drainPools()
		}
	})
	for _, p := range httpPromises() {
		t.Run(p.name, func(t *testing.T) { p.put(t, Adapter{}, h) })
	}
}

// drainPools lets nothing of a bubble into the next, or into what is no bubble: the
// HTTP/2 server of the first releases of Go 1.25 keeps channels in a pool that all
// servers share, and a bubble's channel panics elsewhere. What lies in a pool is gone
// after two collections.
func drainPools() {
	if strings.HasPrefix(runtime.Version(), "go1.25") {
		runtime.GC()
		runtime.GC()
	}
}

// ranHeader is in what handlers answer: a refusal lacks it.
const ranHeader = "Flowtest-Ran"

// deadlineHeader has the client's deadline, in nanoseconds of Unix time.
const deadlineHeader = "Flowtest-Deadline"

func (h HTTP) adapter(p protocol) Adapter {
	return Adapter{Resources: h.Resources, Blind: h.Blind, Serve: func(t testing.TB, l *core.Limiter, o Options, next Handler) Server {
		s := open(t, p, deadlines(h.Handler(l, o, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			o := next(r.Context(), r.Header.Get)
			w.Header().Set(ranHeader, "yes")
			w.WriteHeader(map[Outcome]int{OK: 200, ClientError: 404, ServerError: 500}[o])
		}))))
		return Server{Call: s.call, Shutdown: func() {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			s.server.Shutdown(ctx)
		}}
	}}
}

// deadlines gives requests their clients' deadlines, as a gateway would.
func deadlines(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if ns, err := strconv.ParseInt(r.Header.Get(deadlineHeader), 10, 64); err == nil {
			ctx, cancel := context.WithDeadline(r.Context(), time.Unix(0, ns))
			defer cancel()
			r = r.WithContext(ctx)
		}
		next.ServeHTTP(w, r)
	})
}

// call is POST: a client repeats a GET whose connection breaks.
func (s site) call(ctx context.Context, c Call) Answer {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://in.memory"+[2]string{"/a/1", "/b/1"}[c.Route], nil)
	if err != nil {
		return Answer{Outcome: Broken, Err: err}
	}
	end, ok := ctx.Deadline()
	if ok {
		r.Header.Set(deadlineHeader, strconv.FormatInt(end.UnixNano(), 10))
	}
	for name, value := range c.Header {
		r.Header.Set(name, value)
	}
	a := read(s.client.Do(r))
	if a.Outcome == Broken && (ctx.Err() != nil || ok && !time.Now().Before(end)) {
		return Answer{Outcome: Canceled} // the server may have noticed first
	}
	return a
}

// A problem is the document of a refusal.
type problem struct {
	Type     string
	Title    string
	Status   int
	Detail   string
	Violated []string `json:"violated-policies"`
}

// read makes an answer of a response.
func read(res *http.Response, err error) Answer {
	if err != nil {
		return Answer{Outcome: Broken, Err: err}
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return Answer{Outcome: Broken, Err: err}
	}
	if res.Header.Get(ranHeader) != "" {
		switch {
		case res.StatusCode >= 500:
			return Answer{Outcome: ServerError}
		case res.StatusCode >= 400:
			return Answer{Outcome: ClientError}
		}
		return Answer{Outcome: OK}
	}
	var p problem
	kind, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type"))
	if kind == "application/problem+json" {
		err = json.Unmarshal(body, &p)
	}
	if err != nil || len(p.Violated) != 1 || res.StatusCode < 400 {
		return Answer{Outcome: Broken, Err: fmt.Errorf("neither the handler's answer nor a refusal: %s, %s, %q, %v", res.Status, kind, body, err)}
	}
	a := Answer{Outcome: Refused, Rule: p.Violated[0]}
	if after := res.Header.Get("Retry-After"); after != "" {
		s, err := strconv.ParseInt(after, 10, 32)
		if err != nil {
			return Answer{Outcome: Broken, Err: fmt.Errorf("Retry-After is no number of seconds: %w", err)}
		}
		a.RetryAfter, a.Known = time.Duration(s)*time.Second, true
	}
	return a
}
