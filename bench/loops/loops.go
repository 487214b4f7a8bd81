// Package loops has what is timed: each [Loop] asks one thing n times, and says
// how often the answer was yes, so that whoever times it can tell that it
// measured what its name says.
package loops

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/exactflow/exactflow/bench/peers"
	"github.com/exactflow/exactflow/core"
)

// A Loop asks n times, and does nothing else. Run is safe for concurrent use.
type Loop struct {
	Name   string
	Admits bool                       // each answer is yes; else each is no
	Run    func(n int) (admitted int) // releases what it admitted
}

// Check runs n times, and says what is wrong with the answers. Any answer but
// the expected one is wrong.
func (l Loop) Check(n int) error { return l.Judge(n, l.Run(n)) }

// Parallel is Check by some goroutines that share n.
func (l Loop) Parallel(goroutines, n int) error {
	if goroutines == 1 {
		return l.Check(n)
	}
	admitted := make([]int, goroutines)
	var wg sync.WaitGroup
	for g := range goroutines {
		// The first n%goroutines have one more.
		mine := (n + goroutines - 1 - g) / goroutines
		wg.Go(func() { admitted[g] = l.Run(mine) })
	}
	wg.Wait()
	sum := 0
	for _, a := range admitted {
		sum += a
	}
	return l.Judge(n, sum)
}

// Judge says what is wrong with admitted of n.
func (l Loop) Judge(n, admitted int) error {
	want := 0
	if l.Admits {
		want = n
	}
	if admitted != want {
		return fmt.Errorf("%s: %d of %d admitted; want %d", l.Name, admitted, n, want)
	}
	return nil
}

const (
	// On and IP are what the loops' requests have.
	On = "GET /orders/{id}"
	IP = "192.0.2.7"

	// Plenty per second is what peers get that are to admit. No loop here asks so
	// often, and none of them works otherwise for a large number.
	Plenty = 1_000_000_000
)

// Rolling is a rate that no loop reaches, and that still works as a limit in use
// does: its window is so short that the oldest admissions leave it all the time,
// some hundred live in it, each is kept with its own instant, and each decision
// looks at the oldest. One per 5 ns is more than the clock alone allows.
var Rolling = core.Rate{N: 4096, Per: 20 * time.Microsecond}

// Sliced is a rate above what is kept one by one, and that no loop reaches.
var Sliced = core.Rate{N: Plenty, Per: time.Second}

// Once admits one and then refuses for as long as any run takes.
var Once = core.Rate{N: 1, Per: 1000 * time.Hour}

// Clock is the clock read alone, as the limiter does it.
func Clock() Loop {
	c := &struct{ epoch time.Time }{time.Now()}
	return Loop{"clock", true, func(n int) (past int) {
		for range n {
			if time.Since(c.epoch) >= 0 {
				past++
			}
		}
		return past
	}}
}

// Map is a look-up in Go's own map of so many keys, then the clock read.
func Map(name string, keys []string) Loop {
	c := &struct{ epoch time.Time }{time.Now()}
	m := make(map[string]time.Duration, len(keys))
	for _, k := range keys {
		m[k] = -1
	}
	hot := keys[len(keys)/2]
	return Loop{name, true, func(n int) (past int) {
		for range n {
			if m[hot] < time.Since(c.epoch) {
				past++
			}
		}
		return past
	}}
}

// New makes a limiter, and panics if the rules are wrong.
func New(rules ...core.Rule) *core.Limiter {
	l, err := core.New(rules...)
	if err != nil {
		panic(err)
	}
	return l
}

// Unkeyed asks without keys.
func Unkeyed(name string, admits bool, l *core.Limiter) Loop {
	return Loop{name, admits, func(n int) (admitted int) {
		for range n {
			if p, ok := l.Try(core.Request{On: On}); ok {
				admitted++
				p.Release()
			}
		}
		return admitted
	}}
}

// Keyed asks by one key.
func Keyed(name string, admits bool, l *core.Limiter, ip string) Loop {
	return Loop{name, admits, func(n int) (admitted int) {
		for range n {
			if p, ok := l.Try(core.Request{On: On, Keys: []core.Key{{By: "ip", Value: ip}}}); ok {
				admitted++
				p.Release()
			}
		}
		return admitted
	}}
}

// spend takes what [Once] admits.
func spend(l *core.Limiter) *core.Limiter {
	p, ok := l.Try(core.Request{On: On, Keys: []core.Key{{By: "ip", Value: IP}}})
	if !ok {
		panic("loops: the first request was refused")
	}
	p.Release()
	return l
}

// Three rules: a service-wide limit in flight, the route's rate, each client's
// rate.
func Three(client core.Limit) []core.Rule {
	return []core.Rule{
		{Name: "in-flight", Limit: core.InFlight{N: 1024}},
		{Name: "route", On: On, Limit: Rolling},
		{Name: "client", By: "ip", Limit: client},
	}
}

// One rule, for all requests together or for each client.
func One(by string, limit core.Limit) core.Rule { return core.Rule{Name: "rate", By: by, Limit: limit} }

// The loops of exactflow follow, in the order of the table.

func RefuseUnkeyed() Loop {
	return Unkeyed("refuse without a key", false, spend(New(One("", Once))))
}
func RefuseKeyed() Loop {
	return Keyed("refuse by a key", false, spend(New(One("ip", Once))), IP)
}
func RefuseThird() Loop {
	return Keyed("refuse by the last of three rules", false, spend(New(Three(Once)...)), IP)
}
func AdmitUnkeyed() Loop {
	return Unkeyed("admit one rate", true, New(One("", Rolling)))
}
func AdmitSliced() Loop {
	return Unkeyed("admit one rate above 4096", true, New(One("", Sliced)))
}
func AdmitKeyed() Loop {
	return Keyed("admit one keyed rate", true, New(One("ip", Rolling)), IP)
}
func AdmitThree() Loop {
	return Keyed("admit three rules", true, New(Three(Rolling)...), IP)
}

// AdmitKeys asks by 1024 keys in turn. Those who ask at the same time begin at
// different ones. The window is a second: in a shorter one each key would have
// become idle, and perhaps have been forgotten, before its turn comes again.
func AdmitKeys() Loop {
	l := New(One("ip", Sliced))
	keys := make([]string, 1024)
	for i := range keys {
		keys[i] = fmt.Sprintf("192.0.%d.%d", 2+i/256, i%256)
	}
	var began atomic.Uint32
	return Loop{"admit one keyed rate, 1024 keys in turn", true, func(n int) (admitted int) {
		first := int(began.Add(331))
		for i := range n {
			if p, ok := l.Try(core.Request{On: On, Keys: []core.Key{{By: "ip", Value: keys[(first+i)%len(keys)]}}}); ok {
				admitted++
				p.Release()
			}
		}
		return admitted
	}}
}

// Exactflow are all of these.
func Exactflow() []Loop {
	return []Loop{RefuseUnkeyed(), RefuseKeyed(), RefuseThird(), AdmitUnkeyed(), AdmitSliced(), AdmitKeyed(), AdmitKeys(), AdmitThree()}
}

// RefuseRate is a peer whose rate is spent; for one that decides a rate and a
// limit in flight, the rate refuses.
func RefuseRate(m peers.Maker) Loop {
	p := m.New(1, time.Hour)
	if p.Run(IP, 1) != 1 {
		panic("loops: " + m.Name + " refused the first request")
	}
	return Loop{m.Name, false, func(n int) int { return p.Run(IP, n) }}
}

// AdmitRate is a peer with [Plenty] per second.
func AdmitRate(m peers.Maker) Loop {
	p := m.New(Plenty, time.Second)
	return Loop{m.Name, true, func(n int) int { return p.Run(IP, n) }}
}

// RefuseInFlight is a peer whose only slot is held for good.
func RefuseInFlight(m peers.Maker) Loop {
	p := m.New(1, 0)
	if _, ok := p.Try(context.Background(), IP); !ok {
		panic("loops: " + m.Name + " refused the first request")
	}
	return Loop{m.Name, false, func(n int) int { return p.Run(IP, n) }}
}

// AdmitInFlight is a peer with 1024 slots.
func AdmitInFlight(m peers.Maker) Loop {
	p := m.New(1024, 0)
	return Loop{m.Name, true, func(n int) int { return p.Run(IP, n) }}
}
