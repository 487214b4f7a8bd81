// Package echoflow puts a [core.Limiter] in front of echo (v4) handlers: of a
// whole server, a group, or one route.
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
//	e.Use(middleware.RequestLogger(), middleware.Recover(), echoflow.Middleware(limiter, echoflow.Options{}))
//	e.GET("/orders/:id", show)
//	e.POST("/orders", place)
//	log.Fatal(e.Start(":8080"))
//
// The resource is the method and the route's template, "GET /orders/:id". echo
// tells the template also where only other methods have a route: a request that
// it answers with 405 counts under its own method, "DELETE /orders/:id", and one
// that it answers for OPTIONS by itself as "OPTIONS /orders/:id". So clients could
// invent methods there, and those that neither HTTP nor Echo.Any knows count as
// one, "_OTHER /orders/:id", even if they are registered with Echo.Add.
//
// A request that no route matches has the one resource [nethttpflow.Unmatched],
// "(unmatched)", or within a group, where echo has a route for it, "GET /group/*".
// With Echo.Pre, before the router, all requests are unmatched: use Echo.Use.
//
// A permit is held until the handler returns; its error is passed on
// unchanged. Failed are a panic and [runtime.Goexit], which go on unchanged too;
// an [echo.HTTPError] with a code of 500 or above, read as echo's own error
// handler reads it; any other error, since it becomes a 500; and without an
// error a response with a status of 500 or above.
//
// A refused request is answered as [nethttpflow.Answer] says, and then an
// [echo.HTTPError] with the same status is returned, so that loggers outside see
// it; errors.Is(err, core.ErrRefused) holds for it. Echo's own error handler
// leaves alone what is written; one of your own should, too, by looking at
// c.Response().Committed. If it is to write the answer, let Refuse return an
// error; echo's own makes a 500 of one that is no [echo.HTTPError]. A request
// whose context is done before it is admitted gets echo.ErrServiceUnavailable,
// with the context's error inside.
//
// Where rules have a [core.Queue], a request waits before its handler runs; what
// package nethttpflow says of those who wait holds here too.
//
// Who has echo's own middleware.RateLimiter already can put a limiter behind that:
// [Store].
//
// # Long-lived requests
//
// A WebSocket and a stream of events hold their slots as long as their handlers run.
// With Options.Carry a handler can say more, by the permit in its request's context:
//
//	e.POST("/login", func(c echo.Context) error {
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
// Echo's deprecated Timeout is a TimeoutHandler further in: let the limiter stand
// inside it, too, since outside the slot is back while the handler still runs.
//
// # Who the client is
//
// By default a client is the peer of its connection, [Peer]. Behind proxies use
// [ClientIP], and say which are yours. Neither is echo's own c.RealIP: without an
// Echo.IPExtractor, before echo 4.16.3, it is what clients write into X-Forwarded-For;
// see [ClientIP].
//
// # What it costs
//
// With one rule by the peer or the client, an admitted request whose address is
// known allocates nothing beyond the 24 bytes that echo makes any middleware
// allocate for its handler; see package nethttpflow.
package echoflow
