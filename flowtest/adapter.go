package flowtest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/exactflow/exactflow/core"
)

// An Adapter is what [Run] examines: how a limiter is put in front of a handler in
// some framework, and how a client calls that. All fields are needed, but Blind.
type Adapter struct {
	// Serve starts a server in which h stands behind l, as o says, and ends it when
	// the test ends. If l is nil it panics, before it has started anything, as the
	// adapter does.
	//
	// It is called in a bubble of [testing/synctest]: server and client are connected
	// in memory, since a real socket stops the bubble's clock, and no goroutine may be
	// left when the cleanups of t are done. Calls come from many goroutines at once.
	Serve func(t testing.TB, l *core.Limiter, o Options, h Handler) Server

	// Resources are what the adapter calls the two routes of its server: that of a
	// [Call] with Route 0, and that of one with Route 1.
	Resources [2]string

	// Blind is an adapter's that does not see what its handler answers: then a
	// [ServerError] does not count as failed. A panic does.
	Blind bool
}

// A Server is one that Serve has started.
type Server struct {
	// Call asks the server, and waits for the answer or for the end of ctx, which
	// the server notices: when ctx is canceled, the handler's context is. Its deadline
	// is known to the server from the beginning.
	Call func(ctx context.Context, c Call) Answer

	// Shutdown takes no new calls, and returns soon after those begun have been
	// answered: at most a second.
	Shutdown func()
}

// A Call is what a client asks.
type Call struct {
	Route  int               // 0 or 1: which of the server's two routes
	Header map[string]string // headers, metadata: names are lower-case letters and "-"
}

// A Header reads what a [Call] has under a name: "" if nothing.
type Header func(name string) string

// A Handler is what the server does for a call that the limiter has admitted. Where
// it panics, that ends the call and not the server.
type Handler func(ctx context.Context, h Header) Outcome

// Options are those of the adapter, with functions of the call's header for those
// of the framework's request; see [Lift]. The zero value must become the zero value
// of the adapter's own. One that lacks an option does not pass.
type Options struct {
	Keys     []Key
	Resource func(Header) string
	Cost     func(Header) int
	Priority func(Header) core.Priority
	Skip     func(Header) bool
	Carry    bool
}

// A Key is one of the things that a call is known by.
type Key struct {
	By string
	Of func(Header) string
}

// Lift makes of a function of [Options] that of the framework's request; nil of
// nil, so that a zero option stays one. header says how one reads a header there:
//
//	header := func(c *gin.Context) flowtest.Header { return c.GetHeader }
//	options.Cost = flowtest.Lift(o.Cost, header)
func Lift[R, T any](f func(Header) T, header func(R) Header) func(R) T {
	if f == nil {
		return nil
	}
	return func(r R) T { return f(header(r)) }
}

// An Outcome is how a call ended. A [Handler] returns one of the first three.
type Outcome uint8

const (
	OK          Outcome = iota // all is well: 200, OK
	ClientError                // the handler finds fault with the call: 404, NotFound
	ServerError                // the handler, or what caught its panic, finds fault with itself: 500, Internal
	Refused                    // by a rule
	Canceled                   // the client's context ended before there was an answer
	Broken                     // there is no answer, or none that can be read
)

// String is the outcome in words.
func (o Outcome) String() string {
	names := [...]string{"ok", "a client's error", "a server's error", "refused", "canceled", "broken"}
	if int(o) < len(names) {
		return names[o]
	}
	return fmt.Sprintf("outcome(%d)", uint8(o))
}

// An Answer is what the client gets.
type Answer struct {
	Outcome Outcome

	// Of a refusal: the rule's name, and how long to wait, if that is told.
	Rule       string
	RetryAfter time.Duration
	Known      bool

	Err error // why it is Broken, for the report
}

// String is all of the answer, for reports.
func (a Answer) String() string {
	s := a.Outcome.String()
	if a.Outcome == Refused {
		s = fmt.Sprintf("refused by %q", a.Rule)
		if a.Known {
			s += fmt.Sprintf(", retry after %v", a.RetryAfter)
		}
	}
	if a.Err != nil {
		s += fmt.Sprintf(" (%v)", a.Err)
	}
	return s
}
