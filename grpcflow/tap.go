package grpcflow

import (
	"context"

	"github.com/exactflow/exactflow/core"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// Unmatched is the one resource of all methods that [InTapHandle] does not know. A
// rule on it can close them, with N: 0, and no other limit is ever reached.
const Unmatched = "(unmatched)"

// InTapHandle refuses, before a call's message is read, what the interceptors
// would refuse after: they decode megabytes first. It looks and takes nothing, so
// the interceptors stay, with the same limiter and options, and decide:
//
//	grpc.NewServer(
//		grpc.InTapHandle(grpcflow.InTapHandle(limiter, options)),
//		grpc.ChainUnaryInterceptor(grpcflow.UnaryServerInterceptor(limiter, options)),
//		grpc.ChainStreamInterceptor(grpcflow.StreamServerInterceptor(limiter, options)),
//	)
//
// It refuses what would be refused at once; what may wait, goes on. It never
// blocks. A server has one tap: a second one panics. grpc-go calls experimental
// what this stands on, does not call it under grpc.Server.ServeHTTP, and shows its
// refusals to no stats.Handler: [core.Limiter.Stats] has them. A refusal has the
// code, the message and the details of the interceptors', and no pushback, since no
// trailer can be set there.
//
// The message is not there yet. So it asks for one unit, whatever [Options].Cost
// would say, and for the priority with a nil request. Nor have other interceptors
// run: keys that these put into the context are empty here. If a rule refuses the
// empty key, give the tap a limiter that has no such rule.
//
// Clients may call what does not exist, and the interceptors never see that.
// [Options].Known says what exists; all else is the resource [Unmatched] here, so
// names that clients invent are neither remembered nor given to
// [Options].Resource; Skip does get them. Since nothing is taken here, such calls fill no
// limit: there is no rate for a flood of them. They are refused by a limit of 0, and
// by rules on "" that other calls have filled; grpc-go answers the rest, Unimplemented.
func InTapHandle(l *core.Limiter, o Options) tap.ServerInHandle {
	g := newGate(l, o, Peer())
	if g.o.Known == nil {
		methods := linked()
		g.o.Known = func(method string) bool { return methods[method] }
	}
	return func(ctx context.Context, info *tap.Info) (context.Context, error) {
		method := info.FullMethodName
		if g.o.Skip(ctx, method) {
			return ctx, nil
		}
		a := ask{method: method, on: Unmatched}
		if g.o.Known(method) {
			a = g.call(ctx, method, nil)
		}
		permit, ok := g.peek(ctx, a)
		if ok {
			return ctx, nil
		}
		err := g.refuse(ctx, permit)
		if _, ok := status.FromError(err); !ok { // or it would be PermissionDenied here, and here alone
			err = status.FromContextError(err).Err()
		}
		return ctx, err
	}
}

// linked is the methods of all services whose generated code is in the program:
// known without being told, and not to be added to by a client. Those of them
// that no server has registered do no harm.
func linked() map[string]bool {
	var files []protoreflect.FileDescriptor // first: to look into one takes the registry's lock again
	protoregistry.GlobalFiles.RangeFiles(func(file protoreflect.FileDescriptor) bool {
		files = append(files, file)
		return true
	})
	methods := map[string]bool{}
	for _, file := range files {
		for i := range file.Services().Len() {
			service := file.Services().Get(i)
			for j := range service.Methods().Len() {
				methods["/"+string(service.FullName())+"/"+string(service.Methods().Get(j).Name())] = true
			}
		}
	}
	return methods
}
