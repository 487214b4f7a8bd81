package nethttpflow

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func asks(seconds int) *http.Response {
	return &http.Response{StatusCode: 429, Header: http.Header{"Retry-After": {fmt.Sprint(seconds)}}}
}

// A crawler meets a million hosts. Those whose time is over are forgotten as others
// come, with nobody to sweep.
func TestHostsAreForgottenWhenTheirTimeIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &holds{most: time.Minute, until: map[string]time.Time{}}
		most := 0
		for i := range 100_000 { // 100 are held back at a time
			h.note(fmt.Sprint("host", i), asks(1))
			time.Sleep(10 * time.Millisecond)
			most = max(most, len(h.until))
		}
		if most > 300 {
			t.Errorf("up to %d were remembered", most)
		}
	})
}

// However many ask, the memory is bounded, and what is forgotten is not what has
// asked for the longest.
func TestHostsThatAskAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &holds{most: time.Hour, until: map[string]time.Time{}}
		h.note(strings.Repeat("h", maxHost+1), asks(60))
		if len(h.until) != 0 {
			t.Error("a name that no host can have was remembered")
		}
		h.note("patient", asks(3600))
		for i := range maxHeld + 1000 {
			h.note(fmt.Sprint("host", i), asks(60))
		}
		if n := len(h.until); n != maxHeld {
			t.Errorf("%d hosts", n)
		}
		if until, now := h.end("patient"); until.Sub(now) != time.Hour {
			t.Errorf("who asked for an hour has %v", until.Sub(now))
		}
		last := fmt.Sprint("host", maxHeld+999)
		if until, now := h.end(last); until.Sub(now) != time.Minute {
			t.Errorf("the last has %v", until.Sub(now))
		}
	})
}
