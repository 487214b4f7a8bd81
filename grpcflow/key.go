package grpcflow

import (
	"context"
	"net"
	"strings"

	"github.com/exactflow/exactflow/internal/clientip"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
)

// A Key is one thing that a call is known by: what a rule's By names, and how it
// is found. A call for which Of returns "" is counted under the empty key.
//
// A key function of one's own is written as such:
//
//	grpcflow.Key{By: "account", Of: func(ctx context.Context) string { … }}
type Key struct {
	By string
	Of func(context.Context) string
}

// Peer is the address of the peer, By "ip": an IPv4 address whole, as
// "192.0.2.7", an IPv6 address by its /64, as "2001:db8:1:2::/64", since one host
// has all of a /64 to choose from. A peer without an address (a Unix socket, an
// in-memory listener) has the empty key.
//
// Behind a proxy all calls have the proxy's address, and the key wanted is
// [ClientIP]. What clients or proxies write into metadata such as x-forwarded-for
// is not looked at.
func Peer() Key { return PeerPrefix(32, 64) }

// PeerPrefix is [Peer] with other lengths: the first v4 bits of an IPv4 address, 1
// to 32, and the first v6 of an IPv6 address, 1 to 128. An address cut short is
// written as a prefix, "192.0.2.0/24"; a whole one as an address. An IPv4 address
// in IPv6 clothes is IPv4, and zones are dropped. Other lengths panic.
func PeerPrefix(v4, v6 int) Key {
	cut := clientip.NewCut("grpcflow: PeerPrefix", v4, v6)
	return Key{By: "ip", Of: func(ctx context.Context) string { return cut.Text(peerAddr(ctx)) }}
}

// Metadata is the first value of the call's incoming metadata under name, in
// whatever case; an empty name panics. Clients write metadata as they please: one
// that is limited by what it says of itself is limited by nothing, unless an
// interceptor further out has checked it.
func Metadata(by, name string) Key {
	if name == "" {
		panic("grpcflow: Metadata needs the name of what it reads")
	}
	name = strings.ToLower(name) // as grpc-go keeps names: other spellings cost a search
	return Key{By: by, Of: func(ctx context.Context) string {
		if v := metadata.ValueFromIncomingContext(ctx, name); len(v) > 0 {
			return v[0]
		}
		return ""
	}}
}

// peerAddr is the peer's address; invalid if it has none.
func peerAddr(ctx context.Context) clientip.Addr {
	p, ok := peer.FromContext(ctx)
	if !ok || p.Addr == nil {
		return clientip.Addr{}
	}
	if tcp, ok := p.Addr.(*net.TCPAddr); ok { // grpc-go's own listener: nothing to parse
		return clientip.FromIP(tcp.IP)
	}
	if p.Addr.Network() == "unix" { // a path, whatever it looks like
		return clientip.Addr{}
	}
	// ServeHTTP's address is text, from which somebody may have taken the port.
	return clientip.Parse(p.Addr.String())
}
