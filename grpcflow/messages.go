package grpcflow

import (
	"context"
	"errors"
	"io"
	"sync"

	"github.com/exactflow/exactflow/core"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// Messages says for which messages of a stream the limiter is asked, beside the
// stream itself. A message has a resource of its own, the stream's behind a word:
//
//	"/shop.Chat/Talk"            the stream
//	"received /shop.Chat/Talk"   a message that came
//	"sent /shop.Chat/Talk"       a message that goes
//
// So a rule on "/*" is about calls, one on "received *" about messages, and one on
// "" about both. The one request of a call that only streams its answers is a
// message, too, and so is the only answer to a stream of requests.
//
// A received message is asked for when it has arrived, before the handler gets it,
// and what it holds is given back when the next is asked for, or the handler
// returns. One to be sent is asked for first, and holds until SendMsg has returned.
// Where the rule has a queue RecvMsg and SendMsg wait; so a message that waits is
// the last one read, and the sender soon has to wait as well.
//
// A message that waits holds its stream's slot, and one that waits to be sent also
// holds the message received before it. So say by On what an in-flight rule is
// about: "/*", "received *" or "sent *". One about two of these, as "" and
// "* /shop.Chat/Talk" are, lets streams wait for each other until Queue.Wait has
// passed, and with N: 1 each for itself; without a queue, streams that it has
// admitted find no room for their messages.
//
// A refused message is an error of RecvMsg or SendMsg, the same as that of a refused
// call. RecvMsg has decoded it into its argument by then. A handler returns the
// error, wrapped or not, and the client sees it, pushback included. A handler that
// goes on instead has dropped that message and no more. A client's stream is
// canceled by it, and RecvMsg and SendMsg tell the refusal where they would tell
// Canceled.
type Messages uint8

const (
	MessagesNone     Messages = iota // for none
	MessagesReceived                 // for each that is received: "received /shop.Chat/Talk"
	MessagesSent                     // for each that is sent: "sent /shop.Chat/Talk"
	MessagesBoth                     // for each
)

// A talk is the messages of one stream. One goroutine receives and another one
// sends, and either may be at it when the handler returns.
type talk struct {
	gate           *gate
	ctx            context.Context // the stream's, to wait in
	received, sent ask             // without on: not asked for

	mu     sync.Mutex
	inHand core.Permit // of the message that was received last
	over   bool        // nobody is going to give back what inHand gets now

	// The last refusal of each direction, which may be the stream's end. An older
	// one is none: who received or sent went on after it.
	refused [2]refusal
}

type refusal struct {
	permit core.Permit
	err    error // as it was told; nil if there was none
}

// talk is that of an admitted stream; nil if nothing is asked for.
func (g *gate) talk(ctx context.Context, call ask) *talk {
	if g.o.Messages == MessagesNone {
		return nil
	}
	t := &talk{gate: g, ctx: ctx, received: call, sent: call}
	t.received.on, t.sent.on = "", ""
	if g.o.Messages != MessagesSent {
		t.received.on = "received " + call.on
	}
	if g.o.Messages != MessagesReceived {
		t.sent.on = "sent " + call.on
	}
	return t
}

// receive receives a message and asks for it. What the one before held is given
// back first: whoever asks for the next is done with it.
func (t *talk) receive(m any, receive func(any) error) error {
	if t.received.on == "" {
		return receive(m)
	}
	t.hold(core.Permit{})
	if err := receive(m); err != nil {
		return err
	}
	permit, err := t.admit(t.received, m, &t.refused[0])
	if err == nil {
		t.hold(permit)
	}
	return err
}

// send asks for a message and sends it.
func (t *talk) send(m any, send func(any) error) error {
	if t.sent.on == "" {
		return send(m)
	}
	permit, err := t.admit(t.sent, m, &t.refused[1])
	if err != nil {
		return err
	}
	returned := false
	defer func() {
		// io.EOF tells a client that the stream has ended, well or not.
		done(permit, !returned || err != io.EOF && failed(err))
	}()
	err = send(m)
	returned = true
	return err
}

// admit asks for a message, and remembers in last that it was refused.
func (t *talk) admit(a ask, m any, last *refusal) (core.Permit, error) {
	a.req = m
	permit, err := t.gate.admit(t.ctx, a)
	if err != nil && permit.Refusal().Reason != core.ReasonNone {
		t.mu.Lock()
		*last = refusal{permit, err}
		t.mu.Unlock()
	}
	return permit, err
}

// refusals is a copy, to be looked at while a message is refused.
func (t *talk) refusals() [2]refusal {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.refused
}

// pushback is the trailer of the refusal by which a server's stream ends, or nil.
// It is not set before the end: a trailer cannot be taken back, and a handler may
// drop the message and fail for another reason.
func (t *talk) pushback(err error) metadata.MD {
	if t == nil {
		return nil
	}
	for _, r := range t.refusals() {
		if r.err != nil && errors.Is(err, r.err) {
			return pushback(t.ctx, r.permit)
		}
	}
	return nil
}

// told is what a client is told in place of err: the refusal, if its stream was
// canceled because of one.
func (t *talk) told(err error) error {
	if t == nil || err == nil {
		return err
	}
	for _, r := range t.refusals() {
		if r.err != nil && (status.Code(err) == codes.Canceled || errors.Is(err, context.Canceled)) {
			return r.err
		}
	}
	return err
}

// hold replaces what the message in hand holds.
func (t *talk) hold(permit core.Permit) {
	t.mu.Lock()
	last := t.inHand
	t.inHand = permit
	if t.over {
		last, t.inHand = permit, core.Permit{}
	}
	t.mu.Unlock()
	last.Release()
}

// end gives back what is held when the stream ends: a message that was in hand
// then ends as the stream does.
func (t *talk) end(fail bool) {
	if t == nil {
		return
	}
	t.mu.Lock()
	last := t.inHand
	t.inHand, t.over = core.Permit{}, true
	t.mu.Unlock()
	done(last, fail)
}

// A serverTalk is a server's stream that asks for its messages.
type serverTalk struct {
	grpc.ServerStream
	talk *talk
}

func (s serverTalk) RecvMsg(m any) error { return s.talk.receive(m, s.ServerStream.RecvMsg) }
func (s serverTalk) SendMsg(m any) error { return s.talk.send(m, s.ServerStream.SendMsg) }
