package loops

import (
	"context"
	"time"

	"github.com/exactflow/exactflow/core"
)

// The kinds of limit follow, each asked as a Rate is in [RefuseUnkeyed] and
// [AdmitUnkeyed]: without a key, where what a kind costs shows most.

func RefusePace() Loop {
	return Unkeyed("refuse one pace", false, spend(New(One("", core.Pace{N: 1, Per: Once.Per}))))
}

// AdmitPace has a gap of two nanoseconds, which no loop reaches.
func AdmitPace() Loop {
	return Unkeyed("admit one pace", true, New(One("", core.Pace{N: Plenty, Per: time.Second})))
}

func RefuseWarmUp() Loop {
	return Unkeyed("refuse one warm-up", false, spend(New(One("", cold(Twice)))))
}

// AdmitWarmUp never gets far on its ramp, which is where it costs most.
func AdmitWarmUp() Loop {
	return Unkeyed("admit one warm-up", true, New(One("", cold(Rolling))))
}

// Twice is [Once] for two units.
var Twice = core.Rate{N: 2, Per: Once.Per}

// cold begins with half of a rate, and stays there for as long as any run takes.
func cold(rate core.Rate) core.WarmUp {
	return core.WarmUp{Rate: rate, From: rate.N / 2, Over: Once.Per}
}

func RefusePaceWarmUp() Loop {
	return Unkeyed("refuse one pace that warms up", false, spend(New(One("", slow(Twice)))))
}
func AdmitPaceWarmUp() Loop {
	return Unkeyed("admit one pace that warms up", true, New(One("", slow(Sliced))))
}

// slow is cold, evenly spaced.
func slow(rate core.Rate) core.Pace {
	return core.Pace{N: rate.N, Per: rate.Per, From: rate.N / 2, Over: Once.Per}
}

func RefuseHeld() Loop {
	l := New(One("", core.InFlight{N: 1}))
	if _, ok := l.Try(core.Request{On: On}); !ok {
		panic("loops: the first request was refused")
	}
	return Unkeyed("refuse one in flight", false, l)
}
func AdmitHeld() Loop {
	return Unkeyed("admit one in flight", true, New(One("", core.InFlight{N: 1024})))
}

// The loops for two units are refused where one is left, which takes the lock:
// what others have been told is about one unit.

func RefuseOutcome() Loop {
	return Unkeyed("refuse by a Rate that charges by outcome", false, spend(New(One("", byOutcome(Once)))))
}
func AdmitOutcome() Loop {
	return Unkeyed("admit by a Rate that charges by outcome", true, New(One("", byOutcome(Rolling))))
}

// byOutcome keeps what succeeds: all, here.
func byOutcome(rate core.Rate) core.Rate {
	rate.Charge = core.ChargeSucceeded
	return rate
}

func RefuseTwo() Loop       { return two("refuse two units of a rate", Twice) }
func RefuseTwoPace() Loop   { return two("refuse two units of a pace", core.Pace{N: 2, Per: Twice.Per}) }
func RefuseTwoWarmUp() Loop { return two("refuse two units of a warm-up", cold(Twice)) }
func RefuseTwoPaceWarmUp() Loop {
	return two("refuse two units of a pace that warms up", slow(Twice))
}

func two(name string, limit core.Limit) Loop {
	return asks(name, false, spend(New(One("", limit))), core.Request{On: On, Cost: 2})
}

// The loops of a Reserve are refused where only the more important have a unit
// left, and admitted though much is kept from them.

func RefuseReserve() Loop {
	return asks("refuse one of a reserve", false, spend(New(reserved(Twice))), core.Request{On: On, Priority: core.Sheddable})
}
func AdmitReserve() Loop {
	return asks("admit one of a reserve", true, New(reserved(Rolling)), core.Request{On: On, Priority: core.Sheddable})
}

func reserved(rate core.Rate) core.Rule {
	r := One("", rate)
	r.Reserve.Default = rate.N / 2
	return r
}

// The loops of a Count are of two kinds: reads look at what writes are charged.

const writes = "POST /orders"

func RefuseRead() Loop {
	return Unkeyed("refuse one that is not counted", false, written(New(counted(Once)), 1))
}
func AdmitRead() Loop {
	return Unkeyed("admit one that is not counted", true, written(New(counted(Twice)), 1))
}

// AdmitWrite drops, each time, the oldest write of 4096.
func AdmitWrite() Loop {
	l := written(New(counted(core.Rate{N: 4096, Per: Once.Per})), 5000)
	return asks("admit one that is only counted", true, l, core.Request{On: writes})
}

func counted(rate core.Rate) core.Rule {
	return core.Rule{Name: "reads", On: On, Count: writes, Limit: rate}
}

// written has so many writes counted.
func written(l *core.Limiter, n int) *core.Limiter {
	if err := asks("write", true, l, core.Request{On: writes}).Check(n); err != nil {
		panic(err)
	}
	return l
}

// asks is Unkeyed for other requests.
func asks(name string, admits bool, l *core.Limiter, r core.Request) Loop {
	return Loop{name, admits, func(n int) (admitted int) {
		for range n {
			if p, ok := l.Try(r); ok {
				admitted++
				p.Release()
			}
		}
		return admitted
	}}
}

// The loops by Wait have no queue, and one in which nobody waits. Who is refused
// there would have to wait for too long.

func RefuseWait() Loop { return waits("refuse by Wait", false, spend(New(One("", Once)))) }
func AdmitWait() Loop  { return waits("admit by Wait", true, New(One("", Rolling))) }
func RefuseQueue() Loop {
	return waits("refuse by Wait, with a queue", false, spend(New(Queued(Once))))
}
func AdmitQueue() Loop { return waits("admit by Wait, with a queue", true, New(Queued(Rolling))) }

// Waiters are as many as a queue here holds.
const Waiters = 128

// Queued is a rule with a queue.
func Queued(limit core.Limit) core.Rule {
	r := One("", limit)
	r.Queue = core.Queue{Len: Waiters, Wait: time.Minute}
	return r
}

func waits(name string, admits bool, l *core.Limiter) Loop {
	ctx := context.Background()
	return Loop{name, admits, func(n int) (admitted int) {
		for range n {
			if p, err := l.Wait(ctx, core.Request{On: On}); err == nil {
				admitted++
				p.Release()
			}
		}
		return admitted
	}}
}

// Kinds are all of these.
func Kinds() []Loop {
	return []Loop{
		RefusePace(), AdmitPace(), RefuseWarmUp(), AdmitWarmUp(), RefusePaceWarmUp(), AdmitPaceWarmUp(), RefuseHeld(), AdmitHeld(), RefuseOutcome(), AdmitOutcome(),
		RefuseTwo(), RefuseTwoPace(), RefuseTwoWarmUp(), RefuseTwoPaceWarmUp(),
		RefuseReserve(), AdmitReserve(), RefuseRead(), AdmitRead(), AdmitWrite(),
		RefuseWait(), AdmitWait(), RefuseQueue(), AdmitQueue(),
	}
}
