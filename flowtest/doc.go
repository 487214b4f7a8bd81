// Package flowtest tests what stands around a [core.Limiter]: adapters to frameworks,
// by a suite that all of them pass, and services, by limiters that refuse on demand.
// It is for tests: nothing else should import it.
//
// # An adapter
//
// An adapter asks the limiter before a handler runs, and gives back what the handler
// held. There are many ways to do that nearly right. [RunHTTP] examines adapters to
// frameworks of net/http, [Run] those to others; both put one promise a subtest. For
// some router that is
//
//	func TestConformance(t *testing.T) {
//		flowtest.RunHTTP(t, flowtest.HTTP{
//			Handler: func(l *core.Limiter, o flowtest.Options, next http.Handler) http.Handler {
//				header := func(c *router.Context) flowtest.Header { return c.Request.Header.Get }
//				options := routerflow.Options{
//					Resource: flowtest.Lift(o.Resource, header),
//					Cost:     flowtest.Lift(o.Cost, header),
//					Priority: flowtest.Lift(o.Priority, header),
//					Skip:     flowtest.Lift(o.Skip, header),
//					Carry:    o.Carry,
//				}
//				for _, k := range o.Keys {
//					options.Keys = append(options.Keys, routerflow.Key{By: k.By, Of: flowtest.Lift(k.Of, header)})
//				}
//				r := router.New()
//				r.Use(routerflow.Middleware(l, options))
//				r.Any("/a/:id", next)
//				r.Any("/b/:id", next)
//				return r
//			},
//			Resources: [2]string{"POST /a/:id", "POST /b/:id"},
//		})
//	}
//
// and the example of Run, in the file flowtest/example_run_test.go, has an adapter of
// one's own for one's own framework, whole.
//
// What is promised:
//
//   - A call is asked for once, and runs once if it is admitted. A refused one does not
//     run, takes nothing of any rule, and is told which rule it was, and the wait if
//     that is known: after exactly this it passes.
//   - What a call holds is held until its handler has returned, also when the client
//     has gone or the handler releases by itself; and is given back then, also by a
//     panic and by runtime.Goexit, which go on. What counts as failed is what the
//     client is told as the server's fault.
//   - Keys, resource, cost, priority are those of the call, and stay apart. What is
//     skipped is not asked for. Shadow rules refuse nobody.
//   - Where rules let calls wait they do, each in its turn. One whose client goes away
//     leaves the line, one whose deadline comes too early does not enter it, and a
//     server that is shut down is done when the last of them is.
//   - With Carry the handler's context has the permit, to fail, settle and detach it.
//   - A nil limiter panics when the adapter is made.
//
// and over HTTP also:
//
//   - 429, or 503 while what is in flight for all clients is at its limit; Retry-After
//     in whole seconds, at least 1 and never too early; RateLimit-Policy and RateLimit
//     after draft 11; Cache-Control: no-store; a problem document, but to HEAD. By
//     default nothing of it where a request is admitted.
//   - The handler gets a writer that can flush and be hijacked; the body of a refused
//     request is not read.
//   - What no route matches is one resource, and no method, path or query that a client
//     invents makes a new one. By default a client is "ip", the address of its
//     connection's other end, or the /64 that it is in.
//
// Each examination takes some milliseconds, since it runs in a bubble of
// [testing/synctest]. An adapter that hangs makes the bubble panic, with the stacks
// of all that hang.
//
// # A service
//
// What does my service do when it is refused, or refuses? [Refusing] is a limiter
// that does so for the reason and with the wait that a test wants, [Fill] takes all
// that the service's own rules have left, and [NoneHeld] finds permits that nobody
// releases. Tests with all three are in flowtest/example_refusing_test.go.
//
//	func TestClientsAreToldToComeBack(t *testing.T) {
//		shop := NewShop(flowtest.Refusing(t, core.ReasonRate, 30*time.Second))
//		w := httptest.NewRecorder()
//		shop.ServeHTTP(w, httptest.NewRequest("GET", "/orders/7", nil))
//		if w.Code != 429 || w.Header().Get("Retry-After") != "30" {
//			t.Errorf("%d, Retry-After %q", w.Code, w.Header().Get("Retry-After"))
//		}
//	}
package flowtest
