package grpcflow_test

import (
	"context"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/exactflow/exactflow/core"
	"github.com/exactflow/exactflow/grpcflow"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// textAddr is the kind of address that ServeHTTP has.
type textAddr string

func (a textAddr) Network() string { return "tcp" }
func (a textAddr) String() string  { return string(a) }

func tcp(ip string) net.Addr { return &net.TCPAddr{IP: net.ParseIP(ip), Port: 4711} }

// The text of a key is a contract: rules name values of it in For.
func TestPeerIsTheClientsAddressAndOneKeyForASlash64(t *testing.T) {
	whole, short := grpcflow.Peer(), grpcflow.PeerPrefix(24, 48)
	half, most := grpcflow.PeerPrefix(1, 1), grpcflow.PeerPrefix(32, 128)
	for _, tt := range []struct {
		name string
		key  grpcflow.Key
		addr net.Addr
		want string
	}{
		{"IPv4", whole, tcp("192.0.2.7"), "192.0.2.7"},
		{"IPv4 in four bytes", whole, &net.TCPAddr{IP: net.IPv4(192, 0, 2, 7).To4()}, "192.0.2.7"},
		{"IPv4 in IPv6", whole, textAddr("[::ffff:192.0.2.7]:80"), "192.0.2.7"},
		{"IPv4 as text", whole, textAddr("192.0.2.7:80"), "192.0.2.7"},
		{"IPv4 by /24", short, tcp("192.0.2.7"), "192.0.2.0/24"},
		{"IPv6", whole, tcp("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::/64"},
		{"IPv6, rotated", whole, tcp("2001:db8:1:2:ffff::1"), "2001:db8:1:2::/64"},
		{"IPv6, next door", whole, tcp("2001:db8:1:3::1"), "2001:db8:1:3::/64"},
		{"IPv6 as text", whole, textAddr("[2001:db8:1:2:3:4:5:6]:80"), "2001:db8:1:2::/64"},
		{"IPv6 by /48", short, tcp("2001:db8:1:2:3:4:5:6"), "2001:db8:1::/48"},
		{"IPv6 whole", most, tcp("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2:3:4:5:6"},
		{"IPv6 whole and long", most, tcp("2001:db81:1111:2222:3333:4444:5555:6666"), "2001:db81:1111:2222:3333:4444:5555:6666"},
		{"zone", whole, &net.TCPAddr{IP: net.ParseIP("fe80::1"), Zone: "eth0"}, "fe80::/64"},
		{"zone as text", most, textAddr("[fe80::1%eth0]:80"), "fe80::1"},
		{"half of IPv4", half, tcp("192.0.2.7"), "128.0.0.0/1"},
		{"half of IPv6", half, tcp("2001:db8::1"), "::/1"},
		{"no port", whole, textAddr("192.0.2.7"), "192.0.2.7"},
		{"Unix socket", whole, &net.UnixAddr{Name: "/run/sock", Net: "unix"}, ""},
		{"Unix socket with an odd name", whole, &net.UnixAddr{Name: "192.0.2.7:80", Net: "unix"}, ""},
		{"unnamed Unix socket", whole, &net.UnixAddr{Name: "@", Net: "unix"}, ""},
		{"in memory", whole, textAddr("bufconn"), ""},
		{"no text", whole, textAddr(""), ""},
		{"no bytes", whole, &net.TCPAddr{}, ""},
		{"no address", whole, nil, ""},
	} {
		ctx := peer.NewContext(t.Context(), &peer.Peer{Addr: tt.addr})
		if got := tt.key.Of(ctx); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
	if got := whole.Of(t.Context()); got != "" {
		t.Errorf("no peer: %q", got)
	}
}

// Two clients of a real server, on real connections, have a budget each; the
// second connection of one has the same.
func TestPeersAreCountedApart(t *testing.T) {
	l := limiter(t, core.Rule{Name: "per-ip", By: "ip", Limit: core.Rate{N: 2, Per: time.Hour},
		For: map[string]core.Limit{"127.0.0.3": core.Rate{N: 3, Per: time.Hour}}})
	lis, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.UnaryInterceptor(grpcflow.UnaryServerInterceptor(l, grpcflow.Options{})))
	service{}.register(server)
	go func() { _ = server.Serve(lis) }()
	defer server.Stop()

	admitted := func(from string) (n int) {
		dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
		for range 2 { // connections
			conn, err := grpc.NewClient("passthrough:///"+lis.Addr().String(),
				grpc.WithTransportCredentials(insecure.NewCredentials()),
				grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
					return dialer.DialContext(ctx, "tcp4", addr)
				}))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			for range 3 {
				switch a := call(t.Context(), conn); status.Code(a.err) {
				case codes.OK:
					n++
				case codes.ResourceExhausted:
				default:
					t.Fatal(a.err)
				}
			}
		}
		return n
	}
	for _, tt := range []struct {
		from string
		want int
	}{{"127.0.0.1", 2}, {"127.0.0.2", 2}, {"127.0.0.3", 3}} {
		if got := admitted(tt.from); got != tt.want {
			t.Errorf("from %s: %d admitted, want %d", tt.from, got, tt.want)
		}
	}
}

// Who has no key is neither unlimited nor invisible.
func TestCallsWithoutAKeyShareTheEmptyOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, core.Rule{Name: "per-ip", By: "ip", Limit: core.Rate{N: 2, Per: time.Hour}})
		conn := backend{server: []grpc.ServerOption{
			grpc.UnaryInterceptor(grpcflow.UnaryServerInterceptor(l, grpcflow.Options{})),
		}}.start(t, service{}) // a connection in memory has no address
		for i, want := range []codes.Code{codes.OK, codes.OK, codes.ResourceExhausted} {
			if a := call(t.Context(), conn); status.Code(a.err) != want {
				t.Errorf("call %d: %v, want %v", i, a.err, want)
			}
		}
		if s := stat(l); s.Empty != 3 {
			t.Errorf("%d decisions under the empty key, want 3", s.Empty)
		}
	})
}

func TestMetadataIsTheFirstValueUnderANameInAnyCase(t *testing.T) {
	key := grpcflow.Metadata("tenant", "X-Tenant")
	if key.By != "tenant" {
		t.Error(key.By)
	}
	for want, md := range map[string]metadata.MD{
		"a": metadata.Pairs("x-tenant", "a", "X-Tenant", "b", "x-other", "c"),
		"b": {"X-TENANT": {"b"}}, // put there by hand
		"":  metadata.Pairs("x-other", "c"),
	} {
		if got := key.Of(metadata.NewIncomingContext(t.Context(), md)); got != want {
			t.Errorf("%v: %q, want %q", md, got, want)
		}
	}
	if got := key.Of(t.Context()); got != "" {
		t.Errorf("no metadata: %q", got)
	}
}

// A mistake in the wiring must show when the server is built, not as a limit that
// silently holds nobody.
func TestWrongWiringPanicsAtOnce(t *testing.T) {
	l := limiter(t)
	with := func(keys ...grpcflow.Key) func() {
		return func() { grpcflow.UnaryServerInterceptor(l, grpcflow.Options{Keys: keys}) }
	}
	of := func(context.Context) string { return "" }
	for _, tt := range []struct {
		build func()
		want  string
	}{
		{func() { grpcflow.UnaryServerInterceptor(nil, grpcflow.Options{}) }, "grpcflow: the limiter is nil"},
		{func() { grpcflow.StreamServerInterceptor(nil, grpcflow.Options{}) }, "grpcflow: the limiter is nil"},
		{with(grpcflow.Key{Of: of}), "grpcflow: Options.Keys[0] lacks its By or its Of; want both"},
		{with(grpcflow.Peer(), grpcflow.Key{By: "user"}), `grpcflow: Options.Keys[1] lacks its By or its Of; want both`},
		{with(grpcflow.Peer(), grpcflow.Metadata("ip", "x-forwarded-for")), `grpcflow: two of Options.Keys are By "ip"; want one, since of two only the first would count`},
		{with(grpcflow.Key{By: "resource", Of: of}), `grpcflow: Options.Keys[0] is By "resource", which is the request's own`},
		{with(grpcflow.Metadata("a,b", "x")), `grpcflow: Options.Keys[0] is By "a,b", which no rule can name; want no comma, and no space around it`},
		{with(grpcflow.Metadata("\ta", "x")), `grpcflow: Options.Keys[0] is By "\ta", which no rule can name; want no comma, and no space around it`},
		{func() { grpcflow.Metadata("user", "") }, "grpcflow: Metadata needs the name of what it reads"},
		{func() { grpcflow.PeerPrefix(33, 64) }, "grpcflow: PeerPrefix(33, 64): want 1 to 32 and 1 to 128 bits"},
		{func() { grpcflow.PeerPrefix(32, 0) }, "grpcflow: PeerPrefix(32, 0): want 1 to 32 and 1 to 128 bits"},
	} {
		func() {
			defer func() {
				if got := recover(); got != tt.want {
					t.Errorf("panic %v, want %q", got, tt.want)
				}
			}()
			tt.build()
		}()
	}
}

// The slice stays the caller's.
func TestKeysAreCopied(t *testing.T) {
	l := limiter(t, core.Rule{Name: "per-user", By: "user", Limit: core.Rate{N: 1, Per: time.Hour}})
	keys := []grpcflow.Key{grpcflow.Metadata("user", "x-user")}
	in := grpcflow.UnaryServerInterceptor(l, grpcflow.Options{Keys: keys})
	keys[0] = grpcflow.Key{}
	for _, user := range []string{"a", "b"} {
		ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs("x-user", user))
		if _, err := in(ctx, nil, &grpc.UnaryServerInfo{}, func(context.Context, any) (any, error) { return nil, nil }); err != nil {
			t.Errorf("user %s: %v", user, err)
		}
	}
}
