// Package core limits what a service does at once and how often, exactly.
//
// A [Rule] is a sentence: on these requests, by this key, this limit. A
// [Limiter] is some rules and their counts; whoever wants to run asks it, and
// gets a [Permit], or a [Refusal] that names the rule and the time to come back.
// To check and to count is one step, under the locks of all rules that apply: so
// no two requests see the same last unit, and a request is counted by all its
// rules or by none.
//
//	limiter, err := core.New(
//		// A client asks 100 times in any minute at most, a partner more often.
//		core.Rule{Name: "client", By: "ip", Limit: core.Rate{N: 100, Per: time.Minute},
//			For: map[string]core.Limit{"192.0.2.9": core.Rate{N: 1000, Per: time.Minute}}},
//		// All clients together place 20 orders in any second at most.
//		core.Rule{Name: "orders", On: "POST /orders", Limit: core.Rate{N: 20, Per: time.Second}},
//		// And 200 requests run at once. 100 more wait for up to a second; 20 of the
//		// 200 are for those that are critical.
//		core.Rule{Name: "service", Limit: core.InFlight{N: 200},
//			Queue: core.Queue{Len: 100, Wait: time.Second}, Reserve: core.Reserve{Critical: 20}},
//	)
//	if err != nil {
//		log.Fatal(err) // all that is wrong with all rules
//	}
//	r := core.Request{On: "POST /orders", Keys: []core.Key{{By: "ip", Value: "192.0.2.7"}}}
//
// Do asks, runs a function, and gives back what was held, however that ends:
//
//	err = limiter.Do(ctx, r, placeOrder)
//	var refusal core.Refusal
//	if errors.As(err, &refusal) {
//		log.Printf("%s is full (%s), come back in %v", refusal.Rule, refusal.Reason, refusal.RetryAfter)
//	}
//
// Where a function is not at hand, Try says yes or no, and Wait is Try for a
// request with a context. What they admit must be released:
//
//	permit, ok := limiter.Try(r)
//	if !ok {
//		return permit.Refusal()
//	}
//	defer permit.Release()
//
// # Between the decision and the release
//
// Who runs may have more to say than that it is done: [Permit.Fail], which counts as
// failed, and by which a [Rate] can charge what fails, or what succeeds, alone: see
// [Charge]; [Permit.Settle], where the cost was not known on entry; [Permit.Ready],
// the end of a set-up, for limits on that alone; [Permit.Detach], where work goes on
// after whoever is going to release has returned. [WithPermit] carries a permit there.
// [Limiter.Peek] asks before all that, and takes nothing.
//
// # What it promises
//
//   - Never above. What a [Rate], a [Pace] or a [WarmUp] admits in any stretch
//     (t-Per, t] is at most N, for every t and under any concurrency, counted at the
//     instants of the decisions; an [InFlight] never has more than N units out.
//   - Never below. A request is refused only if at an instant within the call some
//     rule had no room for it, or others were ahead of it in a [Queue]. Two bounds
//     have their price here: above N = 4096 a unit may come back one slice of the
//     window late, and beyond MaxKeys keys of a rate share a count.
//   - All or nothing. A refusal has spent nothing, in no rule.
//   - Nothing leaks. What a permit holds comes back exactly once, whichever copy
//     is released first, also by a panic, [runtime.Goexit] or a cancelled context
//     if the release is deferred, as Do does.
//   - Bounded. Memory is bounded by the rules, whatever keys and resources clients
//     invent; and no bound forgives a key that has units in its window.
//
// They are about units that nobody gives back later, and about rules that enforce; one with Shadow counts what it would have
// refused, among the requests that all others admit.
//
// # What it costs
//
// A decision about a key and a resource that are known takes no memory from the
// heap, unless more than four rules apply or it begins to wait. A refusal of cost 1
// takes no lock where its rules have published from when they open. A key of 16
// bytes with one admission in its window takes 160 bytes at most, all included, and
// each further admission 16, in a ring that grows by doubling and ends at 64 KiB. A
// rule keeps 1<<20 live keys unless MaxKeys says otherwise, and forgets idle ones as
// new ones come.
//
// Nothing runs in the background: there is no goroutine, no timer but that of who
// waits, and nothing to close. A limiter that is not used any more is garbage.
//
// # What it is not
//
// The counts are those of one process, in memory: several instances have several,
// and a restart begins afresh. A permit that nobody releases holds its units for
// ever; there is no lease that ends. And without a [Queue] a request of large cost
// has no place in line, so that small ones may keep it out.
package core
