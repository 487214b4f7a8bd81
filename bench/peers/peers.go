// Package peers has the limiters that exactflow is measured beside, each
// configured as its own documentation suggests for "n in each per", and
// exactflow itself, all behind one small type.
package peers

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	sentinel "github.com/alibaba/sentinel-golang/api"
	sentinelconfig "github.com/alibaba/sentinel-golang/core/config"
	"github.com/alibaba/sentinel-golang/core/flow"
	"github.com/alibaba/sentinel-golang/core/isolation"
	sentinellog "github.com/alibaba/sentinel-golang/logging"
	"github.com/exactflow/exactflow/core"
	"github.com/failsafe-go/failsafe-go/bulkhead"
	"github.com/failsafe-go/failsafe-go/ratelimiter"
	"github.com/go-chi/httprate"
	"github.com/sethvargo/go-limiter/memorystore"
	"github.com/throttled/throttled/v2"
	"github.com/throttled/throttled/v2/store/memstore"
	"github.com/ulule/limiter/v3"
	"github.com/ulule/limiter/v3/drivers/store/memory"
	"golang.org/x/sync/semaphore"
	"golang.org/x/time/rate"
)

// A Peer is one limiter with one limit. Both functions are safe for concurrent
// use. A peer that has no keys ignores the key.
type Peer struct {
	Name string // as in its import path
	Kind string // of algorithm

	// Try asks once. If ok, the caller calls done when its work is done.
	Try func(ctx context.Context, key string) (done func(), ok bool)
	// Run asks n times, is done at once with what was admitted, and returns how
	// many were. It is the loop that benchmarks time: the call itself is in it
	// directly, not behind an interface or a closure made for each.
	Run func(key string, n int) (admitted int)
}

// A Maker makes fresh Peers that are to admit n in each per.
type Maker struct {
	Name string
	New  func(n int, per time.Duration) Peer
}

// Rates are all that limit a rate, exactflow first.
func Rates() []Maker {
	return []Maker{
		{"exactflow", Exactflow},
		{"golang.org/x/time/rate", XTime},
		{"sentinel-golang", Sentinel},
		{"ulule/limiter", Ulule},
		{"throttled", Throttled},
		{"go-limiter", GoLimiter},
		{"httprate", HTTPRate},
		{"failsafe-go bursty", FailsafeBursty},
		{"failsafe-go smooth", FailsafeSmooth},
	}
}

// InFlights are all that limit what is in flight, exactflow first; they ignore
// per.
func InFlights() []Maker {
	return []Maker{
		{"exactflow", ExactflowInFlight},
		{"golang.org/x/sync/semaphore", Semaphore},
		{"sentinel-golang isolation", SentinelInFlight},
		{"failsafe-go bulkhead", FailsafeBulkhead},
	}
}

// Boths are those that decide a rate and a limit in flight in one call: each
// call takes from both. What is in flight is bounded by 1024.
func Boths() []Maker {
	return []Maker{
		{"exactflow", ExactflowBoth},
		{"sentinel-golang", SentinelBoth},
	}
}

// count asks n times. It is inlined, and ask with it.
func count(n int, ask func() bool) (admitted int) {
	for range n {
		if ask() {
			admitted++
		}
	}
	return admitted
}

func nothing() {}

// plain is Try for what has nothing to give back.
func plain(allow func(key string) bool) func(context.Context, string) (func(), bool) {
	return func(_ context.Context, key string) (func(), bool) { return nothing, allow(key) }
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(fmt.Sprintf("peers: %v", err))
	}
	return v
}

// Exactflow is one rule, keyed.
func Exactflow(n int, per time.Duration) Peer {
	return exactflow("exact sliding window", core.Rule{Name: "rate", By: "ip", Limit: core.Rate{N: n, Per: per}})
}

// ExactflowInFlight is one rule without a key.
func ExactflowInFlight(n int, _ time.Duration) Peer {
	return exactflow("in flight", core.Rule{Name: "in-flight", Limit: core.InFlight{N: n}})
}

// ExactflowBoth is a rate and a limit in flight on one resource.
func ExactflowBoth(n int, per time.Duration) Peer {
	return exactflow("exact sliding window, in flight",
		core.Rule{Name: "rate", On: resource, Limit: core.Rate{N: n, Per: per}},
		core.Rule{Name: "in-flight", On: resource, Limit: core.InFlight{N: both}})
}

const (
	resource = "GET /orders/{id}"
	both     = 1024
)

func exactflow(kind string, rules ...core.Rule) Peer {
	l := must(core.New(rules...))
	return Peer{"exactflow", kind,
		func(ctx context.Context, key string) (func(), bool) {
			p, err := l.Wait(ctx, core.Request{On: resource, Keys: []core.Key{{By: "ip", Value: key}}})
			return p.Release, err == nil
		},
		func(key string, n int) int {
			return count(n, func() bool {
				p, ok := l.Try(core.Request{On: resource, Keys: []core.Key{{By: "ip", Value: key}}})
				if !ok {
					return false
				}
				p.Release()
				return true
			})
		}}
}

// XTime has rate n per per and burst n.
func XTime(n int, per time.Duration) Peer {
	l := rate.NewLimiter(rate.Limit(float64(n)/per.Seconds()), n)
	return Peer{"golang.org/x/time/rate", "token bucket",
		plain(func(string) bool { return l.Allow() }),
		func(_ string, n int) int { return count(n, l.Allow) }}
}

// Semaphore is tried, not waited for.
func Semaphore(n int, _ time.Duration) Peer {
	s := semaphore.NewWeighted(int64(n))
	return Peer{"golang.org/x/sync/semaphore", "in flight",
		func(context.Context, string) (func(), bool) { return func() { s.Release(1) }, s.TryAcquire(1) },
		func(_ string, n int) int {
			return count(n, func() bool {
				if !s.TryAcquire(1) {
					return false
				}
				s.Release(1)
				return true
			})
		}}
}

// Sentinel is a flow rule that rejects. Its windows are milliseconds.
func Sentinel(n int, per time.Duration) Peer {
	return sentinelPeer("buckets of half a window", func(name string) {
		must(flow.LoadRulesOfResource(name, []*flow.Rule{flowRule(name, n, per)}))
	})
}

// SentinelInFlight is an isolation rule.
func SentinelInFlight(n int, _ time.Duration) Peer {
	return sentinelPeer("in flight", func(name string) {
		must(isolation.LoadRulesOfResource(name, []*isolation.Rule{{Resource: name, Threshold: uint32(n)}}))
	})
}

// SentinelBoth is a flow rule that rejects and an isolation rule on one
// resource.
func SentinelBoth(n int, per time.Duration) Peer {
	return sentinelPeer("buckets of half a window, in flight", func(name string) {
		must(flow.LoadRulesOfResource(name, []*flow.Rule{flowRule(name, n, per)}))
		must(isolation.LoadRulesOfResource(name, []*isolation.Rule{{Resource: name, Threshold: both}}))
	})
}

func flowRule(name string, n int, per time.Duration) *flow.Rule {
	return &flow.Rule{
		Resource:               name,
		TokenCalculateStrategy: flow.Direct,
		ControlBehavior:        flow.Reject,
		Threshold:              float64(n),
		StatIntervalInMs:       uint32(per.Milliseconds()),
	}
}

// Sentinel's rules and statistics are the process's, so a fresh peer is a fresh
// resource.
var (
	sentinelStart     = sync.OnceValue(startSentinel)
	sentinelResources atomic.Int64
)

// startSentinel starts it with its default configuration, but for the logs: none
// is written.
func startSentinel() error {
	c := sentinelconfig.NewDefaultConfig()
	c.Sentinel.Log.Logger = quiet{}
	c.Sentinel.Log.Dir = os.TempDir()
	c.Sentinel.Log.Metric.FlushIntervalSec = 0
	return sentinel.InitWithConfig(c)
}

// sentinelResource is a fresh one, with the rules that are loaded.
func sentinelResource(load func(name string)) string {
	must(0, sentinelStart())
	name := fmt.Sprintf("%s #%d", resource, sentinelResources.Add(1))
	load(name)
	return name
}

func sentinelPeer(kind string, load func(name string)) Peer {
	name := sentinelResource(load)
	return Peer{"sentinel-golang", kind,
		func(context.Context, string) (func(), bool) {
			e, blocked := sentinel.Entry(name)
			if blocked != nil {
				return nothing, false
			}
			return func() { e.Exit() }, true
		},
		func(_ string, n int) int {
			return count(n, func() bool {
				e, blocked := sentinel.Entry(name)
				if blocked != nil {
					return false
				}
				e.Exit()
				return true
			})
		}}
}

// quiet is a logger that has no level enabled.
type quiet struct{}

var _ sentinellog.Logger = quiet{}

func (quiet) Debug(string, ...any)        {}
func (quiet) DebugEnabled() bool          { return false }
func (quiet) Info(string, ...any)         {}
func (quiet) InfoEnabled() bool           { return false }
func (quiet) Warn(string, ...any)         {}
func (quiet) WarnEnabled() bool           { return false }
func (quiet) Error(error, string, ...any) {}
func (quiet) ErrorEnabled() bool          { return false }

// Ulule is the memory store.
func Ulule(n int, per time.Duration) Peer {
	l := limiter.New(memory.NewStore(), limiter.Rate{Limit: int64(n), Period: per})
	ctx := context.Background()
	allow := func(key string) bool {
		c, err := l.Get(ctx, key)
		return err == nil && !c.Reached
	}
	return Peer{"ulule/limiter", "fixed window per key", plain(allow),
		func(key string, n int) int { return count(n, func() bool { return allow(key) }) }}
}

// Throttled has rate n per per and burst n, which its MaxBurst, what comes beside
// the one that the rate allows, calls n-1. The store keeps at most 65536 keys.
// When ten attempts to swap a value have failed it returns an error, which is no
// refusal: it is asked again, as its user would have to.
func Throttled(n int, per time.Duration) Peer {
	l := must(throttled.NewGCRARateLimiterCtx(must(memstore.NewCtx(1<<16)),
		throttled.RateQuota{MaxRate: throttled.PerDuration(n, per), MaxBurst: n - 1}))
	ctx := context.Background()
	allow := func(key string) bool {
		for {
			if limited, _, err := l.RateLimitCtx(ctx, key, 1); err == nil {
				return !limited
			}
		}
	}
	return Peer{"throttled", "GCRA", plain(allow),
		func(key string, n int) int { return count(n, func() bool { return allow(key) }) }}
}

// GoLimiter is the memory store.
func GoLimiter(n int, per time.Duration) Peer {
	s := must(memorystore.New(&memorystore.Config{Tokens: uint64(n), Interval: per}))
	ctx := context.Background()
	allow := func(key string) bool {
		_, _, _, ok, err := s.Take(ctx, key)
		return err == nil && ok
	}
	return Peer{"go-limiter", "fixed window per key", plain(allow),
		func(key string, n int) int { return count(n, func() bool { return allow(key) }) }}
}

// HTTPRate is asked without its middleware, and with its headers off.
func HTTPRate(n int, per time.Duration) Peer {
	l := httprate.NewRateLimiter(n, per, httprate.WithResponseHeaders(httprate.ResponseHeaders{}))
	r := must(http.NewRequest("GET", "/orders/7", nil))
	// With all headers off OnLimit writes only errors, which the local counter
	// never returns: a nil writer would panic.
	allow := func(key string) bool { return !l.OnLimit(nil, r, key) }
	return Peer{"httprate", "estimate from two fixed windows", plain(allow),
		func(key string, n int) int { return count(n, func() bool { return allow(key) }) }}
}

// FailsafeBursty lets n pass at once in each period.
func FailsafeBursty(n int, per time.Duration) Peer {
	l := ratelimiter.NewBursty[any](uint(n), per)
	return Peer{"failsafe-go bursty", "fixed window",
		plain(func(string) bool { return l.TryAcquirePermit() }),
		func(_ string, n int) int { return count(n, l.TryAcquirePermit) }}
}

// FailsafeSmooth lets one pass in each per / n.
func FailsafeSmooth(n int, per time.Duration) Peer {
	l := ratelimiter.NewSmooth[any](uint(n), per)
	return Peer{"failsafe-go smooth", "pacing",
		plain(func(string) bool { return l.TryAcquirePermit() }),
		func(_ string, n int) int { return count(n, l.TryAcquirePermit) }}
}

// FailsafeBulkhead is tried, not waited for.
func FailsafeBulkhead(n int, _ time.Duration) Peer {
	b := bulkhead.New[any](uint(n))
	return Peer{"failsafe-go bulkhead", "in flight",
		func(context.Context, string) (func(), bool) { return b.ReleasePermit, b.TryAcquirePermit() },
		func(_ string, n int) int {
			return count(n, func() bool {
				if !b.TryAcquirePermit() {
					return false
				}
				b.ReleasePermit()
				return true
			})
		}}
}
