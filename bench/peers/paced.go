package peers

import (
	"context"
	"time"

	sentinel "github.com/alibaba/sentinel-golang/api"
	"github.com/alibaba/sentinel-golang/core/flow"
	"github.com/alibaba/sentinel-golang/core/hotspot"
	"github.com/alibaba/sentinel-golang/core/isolation"
	"github.com/exactflow/exactflow/core"
)

// Pace per second is what calls are paced at that wait, for a second at most.
const (
	Pace    = 1000
	patient = time.Second
)

// RatesPaced are those that can have a rate and a pace on one resource, exactflow
// first: whom the rate admits waits for its turn in the pace.
func RatesPaced() []Maker {
	return []Maker{
		{"exactflow", ExactflowRatePaced},
		{"sentinel-golang", SentinelRatePaced},
	}
}

// InFlightsPaced are those that can have a limit in flight and a pace by a key on
// one resource, exactflow first; they ignore per.
func InFlightsPaced() []Maker {
	return []Maker{
		{"exactflow", ExactflowInFlightPaced},
		{"sentinel-golang", SentinelInFlightPaced},
	}
}

// ExactflowRatePaced has no queue for the rate: who waits for its turn is refused
// as soon as the rate is full.
func ExactflowRatePaced(n int, per time.Duration) Peer {
	return exactflow("Rate; Pace with a queue",
		core.Rule{Name: "rate", On: resource, Limit: core.Rate{N: n, Per: per}},
		core.Rule{Name: "pace", On: resource, Limit: pace, Queue: line})
}

// ExactflowInFlightPaced is like it.
func ExactflowInFlightPaced(n int, _ time.Duration) Peer {
	return exactflow("InFlight; Pace by a key, with a queue",
		core.Rule{Name: "in-flight", On: resource, Limit: core.InFlight{N: n}},
		core.Rule{Name: "pace", On: resource, By: "ip", Limit: pace, Queue: line})
}

var (
	pace = core.Pace{N: Pace, Per: time.Second}
	line = core.Queue{Len: Pace, Wait: patient}
)

// SentinelRatePaced is two flow rules, checked in this order.
func SentinelRatePaced(n int, per time.Duration) Peer {
	return sentinelPeer("flow: reject; flow: throttling", func(name string) {
		must(flow.LoadRulesOfResource(name, []*flow.Rule{flowRule(name, n, per), {
			Resource:               name,
			TokenCalculateStrategy: flow.Direct,
			ControlBehavior:        flow.Throttling,
			Threshold:              Pace,
			StatIntervalInMs:       1000,
			MaxQueueingTimeMs:      uint32(patient.Milliseconds()),
		}}))
	})
}

// SentinelInFlightPaced is an isolation rule and a hotspot rule for the first
// argument of the call, which is the key. Sentinel itself checks them in this
// order.
func SentinelInFlightPaced(n int, _ time.Duration) Peer {
	name := sentinelResource(func(name string) {
		must(isolation.LoadRulesOfResource(name, []*isolation.Rule{{Resource: name, Threshold: uint32(n)}}))
		must(hotspot.LoadRulesOfResource(name, []*hotspot.Rule{{
			Resource:          name,
			MetricType:        hotspot.QPS,
			ControlBehavior:   hotspot.Throttling,
			ParamIndex:        0,
			Threshold:         Pace,
			DurationInSec:     1,
			MaxQueueingTimeMs: patient.Milliseconds(),
		}}))
	})
	try := func(_ context.Context, key string) (func(), bool) {
		e, blocked := sentinel.Entry(name, sentinel.WithArgs(key))
		if blocked != nil {
			return nothing, false
		}
		return func() { e.Exit() }, true
	}
	return Peer{"sentinel-golang", "isolation; hotspot: throttling", try,
		func(key string, n int) int {
			return count(n, func() bool {
				done, ok := try(context.Background(), key)
				done()
				return ok
			})
		}}
}
