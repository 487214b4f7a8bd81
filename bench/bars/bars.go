package main

import (
	"fmt"
	"math"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/exactflow/exactflow/bench/loops"
	"github.com/exactflow/exactflow/bench/peers"
	"github.com/exactflow/exactflow/core"
)

const million = 1_000_000

// bars are in the order of the table. Allocations come first, before a peer's
// goroutines allocate beside.
func bars() []bar {
	const (
		clocks  = "%.2f clocks"
		times   = "%.2f ×"
		allocs  = "%.3f allocations"
		ns      = "%.0f ns"
		percent = "%.2f %%"
	)
	var all []bar
	add := func(name, verb string, limit float64, measure func() float64) {
		all = append(all, bar{name, measure, verb, false, limit})
	}
	least := func(name, verb string, limit float64, measure func() float64) {
		all = append(all, bar{name, measure, verb, true, limit})
	}

	core := []struct {
		name  string
		loop  func() loops.Loop
		limit float64
	}{
		{"refuse without a key", loops.RefuseUnkeyed, 2},
		{"refuse by a key", loops.RefuseKeyed, 2.5},
		{"refuse by the last of three rules", loops.RefuseThird, 3},
		{"admit one keyed rate (with Release)", loops.AdmitKeyed, 4},
		{"three rules with release", loops.AdmitThree, 8},
	}
	for _, c := range core {
		add(c.name+": allocations", allocs, 0, func() float64 { return allocations(c.loop()) })
	}
	for _, c := range core {
		add(c.name, clocks, c.limit, func() float64 { return ratio(c.loop(), loops.Clock()) })
	}
	kinds := []struct {
		name       string
		kind, rate func() loops.Loop
	}{
		{"refuse by a Pace", loops.RefusePace, loops.RefuseUnkeyed},
		{"refuse two units by a Pace", loops.RefuseTwoPace, loops.RefuseTwo},
		{"admit by a Pace", loops.AdmitPace, loops.AdmitUnkeyed},
		{"refuse by a WarmUp", loops.RefuseWarmUp, loops.RefuseUnkeyed},
		{"refuse two units by a WarmUp", loops.RefuseTwoWarmUp, loops.RefuseTwo},
		{"admit by a WarmUp", loops.AdmitWarmUp, loops.AdmitUnkeyed},
		{"refuse by a Pace that warms up", loops.RefusePaceWarmUp, loops.RefuseUnkeyed},
		{"refuse two units by a Pace that warms up", loops.RefuseTwoPaceWarmUp, loops.RefuseTwo},
		{"admit by a Pace that warms up", loops.AdmitPaceWarmUp, loops.AdmitUnkeyed},
		{"refuse by an InFlight", loops.RefuseHeld, loops.RefuseUnkeyed},
		{"admit by an InFlight (with Release)", loops.AdmitHeld, loops.AdmitUnkeyed},
		{"refuse by a Rate that charges by outcome", loops.RefuseOutcome, loops.RefuseUnkeyed},
		{"admit by a Rate that charges by outcome (with Release)", loops.AdmitOutcome, loops.AdmitUnkeyed},
		{"refuse by a Reserve", loops.RefuseReserve, loops.RefuseUnkeyed},
		{"admit by a Reserve", loops.AdmitReserve, loops.AdmitUnkeyed},
		{"refuse what a Count does not count", loops.RefuseRead, loops.RefuseUnkeyed},
		{"admit what a Count does not count", loops.AdmitRead, loops.AdmitUnkeyed},
		{"count what a Count only counts", loops.AdmitWrite, loops.AdmitUnkeyed},
	}
	add("all kinds, Reserve and Count: allocations", allocs, 0, func() float64 {
		most := 0.0
		for _, k := range kinds {
			most = max(most, allocations(k.kind()))
		}
		return most
	})
	add("admit where nobody waits in the queue: allocations", allocs, 0, func() float64 { return allocations(loops.AdmitQueue()) })
	for _, k := range kinds {
		add(k.name+", of by a Rate", times, 2, func() float64 { return ratio(k.kind(), k.rate()) })
	}
	add("admit where nobody waits in the queue, of without a queue", times, 2, func() float64 {
		return ratio(loops.AdmitQueue(), loops.AdmitWait())
	})
	add("refuse who would wait too long in the queue, of without a queue", times, math.NaN(), func() float64 {
		return ratio(loops.RefuseQueue(), loops.RefuseWait())
	})
	least("passes of 1000 per second, paced, where 128 wait", percent, math.NaN(), func() float64 { return paced(1000) })
	least("passes of 10 000 per second, paced, where 128 wait", percent, 99, func() float64 { return paced(10_000) })
	least("passes of 100 000 per second, paced, where 128 wait", percent, math.NaN(), func() float64 { return paced(100_000) })
	xtime := peers.Maker{Name: "golang.org/x/time/rate", New: peers.XTime}
	add("refuse, of x/time/rate's refusal", times, 1, func() float64 {
		return ratio(loops.RefuseUnkeyed(), loops.RefuseRate(xtime))
	})
	add("admit, of x/time/rate's admit", times, 1.1, func() float64 {
		return ratio(loops.AdmitUnkeyed(), loops.AdmitRate(xtime))
	})
	// From here on the process has peers that tick in the background.
	adapters := []string{"nethttpflow", "ginflow", "echoflow", "echo5flow", "grpcflow"}
	for i, name := range adapters {
		add(name+" adds to an empty middleware's: allocations", allocs, 0, func() float64 {
			s := loops.Services(true)[i]
			return allocations(s.Ours) - allocations(s.Least)
		})
	}

	boths := sync.OnceValue(peers.Boths) // exactflow, sentinel-golang
	least("refuse, times faster than sentinel-golang", times, 5, func() float64 {
		return ratio(loops.RefuseRate(boths()[1]), loops.RefuseRate(boths()[0]))
	})
	least("admit, times faster than sentinel-golang", times, 5, func() float64 {
		return ratio(loops.AdmitRate(boths()[1]), loops.AdmitRate(boths()[0]))
	})
	for i, name := range adapters {
		add(name+" adds", ns, 500, func() float64 {
			s := loops.Services(true)[i]
			return added(s.Ours, s.Bare)
		})
	}

	add("refuse a call of 1 MiB by a gRPC tap, server's processor time, of by an interceptor", times, 1.0/3, tapped)
	add("bytes a key at a million 16-byte keys", "%.0f bytes", 160, bytesPerKey)
	for _, admits := range []bool{false, true} {
		add(verb(admits)+" among a million keys, of a map look-up + clock + one among ten keys",
			times, 1, func() float64 {
				keys := keys(million)
				return ratio(among(admits, keys), loops.Map("map and clock", keys), among(admits, keys[:10]))
			})
	}
	for _, admits := range []bool{false, true} {
		add(verb(admits)+" with 10 000 rules for other resources, of with ten", times, 1.1, func() float64 {
			return ratio(beside(admits, 10_000), beside(admits, 10))
		})
	}
	least("refusals per second with 10 000 goroutines, of with two", times, 0.9, crowd)
	manyFew := sync.OnceValues(manyAndFew)
	add("refuse at N = 1 000 000 per second, of N = 1000", times, 1.15, func() float64 { r, _ := manyFew(); return r })
	add("admit at N = 1 000 000 per second, of N = 1000", times, 1.15, func() float64 { _, a := manyFew(); return a })
	add("longest decision in a run to MaxKeys, less an idle goroutine's pause", "%.2f ms", 10, longest)
	return all
}

func verb(admits bool) string {
	if admits {
		return "admit"
	}
	return "refuse"
}

// allocations are those of one call, from a thousand: the fewest of three times.
// Where the machine gives the processor to others, a window runs empty meanwhile,
// its ring shrinks, and grows again at the next calls.
func allocations(l loops.Loop) float64 {
	fewest := math.Inf(1)
	for range 3 {
		fewest = min(fewest, testing.AllocsPerRun(20, func() {
			if err := l.Check(1000); err != nil {
				panic(err)
			}
		})/1000)
	}
	return fewest
}

// keys are n different ones of 16 bytes.
func keys(n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf("key-%012d", i)
	}
	return all
}

// fill asks once by each key.
func fill(l *core.Limiter, keys []string) *core.Limiter {
	for _, k := range keys {
		if loops.Keyed("fill", true, l, k).Run(1) != 1 {
			panic("bars: the first request of a key was refused")
		}
	}
	return l
}

// bytesPerKey is what a million keys of 16 bytes with one admission each take on
// the heap, their own copies of the keys included.
func bytesPerKey() float64 {
	keys := keys(million)
	l := loops.New(loops.One("ip", core.Rate{N: 100, Per: time.Hour}))
	before := heap()
	fill(l, keys)
	after := heap()
	if live := l.Stats()[0].Keys; live != million {
		panic(fmt.Sprintf("bars: %d keys are kept", live))
	}
	runtime.KeepAlive(keys)
	return float64(after-before) / million
}

func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// among asks by one of the keys, each of which has an admission in its window.
func among(admits bool, keys []string) loops.Loop {
	limit := core.Rate{N: loops.Plenty, Per: time.Hour}
	if !admits {
		limit.N = 1
	}
	return loops.Keyed("among", admits, fill(loops.New(loops.One("ip", limit)), keys), keys[len(keys)/2])
}

// beside asks where n rules are for other resources.
func beside(admits bool, n int) loops.Loop {
	limit := loops.Rolling
	if !admits {
		limit = loops.Once
	}
	rules := []core.Rule{{Name: "rate", On: loops.On, By: "ip", Limit: limit}}
	for i := range n {
		rules = append(rules, core.Rule{Name: fmt.Sprint("other ", i), On: fmt.Sprintf("GET /other/%d", i), By: "ip", Limit: limit})
	}
	l := loops.New(rules...)
	if !admits {
		fill(l, []string{loops.IP})
	}
	return loops.Keyed("beside", admits, l, loops.IP)
}

// crowd is how many refusals per second 10 000 goroutines get, in multiples of
// what two get.
func crowd() float64 {
	const refusals = 5_000_000
	l := loops.RefuseKeyed()
	var ratios []float64
	for range 11 {
		two, many := together(l, 2, refusals), together(l, 10_000, refusals)
		ratios = append(ratios, two.Seconds()/many.Seconds())
	}
	return median(ratios)
}

// together is how long so many goroutines, all made before, take for n calls.
func together(l loops.Loop, goroutines, n int) time.Duration {
	gate := make(chan struct{})
	var wg sync.WaitGroup
	for range goroutines {
		wg.Go(func() {
			<-gate
			if err := l.Check(n / goroutines); err != nil {
				panic(err)
			}
		})
	}
	runtime.Gosched()
	begin := time.Now()
	close(gate)
	wg.Wait()
	return time.Since(begin)
}

// manyAndFew fills N = 1000 per second to its limit, and takes as many from N =
// 1 000 000; then fills that too, and has both refuse. Each round waits until both
// windows are empty; the first one, in which they grow, does not count.
func manyAndFew() (refuse, admit float64) {
	const few, many, times, rounds = 1000, 1_000_000, 100, 5
	at := func(n int) (l *core.Limiter, admits, refuses func(ip string) loops.Loop) {
		l = loops.New(loops.One("ip", core.Rate{N: n, Per: time.Second}))
		return l,
			func(ip string) loops.Loop { return loops.Keyed("admit", true, l, ip) },
			func(ip string) loops.Loop { return loops.Keyed("refuse", false, l, ip) }
	}
	_, fewAdmit, fewRefuse := at(few)
	manyL, manyAdmit, manyRefuse := at(many)
	var refusals, admissions []float64
	for round := range rounds {
		for i, ip := range keys(times) {
			a, b := fewAdmit(ip), manyAdmit(ip)
			if i%2 == 1 { // in turn which is first
				a, b = b, a
			}
			first, second := timed(a, few), timed(b, few)
			if i%2 == 1 {
				first, second = second, first
			}
			p, ok := manyL.Try(core.Request{On: loops.On, Keys: []core.Key{{By: "ip", Value: ip}}, Cost: many - few})
			if !ok {
				panic("bars: the rest was refused")
			}
			p.Release()
			few, many := timed(fewRefuse(ip), few), timed(manyRefuse(ip), few)
			if round > 0 {
				admissions = append(admissions, second.Seconds()/first.Seconds())
				refusals = append(refusals, many.Seconds()/few.Seconds())
			}
		}
		time.Sleep(1100 * time.Millisecond)
	}
	return median(refusals), median(admissions)
}

// longest is the longest decision, in milliseconds, while new keys come until
// there are as many as MaxKeys is by default, and some more, less the longest
// pause that a goroutine saw which did nothing but sleep. Of five runs it is the
// one in which that pause was shortest: there the machine hides least.
func longest() float64 {
	keys := keys(1<<20 + 1<<16)
	least, above := time.Duration(math.MaxInt64), time.Duration(0)
	for range 5 {
		l := loops.New(loops.One("ip", loops.Once))
		runtime.GC()
		stop, paused := make(chan struct{}), make(chan time.Duration)
		go idle(stop, paused)
		longest := time.Duration(0)
		for _, k := range keys {
			begin := time.Now()
			p, _ := l.Try(core.Request{On: loops.On, Keys: []core.Key{{By: "ip", Value: k}}})
			longest = max(longest, time.Since(begin))
			p.Release()
		}
		close(stop)
		if pause := <-paused; pause < least {
			least, above = pause, longest-pause
		}
		if s := l.Stats()[0]; s.Keys < 1<<20 || s.Overflowed == 0 {
			panic(fmt.Sprintf("bars: only %d keys, %d overflowed", s.Keys, s.Overflowed))
		}
	}
	return max(0, above.Seconds()*1000)
}

// idle sleeps again and again, and tells by how much it overslept at most.
func idle(stop <-chan struct{}, paused chan<- time.Duration) {
	const nap = 100 * time.Microsecond
	longest := time.Duration(0)
	for {
		select {
		case <-stop:
			paused <- longest
			return
		default:
		}
		begin := time.Now()
		time.Sleep(nap)
		longest = max(longest, time.Since(begin)-nap)
	}
}
