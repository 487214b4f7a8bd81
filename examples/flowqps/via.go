package main

import (
	"fmt"
	"net"
	"time"

	"golang.org/x/time/rate"

	"github.com/exactflow/exactflow/core"
)

var (
	vias     = []string{"core", "nethttp", "gin", "echo", "grpc"}
	limiters = []string{"exactflow", "xtime"}
)

// A guard is one of two limiters; the other is nil.
type guard struct {
	flow  *core.Limiter
	xtime *rate.Limiter
}

func newGuard(c config) (guard, error) {
	if c.limiter == "xtime" {
		return guard{xtime: rate.NewLimiter(rate.Limit(c.limit), c.limit)}, nil
	}
	rules := []core.Rule{{Name: "qps", Limit: core.Rate{N: c.limit, Per: time.Second}}}
	if c.inFlight > 0 {
		rules = append(rules, core.Rule{Name: "inflight", Limit: core.InFlight{N: c.inFlight}})
	}
	flow, err := core.New(rules...)
	return guard{flow: flow}, err
}

// connect sets the guard up where the config says, before work, and returns the
// way to ask it, and the way to end it when all calls are over.
func connect(c config, work func(begin int64)) (ask asker, hangUp func(), err error) {
	g, err := newGuard(c)
	if err != nil {
		return nil, nil, err
	}
	if c.via == "core" {
		return g.asker(work), func() {}, nil
	}

	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	switch c.via {
	case "nethttp":
		ask, hangUp = overHTTP(ln, g.netHTTP(work), c.goroutines)
	case "gin":
		ask, hangUp = overHTTP(ln, g.gin(work), c.goroutines)
	case "echo":
		ask, hangUp = overHTTP(ln, g.echo(work), c.goroutines)
	case "grpc":
		ask, hangUp, err = overGRPC(ln, g.grpc(work))
	default:
		panic(fmt.Sprintf("flowqps: no via %q", c.via))
	}
	return ask, hangUp, err
}

// asker asks the limiter itself, without any server.
func (g guard) asker(work func(begin int64)) asker {
	if g.xtime != nil {
		return func(begin int64) (answer, error) {
			if !g.xtime.Allow() {
				return refusedByRate, nil
			}
			work(begin)
			return admitted, nil
		}
	}
	return func(begin int64) (answer, error) {
		p, ok := g.flow.Try(core.Request{On: "flowqps"})
		if !ok {
			return named(p.Refusal().Reason == core.ReasonInFlight), nil
		}
		defer p.Release()
		work(begin)
		return admitted, nil
	}
}

// named is the answer of a refused call.
func named(byInFlight bool) answer {
	if byInFlight {
		return refusedByInFlight
	}
	return refusedByRate
}
