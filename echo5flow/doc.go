// Package echo5flow puts a [core.Limiter] in front of echo (v5) handlers: of a
// whole server, a group, or one route. Package echoflow is the same for echo v4.
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
//	e := echo.New()
//	e.Use(middleware.RequestLogger(), middleware.Recover(), echo5flow.Middleware(limiter, echo5flow.Options{}))
//	e.GET("/orders/:id", show)
//	e.POST("/orders", place)
//	if err := e.Start(":8080"); err != nil {
//		log.Fatal(err)
//	}
//
// The resource is the method and the route's template, "GET /orders/:id". echo
// tells the template also where only other methods have a route: a request that
// it answers with 405 counts under its own method, "DELETE /orders/:id", and one
// that it answers for OPTIONS by itself as "OPTIONS /orders/:id". So clients could
// invent methods there and where Echo.Any serves all of them: one that is none of
// RFC 9110's nor PATCH counts as itself only if a route was registered for it, and
// else as "_OTHER /orders/:id". HEAD counts as GET where echo serves it by the
// route of GET, as AutoHandleHEAD of its router has it.
//
// A request that no route matches has the one resource [nethttpflow.Unmatched],
// "(unmatched)", or within a group that has middlewares, where echo has a route for
// it, "GET /group/*". With Echo.Pre, before the router, all requests are unmatched:
// use Echo.Use.
//
// A permit is held until the handler returns; its error is passed on
// unchanged. Failed are a panic and [runtime.Goexit], which go on unchanged too;
// an error whose status, as [echo.StatusCode] tells it, is 500 or above; an error
// without a status, since it becomes a 500; and without an error a response with a
// status of 500 or above, as far as [echo.UnwrapResponse] finds it: not behind a
// writer that hides what it wraps, nor, around a single route or a group, where
// AutoHandleHEAD holds the response back.
//
// A refused request is answered as [nethttpflow.Answer] says, and then an error
// with the same status is returned, so that loggers outside see it. For it
// errors.Is(err, core.ErrRefused) holds, errors.As finds the [core.Refusal], and it
// is an [echo.ProblemErrorer]. Echo's own error handlers leave alone what is
// written; one of your own should, too, by looking at Committed of
// [echo.UnwrapResponse]. If it is to write the answer, as it writes all errors of
// the service, let Refuse return the refusal: the handler gets that same error.
//
//	Refuse: func(_ *echo.Context, p core.Permit) error { return p.Refusal() }
//
// A request whose context is done before it is admitted gets
// echo.ErrServiceUnavailable, with the context's error inside.
//
// Where rules have a [core.Queue], a request waits before its handler runs; what
// package nethttpflow says of those who wait holds here too.
//
// A server that has echo's own middleware.RateLimiter can keep it, and give it a
// [Store].
//
// # Long-lived requests
//
// A WebSocket and a stream of events hold their slots as long as their handlers run.
// With Options.Carry a handler can say more, by the permit in its request's context:
//
//	e.POST("/login", func(c *echo.Context) error {
//		if !right(c.Request()) {
//			core.PermitFrom(c.Request().Context()).Fail() // for a rate with core.ChargeFailed
//			return c.NoContent(http.StatusUnauthorized)
//		}
//		return c.NoContent(http.StatusOK)
//	}, limited)
//
// Package nethttpflow shows the others: Detach, without which one that hijacks its
// connection and returns has given its slot back; Ready, which ends the set-up; and
// Settle. A goroutine that goes on takes the permit and the connection with it, and
// leaves the echo.Context, which echo uses again.
//
// # Timeouts
//
// Let the limiter stand inside [http.TimeoutHandler], which is then around the Echo:
// there it holds the slot as long as the handler really runs, past the timeout too.
// ContextTimeout of echo's middlewares ends no handler: on either side of it the slot
// is held as long as the handler runs. Inside either, what a request waits is a part
// of its timeout.
//
// # Who the client is
//
// By default a client is the peer of its connection, [Peer]. Behind proxies use
// [ClientIP], and say which are yours. Neither is echo's own c.RealIP, nor what an
// Echo.IPExtractor believes; see [ClientIP].
//
// # What it costs
//
// With one rule by the peer or the client, an admitted request whose address is
// known allocates nothing; see package nethttpflow. A method that is none of RFC
// 9110's nor PATCH, and HEAD, cost a copy of the names of the route's parameters.
package echo5flow
