package flowtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/exactflow/exactflow/core"
)

// A fault is an adapter that breaks a promise; "" is the one that keeps all.
type fault string

// faults are the controls of the suite: each must be convicted, of these promises and
// of no others. Where there is a "…", others follow from these, and are not examined.
var faults = map[fault][]string{
	"": nil,
	// The limiter says once, however often it is told.
	"releases twice": nil,

	"swallows the answer":                  {"an admitted call runs once and its answer comes back", "…"},
	"asks twice":                           {"an admitted call runs once and its answer comes back", "…"},
	"runs the handler twice":               {"an admitted call runs once and its answer comes back", "…"},
	"runs what is refused":                 {"a refused call does not run and is told why", "…"},
	"runs what is refused, unseen":         {"a refused call does not run and is told why", "…"},
	"answers a refusal with nothing":       {"a refused call does not run and is told why", "a refusal is told by status headers and document", "…"},
	"names another rule":                   {"a refused call does not run and is told why", "keys are counted apart", "a refusal is told by status headers and document", "…"},
	"tells half of the wait":               {"a call after exactly RetryAfter passes", "RetryAfter is whole seconds and never too early", "…"},
	"tells no wait":                        {"a call after exactly RetryAfter passes", "RetryAfter is whole seconds and never too early", "…"},
	"forgets Release":                      {"a slot is held until the handler returns", "whatever ends the handler gives its slot back", "…"},
	"releases before the handler returns":  {"a slot is held until the handler returns", "a connection can be hijacked and is held", "…"},
	"releases when the client has gone":    {"a client that has gone ends the context and not the hold"},
	"leaks on panic and Goexit":            {"whatever ends the handler gives its slot back", "a panic goes on unchanged", "what failed counts as failed and nothing else"},
	"swallows panics":                      {"a panic goes on unchanged"},
	"panics with another value":            {"a panic goes on unchanged"},
	"never fails":                          {"what failed counts as failed and nothing else", "a panic goes on unchanged"},
	"always fails":                         {"what failed counts as failed and nothing else", "a client that has gone ends the context and not the hold", "a carried permit that is failed counts as failed"},
	"fails after Release":                  {"what failed counts as failed and nothing else", "a panic goes on unchanged"},
	"fails when the client has gone":       {"a client that has gone ends the context and not the hold"},
	"says it sees statuses":                {"what failed counts as failed and nothing else"},
	"drops the context":                    {"a client that has gone ends the context and not the hold"},
	"takes a nil limiter":                  {"a nil limiter panics at once"},
	"panics for nil at the first call":     {"a nil limiter panics at once"},
	"lets some pass unasked":               {"many at once stay within the limit", "…"},
	"swaps the keys":                       {"keys are counted apart"},
	"knows the first key only":             {"keys are counted apart"},
	"knows the last key only":              {"keys are counted apart"},
	"gives every key the first's value":    {"keys are counted apart"},
	"makes the first key lower case":       {"keys are counted apart"},
	"makes the last key lower case":        {"keys are counted apart"},
	"has one key for all":                  {"keys are counted apart"},
	"gives a key to who has none":          {"keys are counted apart"},
	"calls all routes alike":               {"a rule limits the route that it is on", "what no route matches is one resource"},
	"takes the path for the resource":      {"a rule limits the route that it is on", "what no route matches is one resource", "what a client invents makes no new resource"},
	"takes the query for the resource":     {"what a client invents makes no new resource"},
	"believes every method":                {"what a client invents makes no new resource"},
	"ignores Resource":                     {"a resource of ones own reaches the rules", "who may not wait is not let past those who do"},
	"ignores Cost":                         {"cost is taken", "a carried permit can be settled", "who may not wait is not let past those who do"},
	"takes a cost below 0 for 1":           {"cost is taken"},
	"ignores Priority":                     {"priority reaches the rules"},
	"turns priorities round":               {"priority reaches the rules"},
	"ignores Skip":                         {"a skipped call is not asked"},
	"counts what is skipped":               {"a skipped call is not asked"},
	"refuses by shadow rules":              {"a shadow rule refuses nobody"},
	"does not wait":                        {"who waits passes in turn", "a queue refuses when it is full or too slow", "who may not wait is not let past those who do", "…"},
	"waits by itself":                      {"who waits passes in turn", "…"},
	"believes a header":                    {"by default a client is its peer"},
	"takes the port for the peer":          {"by default a client is its peer", "by default an IPv6 client is its network"},
	"takes an IPv6 address for a client":   {"by default an IPv6 client is its network"},
	"takes IPv6 for one client":            {"by default an IPv6 client is its network"},
	"waits for who has gone":               {"who goes away while waiting leaves the line", "a deadline before the wait can end refuses at once", "a context that is done is no refusal"},
	"waits beyond the deadline":            {"a deadline before the wait can end refuses at once", "a context that is done is no refusal"},
	"refuses who has gone":                 {"a context that is done is no refusal"},
	"says nothing to who has gone":         {"a context that is done is no refusal"},
	"lets go of who waits at a shutdown":   {"a shutdown ends with the last who waits"},
	"is shut down before all are answered": {"a shutdown ends with the last who waits"},
	"is slow to be shut down":              {"a shutdown ends with the last who waits"},
	"ignores Carry":                        {"a permit is in the context where it is carried", "a carried permit that is failed counts as failed", "a carried permit can be settled", "a detached permit is held until its own release", "a panic does not release a detached permit", "a release by the handler is the only one"},
	"carries always":                       {"a permit is in the context where it is carried"},
	"carries a permit that is spent":       {"a carried permit that is failed counts as failed", "a carried permit can be settled", "a detached permit is held until its own release", "a panic does not release a detached permit", "a release by the handler is the only one"},
	"releases who came last":               {"a release by the handler is the only one", "…"},

	"tells 429 for all":                 {"a refusal is told by status headers and document", "a connection can be hijacked and is held"},
	"lets caches keep refusals":         {"a refusal is told by status headers and document"},
	"tells no policy":                   {"a refusal is told by status headers and document"},
	"quotes no names":                   {"a refusal is told by status headers and document"},
	"tells limits always":               {"an admitted answer says nothing of limits"},
	"writes a body to HEAD":             {"HEAD gets no body"},
	"reads the body":                    {"a refused body is not read"},
	"lets pass what no route matches":   {"what no route matches is one resource", "what a client invents makes no new resource", "HEAD gets no body"},
	"wraps the writer":                  {"what is written can be flushed", "a connection can be hijacked and is held"},
	"wraps the writer, but can flush":   {"a connection can be hijacked and is held"},
	"wraps the writer, Unwrap included": {"what is written can be flushed", "a connection can be hijacked and is held"},
}

func TestTheSuiteConvictsWhatBreaksAPromise(t *testing.T) {
	for f, want := range faults {
		t.Run(string(f), func(t *testing.T) {
			t.Parallel()
			cascades := slices.Contains(want, "…")
			found := f.convicted(t, func(p promise) bool { return !cascades || slices.Contains(want, p.name) })
			for _, name := range want {
				if name != "…" && found[name] == nil {
					t.Errorf("not convicted of: %s", name)
				}
			}
			for name, why := range found {
				if !slices.Contains(want, name) {
					t.Errorf("convicted of: %s:\n%s", name, strings.Join(why, "\n"))
				}
			}
		})
	}
}

// A promise that no control breaks may be one that no examination can find broken.
func TestEveryPromiseHasAControl(t *testing.T) {
	broken := map[string]bool{}
	for _, names := range faults {
		for _, name := range names {
			broken[name] = true
		}
	}
	delete(broken, "…")
	for _, p := range append(promises(), httpPromises()...) {
		if !broken[p.name] {
			t.Errorf("no control breaks: %s", p.name)
		}
		delete(broken, p.name)
	}
	for name := range broken {
		t.Errorf("controls break what is no promise: %s", name)
	}
}

// What is no adapter at all is said to be none. It ends a test: so that is one of
// another process, which is this program again.
func TestWhatIsLackingIsSaid(t *testing.T) {
	const which = "FLOWTEST_LACKING"
	switch os.Getenv(which) {
	case "Adapter.Serve":
		Run(t, Adapter{})
		return
	case "HTTP.Handler":
		RunHTTP(t, HTTP{})
		return
	}
	for _, field := range []string{"Adapter.Serve", "HTTP.Handler"} {
		c := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
		c.Env = append(os.Environ(), which+"="+field)
		out, err := c.CombinedOutput()
		if err == nil || !strings.Contains(string(out), "controls_test.go") || !strings.Contains(string(out), "flowtest: "+field+" is nil\n") || strings.Contains(string(out), "panic") {
			t.Errorf("without %s: %v\n%s", field, err, out)
		}
	}
}

// convicted is what the suite finds, by the promise.
func (f fault) convicted(t *testing.T, of func(promise) bool) map[string][]string {
	h := HTTP{
		Handler:   f.handler,
		Resources: [2]string{"POST /a/{id}", "POST /b/{id}"},
		Blind:     f != "says it sees statuses",
	}
	a := h.adapter(http1)
	serve := a.Serve
	a.Serve = func(t testing.TB, l *core.Limiter, o Options, next Handler) Server {
		s := serve(t, l, o, next)
		call, shutdown := s.Call, s.Shutdown
		switch f {
		case "lets go of who waits at a shutdown":
			down, now := context.WithCancel(context.Background())
			t.Cleanup(now)
			s.Call = func(ctx context.Context, c Call) Answer {
				ctx, cancel := context.WithCancel(ctx)
				defer cancel()
				defer context.AfterFunc(down, cancel)()
				return call(ctx, c)
			}
			s.Shutdown = func() { now(); shutdown() }
		case "is shut down before all are answered":
			s.Shutdown = func() { time.Sleep(3 * time.Second) }
		case "is slow to be shut down":
			s.Shutdown = func() { shutdown(); time.Sleep(time.Minute) }
		}
		return s
	}
	var mu sync.Mutex
	found := map[string][]string{}
	examine := func(all []promise) {
		for _, p := range all {
			if !of(p) {
				continue
			}
			t.Run(p.name, func(t *testing.T) {
				p.examine(t, a, h, func(_ testing.TB, what string) {
					mu.Lock()
					defer mu.Unlock()
					found[p.name] = append(found[p.name], what)
				})
			})
		}
	}
	examine(promises())
	examine(httpPromises())
	return found
}

// handler is a whole adapter, of a mux of net/http, and where its fault is.
func (f fault) handler(l *core.Limiter, o Options, next http.Handler) http.Handler {
	switch {
	case l == nil && f == "takes a nil limiter":
		return next
	case l == nil && f != "panics for nil at the first call":
		panic("the limiter is nil")
	}
	mux := http.NewServeMux()
	mux.Handle("/a/{id}", next)
	mux.Handle("/b/{id}", next)
	var calls, ahead lockedInt
	last := new(lockedPermit)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := Header(r.Header.Get)
		if o.Skip != nil && o.Skip(h) && f != "ignores Skip" {
			if f == "counts what is skipped" {
				p, _ := l.Try(core.Request{})
				defer p.Release()
			}
			mux.ServeHTTP(w, r)
			return
		}
		_, pattern := mux.Handler(r)
		if pattern == "" && f == "lets pass what no route matches" {
			mux.ServeHTTP(w, r)
			return
		}
		ask := f.request(o, h, r, pattern)

		ctx := r.Context()
		switch f {
		case "waits for who has gone":
			ctx = context.WithoutCancel(ctx)
			if end, ok := r.Context().Deadline(); ok {
				var cancel func()
				ctx, cancel = context.WithDeadline(ctx, end.Add(time.Hour))
				defer cancel()
			}
		case "waits beyond the deadline":
			var cancel func()
			ctx, cancel = context.WithCancel(context.WithoutCancel(ctx))
			defer cancel()
			defer context.AfterFunc(r.Context(), cancel)()
		}
		if f == "asks twice" {
			p, _ := l.Try(ask)
			p.Release()
		}
		if f == "lets some pass unasked" && calls.add(1)%7 == 0 {
			mux.ServeHTTP(w, r)
			return
		}
		var p core.Permit
		var err error
		switch f {
		case "does not wait":
			var ok bool
			if p, ok = l.Try(ask); !ok {
				err = core.ErrRefused
			}
		case "waits by itself":
			for ok := false; !ok && ahead.add(1) < 5; time.Sleep(time.Second) {
				if p, ok = l.Try(ask); !ok && p.Refusal().Reason != core.ReasonInFlight {
					break
				}
			}
			ahead.add(-ahead.add(0))
			if p.Refusal() != (core.Refusal{}) {
				err = core.ErrRefused
			}
		default:
			p, err = l.Wait(ctx, ask)
		}
		if f == "refuses by shadow rules" && err == nil {
			for _, s := range l.Stats() {
				if s.Shadowed > 0 {
					p.Release()
					http.Error(w, "a shadow", http.StatusTooManyRequests)
					return
				}
			}
		}
		if err != nil && !errors.Is(err, core.ErrRefused) {
			switch f {
			case "refuses who has gone":
				w.Header().Set("Retry-After", "1")
				w.WriteHeader(503)
			case "says nothing to who has gone":
			default:
				w.WriteHeader(503)
			}
			return
		}
		if err != nil {
			f.refuse(w, r, p)
			switch f {
			case "runs what is refused":
				mux.ServeHTTP(w, r)
			case "runs what is refused, unseen":
				mux.ServeHTTP(nowhere{http.Header{}}, r)
			}
			return
		}
		f.run(w, r, o, p, last, mux)
	})
}

// request is what the adapter asks.
func (f fault) request(o Options, h Header, r *http.Request, pattern string) core.Request {
	ask := core.Request{On: "(none)"}
	if pattern != "" {
		method := r.Method
		if known := []string{"GET", "HEAD", "POST"}; !slices.Contains(known, method) && f != "believes every method" {
			method = "other"
		}
		ask.On = method + " " + pattern
	}
	switch {
	case f == "takes the query for the resource":
		ask.On += r.URL.RawQuery
	case f == "calls all routes alike":
		ask.On = "POST /a/{id}"
	case f == "takes the path for the resource":
		ask.On = r.Method + " " + r.URL.Path
	}
	if o.Resource != nil && f != "ignores Resource" {
		ask.On = o.Resource(h)
	}
	if o.Keys == nil {
		peer := netip.MustParseAddrPort(r.RemoteAddr).Addr()
		ip := peer.String()
		switch forwarded := h("X-Forwarded-For"); {
		case f == "takes the port for the peer":
			ip = r.RemoteAddr
		case f == "believes a header" && forwarded != "":
			ip = forwarded
		case f == "takes IPv6 for one client" && peer.Is6():
			ip = "IPv6"
		case f != "takes an IPv6 address for a client" && peer.Is6():
			network, _ := peer.Prefix(64)
			ip = network.String()
		}
		ask.Keys = []core.Key{{By: "ip", Value: ip}}
	}
	for _, k := range o.Keys {
		ask.Keys = append(ask.Keys, core.Key{By: k.By, Value: k.Of(h)})
	}
	switch {
	case len(ask.Keys) < 2:
	case f == "swaps the keys":
		ask.Keys[0].Value, ask.Keys[1].Value = ask.Keys[1].Value, ask.Keys[0].Value
	case f == "knows the first key only":
		ask.Keys = ask.Keys[:1]
	case f == "knows the last key only":
		ask.Keys = ask.Keys[1:]
	case f == "gives every key the first's value":
		ask.Keys[1].Value = ask.Keys[0].Value
	case f == "makes the first key lower case":
		ask.Keys[0].Value = strings.ToLower(ask.Keys[0].Value)
	case f == "makes the last key lower case":
		ask.Keys[1].Value = strings.ToLower(ask.Keys[1].Value)
	case f == "gives a key to who has none" && ask.Keys[0].Value == "":
		ask.Keys[0].Value = "nobody"
	case f == "has one key for all":
		ask.Keys[0].Value = "all"
	}
	if o.Cost != nil && f != "ignores Cost" {
		if ask.Cost = o.Cost(h); f == "takes a cost below 0 for 1" {
			ask.Cost = max(ask.Cost, 0)
		}
	}
	if o.Priority != nil && f != "ignores Priority" {
		if ask.Priority = o.Priority(h); f == "turns priorities round" {
			ask.Priority = -ask.Priority
		}
	}
	return ask
}

// run runs the handler, and gives back what the request holds.
func (f fault) run(w http.ResponseWriter, r *http.Request, o Options, p core.Permit, last *lockedPermit, next http.Handler) {
	returned := false
	carries := p
	last.set(p)
	switch f {
	case "releases who came last":
		defer func() {
			if !returned {
				p.Fail()
			}
			last.get().Release()
		}()
	case "forgets Release":
	case "leaks on panic and Goexit":
		defer func() {
			if returned {
				p.Release()
			} else {
				p.Fail()
			}
		}()
	default:
		defer func() {
			if f == "fails after Release" {
				p.Release()
			}
			if !returned && f != "never fails" || f == "always fails" || f == "fails when the client has gone" && r.Context().Err() != nil {
				p.Fail()
			}
			p.Release()
			if f == "releases twice" {
				p.Release()
			}
		}()
	}
	switch f {
	case "releases before the handler returns":
		p.Release()
	case "releases when the client has gone":
		defer context.AfterFunc(r.Context(), p.Release)()
	case "tells limits always":
		w.Header().Set("RateLimit", `"r";r=0`)
	case "wraps the writer":
		w = struct{ http.ResponseWriter }{w}
	case "wraps the writer, but can flush":
		w = struct {
			http.ResponseWriter
			http.Flusher
		}{w, w.(http.Flusher)}
	case "wraps the writer, Unwrap included":
		w = wrapper{w}
	case "carries a permit that is spent":
		p = p.Detach()
	case "swallows panics":
		defer func() { recover() }()
	case "panics with another value":
		defer func() {
			if v := recover(); v != nil {
				panic(fmt.Sprint(v))
			}
		}()
	case "runs the handler twice":
		next.ServeHTTP(nowhere{http.Header{}}, r)
	case "swallows the answer":
		w = nowhere{http.Header{}}
	}
	ctx := r.Context()
	if f == "drops the context" {
		ctx = context.WithoutCancel(ctx)
	}
	if o.Carry && f != "ignores Carry" || f == "carries always" {
		ctx = core.WithPermit(ctx, carries)
	}
	next.ServeHTTP(w, r.WithContext(ctx))
	returned = true
}

// refuse is the answer to a refusal.
func (f fault) refuse(w http.ResponseWriter, r *http.Request, p core.Permit) {
	if f == "answers a refusal with nothing" {
		w.WriteHeader(429)
		return
	}
	if f == "reads the body" {
		io.Copy(io.Discard, r.Body)
	}
	refusal, q := p.Refusal(), p.Quota()
	name := refusal.Rule
	if f == "names another rule" {
		name = "other"
	}
	quoted, _ := json.Marshal(name)
	if f == "quotes no names" {
		quoted = []byte(name)
	}
	policy := fmt.Sprintf("%s;q=%d", quoted, q.Limit)
	limit := fmt.Sprintf("%s;r=%d", quoted, q.Remaining)
	switch {
	case q.Window == 0:
		policy += `;qu="concurrent-requests"`
	case q.Window%time.Second == 0:
		policy += fmt.Sprintf(";w=%d", q.Window/time.Second)
	}
	up := func(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }
	if q.Reset > 0 {
		limit += fmt.Sprintf(";t=%d", up(q.Reset))
	}
	if refusal.Known && f != "tells no wait" {
		wait := max(1, up(refusal.RetryAfter))
		if f == "tells half of the wait" {
			wait /= 2
		}
		w.Header().Set("Retry-After", fmt.Sprint(wait))
	}
	if f != "lets caches keep refusals" {
		w.Header().Set("Cache-Control", "no-store")
	}
	if f != "tells no policy" {
		w.Header().Set("RateLimit-Policy", policy)
	}
	w.Header().Set("RateLimit", limit)
	status, kind := 429, "quota-exceeded"
	if q.Window == 0 && refusal.By == "" && refusal.Reason != core.ReasonNever && f != "tells 429 for all" {
		status, kind = 503, "temporary-reduced-capacity"
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	if r.Method != http.MethodHead || f == "writes a body to HEAD" {
		json.NewEncoder(w).Encode(map[string]any{
			"type":   "https://iana.org/assignments/http-problem-types#" + kind,
			"title":  "Refused",
			"status": status, "detail": "by a rule", "violated-policies": []string{name},
		})
	}
}

// nowhere is a writer that nobody reads.
type nowhere struct{ h http.Header }

func (n nowhere) Header() http.Header       { return n.h }
func (nowhere) Write(b []byte) (int, error) { return len(b), nil }
func (nowhere) WriteHeader(int)             {}

// wrapper is a writer that a ResponseController can look through.
type wrapper struct{ http.ResponseWriter }

func (w wrapper) Unwrap() http.ResponseWriter { return w.ResponseWriter }

type lockedPermit struct {
	sync.Mutex
	p core.Permit
}

func (l *lockedPermit) set(p core.Permit) { l.Lock(); l.p = p; l.Unlock() }
func (l *lockedPermit) get() core.Permit  { l.Lock(); defer l.Unlock(); return l.p }

type lockedInt struct {
	sync.Mutex
	n int
}

func (i *lockedInt) add(n int) int {
	i.Lock()
	defer i.Unlock()
	i.n += n
	return i.n
}
