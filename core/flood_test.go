package core_test

import (
	"encoding/binary"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/exactflow/exactflow/core"
)

// A client invents keys, ten million of them. Who remembers them all runs out of
// memory, who looks through them all to make room stands still meanwhile, and who
// forgets the one asked for the longest time ago forgives those at their limit.
func TestAFloodOfTenMillionKeys(t *testing.T) {
	stallsNothing(t, flood)
}

// stallsNothing wants no decision of the run to stand still for more than 10 ms. A pause
// on a busy machine need not be ours. It is measured beside that of a goroutine which
// has nothing to do, and one that is ours comes again.
func stallsNothing(t *testing.T, run func(t *testing.T) (pause, control time.Duration)) {
	t.Helper()
	const attempts, most = 3, 10 * time.Millisecond
	for attempt := range attempts {
		pause, control := run(t)
		t.Logf("longest decision %v, longest pause of the control %v", pause, control)
		if t.Failed() || pause-control <= most {
			return
		}
		t.Logf("attempt %d of %d: a decision paused for more than %v beyond the control's", attempt+1, attempts, most)
	}
	t.Errorf("decisions paused for more than %v beyond the control's in each of %d runs", most, attempts)
}

// flood asks for ten million random keys, of which 100 000 may live: for half of
// them in a window in which they all stay, for half in one that they soon leave.
func flood(t *testing.T) (pause, control time.Duration) {
	const keys, maxKeys, n, per = 10_000_000 / slower, 100_000, 5, time.Second
	const some = max(keys/5, 2*maxKeys+1) // all places are taken by then
	l := limiterOf(t,
		core.Rule{Name: "stay", On: "stay", By: "ip", Limit: core.Rate{N: n, Per: time.Hour}, MaxKeys: maxKeys},
		core.Rule{Name: "leave", On: "leave", By: "ip", Limit: core.Rate{N: n, Per: per}, MaxKeys: maxKeys})
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			before := time.Now()
			time.Sleep(time.Millisecond)
			control = max(control, time.Since(before)-time.Millisecond)
		}
	})

	ask := func(on, key string) bool {
		before := time.Now()
		_, ok := l.Try(core.Request{On: on, Keys: []core.Key{{By: "ip", Value: key}}})
		pause = max(pause, time.Since(before))
		return ok
	}
	for range n {
		ask("stay", "limited")
	}
	start := time.Now()
	his := make([]call, 0, keys/100+1) // the calls of one key among those that leave
	var early, late uint64
	random := rand.NewPCG(1, 2)
	var key [16]byte
	for i := range keys {
		binary.LittleEndian.PutUint64(key[:8], random.Uint64())
		binary.LittleEndian.PutUint64(key[8:], random.Uint64())
		ask([]string{"stay", "leave"}[i%2], string(key[:]))
		if i%100 == 0 {
			if ask("stay", "limited") {
				t.Fatalf("after %d other keys, a key at its limit is forgiven", i)
			}
			c := call{n: 1, begin: time.Since(start)}
			c.ok = ask("leave", "limited")
			c.end = time.Since(start)
			his = append(his, c)
		}
		if i == some {
			early = heap()
		}
	}
	late = heap()
	close(stop)
	wg.Wait()

	for _, s := range l.Stats() {
		if s.Keys > maxKeys || s.Rule == "stay" && s.Overflowed < keys/2-maxKeys {
			t.Errorf("%+v; want at most %d keys, and the others beyond", s, maxKeys)
		}
		t.Logf("%s: %d admitted, %v refused, %d overflowed, %d keys", s.Rule, s.Admitted, s.Refused, s.Overflowed, s.Keys)
	}
	t.Logf("%d bytes of heap after %d keys, %d after %d", early, some, late, keys)
	// Those that leave may be fewer when the machine is slow, so the bound is also
	// that of two full rules, whose tables and rings are at most half empty.
	if late > max(early+early/4, 2*maxKeys*320) {
		t.Errorf("%d bytes of heap after %d keys, %d after %d; want it flat", early, some, late, keys)
	}
	if proof := above(his, n, per); proof != "" {
		t.Error(proof)
	}
	if len(admittedOf(his)) < n {
		t.Errorf("the key among those that leave was admitted %d times", len(admittedOf(his)))
	}
	runtime.KeepAlive(l)
	return pause, control
}
