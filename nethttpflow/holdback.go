package nethttpflow

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"
)

// A HeldBack is the error of a call that [Transport] has not made, because its
// host has asked to wait, and the wait would be longer than the call may take.
type HeldBack struct {
	Host       string        // as the key of Host tells it
	RetryAfter time.Duration // until the host may be called again; above 0
}

// Error names the host and the wait.
func (h HeldBack) Error() string {
	return fmt.Sprintf("nethttpflow: held back: %s has asked to wait, retry after %v", h.Host, h.RetryAfter)
}

// Holds are the hosts that have asked to wait, each with the instant until which.
// nil holds nobody back.
type holds struct {
	most time.Duration

	mu    sync.Mutex
	until map[string]time.Time
}

const (
	// maxHeld bounds the hosts that are remembered. If it is reached, one that would
	// be called again soon is forgotten; it will tell again.
	maxHeld = 1 << 16
	// maxHost is above any name in DNS, 253 bytes, with its port.
	maxHost = 260
)

// note takes down what a response of the host asks for. An earlier end does not
// take the place of a later one: what is asked of some calls may not be all that
// is asked of others.
func (h *holds) note(host string, res *http.Response) {
	if h == nil || len(host) > maxHost {
		return
	}
	refused := res.StatusCode == http.StatusTooManyRequests || res.StatusCode == http.StatusServiceUnavailable
	if _, spent := exhausted(res.Header); !refused && !spent {
		return // Retry-After is about something else
	}
	wait, _ := RetryAfter(res)
	if wait <= 0 {
		return
	}

	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	until := now.Add(min(wait, h.most))
	before, known := h.until[host]
	if until.Before(before) {
		return
	}
	if !known {
		h.room(now)
	}
	h.until[strings.Clone(host)] = until // the name may be a part of a long URL
}

// room looks at a few hosts and forgets those that are not held back any more, so
// that they stay about as few as those that are. Needs h.mu.
func (h *holds) room(now time.Time) {
	looked, soonest := 0, ""
	for host, until := range h.until { // begins anywhere
		switch {
		case !until.After(now):
			delete(h.until, host)
		case soonest == "" || until.Before(h.until[soonest]):
			soonest = host
		}
		if looked++; looked == 8 {
			break
		}
	}
	if len(h.until) >= maxHeld {
		delete(h.until, soonest)
	}
}

// end is the instant until which calls to the host are held back, or the zero Time
// if they are not.
func (h *holds) end(host string) (until, now time.Time) {
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	until, known := h.until[host]
	if !known {
		return
	}
	if now = time.Now(); !until.After(now) {
		delete(h.until, host)
		return time.Time{}, now
	}
	return until, now
}

// wait returns nil when the host may be called. The call is not held back beyond last,
// which is h.most after the first time that it is.
func (h *holds) wait(ctx context.Context, host string, last *time.Time) error {
	for {
		until, now := h.end(host)
		if until.IsZero() {
			return nil
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if last.IsZero() {
			*last = now.Add(h.most)
		}
		deadline, ok := ctx.Deadline()
		if until.After(*last) || ok && !until.Before(deadline) {
			return HeldBack{Host: host, RetryAfter: until.Sub(now)}
		}
		timer := time.NewTimer(until.Sub(now))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
	}
}
