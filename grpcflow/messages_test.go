package grpcflow_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
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

// A handler that goes on when a message was refused has dropped that message, which
// it may look at, and nothing else: the client is not told to come back later.
func TestAHandlerMayDropWhatIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, core.Rule{Name: "talk", On: "received *", Limit: core.Rate{N: 2, Per: time.Minute}},
			core.Rule{Name: "closed", On: "sent *", Limit: core.Rate{N: 0, Per: time.Minute}})
		var heard, dropped []string
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
					dropped = append(dropped, m.Value)
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
		if !slices.Equal(heard, []string{"a", "b", "e"}) || !slices.Equal(dropped, []string{"c", "d"}) {
			t.Errorf("it heard %q and dropped %q", heard, dropped)
		}
		if got := cs.Trailer()[pushback]; got != nil {
			t.Errorf("the pushback is %q", got)
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

// What makes a client come back later is the refusal that ended its stream, also
// one that is wrapped. A handler that dropped a message, and failed an hour's worth
// of other things after that, must not send its clients away for an hour.
func TestOnlyTheRefusalThatEndsAStreamHoldsItsClientBack(t *testing.T) {
	ours := errors.New("not so fast")
	for name, tt := range map[string]struct {
		o    grpcflow.Options
		ends func(received, sent error) error
		code codes.Code
		want []string
	}{
		"well":             {ends: func(_, _ error) error { return nil }},
		"something else":   {ends: func(_, _ error) error { return status.Error(codes.Unavailable, "something else") }, code: codes.Unavailable},
		"the same code":    {ends: func(_, _ error) error { return status.Error(codes.ResourceExhausted, "memory") }, code: codes.ResourceExhausted},
		"received":         {ends: func(received, _ error) error { return received }, code: codes.ResourceExhausted, want: []string{"60000"}},
		"received, worded": {ends: func(received, _ error) error { return fmt.Errorf("talk: %w", received) }, code: codes.ResourceExhausted, want: []string{"60000"}},
		"sent":             {ends: func(_, sent error) error { return sent }, code: codes.ResourceExhausted, want: []string{"-1"}},
		"both":             {ends: func(received, sent error) error { return errors.Join(sent, received) }, code: codes.ResourceExhausted, want: []string{"60000"}},
		"an error of ours": {
			o:    grpcflow.Options{Refuse: func(context.Context, core.Permit) error { return ours }},
			ends: func(received, _ error) error { return received }, code: codes.Unknown, want: []string{"60000"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := limiter(t, core.Rule{Name: "in", On: "received *", Limit: core.Rate{N: 1, Per: time.Minute}},
					core.Rule{Name: "out", On: "sent *", Limit: core.Rate{N: 0, Per: time.Hour}})
				tt.o.Messages = grpcflow.MessagesBoth
				conn := backend{server: both(l, tt.o)}.start(t, service{stream: func(ss grpc.ServerStream) error {
					if err := ss.RecvMsg(new(text)); err != nil {
						return err
					}
					received, sent := make(chan error), make(chan error)
					go func() { received <- ss.RecvMsg(new(text)) }()
					go func() { sent <- ss.SendMsg(new(text)) }()
					return tt.ends(<-received, <-sent)
				}})
				cs := open(t, t.Context(), conn)
				if err := errors.Join(cs.SendMsg(new(text)), cs.SendMsg(new(text))); err != nil {
					t.Fatal(err)
				}
				if err := cs.RecvMsg(new(text)); status.Code(err) != tt.code && (err != io.EOF || tt.code != codes.OK) {
					t.Errorf("it ended with %v", err)
				}
				if got := cs.Trailer()[pushback]; !slices.Equal(got, tt.want) {
					t.Errorf("the pushback is %q, want %q", got, tt.want)
				}
			})
		})
	}
}

// Who waits to send keeps the message that it has received. One rule about both
// directions lets a stream wait for itself; a rule for each does not.
func TestARuleForEachDirectionNeverWaitsForItself(t *testing.T) {
	queue := core.Queue{Len: 9, Wait: time.Second}
	for name, tt := range map[string]struct {
		rules []core.Rule
		code  codes.Code
		after time.Duration
	}{
		"one for both": {[]core.Rule{
			{Name: "messages", On: "* " + streamMethod, Limit: core.InFlight{N: 1}, Queue: queue},
		}, codes.ResourceExhausted, time.Second},
		"one for all": {[]core.Rule{
			{Name: "all", Limit: core.InFlight{N: 2}, Queue: queue},
		}, codes.ResourceExhausted, time.Second},
		"one for each": {[]core.Rule{
			{Name: "streams", On: "/*", Limit: core.InFlight{N: 1}, Queue: queue},
			{Name: "received", On: "received *", Limit: core.InFlight{N: 1}, Queue: queue},
			{Name: "sent", On: "sent *", Limit: core.InFlight{N: 1}, Queue: queue},
		}, codes.OK, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				conn := backend{server: talking(limiter(t, tt.rules...), grpcflow.MessagesBoth)}.start(t, service{stream: echo})
				cs := open(t, t.Context(), conn)
				if err := cs.SendMsg(new(text)); err != nil {
					t.Fatal(err)
				}
				begin := time.Now()
				if err := cs.RecvMsg(new(text)); status.Code(err) != tt.code || time.Since(begin) != tt.after {
					t.Errorf("%v after %v", err, time.Since(begin))
				}
			})
		})
	}
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
			if err := cs.RecvMsg(new(text)); !errors.Is(err, core.ErrRefused) {
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

// A client's refused message ends its stream. Then everyone who works on that
// stream is told so, and not that somebody canceled: nobody did.
func TestAClientsRefusedMessageIsToldToAllOfItsStream(t *testing.T) {
	two := func(ss grpc.ServerStream) error {
		return errors.Join(ss.SendMsg(new(text)), ss.SendMsg(new(text)), hang(ss))
	}
	for name, tt := range map[string]struct {
		desc   *grpc.StreamDesc
		server func(grpc.ServerStream) error
		reads  bool // somebody is reading when the message is refused
	}{
		"one reads, and nothing comes":    {bidi, hang, true},
		"one reads, and the second waits": {bidi, two, true},
		"one reads later":                 {bidi, hang, false},
		"one answer":                      {requests, hang, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := limiter(t, core.Rule{Name: "out", On: "sent *", Limit: core.Rate{N: 1, Per: time.Hour}},
					core.Rule{Name: "in", On: "received *", Limit: core.Rate{N: 1, Per: time.Hour}, Queue: core.Queue{Len: 1, Wait: time.Hour}})
				conn := backend{client: calling(l, grpcflow.Options{Messages: grpcflow.MessagesBoth})}.start(t, service{stream: tt.server})
				cs, err := conn.NewStream(t.Context(), tt.desc, streamMethod)
				if err != nil {
					t.Fatal(err)
				}
				if err := cs.SendMsg(new(text)); err != nil {
					t.Fatal(err)
				}
				read := make(chan error, 1)
				if tt.reads {
					go func() {
						var err error
						for err == nil {
							err = cs.RecvMsg(new(text))
						}
						read <- err
					}()
					synctest.Wait()
				}
				told := cs.SendMsg(new(text))
				if !errors.Is(told, core.ErrRefused) {
					t.Fatal(told)
				}
				if tt.reads {
					if err := <-read; err != told {
						t.Errorf("who was reading is told %v", err)
					}
				}
				if err := cs.CloseSend(); err != nil {
					t.Error(err)
				}
				if _, err := cs.Header(); err != nil && err != told {
					t.Errorf("who asks for the header is told %v", err)
				}
				for range 2 {
					if err := cs.RecvMsg(new(text)); err != told {
						t.Errorf("who reads then is told %v", err)
					}
				}
				if err := cs.SendMsg(new(text)); err != told {
					t.Errorf("who sends then is told %v", err)
				}
			})
		})
	}
}

// A client that sends into a stream that its server has ended is told io.EOF: no
// word about how it ended, and no failure of the message.
func TestAMessageThatMeetsTheEndIsNoFailure(t *testing.T) {
	for _, end := range []error{nil, status.Error(codes.Internal, "oops")} {
		synctest.Test(t, func(t *testing.T) {
			l := limiter(t, core.Rule{Name: "out", On: "sent *", Limit: core.InFlight{N: 1}},
				core.Rule{Name: "streams", On: "/*", Limit: core.InFlight{N: 1}})
			conn := backend{client: calling(l, grpcflow.Options{Messages: grpcflow.MessagesBoth})}.start(t, service{stream: func(grpc.ServerStream) error { return end }})
			cs := open(t, t.Context(), conn)
			synctest.Wait()
			if err := cs.SendMsg(new(text)); err != io.EOF {
				t.Fatal(err)
			}
			if s := counts(l)["out"]; s.Failed != 0 || s.Admitted != 1 || s.InFlight != 0 {
				t.Errorf("%v: %+v", end, s)
			}
			if err := cs.RecvMsg(new(text)); err == nil {
				t.Error("the stream goes on")
			}
			if s := counts(l)["streams"]; (s.Failed == 1) != (end != nil) || s.InFlight != 0 {
				t.Errorf("%v: %+v", end, s)
			}
		})
	}
}
