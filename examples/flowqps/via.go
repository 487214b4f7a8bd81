package main

import (
	"context"
	"errors"
	"fmt"
	"net"

	"golang.org/x/time/rate"

	"github.com/exactflow/exactflow/core"
)

var (
	vias     = []string{"core", "nethttp", "gin", "echo", "echo5", "grpc"}
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
	rules := []core.Rule{{Name: "qps", Limit: c.terms().limit(), Queue: c.queue}}
	if c.inFlight > 0 {
		rules = append(rules, core.Rule{Name: "inflight", Limit: core.InFlight{N: c.inFlight}, Queue: c.queue})
	}
	flow, err := core.New(rules...)
	return guard{flow: flow}, err
}

// connect sets the guard up where the config says, before the load's work, and
// returns the way to ask it, and the way to end it when all calls are over.
func connect(c config, l *load) (ask asker, hangUp func(), err error) {
	g, err := newGuard(c)
	if err != nil {
		return nil, nil, err
	}
	if c.via == "core" {
		return g.asker(c, l), func() {}, nil
	}

	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	switch c.via {
	case "nethttp":
		ask, hangUp = overHTTP(ln, g.netHTTP(l), l)
	case "gin":
		ask, hangUp = overHTTP(ln, g.gin(l), l)
	case "echo":
		ask, hangUp = overHTTP(ln, g.echo(l), l)
	case "echo5":
		ask, hangUp = overHTTP(ln, g.echo5(l), l)
	case "grpc":
		ask, hangUp, err = overGRPC(ln, g.grpc(l))
	default:
		panic(fmt.Sprintf("flowqps: no via %q", c.via))
	}
	return ask, hangUp, err
}

// asker asks the limiter itself, without any server.
func (g guard) asker(c config, l *load) asker {
	request := core.Request{On: "flowqps"}
	switch {
	case g.xtime != nil:
		return func() (answer, error) {
			begin := l.now()
			if !g.xtime.Allow() {
				return refusedByRate, nil
			}
			l.work(&witness{load: l, asked: begin, looked: begin})
			return admitted, nil
		}
	case c.queue.Len > 0:
		return func() (answer, error) {
			w := l.watch(context.Background())
			defer w.leave()
			p, err := g.flow.Wait(w, request)
			if errors.Is(err, core.ErrRefused) {
				return named(p.Refusal().Reason == core.ReasonInFlight), nil
			} else if err != nil {
				return 0, err
			}
			defer p.Release()
			l.work(w)
			return admitted, nil
		}
	}
	return func() (answer, error) {
		begin := l.now()
		p, ok := g.flow.Try(request)
		if !ok {
			return named(p.Refusal().Reason == core.ReasonInFlight), nil
		}
		defer p.Release()
		l.work(&witness{load: l, asked: begin, looked: begin})
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
