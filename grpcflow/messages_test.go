package grpcflow_test

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/exactflow/exactflow/core"
	"github.com/exactflow/exactflow/grpcflow"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// talking is the server's interceptors, that ask for messages.
func talking(l *core.Limiter, m grpcflow.Messages) []grpc.ServerOption {
	return both(l, grpcflow.Options{Messages: m})
}

// echo sends back what it receives, until it may not, or nothing comes.
func echo(ss grpc.ServerStream) error {
	for {
		m := new(text)
		if err := ss.RecvMsg(m); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		if err := ss.SendMsg(m); err != nil {
			return err
		}
	}
}

// counts is what each rule has counted.
func counts(l *core.Limiter) map[string]core.Stat {
	all := map[string]core.Stat{}
	for _, s := range l.Stats() {
		all[s.Rule] = s
	}
	return all
}

// Rules tell calls, messages in and messages out apart by their resources, and one
// without On sees them all.
func TestMessagesAreResourcesOfTheirOwn(t *testing.T) {
	for m, want := range map[grpcflow.Messages]map[string]uint64{
		grpcflow.MessagesNone:     {"all": 2, "calls": 2, "received": 0, "sent": 0, "one": 1},
		grpcflow.MessagesReceived: {"all": 5, "calls": 2, "received": 3, "sent": 0, "one": 1},
		grpcflow.MessagesSent:     {"all": 5, "calls": 2, "received": 0, "sent": 3, "one": 1},
		grpcflow.MessagesBoth:     {"all": 8, "calls": 2, "received": 3, "sent": 3, "one": 1},
	} {
		l := limiter(t,
			core.Rule{Name: "all", Limit: core.Rate{N: 100, Per: time.Hour}},
			core.Rule{Name: "calls", On: "/*", Limit: core.Rate{N: 100, Per: time.Hour}},
			core.Rule{Name: "received", On: "received *", Limit: core.Rate{N: 100, Per: time.Hour}},
			core.Rule{Name: "sent", On: "sent /test.Test/*", Limit: core.Rate{N: 100, Per: time.Hour}},
			core.Rule{Name: "one", On: streamMethod, Limit: core.Rate{N: 100, Per: time.Hour}},
		)
		conn := backend{server: talking(l, m)}.start(t, service{stream: echo})
		if a := call(t.Context(), conn); a.err != nil {
			t.Fatal(a.err)
		}
		cs := open(t, t.Context(), conn)
		for range 3 {
			if err := errors.Join(cs.SendMsg(new(text)), cs.RecvMsg(new(text))); err != nil {
				t.Fatal(err)
			}
		}
		if err := errors.Join(cs.CloseSend(), cs.RecvMsg(new(text))); !errors.Is(err, io.EOF) {
			t.Error(err)
		}
		for rule, s := range counts(l) {
			if s.Admitted != want[rule] || s.Failed != 0 {
				t.Errorf("messages %d, rule %s: %+v, want %d admitted", m, rule, s, want[rule])
			}
		}
	}
}

// A message that is refused ends a stream whose handler returns the error it got,
// and the client is told as of a call.
func TestARefusedMessageIsToldLikeACall(t *testing.T) {
	for m, resource := range map[grpcflow.Messages]string{
		grpcflow.MessagesReceived: "received /test.Test/Stream",
		grpcflow.MessagesSent:     "sent /test.Test/Stream",
	} {
		synctest.Test(t, func(t *testing.T) {
			l := limiter(t, core.Rule{Name: "talk", On: resource, Limit: core.Rate{N: 2, Per: time.Minute}})
			conn := backend{server: talking(l, m)}.start(t, service{stream: echo})
			cs := open(t, t.Context(), conn)
			for range 2 {
				if err := errors.Join(cs.SendMsg(new(text)), cs.RecvMsg(new(text))); err != nil {
					t.Fatal(err)
				}
			}
			if err := cs.SendMsg(new(text)); err != nil {
				t.Fatal(err)
			}
			err := cs.RecvMsg(new(text))
			if wait, ok := grpcflow.RetryAfter(err); status.Code(err) != codes.ResourceExhausted || told(t, err)["rule"] != "talk" || !ok || wait != time.Minute {
				t.Errorf("%s: %v, %v, %v", resource, err, wait, ok)
			}
			if got := cs.Trailer()[pushback]; !slices.Equal(got, []string{"60000"}) {
				t.Errorf("%s: the pushback is %q", resource, got)
			}
			if s := stat(l); s.Admitted != 2 || s.Refused[core.ReasonRate] != 1 {
				t.Errorf("%s: %+v", resource, s)
			}
		})
	}
}

// A handler that goes on when a message was refused has dropped that message, and
// nothing else.
func TestAHandlerMayDropWhatIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, core.Rule{Name: "talk", On: "received *", Limit: core.Rate{N: 2, Per: time.Minute}},
			core.Rule{Name: "closed", On: "sent *", Limit: core.Rate{N: 0, Per: time.Minute}})
		var heard []string
		var errs int
		conn := backend{server: talking(l, grpcflow.MessagesBoth)}.start(t, service{stream: func(ss grpc.ServerStream) error {
			for {
				m := new(text)
				switch err := ss.RecvMsg(m); {
				case err == io.EOF:
					for range 3 { // all of these are refused: nothing of them is sent
						if err := ss.SendMsg(m); status.Code(err) != codes.ResourceExhausted {
							t.Error(err)
						}
					}
					return nil
				case status.Code(err) == codes.ResourceExhausted:
					errs++
				case err != nil:
					t.Error(err)
					return err
				default:
					heard = append(heard, m.Value)
				}
			}
		}})
		cs := open(t, t.Context(), conn)
		for i, word := range []string{"a", "b", "c", "d", "e"} {
			if i == 4 {
				time.Sleep(time.Minute)
			}
			if err := cs.SendMsg(wrapperspb.String(word)); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		if err := errors.Join(cs.CloseSend(), cs.RecvMsg(new(text))); !errors.Is(err, io.EOF) {
			t.Errorf("it ended with %v", err)
		}
		if !slices.Equal(heard, []string{"a", "b", "e"}) || errs != 2 {
			t.Errorf("it heard %q, with %d refused", heard, errs)
		}
		if got := cs.Trailer()[pushback]; len(got) != 1 {
			t.Errorf("the pushback is %q: clients take two values for none", got)
		}
	})
}

// Where a rule has a queue the messages wait, and so does who sends them.
func TestMessagesWaitInTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, core.Rule{Name: "talk", On: "received *", Limit: core.Rate{N: 1, Per: time.Second}, Queue: core.Queue{Len: 1, Wait: time.Minute}})
		conn := backend{server: talking(l, grpcflow.MessagesReceived)}.start(t, service{stream: echo})
		cs := open(t, t.Context(), conn)
		go func() {
			for range 5 {
				_ = cs.SendMsg(new(text))
			}
			_ = cs.CloseSend()
		}()
		begin := time.Now()
		for i := range 5 {
			if err := cs.RecvMsg(new(text)); err != nil || time.Since(begin) != time.Duration(i)*time.Second {
				t.Errorf("message %d: %v after %v", i, err, time.Since(begin))
			}
		}
		if err := cs.RecvMsg(new(text)); err != io.EOF {
			t.Error(err)
		}
	})
}

// What a received message holds, it holds while the handler is at it: until the
// next is asked for or the handler returns. What a sent one holds, until it is sent.
func TestAMessageHoldsItsUnitsWhileItIsInHand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, core.Rule{Name: "in", On: "received *", Limit: core.InFlight{N: 1}},
			core.Rule{Name: "out", On: "sent *", Limit: core.InFlight{N: 1}})
		held := func(when string, in, out int) {
			t.Helper()
			if s := counts(l); s["in"].InFlight != in || s["out"].InFlight != out {
				t.Errorf("%s: %d and %d are held, want %d and %d", when, s["in"].InFlight, s["out"].InFlight, in, out)
			}
		}
		in := grpcflow.StreamServerInterceptor(l, grpcflow.Options{Messages: grpcflow.MessagesBoth})
		err := in(nil, slow{contextStream{ctx: t.Context()}}, &grpc.StreamServerInfo{FullMethod: streamMethod}, func(_ any, ss grpc.ServerStream) error {
			held("before the first", 0, 0)
			go func() {
				for _, tt := range []struct {
					when    string
					in, out int
				}{
					{"the first is waited for", 0, 0},
					{"the second is waited for", 0, 0},
					{"one is in hand, and one is sent", 1, 1},
					{"the next is waited for", 0, 0},
				} {
					time.Sleep(time.Second / 2)
					held(tt.when, tt.in, tt.out)
					time.Sleep(time.Second / 2)
				}
			}()
			for range 2 {
				if err := ss.RecvMsg(new(text)); err != nil {
					t.Error(err)
				}
				held("received", 1, 0)
			}
			if err := ss.SendMsg(new(text)); err != nil {
				t.Error(err)
			}
			held("sent", 1, 0)
			if err := ss.RecvMsg(new(text)); err != nil {
				t.Error(err)
			}
			held("received again", 1, 0)
			return nil
		})
		held("returned", 0, 0)
		if s := counts(l); err != nil || s["in"].Admitted != 3 || s["out"].Admitted != 1 || s["in"].Failed+s["out"].Failed != 0 {
			t.Errorf("%v: %+v", err, s)
		}
	})
}

// slow is a stream on which everything takes a second.
type slow struct{ contextStream }

func (slow) RecvMsg(any) error { time.Sleep(time.Second); return nil }
func (slow) SendMsg(any) error { time.Sleep(time.Second); return nil }

// A handler may return, panic or exit while it has a message in hand, and while
// another goroutine of its is about to get one: nothing stays held.
func TestAMessageInHandEndsWithItsStream(t *testing.T) {
	for name, tt := range map[string]struct {
		end    func() error
		failed uint64
	}{
		"return": {func() error { return nil }, 0},
		"no":     {func() error { return status.Error(codes.NotFound, "") }, 0},
		"fail":   {func() error { return status.Error(codes.Internal, "") }, 1},
		"panic":  {func() error { panic("oops") }, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := limiter(t, core.Rule{Name: "in", On: "received *", Limit: core.InFlight{N: 1}, Queue: core.Queue{Len: 9, Wait: time.Hour}})
				recovery := func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) (err error) {
					defer func() {
						if recover() != nil {
							err = status.Error(codes.Internal, "panic")
						}
					}()
					return next(srv, ss)
				}
				var late error
				conn := backend{server: []grpc.ServerOption{grpc.ChainStreamInterceptor(recovery,
					grpcflow.StreamServerInterceptor(l, grpcflow.Options{Messages: grpcflow.MessagesReceived}))}}.start(t, service{stream: func(ss grpc.ServerStream) error {
					if err := ss.RecvMsg(new(text)); err != nil {
						return err
					}
					return tt.end()
				}})
				cs := open(t, t.Context(), conn)
				if err := cs.SendMsg(new(text)); err != nil {
					t.Fatal(err)
				}
				_ = cs.RecvMsg(new(text))
				if s := stat(l); s.InFlight != 0 || s.Admitted != 1 || s.Failed != tt.failed {
					t.Errorf("%+v", s)
				}

				// One waits for its message, and gets it when the handler has returned.
				in := grpcflow.StreamServerInterceptor(l, grpcflow.Options{Messages: grpcflow.MessagesReceived})
				holds, _ := l.Try(core.Request{On: "received " + streamMethod})
				err := in(nil, endless{contextStream{ctx: t.Context()}}, &grpc.StreamServerInfo{FullMethod: streamMethod}, func(_ any, ss grpc.ServerStream) error {
					go func() { late = ss.RecvMsg(new(text)) }()
					synctest.Wait()
					return nil
				})
				holds.Release()
				synctest.Wait()
				if s := stat(l); err != nil || late != nil || s.InFlight != 0 || s.Waiting != 0 || s.Admitted != 3 {
					t.Errorf("%v, %v: %+v", err, late, s)
				}
			})
		})
	}
}

// endless is a stream on which there is always one more message.
type endless struct{ contextStream }

func (endless) RecvMsg(any) error { return nil }

// A message is asked for with the stream's keys and method, and with itself.
func TestAMessageIsAskedForWithWhatItIs(t *testing.T) {
	l := limiter(t, core.Rule{Name: "bytes", On: "received chat", By: "user", Limit: core.Rate{N: 10, Per: time.Hour}})
	conn := backend{server: both(l, grpcflow.Options{
		Messages: grpcflow.MessagesReceived,
		Keys:     []grpcflow.Key{grpcflow.Metadata("user", "x-user")},
		Resource: func(_ context.Context, method string) string {
			if method != streamMethod {
				t.Error(method)
			}
			return "chat"
		},
		Cost: func(_ context.Context, method string, req any) int {
			if method != streamMethod {
				t.Error(method)
			}
			if m, ok := req.(*text); ok {
				return len(m.Value)
			}
			return 0
		},
		Priority: func(_ context.Context, method string, req any) core.Priority {
			if method != streamMethod {
				t.Error(method)
			}
			return core.Default
		},
	})}.start(t, service{stream: echo})
	for _, user := range []string{"ann", "bob"} {
		cs := open(t, metadata.AppendToOutgoingContext(t.Context(), "x-user", user), conn)
		for _, tt := range []struct {
			word string
			want codes.Code
		}{{"four", codes.OK}, {"sixsix", codes.OK}, {"x", codes.ResourceExhausted}} {
			err := errors.Join(cs.SendMsg(wrapperspb.String(tt.word)))
			if err == nil {
				err = cs.RecvMsg(new(text))
			}
			if status.Code(err) != tt.want {
				t.Errorf("%s, %q: %v", user, tt.word, err)
			}
		}
	}
	if s := stat(l); s.Admitted != 4 || s.Keys != 2 {
		t.Errorf("%+v", s)
	}
}

// Of a stream that is exempt, the messages are.
func TestMessagesOfAnExemptStreamAreExempt(t *testing.T) {
	l := limiter(t, core.Rule{Name: "closed", Limit: core.InFlight{N: 0}})
	conn := backend{server: both(l, grpcflow.Options{
		Messages: grpcflow.MessagesBoth,
		Skip:     func(context.Context, string) bool { return true },
	})}.start(t, service{stream: echo})
	cs := open(t, t.Context(), conn)
	if err := errors.Join(cs.SendMsg(new(text)), cs.RecvMsg(new(text))); err != nil {
		t.Error(err)
	}
	if s := stat(l); len(s.Refused) != 0 {
		t.Errorf("%+v", s)
	}
}

// A sender and a receiver that are refused together set one pushback.
func TestTwoRefusedMessagesSetOnePushback(t *testing.T) {
	l := limiter(t, core.Rule{Name: "closed", On: "* /*", Limit: core.Rate{N: 0, Per: time.Hour}})
	in := grpcflow.StreamServerInterceptor(l, grpcflow.Options{Messages: grpcflow.MessagesBoth})
	wire := &dozing{}
	ctx := grpc.NewContextWithServerTransportStream(t.Context(), wire)
	if err := in(nil, onto{silent{contextStream{ctx: ctx}}, wire}, &grpc.StreamServerInfo{FullMethod: streamMethod}, func(_ any, ss grpc.ServerStream) error {
		var wg sync.WaitGroup
		for _, f := range []func(any) error{ss.RecvMsg, ss.SendMsg} {
			wg.Go(func() {
				if err := f(new(text)); status.Code(err) != codes.ResourceExhausted {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		return nil
	}); err != nil {
		t.Error(err)
	}
	if got := wire.Trailer()[pushback]; !slices.Equal(got, []string{"-1"}) {
		t.Errorf("the pushback is %q", got)
	}
}

// onto is a stream that writes its trailer onto the wire.
type onto struct {
	silent
	wire *dozing
}

func (o onto) SetTrailer(md metadata.MD) { _ = o.wire.SetTrailer(md) }

// A dozing wire is one on which time passes between a look and what follows.
type dozing struct {
	grpc.ServerTransportStream
	mu      sync.Mutex
	trailer metadata.MD
}

func (d *dozing) Trailer() metadata.MD {
	d.mu.Lock()
	md := d.trailer.Copy()
	d.mu.Unlock()
	time.Sleep(10 * time.Millisecond)
	return md
}

func (d *dozing) SetTrailer(md metadata.MD) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.trailer = metadata.Join(d.trailer, md)
	return nil
}

// A client paces what it sends by its own limiter; where it may not wait, the
// message that is refused ends the stream, as any error of SendMsg does.
func TestAClientAsksForItsMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pace := core.Rule{Name: "pace", On: "sent *", Limit: core.Rate{N: 1, Per: time.Second}, Queue: core.Queue{Len: 9, Wait: time.Minute}}
		l := limiter(t, pace, core.Rule{Name: "streams", On: "/*", Limit: core.InFlight{N: 1}})
		conn := backend{client: calling(l, grpcflow.Options{Messages: grpcflow.MessagesBoth})}.start(t, service{stream: echo})
		begin := time.Now()
		cs := open(t, t.Context(), conn)
		for i := range 4 {
			if err := cs.SendMsg(new(text)); err != nil || time.Since(begin) != time.Duration(i)*time.Second {
				t.Errorf("message %d: %v after %v", i, err, time.Since(begin))
			}
			if err := cs.RecvMsg(new(text)); err != nil {
				t.Fatal(err)
			}
		}
		if err := errors.Join(cs.CloseSend(), cs.RecvMsg(new(text))); !errors.Is(err, io.EOF) {
			t.Error(err)
		}

		for _, on := range []string{"sent", "received"} {
			if err := l.Replace(core.Rule{Name: "talk", On: on + " *", Limit: core.Rate{N: 2, Per: time.Hour}}, core.Rule{Name: "streams", On: "/*", Limit: core.InFlight{N: 1}}); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			cs = open(t, ctx, conn)
			var err error
			for range 2 {
				if err = errors.Join(cs.SendMsg(new(text)), cs.RecvMsg(new(text))); err != nil {
					t.Fatal(err)
				}
			}
			if err = cs.SendMsg(new(text)); err == nil {
				err = cs.RecvMsg(new(text))
			}
			var r core.Refusal
			if !errors.As(err, &r) || r.Rule != "talk" {
				t.Errorf("%s: %v", on, err)
			}
			if s := counts(l)["streams"]; s.InFlight != 0 || s.Failed != 0 {
				t.Errorf("%s: the stream still holds its slot: %+v", on, s)
			}
			if err := cs.RecvMsg(new(text)); status.Code(err) != codes.Canceled {
				t.Errorf("%s: the stream goes on: %v", on, err)
			}
			cancel()
			if err := l.Replace(core.Rule{Name: "streams", On: "/*", Limit: core.InFlight{N: 1}}); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// A client's message is in hand until the next is asked for, or the stream ends:
// also when its caller cancels instead of asking.
func TestAClientsMessageInHandEndsWithItsStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, core.Rule{Name: "in", On: "received *", Limit: core.InFlight{N: 1}})
		conn := backend{client: calling(l, grpcflow.Options{Messages: grpcflow.MessagesReceived})}.start(t, service{stream: echo})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		cs := open(t, ctx, conn)
		for range 2 {
			if err := errors.Join(cs.SendMsg(new(text)), cs.RecvMsg(new(text))); err != nil {
				t.Fatal(err)
			}
			if n := stat(l).InFlight; n != 1 {
				t.Errorf("with a message in hand: %d", n)
			}
		}
		cancel()
		synctest.Wait()
		if s := stat(l); s.InFlight != 0 || s.Admitted != 2 {
			t.Errorf("%+v", s)
		}
	})
}
