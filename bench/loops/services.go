package loops

import (
	"context"
	"net"
	"net/http"
	"time"

	"github.com/exactflow/exactflow/core"
	"github.com/exactflow/exactflow/echo5flow"
	"github.com/exactflow/exactflow/echoflow"
	"github.com/exactflow/exactflow/ginflow"
	"github.com/exactflow/exactflow/grpcflow"
	"github.com/exactflow/exactflow/nethttpflow"
	"github.com/gin-gonic/gin"
	"github.com/go-chi/httprate"
	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"
	echo5 "github.com/labstack/echo/v5"
	"github.com/ulule/limiter/v3"
	ululegin "github.com/ulule/limiter/v3/drivers/middleware/gin"
	"github.com/ulule/limiter/v3/drivers/store/memory"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"
)

// A Service is a framework with one route and a handler that does nothing: bare,
// behind our adapter with one rule by the client's IPv4 address, and behind
// others that limit by the same. Least is behind a middleware that does nothing,
// which is not for nothing: echo binds each middleware to its handler anew for
// every request, and that is an allocation whatever the middleware does.
type Service struct {
	Name   string
	Bare   Loop
	Least  Loop
	Ours   Loop
	Others []Loop
}

// Services are all frameworks. Either all limiters admit each request, or all
// have admitted one and refuse each.
func Services(admit bool) []Service {
	limit, n, per := core.Limit(Once), 1, time.Hour
	if admit {
		limit, n, per = Rolling, Plenty, time.Second
	}
	return []Service{
		{
			Name: "net/http",
			Bare: serve("bare", true, mux(func(h http.Handler) http.Handler { return h })),
			Least: serve("empty middleware", true, mux(func(h http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { h.ServeHTTP(w, r) })
			})),
			Ours: serve("nethttpflow", admit, mux(nethttpflow.Middleware(New(One("ip", limit)), nethttpflow.Options{}))),
			Others: []Loop{
				serve("httprate", admit, mux(httprate.LimitBy(n, per, func(r *http.Request) (string, error) {
					host, _, err := net.SplitHostPort(r.RemoteAddr)
					return httprate.CanonicalizeIP(host), err
				}))),
			},
		}, {
			Name:  "gin",
			Bare:  serve("bare", true, ginEngine()),
			Least: serve("empty middleware", true, ginEngine((*gin.Context).Next)),
			Ours:  serve("ginflow", admit, ginEngine(ginflow.Middleware(New(One("ip", limit)), ginflow.Options{}))),
			Others: []Loop{
				serve("ulule/limiter", admit, ginEngine(ululegin.NewMiddleware(
					limiter.New(memory.NewStore(), limiter.Rate{Limit: int64(n), Period: per})))),
			},
		}, {
			Name: "echo",
			Bare: serve("bare", true, echoEngine()),
			Least: serve("empty middleware", true, echoEngine(func(h echo.HandlerFunc) echo.HandlerFunc {
				return func(c echo.Context) error { return h(c) }
			})),
			Ours: serve("echoflow", admit, echoEngine(echoflow.Middleware(New(One("ip", limit)), echoflow.Options{}))),
			Others: []Loop{
				serve("echo RateLimiter", admit, echoEngine(middleware.RateLimiter(middleware.NewRateLimiterMemoryStoreWithConfig(
					middleware.RateLimiterMemoryStoreConfig{Rate: rate.Limit(float64(n) / per.Seconds()), Burst: n, ExpiresIn: per})))),
			},
		}, {
			Name: "echo5",
			Bare: serve("bare", true, echo5Engine()),
			Least: serve("empty middleware", true, echo5Engine(func(h echo5.HandlerFunc) echo5.HandlerFunc {
				return func(c *echo5.Context) error { return h(c) }
			})),
			Ours: serve("echo5flow", admit, echo5Engine(echo5flow.Middleware(New(One("ip", limit)), echo5flow.Options{}))),
		}, {
			Name: "grpc",
			Bare: call("bare", true, nil),
			Least: call("empty interceptor", true, func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, h grpc.UnaryHandler) (any, error) {
				return h(ctx, req)
			}),
			Ours: call("grpcflow", admit, grpcflow.UnaryServerInterceptor(New(One("ip", limit)), grpcflow.Options{})),
		},
	}
}

// All are the service's loops, the bare one first.
func (s Service) All() []Loop { return append([]Loop{s.Bare, s.Least, s.Ours}, s.Others...) }

func mux(limit func(http.Handler) http.Handler) http.Handler {
	m := http.NewServeMux()
	m.Handle("GET /orders/{id}", limit(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusNoContent)
	})))
	return m
}

func ginEngine(limit ...gin.HandlerFunc) http.Handler {
	gin.SetMode(gin.ReleaseMode)
	e := gin.New()
	e.Use(limit...)
	e.GET("/orders/:id", func(c *gin.Context) { c.Status(http.StatusNoContent) })
	return e
}

func echoEngine(limit ...echo.MiddlewareFunc) http.Handler {
	e := echo.New()
	e.Use(limit...)
	e.GET("/orders/:id", func(c echo.Context) error { return c.NoContent(http.StatusNoContent) })
	return e
}

func echo5Engine(limit ...echo5.MiddlewareFunc) http.Handler {
	e := echo5.New()
	e.Use(limit...)
	e.GET("/orders/:id", func(c *echo5.Context) error { return c.NoContent(http.StatusNoContent) })
	return e
}

// serve asks a handler. Only the route's own handler answers 204. If the loop is
// to refuse, what the limit admits is taken first.
func serve(name string, admits bool, h http.Handler) Loop {
	template, err := http.NewRequest("GET", "/orders/7", nil)
	if err != nil {
		panic(err)
	}
	template.RemoteAddr = IP + ":51234"
	return spent(Loop{name, admits, func(n int) (admitted int) {
		r, w := template.Clone(context.Background()), &sink{header: http.Header{}}
		for range n {
			clear(w.header)
			w.status = 0
			h.ServeHTTP(w, r)
			if w.status == http.StatusNoContent {
				admitted++
			}
		}
		return admitted
	}})
}

// sink is a writer that keeps the status only, and allocates nothing.
type sink struct {
	header http.Header
	status int
}

func (s *sink) Header() http.Header         { return s.header }
func (s *sink) Write(b []byte) (int, error) { return len(b), nil }
func (s *sink) WriteHeader(status int)      { s.status = status }

// call asks an interceptor, in the context of a call that has a peer; none is the
// handler alone.
func call(name string, admits bool, i grpc.UnaryServerInterceptor) Loop {
	info := &grpc.UnaryServerInfo{FullMethod: "/shop.Orders/Get"}
	return spent(Loop{name, admits, func(n int) (admitted int) {
		ctx := peer.NewContext(context.Background(), &peer.Peer{Addr: &net.TCPAddr{IP: net.ParseIP(IP), Port: 51234}})
		handled := 0
		handler := func(context.Context, any) (any, error) {
			handled++
			return nil, nil
		}
		for range n {
			var err error
			if i == nil {
				_, err = handler(ctx, nil)
			} else {
				_, err = i(ctx, nil, info, handler)
			}
			if err == nil {
				admitted++
			}
		}
		if handled != admitted {
			panic("loops: " + name + " answered without its handler")
		}
		return admitted
	}})
}

func spent(l Loop) Loop {
	if !l.Admits && l.Run(1) != 1 {
		panic("loops: " + l.Name + " refused the first request")
	}
	return l
}
