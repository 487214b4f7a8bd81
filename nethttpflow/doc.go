// Package nethttpflow puts a [core.Limiter] in front of net/http handlers.
//
// The rules say what is limited; the middleware tells them what a request is:
// its resource, which is method and route, and its keys, of which the peer's
// address is the default.
//
//	limiter, err := core.New(
//		core.Rule{Name: "service", Limit: core.InFlight{N: 200}},
//		core.Rule{Name: "per-client", By: "ip", Limit: core.Rate{N: 100, Per: time.Minute}},
//		core.Rule{Name: "orders", On: "POST /orders", Limit: core.Rate{N: 20, Per: time.Second}},
//	)
//	if err != nil {
//		log.Fatal(err)
//	}
//
//	mux := http.NewServeMux()
//	mux.HandleFunc("GET /orders/{id}", show)
//	mux.HandleFunc("POST /orders", place)
//
//	limited := nethttpflow.Middleware(limiter, nethttpflow.Options{Mux: mux})
//	log.Fatal(http.ListenAndServe(":8080", limited(mux)))
//
// # Where it stands
//
// Around one handler, the request's Pattern is the route. Around a
// [http.ServeMux] it is not known yet, and the mux is asked, which costs a second
// look-up of the route and, where that has wildcards, an allocation. If something
// else stands between the middleware and the mux, give the mux as Options.Mux.
// Nothing between them may change the path: [http.StripPrefix] belongs outside
// the middleware. Of nested muxes, the one that is asked tells its own pattern,
// "GET /api/", and not that of a mux further in.
//
// The same limiter twice on the way of a request takes twice.
//
// # What a request counts as
//
// The resource is the pattern's method and path, "GET /orders/{id}"; its host is
// left out. GET patterns serve HEAD too, which counts as GET. A pattern without a
// method counts under that of each request, "GET /any", "POST /any": a rule On
// "* /any" is for all of them. There, a method that is none of RFC 9110's nor
// PATCH counts as _OTHER, "_OTHER /any"; a pattern's own method stays what it is.
// A request that no route matches has the one resource [Unmatched],
// "(unmatched)". So what clients invent makes no new resources.
//
// A permit is held until the handler returns, also by a panic or
// [runtime.Goexit], which go on unchanged and count as failed. The
// ResponseWriter is not wrapped: WebSockets, server-sent events and sendfile
// work as without the middleware. So a status is not seen either; a handler that
// answers 500 and returns has not failed here, unless it says so; see below.
//
// # Long-lived requests
//
// A WebSocket holds its slot while it is open, and a stream of events until its
// client has gone, if that is how long their handlers run. With Options.Carry a
// handler can say more, by the permit in its request's context. One that hijacks its
// connection, leaves it to a goroutine and returns has given its slot back, unless it
// detaches the permit:
//
//	func chat(w http.ResponseWriter, r *http.Request) {
//		conn, buffered, err := http.NewResponseController(w).Hijack()
//		if err != nil {
//			return
//		}
//		permit := core.PermitFrom(r.Context()).Detach()
//		go func() {
//			defer permit.Release()
//			defer conn.Close()
//			if greet(conn, buffered) == nil {
//				permit.Ready() // gives back what limits with SetUp hold
//				talk(conn, buffered)
//			}
//		}()
//	}
//
// Rules say what is held for how long: here core.InFlight{N: 20, SetUp: true} until the
// handshake is over, core.InFlight{N: 1000} until the connection is closed. Fail says
// that a password was wrong, to a rate with core.ChargeFailed, and Settle what a
// request cost that was admitted for a guess. Of limiters behind each other it is the
// permit of the innermost with Carry, and those of the others are not touched.
//
// # Timeouts
//
// Let the limiter stand inside [http.TimeoutHandler]: there it holds the slot as long
// as the handler really runs, past the timeout too, and what a request waits is a part
// of its timeout. Outside, the slot is back at the timeout and the next request runs
// beside the first, whose outcome, though it panics, nobody hears of; there a handler
// can hold its own slot:
//
//	defer core.PermitFrom(r.Context()).Detach().Release()
//
// What lives long has no place inside a TimeoutHandler, whose ResponseWriter can
// neither hijack nor flush.
//
// # Who the client is
//
// By default a client is the peer of its connection, [Peer], and no header is
// believed. Behind proxies that is the nearest proxy, for everyone. There say
// which proxies are yours, with [ClientIP]:
//
//	trust := nethttpflow.Trust{Proxies: []netip.Prefix{netip.MustParsePrefix("10.0.3.0/28")}}
//	options := nethttpflow.Options{Keys: []nethttpflow.Key{nethttpflow.ClientIP(trust)}}
//
// A limiter is as good as its key: who can choose his own address has no limit. So
// one header is read, from the right, as far as your own proxies have written it.
// Functions that try several headers, take the leftmost address, or believe
// everyone until they are told not to, are no keys; nor is a RemoteAddr into
// which a middleware further out has written what they say. gin's c.ClientIP and
// echo's c.RealIP are such functions by default; packages ginflow and echoflow say
// more of them, and have this key in their place. What has an address among your
// Proxies does choose its own, so let these be the proxies alone, not the network
// that other machines of yours are in too.
//
// To see that it works, send requests from where your clients are, outside of your
// network: with X-Forwarded-For: 203.0.113.1 through your proxies, until one is
// refused, and on with 203.0.113.2: it must stay refused. From a machine whose own
// address is among Proxies it does not, for that one is believed. If everyone shares
// one key, the peer is not among your Proxies, or they write another header.
//
// # Who waits
//
// Where rules have a [core.Queue], a request waits in the middleware before its
// handler runs. One whose client goes away leaves at once, and counts as Canceled.
// But by HTTP/1.1 net/http notices that only when the request's body has been
// read, and here it has not been: a POST waits on, until its turn or its time
// comes. A [http.Server]'s ReadTimeout and WriteTimeout go on while a request
// waits, so let them be longer than the Wait of your queues. Server.Shutdown waits
// for those who wait: it takes the longest Wait, and what a handler takes, at most.
//
// # What a refused client gets
//
// Status 429, or 503 while the service as a whole is full, with Retry-After where
// the wait is known, the fields RateLimit and RateLimit-Policy of
// draft-ietf-httpapi-ratelimit-headers-11, Cache-Control: no-store, and a
// problem document (RFC 9457). See [Answer]. The request's body is not read.
// Browsers show these fields to scripts of other origins only after
// Access-Control-Expose-Headers: Retry-After, RateLimit, RateLimit-Policy.
//
// A request whose context is done before it is admitted is not run either. It
// is answered with a bare 503, as [http.TimeoutHandler] would: its client has
// most likely gone, but if a deadline of your own ended it, an unwritten
// response would tell the client 200.
//
// # The client side
//
// [Transport] makes the calls of an http.Client ask a limiter before they go out:
// by default by the key "host" and on the resource "GET api.example.com", which is
// method and host. A method that is none of RFC 9110's nor PATCH counts as _OTHER
// here too, though it is the program's own: for a rule on PROPFIND, PURGE or QUERY
// give a TransportOptions.Resource that tells it.
//
//	limiter, err := core.New(
//		core.Rule{Name: "calls", By: "host", Limit: core.InFlight{N: 20}},
//		core.Rule{Name: "polite", By: "host", Limit: core.Pace{N: 5, Per: time.Second},
//			Queue: core.Queue{Len: 100, Wait: 20 * time.Second}},
//	)
//	client := &http.Client{
//		Transport: nethttpflow.Transport(nil, limiter, nethttpflow.TransportOptions{HoldBack: 10 * time.Minute}),
//	}
//
// The permit is held until the response's body is read to its end, or closed, or the
// request's context ends: a body that is neither, with a context that never ends, is a
// leak, of the connection and of the permit. That of a WebSocket is held until it is
// closed. What is waited, here and in queues, is a part of the client's Timeout. With
// HoldBack, a server that answers Retry-After, or RateLimit with nothing left, is not
// called until then; without it, [RetryAfter] tells what a response asks for. A call
// costs one allocation, for the body that holds the permit, and three more if the
// request's context can end, as by the client's Timeout.
//
// # Chi
//
// chi's router is no ServeMux, and a request's Pattern is there none, or that of the
// innermost router alone. In the Use of the router itself, after what changes paths
// and methods, such as StripSlashes and GetHead, chi can be asked ahead, as a
// ServeMux is:
//
//	router.Use(nethttpflow.Middleware(limiter, nethttpflow.Options{Resource: ahead()}))
//
//	func ahead() func(*http.Request) string {
//		known := new(nethttpflow.Resources)
//		return func(r *http.Request) string {
//			c := chi.RouteContext(r.Context())
//			method, path := cmp.Or(c.RouteMethod, r.Method), cmp.Or(c.RoutePath, r.URL.RawPath, r.URL.Path, "/")
//			return known.OfRoute(method, c.Routes.Find(chi.NewRouteContext(), method, path))
//		}
//	}
//
// In With, and in the Use of a Group, it has routed, and need not be asked:
//
//	func routed() func(*http.Request) string {
//		known := new(nethttpflow.Resources)
//		return func(r *http.Request) string {
//			c := chi.RouteContext(r.Context())
//			return known.OfRoute(cmp.Or(c.RouteMethod, r.Method), c.RoutePattern())
//		}
//	}
//
// There, requests that no route matches are not limited, and all that is mounted in
// a Group is one resource, "GET /api/*": let the Group stand in what is mounted. In
// the Use of a mounted router neither is right.
//
// # Connect
//
// To clients of Connect, of gRPC and of gRPC-Web the answer of HTTP means
// unavailable, which many take for a server that is down. With this
// Options.Refuse, before handlers of connectrpc.com/connect, they see
// resource_exhausted, with the wait in a RetryInfo. Other clients get the usual answer.
// If your Options set Status, Headers or Legacy, set them on this Answer too:
//
//	func refuseRPC() func(http.ResponseWriter, *http.Request, core.Permit) {
//		rpc := connect.NewErrorWriter(connect.WithRequireConnectProtocolHeader())
//		return func(w http.ResponseWriter, r *http.Request, p core.Permit) {
//			if !rpc.IsSupported(r) {
//				nethttpflow.Answer{}.Write(w, r, p)
//				return
//			}
//			refusal := p.Refusal()
//			err := connect.NewError(connect.CodeResourceExhausted, refusal)
//			if refusal.Known {
//				if wait, e := connect.NewErrorDetail(&errdetails.RetryInfo{RetryDelay: durationpb.New(refusal.RetryAfter)}); e == nil {
//					err.AddDetail(wait)
//				}
//			}
//			rpc.Write(w, r, err) // an error is the client's going away
//		}
//	}
//
// The patterns of such handlers are of whole services, "/shop.Orders/". With this
// Options.Resource, for services as the generated code describes them, it is the
// procedure, "/shop.Orders/Export", as a gRPC server has it, and one for all that
// clients invent:
//
//	func procedures(services ...protoreflect.ServiceDescriptor) func(*http.Request) string {
//		known := map[string]bool{}
//		for _, s := range services {
//			for i := range s.Methods().Len() {
//				known["/"+string(s.FullName())+"/"+string(s.Methods().Get(i).Name())] = true
//			}
//		}
//		return func(r *http.Request) string {
//			if known[r.URL.Path] {
//				return r.URL.Path
//			}
//			return nethttpflow.Unmatched
//		}
//	}
//
// # What it costs
//
// One decision of the limiter, the keys, the resource. With one rule by
// the peer or the client, no memory is allocated for an admitted request whose
// address is known: the text of an IPv6 address is made at its first request, and
// anew after a garbage collection.
package nethttpflow
