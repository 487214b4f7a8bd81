package flowtest_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/exactflow/exactflow/core"
	"github.com/exactflow/exactflow/flowtest"
)

// A message is what this framework is about: it calls a function for each message on
// a topic.
type message struct {
	topic  string
	header map[string]string
}

type function func(context.Context, message) error

var errRejected, errInternal = errors.New("the message is wrong"), errors.New("the function is wrong")

// options are those of the adapter.
type options struct {
	keys     map[string]func(message) string // by the By
	resource func(message) string
	cost     func(message) int
	priority func(message) core.Priority
	skip     func(message) bool
	carry    bool
}

// limit is the adapter: next, behind a limiter. A refusal is the error.
func limit(l *core.Limiter, o options, next function) function {
	if l == nil {
		panic("limit: the limiter is nil")
	}
	return func(ctx context.Context, m message) error {
		if o.skip != nil && o.skip(m) {
			return next(ctx, m)
		}
		ask := core.Request{On: m.topic}
		for by, of := range o.keys {
			ask.Keys = append(ask.Keys, core.Key{By: by, Value: of(m)})
		}
		if o.resource != nil {
			ask.On = o.resource(m)
		}
		if o.cost != nil {
			ask.Cost = o.cost(m)
		}
		if o.priority != nil {
			ask.Priority = o.priority(m)
		}
		permit, err := l.Wait(ctx, ask)
		if errors.Is(err, core.ErrRefused) {
			return permit.Refusal()
		}
		if err != nil {
			return err
		}
		failed := true // unless it returns
		defer func() {
			if failed {
				permit.Fail()
			}
			permit.Release()
		}()
		if o.carry {
			ctx = core.WithPermit(ctx, permit)
		}
		err = next(ctx, m)
		failed = errors.Is(err, errInternal)
		return err
	}
}

// messages is what the suite has to be told of them.
var messages = flowtest.Adapter{
	Resources: [2]string{"orders", "payments"},
	Serve: func(t testing.TB, l *core.Limiter, o flowtest.Options, h flowtest.Handler) flowtest.Server {
		header := func(m message) flowtest.Header { return func(name string) string { return m.header[name] } }
		options := options{
			resource: flowtest.Lift(o.Resource, header),
			cost:     flowtest.Lift(o.Cost, header),
			priority: flowtest.Lift(o.Priority, header),
			skip:     flowtest.Lift(o.Skip, header),
			carry:    o.Carry,
			keys:     map[string]func(message) string{},
		}
		for _, k := range o.Keys {
			options.keys[k.By] = flowtest.Lift(k.Of, header)
		}
		limited := limit(l, options, func(ctx context.Context, m message) error {
			return map[flowtest.Outcome]error{
				flowtest.ClientError: errRejected,
				flowtest.ServerError: errInternal,
			}[h(ctx, header(m))]
		})

		var running sync.WaitGroup
		t.Cleanup(running.Wait)
		return flowtest.Server{
			Shutdown: running.Wait,
			Call: func(ctx context.Context, c flowtest.Call) flowtest.Answer {
				answer := make(chan flowtest.Answer, 1)
				running.Go(func() {
					a := flowtest.Answer{Outcome: flowtest.Broken, Err: errors.New("the function did not return")}
					defer func() {
						recover() // a panic ends the call and not the program
						answer <- a
					}()
					a = read(limited(ctx, message{[]string{"orders", "payments"}[c.Route], c.Header}))
				})
				select {
				case a := <-answer:
					return a
				case <-ctx.Done(): // the client has gone, and the function runs on
					return flowtest.Answer{Outcome: flowtest.Canceled}
				}
			},
		}
	},
}

// read is what an error tells.
func read(err error) flowtest.Answer {
	var r core.Refusal
	switch {
	case err == nil:
		return flowtest.Answer{Outcome: flowtest.OK}
	case errors.Is(err, errRejected):
		return flowtest.Answer{Outcome: flowtest.ClientError}
	case errors.Is(err, errInternal):
		return flowtest.Answer{Outcome: flowtest.ServerError}
	case errors.As(err, &r):
		return flowtest.Answer{Outcome: flowtest.Refused, Rule: r.Rule, RetryAfter: r.RetryAfter, Known: r.Known}
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return flowtest.Answer{Outcome: flowtest.Canceled}
	}
	return flowtest.Answer{Outcome: flowtest.Broken, Err: err}
}

// In a test this is func TestConformance(t *testing.T).
func conformance(t *testing.T) { flowtest.Run(t, messages) }

// An adapter of one's own, for a framework of one's own that calls functions for
// messages, and its test.
func ExampleRun() {
	_ = conformance
}
