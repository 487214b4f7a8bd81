package main

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/exactflow/exactflow/core"
	"github.com/exactflow/exactflow/grpcflow"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// role names, in a child's environment, what it is there for: to serve, so that its
// processor time is that of a server alone.
const role = "EXACTFLOW_BARS_ROLE"

const message = 1 << 20 // bytes

// tapped is the processor time that a server takes to refuse a call with a message of
// 1 MiB by its tap, in multiples of that by its interceptor: the median of slices in
// turn, as elsewhere.
func tapped() float64 {
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), role+"=server")
	child.Stderr = os.Stderr
	in, err := child.StdinPipe() // its end is the child's
	must(err)
	out, err := child.StdoutPipe()
	must(err)
	must(child.Start())
	defer func() {
		in.Close()
		must(child.Wait())
	}()
	line, err := bufio.NewReader(out).ReadString('\n')
	must(err)
	var servers []testpb.TestServiceClient
	for _, addr := range strings.Fields(line) {
		conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
		must(err)
		defer conn.Close()
		servers = append(servers, testpb.NewTestServiceClient(conn))
	}
	request := &testpb.SimpleRequest{Payload: &testpb.Payload{Body: make([]byte, message)}}
	refuse := func(i, n int) time.Duration {
		begin := spent(servers[i])
		for range n {
			_, err := servers[i].UnaryCall(context.Background(), request)
			if status.Code(err) != codes.ResourceExhausted {
				panic(fmt.Sprint("a call was not refused: ", err))
			}
		}
		return spent(servers[i]) - begin
	}
	refuse(0, 50)
	refuse(1, 50)
	var ratios []float64
	for round := range 21 {
		const calls = 100
		var took [2]time.Duration
		for j := range took {
			i := (j + round) % 2
			took[i] = refuse(i, calls)
		}
		ratios = append(ratios, float64(took[0])/float64(took[1]))
	}
	return median(ratios)
}

// spent is the processor time of the server's process so far.
func spent(c testpb.TestServiceClient) time.Duration {
	var trailer metadata.MD
	_, err := c.EmptyCall(context.Background(), &testpb.Empty{}, grpc.Trailer(&trailer))
	must(err)
	ns, err := strconv.ParseInt(trailer["spent"][0], 10, 64)
	must(err)
	return time.Duration(ns)
}

// serveTapped is the child: two servers with one rule that refuses, one of them with a tap.
func serveTapped() {
	l, err := core.New(core.Rule{Name: "rate", On: "*/UnaryCall", Limit: core.Rate{N: 1, Per: time.Hour}})
	must(err)
	if _, ok := l.Try(core.Request{On: "/grpc.testing.TestService/UnaryCall"}); !ok {
		panic("the first is refused")
	}
	o := grpcflow.Options{}
	for i := range 2 {
		options := []grpc.ServerOption{grpc.UnaryInterceptor(grpcflow.UnaryServerInterceptor(l, o))}
		if i == 0 {
			options = append(options, grpc.InTapHandle(grpcflow.InTapHandle(l, o)))
		}
		s := grpc.NewServer(options...)
		testpb.RegisterTestServiceServer(s, server{})
		lis, err := net.Listen("tcp", "127.0.0.1:0")
		must(err)
		fmt.Print(lis.Addr(), " ")
		go s.Serve(lis)
	}
	fmt.Println()
	bufio.NewReader(os.Stdin).ReadByte() // until the parent is done, or gone
}

type server struct {
	testpb.UnimplementedTestServiceServer
}

func (server) EmptyCall(ctx context.Context, _ *testpb.Empty) (*testpb.Empty, error) {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return nil, err
	}
	ns := u.Utime.Nano() + u.Stime.Nano()
	return &testpb.Empty{}, grpc.SetTrailer(ctx, metadata.Pairs("spent", strconv.FormatInt(ns, 10)))
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
