package nethttpflow

import (
	"net/http"
	"strconv"
	"time"

	"github.com/exactflow/exactflow/core"
)

// Headers says on which responses the fields RateLimit and RateLimit-Policy,
// and those of [Legacy], are told. Retry-After is told on every refusal for which
// it is known, whatever Headers says.
type Headers uint8

const (
	HeadersOnRefusal Headers = iota // on refusals
	HeadersAlways                   // on all responses
	HeadersNear                     // on refusals, and when less than a tenth of the tightest limit is left
	HeadersNever                    // on none
)

// Legacy is an older family of fields to tell beside RateLimit, for clients that
// read one. They differ in what Reset is; where no instant is known, it is
// absent. Of several limiters on one response, the last to decide is told.
type Legacy uint8

const (
	LegacyNone    Legacy = iota
	LegacyXEpoch         // X-RateLimit-Limit, -Remaining, -Reset, which is a Unix time in seconds
	LegacyXDelta         // X-RateLimit-Limit, -Remaining, -Reset, which is seconds from now
	LegacyDraft06        // RateLimit-Limit, -Remaining, -Reset, which is seconds from now
)

// An Answer is how decisions are told to HTTP clients. It is for adapters, and
// for Refuse hooks; the zero value is what [Middleware] does by default.
type Answer struct {
	// Status, if given, chooses the status of a refusal, 400 to 599. By default,
	// and where it returns anything else, such as 0, that is 503 Service
	// Unavailable while what is in flight for all clients together is at its
	// limit, whether or not that rule has a queue; and 429 Too Many Requests
	// otherwise, also where the queue of a rate is full or too slow.
	Status  func(core.Permit) int
	Headers Headers
	Legacy  Legacy
}

// Announce sets the headers that tell of a permit. Of one that was refused:
//
//	Cache-Control: no-store
//	Retry-After: whole seconds, at least 1; absent if the wait is not known
//
// and, as Headers says, the tightest rule, or the one that refused:
//
//	RateLimit-Policy: "per-client";q=100;w=60
//	RateLimit: "per-client";r=0;t=7
//
// where q is the limit and w its window in seconds, absent if that is not
// whole; r is what is left, and t the seconds until more is, absent if that is
// not known. A limit on what is in flight has qu="concurrent-requests" for w.
// They are added to what other limiters have told.
func (a Answer) Announce(h http.Header, p core.Permit) {
	refusal := p.Refusal()
	refused := refusal.Reason != core.ReasonNone
	if refused {
		h.Set("Cache-Control", "no-store")
		if s := retryAfter(p); s > 0 {
			h.Set("Retry-After", strconv.FormatInt(s, 10))
		}
	}
	switch a.Headers {
	case HeadersNever:
		return
	case HeadersOnRefusal:
		if !refused {
			return
		}
	}
	q := p.Quota()
	if q.Rule == "" || a.Headers == HeadersNear && !refused && !near(q) {
		return
	}

	// Header keys are written as net/http sends them.
	var b [96]byte
	policy := append(quoted(b[:0], q.Rule), ";q="...)
	policy = integer(policy, q.Limit)
	switch {
	case q.Window == 0:
		policy = append(policy, `;qu="concurrent-requests"`...)
	case q.Window%time.Second == 0:
		policy = append(policy, ";w="...)
		policy = strconv.AppendInt(policy, seconds(q.Window), 10)
	}
	h["Ratelimit-Policy"] = append(h["Ratelimit-Policy"], string(policy))

	limit := append(quoted(b[:0], q.Rule), ";r="...)
	limit = integer(limit, q.Remaining)
	if q.Reset > 0 {
		limit = append(limit, ";t="...)
		limit = strconv.AppendInt(limit, seconds(q.Reset), 10)
	}
	h["Ratelimit"] = append(h["Ratelimit"], string(limit))

	reset := q.Reset
	if refused {
		reset = max(reset, refusal.RetryAfter) // when it is worth coming back
	}
	a.Legacy.announce(h, q, reset)
}

func (l Legacy) announce(h http.Header, q core.Quota, reset time.Duration) {
	prefix := "X-Ratelimit-"
	switch l {
	case LegacyNone:
		return
	case LegacyDraft06:
		prefix = "Ratelimit-"
	}
	h.Set(prefix+"Limit", strconv.Itoa(q.Limit))
	h.Set(prefix+"Remaining", strconv.Itoa(q.Remaining))
	switch {
	case reset <= 0:
		h.Del(prefix + "Reset")
	case l == LegacyXEpoch:
		at := time.Now().Add(reset)
		h.Set(prefix+"Reset", strconv.FormatInt(at.Add(time.Second-1).Unix(), 10))
	default:
		h.Set(prefix+"Reset", strconv.FormatInt(seconds(reset), 10))
	}
}

// Write writes the status of a refused permit, and a problem document (RFC 9457)
// that names the rule and the wait, but to HEAD no document. A Content-Length that
// somebody has set for another body is deleted. The request's body is not read.
func (a Answer) Write(w http.ResponseWriter, r *http.Request, p core.Permit) {
	status := a.status(p)
	w.Header().Del("Content-Length")
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	if r.Method != http.MethodHead {
		w.Write(problem(status, p)) // an error is the client's going away
	}
}

func (a Answer) status(p core.Permit) int {
	if a.Status != nil {
		if status := a.Status(p); 400 <= status && status <= 599 {
			return status
		}
	}
	r, inFlight := p.Refusal(), p.Quota().Window == 0
	if inFlight && r.By == "" && r.Reason != core.ReasonNever {
		return http.StatusServiceUnavailable
	}
	return http.StatusTooManyRequests
}

func problem(status int, p core.Permit) []byte {
	refusal := p.Refusal()
	kind, title := "quota-exceeded", "Quota exceeded"
	if status == http.StatusServiceUnavailable && refusal.Reason != core.ReasonNever {
		kind, title = "temporary-reduced-capacity", "Temporarily reduced capacity"
	}
	detail := "There are more requests than the limit allows."
	switch refusal.Reason {
	case core.ReasonNever:
		detail = "The request asks for more than the limit allows at any time."
	case core.ReasonInFlight:
		detail = "As many requests are being served as the limit allows."
	case core.ReasonKeys:
		detail = "As many different clients are being served as the limit has places for, and this is a further one."
	case core.ReasonQueued:
		detail = "Others wait already, and this request may not wait."
	case core.ReasonQueueFull:
		detail = "As many requests wait already as may."
	case core.ReasonQueueTimeout:
		detail = "The wait is longer than it may be."
	}

	b := make([]byte, 0, 384)
	b = append(b, `{"type":"https://iana.org/assignments/http-problem-types#`...)
	b = append(b, kind...)
	b = append(b, `","title":"`...)
	b = append(b, title...)
	b = append(b, `","status":`...)
	b = strconv.AppendInt(b, int64(status), 10)
	b = append(b, `,"detail":"`...)
	b = append(b, detail...)
	if s := retryAfter(p); s > 0 {
		b = append(b, " Try again in "...)
		b = strconv.AppendInt(b, s, 10)
		b = append(b, " s."...)
	}
	b = append(b, `","violated-policies":[`...)
	if refusal.Rule != "" { // none for a cost below 0 where no rule applies
		b = quoted(b, refusal.Rule)
	}
	return append(b, "]}\n"...)
}

// retryAfter is the seconds until the request is worth making again: never less
// than the t that Announce tells, nor than 1. It is 0 if not known.
func retryAfter(p core.Permit) int64 {
	refusal := p.Refusal()
	if !refusal.Known {
		return 0
	}
	return max(1, seconds(refusal.RetryAfter), seconds(p.Quota().Reset))
}

// near is Remaining / Limit < 1/10, in integers that do not overflow.
func near(q core.Quota) bool { return q.Remaining <= (q.Limit-1)/10 }

// quoted appends a rule's name as a String of RFC 9651, which is also one of
// JSON: names are printable ASCII, of which both escape these two, alike.
func quoted(b []byte, name string) []byte {
	b = append(b, '"')
	for i := range len(name) {
		if c := name[i]; c == '"' || c == '\\' {
			b = append(b, '\\')
		}
		b = append(b, name[i])
	}
	return append(b, '"')
}

// integer appends n, which is not negative, as an Integer of RFC 9651, which has
// at most 15 digits.
func integer(b []byte, n int) []byte {
	return strconv.AppendInt(b, min(int64(n), 999_999_999_999_999), 10)
}

// seconds is d, up to the next whole second.
func seconds(d time.Duration) int64 {
	s := int64(d / time.Second)
	if d%time.Second > 0 {
		s++
	}
	return s
}
