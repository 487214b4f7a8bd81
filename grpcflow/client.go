package grpcflow

import (
	"context"
	"fmt"
	"io"
	"slices"
	"sync/atomic"

	"github.com/exactflow/exactflow/core"
	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/metadata"
)

// target is the By of the key that a client's call has beside those of Options.
const target = "target"

// UnaryClientInterceptor limits the unary calls that a client makes. A call holds
// its permit until it ends, all its attempts included: grpc-go retries further in.
// A call that waits ends with its context, as Canceled or DeadlineExceeded.
//
// Beside the keys in Options a call has the key "target": what its connection was
// made with, "dns:///shop.example.com". Without keys in Options it has no others.
//
// The error of a refused call has a status, as a server's, and is a
// [core.Refusal], which a server's is not: errors.Is(err, core.ErrRefused) tells
// one's own limit from that of the server. [Options].Refuse may make another one.
//
// A nil limiter, and keys that cannot work, panic here and not later.
func UnaryClientInterceptor(l *core.Limiter, o Options) grpc.UnaryClientInterceptor {
	g := newClientGate(l, o)
	return func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) (err error) {
		if g.o.Skip(ctx, method) {
			return invoker(ctx, method, req, reply, cc, opts...)
		}
		call := g.call(ctx, method, req)
		call.target = targetOf(cc)
		permit, err := g.admit(ctx, call)
		if err != nil {
			return err
		}
		returned := false
		defer func() {
			done(permit, !returned || failed(err))
		}()
		err = invoker(g.carry(ctx, permit), method, req, reply, cc, opts...)
		returned = true
		return err
	}
}

// StreamClientInterceptor is [UnaryClientInterceptor] for streams. A stream holds
// its permit until the first of these, which are the ways in which grpc-go lets a
// stream end: it cannot be opened; RecvMsg has returned an error, as io.EOF, or
// the only answer to a stream of requests; SendMsg has returned an error that is
// not io.EOF; Header has found no header; the context of the call is done; a
// timeout in the service config has passed; Close of its ClientConn was called.
//
// CloseSend is no end. Nor is it, by itself, that the server has ended the stream,
// or is gone with its connection: RecvMsg tells that, and Header, if none has come.
// So a stream that nobody reads to its end, in a context that never ends, holds its
// permit until the ClientConn is closed, as grpc-go holds what is its own.
//
// An interceptor further in that opens a stream anew after an error is part of
// the one call; further out, each of its attempts is a call of its own.
func StreamClientInterceptor(l *core.Limiter, o Options) grpc.StreamClientInterceptor {
	g := newClientGate(l, o)
	return func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (_ grpc.ClientStream, err error) {
		if g.o.Skip(ctx, method) {
			return streamer(ctx, desc, cc, method, opts...)
		}
		call := g.call(ctx, method, nil)
		call.target = targetOf(cc)
		permit, err := g.admit(ctx, call)
		if err != nil {
			return nil, err
		}
		inner, s := ctx, &clientStream{permit: permit, answers: desc.ServerStreams}
		if g.o.Messages != MessagesNone {
			inner, s.cancel = context.WithCancel(ctx)
			s.talk = g.talk(inner, call)
		}
		s.unwatch = context.AfterFunc(inner, func() { s.over(failed(inner.Err())) })
		s.calls.Add(1)
		returned := false
		defer func() {
			s.calls.Add(-1)
			if !returned || err != nil || s.ClientStream == nil { // the last breaks a contract
				s.end(!returned || failed(err))
			}
		}()
		s.ClientStream, err = streamer(g.carry(inner, permit), desc, cc, method, append(slices.Clip(opts), grpc.OnFinish(func(err error) {
			s.fails.Store(failed(err))
			if s.calls.Load() == 0 || cc.GetState() == connectivity.Shutdown {
				s.end(failed(err))
			}
		}))...)
		returned = true
		if err != nil || s.ClientStream == nil {
			return nil, err
		}
		return s, nil
	}
}

// A clientStream is a client's stream that has a permit.
//
// What ends it is seen here, in what the caller is told, and not by grpc.OnFinish,
// which tells of grpc-go's own streams: of each one that an interceptor further in
// opens anew, and of none if that has the answers from elsewhere. Some ends come
// while nobody calls: that of the context, which we watch; and those of which only
// OnFinish tells, when it does so without a call, or for good: a timeout in the
// connection's service config, and Close of the ClientConn. Whichever is first
// counts, because the first Release of a permit does.
type clientStream struct {
	grpc.ClientStream
	permit  core.Permit
	answers bool         // many: the first is not the end
	calls   atomic.Int32 // that are under way, and will tell
	fails   atomic.Bool  // so did grpc-go's stream that finished last
	unwatch func() bool
	talk    *talk
	cancel  func() // with a talk: ends the stream when a message is refused
}

// over gives back, once.
func (s *clientStream) over(fail bool) {
	done(s.permit, fail)
	s.talk.end(fail)
}

// end is over, and nobody watches any more.
func (s *clientStream) end(fail bool) {
	s.unwatch()
	s.over(fail)
	if s.cancel != nil {
		s.cancel()
	}
}

func (s *clientStream) Header() (metadata.MD, error) {
	s.calls.Add(1)
	defer s.calls.Add(-1)
	md, err := s.ClientStream.Header()
	err = s.talk.told(err)
	if err != nil || md == nil {
		s.end(failed(err) || s.fails.Load()) // the caller is told by RecvMsg, and may not ask
	}
	return md, err
}

func (s *clientStream) RecvMsg(m any) (err error) {
	s.calls.Add(1)
	defer s.calls.Add(-1)
	if s.talk != nil {
		err = s.talk.told(s.talk.receive(m, s.ClientStream.RecvMsg))
	} else {
		err = s.ClientStream.RecvMsg(m)
	}
	if err != nil || !s.answers {
		s.end(err != io.EOF && failed(err))
	}
	return err
}

func (s *clientStream) SendMsg(m any) (err error) {
	s.calls.Add(1)
	defer s.calls.Add(-1)
	if s.talk != nil {
		err = s.talk.told(s.talk.send(m, s.ClientStream.SendMsg))
	} else {
		err = s.ClientStream.SendMsg(m)
	}
	if err != nil && err != io.EOF {
		s.end(failed(err))
	}
	return err
}

// newClientGate is newGate without default keys: the target comes beside.
func newClientGate(l *core.Limiter, o Options) *gate {
	for i, k := range o.Keys {
		if k.By == target {
			panic(fmt.Sprintf("grpcflow: Options.Keys[%d] is By %q, which is the call's own", i, target))
		}
	}
	g := newGate(l, o)
	g.client = true
	return g
}

// targetOf is the connection's target; "" without one, as in somebody's unit test.
func targetOf(cc *grpc.ClientConn) string {
	if cc == nil {
		return ""
	}
	return cc.Target()
}
