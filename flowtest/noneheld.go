package flowtest

import (
	"testing"

	"github.com/exactflow/exactflow/core"
)

// NoneHeld fails the test if at its end something is still in flight: somewhere a
// permit was not released. It looks when the cleanups that came later are done. So
// call it as soon as the limiter is made, before the server is started that a later
// cleanup ends, and before [Fill]. It is not for what [Refusing] makes, which holds
// until the end.
func NoneHeld(t testing.TB, l *core.Limiter) {
	t.Helper()
	t.Cleanup(func() {
		t.Helper()
		for _, s := range l.Stats() {
			if s.InFlight != 0 {
				t.Errorf("flowtest: rule %q has %d units in flight at the end: a permit was not released (or NoneHeld was called after Fill)", s.Rule, s.InFlight)
			}
		}
	})
}
