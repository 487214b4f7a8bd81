// Package grpcflow puts an exactflow limiter in front of the methods of a gRPC
// server, and of the calls of a client.
//
//	limiter, err := core.New(
//		core.Rule{Name: "per-ip", By: "ip", Limit: core.Rate{N: 100, Per: time.Minute}},
//		core.Rule{Name: "search", On: "/shop.Catalog/Search", Limit: core.Rate{N: 20, Per: time.Second}},
//		core.Rule{Name: "in-flight", On: "/*", Limit: core.InFlight{N: 500}},
//	)
//	if err != nil {
//		log.Fatal(err)
//	}
//	server := grpc.NewServer(
//		grpc.ChainUnaryInterceptor(grpcflow.UnaryServerInterceptor(limiter, grpcflow.Options{})),
//		grpc.ChainStreamInterceptor(grpcflow.StreamServerInterceptor(limiter, grpcflow.Options{})),
//	)
//
// The resource of a request, which a rule's On matches, is the full method:
// "/shop.Catalog/Search". Its key "ip" is the address of the peer, see [Peer];
// [Options] has more. Both interceptors may share one limiter: a rule counts
// unary calls and streams together.
//
// # Who the client is
//
// By default a client is the peer of its connection, [Peer], and no metadata is
// believed. Behind proxies that is the nearest proxy, for everyone. There say
// which proxies are yours, with [ClientIP]:
//
//	trust := grpcflow.Trust{Proxies: []netip.Prefix{netip.MustParsePrefix("10.0.3.0/28")}}
//	options := grpcflow.Options{Keys: []grpcflow.Key{grpcflow.ClientIP(trust)}}
//
// A limiter is as good as its key: who can choose his own address has no limit. So
// one header is read, from the right, as far as your own proxies have written it.
//
// # How long a call counts
//
// A call holds what in-flight rules gave it until its handler returns, panics or
// calls [runtime.Goexit]. The handler's return is the truth: a client that goes
// away does not end a handler that ignores its context. So a stream that is open
// for a minute holds its slot for that minute.
//
// Health checks and reflection are exempt unless [Options].Skip says otherwise: a
// health Watch stays open for ever, and an overloaded server that fails its
// health checks is restarted instead of relieved.
//
// A call has failed, for the limiter's statistics, if its handler panics, or ends
// with one of the codes that are a server's fault: Unknown, DeadlineExceeded,
// Unimplemented, Internal, Unavailable, DataLoss.
//
// Where its return does not tell all, a handler gets its permit by [Options].Carry:
//
//	core.PermitFrom(ctx).Fail()             // a wrong password is a good answer and a failed login
//	permit := core.PermitFrom(ctx).Detach() // the work goes on, until permit.Release()
//
// # Messages of streams
//
// A stream is one call. [Options].Messages asks for its messages as well, as
// resources of their own, "received /shop.Chat/Talk" and "sent /shop.Chat/Talk": a
// rate with a queue paces a stream, one without ends it, unless its handler goes on.
// A rule without On is then about calls and messages together, which is seldom
// meant, and in flight may never work: see [Messages].
//
// # Who waits
//
// Where rules have a [core.Queue], a call waits in the interceptor before its
// handler runs; a stream, before its first message is read. If its client goes
// away or its deadline passes, it leaves at once, with the code Canceled or
// DeadlineExceeded, and counts as Canceled. If it is known that the deadline comes
// before the wait can end, it is refused at once. Server.GracefulStop waits for
// those who wait: it takes the longest Wait, and what a handler takes, at most. A
// call that waits is one of grpc.MaxConcurrentStreams.
//
// # What a refused client sees
//
// The code ResourceExhausted, a message that names the rule, and three details:
//
//   - ErrorInfo: the domain "github.com/exactflow/exactflow"; the reason, which
//     is RATE_LIMIT_EXCEEDED, CONCURRENCY_LIMIT_EXCEEDED, REQUEST_EXCEEDS_LIMIT
//     (it can never pass), KEY_LIMIT_EXCEEDED (see MaxKeys of [core.Rule]), or,
//     where the rule has a queue, QUEUE_FULL, QUEUE_TIMEOUT or QUEUED (others wait
//     already, and another rule does not let this call wait); the metadata rule,
//     limit and, for a rate, windowSeconds.
//   - QuotaFailure: the same for tools that show quotas. Its subject says by what
//     the rule counts, such as "ip". The client's own address or key is not told.
//   - RetryInfo: the time until it is worth asking again, if that is known.
//
// The trailer grpc-retry-pushback-ms makes clients that have a retry policy for
// the code wait exactly as long before their next attempt. It is "-1", do not
// retry, for a request that can never pass, and is absent when the time is not
// known, as for a slot that is free when somebody is done. It is set at most
// once, because clients take two values for none and give up; and no header is
// sent with a refusal, because clients do not retry after one.
//
// # Before the message is read
//
// grpc-go reads and decodes the request of a unary call before its interceptors
// run. So that a refusal saves that too, [InTapHandle] looks before, and refuses
// what has no room; what it lets through, the interceptors decide.
//
// # Clients
//
// [UnaryClientInterceptor] and [StreamClientInterceptor] hold a client to limits of
// its own, by the key "target" for each server apart:
//
//	conn, err := grpc.NewClient(target,
//		grpc.WithChainUnaryInterceptor(grpcflow.UnaryClientInterceptor(limiter, grpcflow.Options{})),
//		grpc.WithChainStreamInterceptor(grpcflow.StreamClientInterceptor(limiter, grpcflow.Options{})),
//	)
//
// A call is one, however often it is tried again further in. A stream holds its
// slot until its end is seen: read it to its end, or cancel its context. The codes
// that count as failed are those of a server; to give up, Canceled, is none. Of an
// error, errors.Is(err, core.ErrRefused) tells that it was the client's own limit,
// and [RetryAfter], of any server's too, from when to ask again.
//
// # Where in the chain
//
// grpc.ChainUnaryInterceptor takes the outermost first. Recovery and observation
// belong outside the limiter, so that they see refusals, and panics after the
// slot is back. Limits by address and by method belong before authentication,
// which they protect; limits by who is calling belong after it:
//
//	grpc.ChainUnaryInterceptor(
//		recovery, tracing,
//		grpcflow.UnaryServerInterceptor(byAddress, grpcflow.Options{}),
//		authenticate,
//		grpcflow.UnaryServerInterceptor(byAccount, grpcflow.Options{
//			Keys: []grpcflow.Key{{By: "account", Of: accountFromContext}},
//		}),
//	)
//
// An interceptor outside that sets headers before the call goes on (grpc.SetHeader)
// keeps clients from retrying a refusal.
//
// A server that has the ratelimit interceptors of go-grpc-middleware can keep them,
// with a [Limiter], which says what is lost: limits in flight, above all.
//
// # What it does not do
//
// grpc-go runs no interceptor for methods that the server does not know, so calls
// of these are not counted; the tap can close them, see [Unmatched]. With
// grpc.UnknownServiceHandler it does, for streams, and then the method is text
// that the client chose: let [Options].Resource map it to names of your own.
// Under grpc.Server.ServeHTTP everything holds but two things: grpc-go sends a
// header before each status there, so clients do not retry, and asks no tap.
//
// # What it costs
//
// An admitted call allocates nothing of ours while its peer is known: the text of
// an address is made at its first call, and anew after a garbage collection. Nor
// does a client's, a message, or a call that the tap lets through. A client's
// stream takes six allocations, to be watched; Carry two or three; Messages four for
// a server's stream, and eight for a client's. With more than five keys, a client's
// target included, and with [Metadata], which copies, come further ones. A refused
// call costs some twenty, for its details: a few microseconds.
package grpcflow
