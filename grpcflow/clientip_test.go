package grpcflow_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"testing"
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

var (
	loopback = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	tens     = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}

	// claims are the metadata in which clients try to be somebody else, and how.
	claims = map[string]string{
		"X-Forwarded-For": "%s", "X-Real-IP": "%s", "True-Client-IP": "%s", "CF-Connecting-IP": "%s", "Forwarded": "for=%s",
	}
)

// behind starts a server on a real socket, with the limiter and the key, and
// returns a connection to it.
func behind(t *testing.T, l *core.Limiter, key grpcflow.Key, network, address string) *grpc.ClientConn {
	t.Helper()
	lis, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.UnaryInterceptor(grpcflow.UnaryServerInterceptor(l, grpcflow.Options{Keys: []grpcflow.Key{key}})))
	service{}.register(server)
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(lis) // ErrServerStopped
	}()
	conn, err := grpc.NewClient("passthrough:///server", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, lis.Addr().String())
		}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		server.Stop()
		<-served
	})
	return conn
}

// with is a call's context with pairs of metadata.
func with(t *testing.T, pairs ...string) context.Context {
	return metadata.AppendToOutgoingContext(t.Context(), pairs...)
}

// Twenty calls on one connection, each from somewhere else if one believes what
// they say in every header there is.
func TestAClientThatClaimsToBeOthersIsOne(t *testing.T) {
	for header, form := range claims {
		l := limiter(t, core.Rule{Name: "r", By: "ip", Limit: core.Rate{N: 3, Per: time.Hour}})
		conn := behind(t, l, grpcflow.ClientIP(grpcflow.Trust{Proxies: tens, Header: header}), "tcp4", "127.0.0.1:0")
		admitted := 0
		for i := range 20 {
			pairs := []string{header, fmt.Sprintf(form, fmt.Sprint("10.0.0.", i))}
			for header, form := range claims {
				pairs = append(pairs, header, fmt.Sprintf(form, fmt.Sprint("203.0.113.", i)))
			}
			switch a := call(with(t, pairs...), conn); status.Code(a.err) {
			case codes.OK:
				admitted++
			case codes.ResourceExhausted:
			default:
				t.Fatal(a.err)
			}
		}
		if s := stat(l); admitted != 3 || s.Keys != 1 {
			t.Errorf("%s: %d of 3 admitted, for %d keys", header, admitted, s.Keys)
		}
	}
}

// Behind a proxy its clients are apart, by the header it writes and no other, IPv6
// by the /64; what a client has put before does not count.
func TestClientsBehindAProxyAreCountedApart(t *testing.T) {
	for header, form := range claims {
		l := limiter(t, core.Rule{Name: "r", By: "ip", Limit: core.Rate{N: 1, Per: time.Hour}})
		conn := behind(t, l, grpcflow.ClientIP(grpcflow.Trust{Proxies: loopback, Header: header}), "tcp4", "127.0.0.1:0")
		for i, tt := range []struct {
			client string
			want   codes.Code
		}{
			{`"[2001:db8:1:2::1]"`, codes.OK}, {`"[2001:db8:1:2::2]:80"`, codes.ResourceExhausted},
			{`"[2001:db8:1:3::1]"`, codes.OK}, {"203.0.113.9", codes.OK}, {"203.0.113.9:80", codes.ResourceExhausted},
		} {
			var pairs []string
			for other, form := range claims {
				list := other == "X-Forwarded-For" || other == "Forwarded"
				if other != header || list {
					pairs = append(pairs, other, fmt.Sprintf(form, fmt.Sprint("198.51.100.", i)))
				}
			}
			client := tt.client
			if form == "%s" && client[0] == '"' {
				client = client[1 : len(client)-1]
			}
			pairs = append(pairs, header, fmt.Sprintf(form, client))
			if a := call(with(t, pairs...), conn); status.Code(a.err) != tt.want {
				t.Errorf("%s: %s: %v, want %v", header, client, a.err, tt.want)
			}
		}
	}
}

// A proxy on a Unix socket has no address, so it is counted as a hop. Calls that it
// says nothing about have the empty key, and one sees that.
func TestAProxyOnAUnixSocketIsAHop(t *testing.T) {
	l := limiter(t, core.Rule{Name: "r", By: "ip", Limit: core.Rate{N: 1, Per: time.Hour}})
	conn := behind(t, l, grpcflow.ClientIP(grpcflow.Trust{Hops: 1}), "unix", filepath.Join(t.TempDir(), "s"))
	for _, tt := range []struct {
		forwarded string
		want      codes.Code
	}{
		{"1.1.1.1, 203.0.113.9", codes.OK}, {"1.1.1.2, 203.0.113.9", codes.ResourceExhausted},
		{"203.0.113.8", codes.OK}, {"", codes.OK}, {"203.0.113.7, unknown", codes.ResourceExhausted},
	} {
		if a := call(with(t, "x-forwarded-for", tt.forwarded), conn); status.Code(a.err) != tt.want {
			t.Errorf("%q: %v, want %v", tt.forwarded, a.err, tt.want)
		}
	}
	if s := stat(l); s.Empty != 2 {
		t.Errorf("%d decisions under the empty key, want 2", s.Empty)
	}
}

// The text is the one that Peer would have, and another length another key.
func TestTheClientsTextIsThatOfAPeer(t *testing.T) {
	trust := grpcflow.Trust{Proxies: tens}
	whole, site := grpcflow.ClientIP(trust), grpcflow.ClientIPPrefix(trust, 24, 48)
	for _, tt := range []struct{ client, whole, site string }{
		{"203.0.113.9", "203.0.113.9", "203.0.113.0/24"},
		{"::ffff:203.0.113.9", "203.0.113.9", "203.0.113.0/24"},
		{"[2001:db8:1:2::9%eth0]:80", "2001:db8:1:2::/64", "2001:db8:1::/48"},
		{"unknown", "10.0.0.1", "10.0.0.0/24"},
	} {
		for _, addr := range []net.Addr{tcp("10.0.0.1"), textAddr("10.0.0.1:80")} {
			ctx := peer.NewContext(t.Context(), &peer.Peer{Addr: addr})
			ctx = metadata.NewIncomingContext(ctx, metadata.MD{"x-forwarded-for": {"1.1.1.1", tt.client}})
			if got := whole.Of(ctx); got != tt.whole {
				t.Errorf("%s: %q, want %q", tt.client, got, tt.whole)
			}
			if got := site.Of(ctx); got != tt.site {
				t.Errorf("%s: %q, want %q", tt.client, got, tt.site)
			}
		}
	}
	if got := whole.Of(t.Context()); got != "" {
		t.Errorf("no peer: %q", got)
	}
}

// A client that is not believed costs what a peer costs; one that is, grpc-go's
// copy of the header.
func TestTheClientsKeyAllocatesTheCopyOfTheHeader(t *testing.T) {
	key := grpcflow.ClientIP(grpcflow.Trust{Proxies: tens})
	for _, tt := range []struct {
		peer, want string
		most       float64
	}{
		{"2001:db8:1:2::1", "2001:db8:1:2::/64", 0}, {"10.0.0.1", "2001:db8:9:9::/64", 1},
	} {
		ctx := peer.NewContext(t.Context(), &peer.Peer{Addr: tcp(tt.peer)})
		ctx = metadata.NewIncomingContext(ctx, metadata.Pairs("x-forwarded-for", "evil, 2001:db8:9:9::9, 10.0.0.2"))
		got := ""
		if n := testing.AllocsPerRun(1000, func() { got = key.Of(ctx) }); n > tt.most || got != tt.want {
			t.Errorf("%s: %q with %v allocations, want %q with %v", tt.peer, got, n, tt.want, tt.most)
		}
	}
}

func TestAWrongTrustPanicsAtOnce(t *testing.T) {
	for want, build := range map[string]func(){
		"grpcflow: Trust.Proxies[0] is 0.0.0.0/0, which is everybody: a client would be who it says it is; want the addresses of your own proxies": func() {
			grpcflow.ClientIP(grpcflow.Trust{Proxies: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}})
		},
		`grpcflow: Trust.Header is ":authority", which cannot be the name of a header`: func() {
			grpcflow.ClientIP(grpcflow.Trust{Hops: 1, Header: ":authority"})
		},
		`grpcflow: Trust.Header is "Client-IP-Bin", whose values are bytes to gRPC; want the one in which your proxies write addresses`: func() {
			grpcflow.ClientIP(grpcflow.Trust{Hops: 1, Header: "Client-IP-Bin"})
		},
		`grpcflow: Trust.Header is "grpc-client-ip", which gRPC keeps to itself; want the one in which your proxies write addresses`: func() {
			grpcflow.ClientIP(grpcflow.Trust{Hops: 1, Header: "grpc-client-ip"})
		},
		`grpcflow: Trust.Header is "Host", which gRPC keeps to itself; want the one in which your proxies write addresses`: func() {
			grpcflow.ClientIP(grpcflow.Trust{Hops: 1, Header: "Host"})
		},
		"grpcflow: ClientIPPrefix(32, 129): want 1 to 32 and 1 to 128 bits": func() {
			grpcflow.ClientIPPrefix(grpcflow.Trust{}, 32, 129)
		},
	} {
		func() {
			defer func() {
				if got := recover(); got != want {
					t.Errorf("%v, want %s", got, want)
				}
			}()
			build()
		}()
	}
}
