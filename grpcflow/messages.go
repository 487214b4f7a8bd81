package grpcflow

import (
	"context"
	"sync"

	"github.com/exactflow/exactflow/core"
	"google.golang.org/grpc"
)

// Messages says for which messages of a stream the limiter is asked, beside the
// stream itself. A message has a resource of its own, the stream's behind a word:
//
//	"/shop.Chat/Talk"            the stream
//	"received /shop.Chat/Talk"   a message that came
//	"sent /shop.Chat/Talk"       a message that goes
//
// So a rule on "/*" is about calls, one on "received *" about messages, and one on
// "" about both: in flight, the latter must have room for a stream and its messages.
// The one request of a call that only streams its answers is a message, too.
//
// A received message is asked for when it has arrived, before the handler gets it,
// and what it holds is given back when the next is asked for, or the handler
// returns. One to be sent is asked for first, and holds until SendMsg has returned.
// Where the rule has a queue RecvMsg and SendMsg wait; so a message that waits is
// the last one read, and the sender soon has to wait as well.
//
// A refused message is an error of RecvMsg or SendMsg, the same as that of a refused
// call. A handler returns it, and the client sees it. A handler that goes on
// instead has dropped that message and no more. For a client, it ends the stream.
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
func (t *talk) receive(m any, receive func(any) error) (core.Permit, error) {
	if t.received.on == "" {
		return core.Permit{}, receive(m)
	}
	t.hold(core.Permit{})
	if err := receive(m); err != nil {
		return core.Permit{}, err
	}
	a := t.received
	a.req = m
	permit, err := t.gate.admit(t.ctx, a)
	if err == nil {
		t.hold(permit)
	}
	return permit, err
}

// send asks for a message and sends it.
func (t *talk) send(m any, send func(any) error) (permit core.Permit, err error) {
	if t.sent.on == "" {
		return core.Permit{}, send(m)
	}
	a := t.sent
	a.req = m
	if permit, err = t.gate.admit(t.ctx, a); err != nil {
		return permit, err
	}
	returned := false
	defer func() {
		done(permit, !returned || failed(err))
	}()
	err = send(m)
	returned = true
	return permit, err
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

func (s serverTalk) RecvMsg(m any) error {
	permit, err := s.talk.receive(m, s.ServerStream.RecvMsg)
	return s.push(permit, err)
}

func (s serverTalk) SendMsg(m any) error {
	permit, err := s.talk.send(m, s.ServerStream.SendMsg)
	return s.push(permit, err)
}

// push sets the trailer of a refusal. The lock is for one who sends and one who
// receives and are refused together: clients take two values for none.
func (s serverTalk) push(permit core.Permit, err error) error {
	if err != nil {
		s.talk.mu.Lock()
		defer s.talk.mu.Unlock()
		s.ServerStream.SetTrailer(pushback(s.talk.ctx, permit))
	}
	return err
}
