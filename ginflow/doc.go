// Package ginflow puts a [core.Limiter] in front of gin handlers: of a whole
// engine, a group, or one route.
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
//	router := gin.New()
//	router.Use(gin.Logger(), gin.Recovery(), ginflow.Middleware(limiter, ginflow.Options{}))
//	router.GET("/orders/:id", show)
//	router.POST("/orders", place)
//	log.Fatal(router.Run(":8080"))
//
// The resource is the method and the route's template, "GET /orders/:id",
// whatever the method: gin knows the template only of a route that is registered
// with it. So there is no "_OTHER" here as in the other adapters. A request that
// no route matches has the one resource [nethttpflow.Unmatched], "(unmatched)",
// also where another method has a route, and gin answers 405 if
// HandleMethodNotAllowed is set. gin answers a redirect to or from a trailing
// slash before any middleware, so redirects are not limited.
//
// A permit is held until the later handlers have returned. A panic or
// [runtime.Goexit] goes on unchanged and counts as failed, as does a status of
// 500 or above. Register it after gin.Recovery.
//
// A refused request is aborted before anything else happens, so that no later
// handler runs, whatever a Refuse hook does; its [core.Refusal] is put into
// c.Errors. The answer is that of [nethttpflow.Answer]. A middleware that writes
// c.Errors to clients should look at c.Writer.Written first. A request whose
// context is done before it is admitted is aborted with status 503, and the
// context's error is put into c.Errors.
//
// Where rules have a [core.Queue], a request waits before the later handlers run;
// what package nethttpflow says of those who wait holds here too.
//
// # Long-lived requests
//
// A WebSocket and a stream of events hold their slots as long as their handlers run.
// With Options.Carry a handler can say more, by the permit in its request's context:
//
//	router.POST("/login", limited, func(c *gin.Context) {
//		if !right(c.Request) {
//			core.PermitFrom(c.Request.Context()).Fail() // for a rate with core.ChargeFailed
//			c.Status(http.StatusUnauthorized)
//		}
//	})
//
// Package nethttpflow shows the others: Detach, without which one that hijacks its
// connection and returns has given its slot back; Ready, which ends the set-up; and
// Settle. A goroutine that goes on takes the permit and the connection with it, and
// leaves the gin.Context, which gin uses again.
//
// # Timeouts
//
// Let the limiter stand inside [http.TimeoutHandler], which is then around the engine:
// there it holds the slot as long as the handlers really run, past the timeout too,
// and what a request waits is a part of its timeout. gin-contrib/timeout should be
// registered before it; since v1.2.1, which waits until the handlers have returned,
// the slot is held on either side.
//
// # Who the client is
//
// By default a client is the peer of its connection, [Peer]. Behind proxies use
// [ClientIP], and say which are yours. Neither is gin's own c.ClientIP: a new
// engine trusts every address as a proxy, and so believes what clients write into
// X-Forwarded-For; see [ClientIP].
//
// # What it costs
//
// With one rule by the peer or the client, no memory is allocated for an admitted
// request whose address is known; see package nethttpflow.
package ginflow
