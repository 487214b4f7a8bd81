package grpcflow

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	"github.com/exactflow/exactflow/internal/clientip"
	"google.golang.org/grpc/metadata"
)

// Trust says which proxies stand before the server: whose word about a client is
// believed. Everyone can send metadata, so one wrong answer here gives a client as
// many keys as it likes. The zero Trust believes nobody.
//
// Say Proxies if the addresses of the proxies are known, else Hops; see
// [ClientIP] for what happens with either.
type Trust struct {
	// Proxies are the addresses of your own proxies, or of a mesh's gateways. Who
	// has an address in here chooses its own key, by what it sends, to the server or
	// through a proxy: name the proxies alone where you can, 10.0.3.0/28, for with
	// 10.0.0.0/8 every machine of such a network can be whom it likes. Prefixes shorter
	// than /8 of IPv4, and /7 of IPv6, panic: they have strangers in them.
	Proxies []netip.Prefix

	// Hops is how many addresses your own proxies append to the header, at most 64,
	// whatever these are: the client is the Hops-th from the right, with Hops 1 what the
	// peer itself has appended. A proxy appends one, so it is how many stand in a row
	// before the server; but some load balancers append two, the client's and then
	// their own, as the external Application Load Balancer of Google does, and count
	// twice. It holds only if nobody reaches the server past them, and each of them
	// appends; a server on a Unix socket, say. With Proxies too, the peer must be one
	// of those. (Without Hops, the address that such a load balancer appends for itself
	// belongs in Proxies, beside those that it connects from.)
	Hops int

	// Header is the one that the proxies write, in any case. "X-Forwarded-For", which
	// "" is as well, and "Forwarded" (RFC 7239) are lists, to whose end each proxy
	// appends. Any other, such as "X-Real-IP" or "CF-Connecting-IP", has one address,
	// and is believed from a peer among Proxies, or with Hops 1 from every peer, which
	// must write it over what clients send, always. No second header is tried.
	Header string
}

// ClientIP is the key "ip" of a server behind proxies: the address of the client,
// in the form that [Peer] has it, IPv4 whole and IPv6 by its first 64 bits. Name
// it in Options.Keys in place of Peer.
//
//	grpcflow.ClientIP(grpcflow.Trust{Proxies: []netip.Prefix{netip.MustParsePrefix("10.0.3.0/28")}})
//
// To gRPC a proxy's headers are metadata. If the peer is not among Proxies, the
// peer is the client, and metadata changes nothing. Else all values of the header
// are one list, read from its right end, where the peer has appended. The first
// address that is not among Proxies is the client; what stands left of it, it may
// have written itself. If all are among Proxies, the leftmost is.
//
// What is no address ends the walk: "unknown", "_hidden", an empty element, one
// without "for" or with two, one above 1 KiB, the 65th. The client is then the
// last of your proxies that was known, so that calls which cannot be told apart
// share one key, and no garbage makes a new one. Where Hops counts, elements
// before the Hops-th are not read; if that one is missing or no address, the peer
// is the client, and never what stands nearer. A header for one address that is
// missing, sent twice, or holds anything else leaves the peer too.
//
// An address may have a port. In X-Forwarded-For IPv6 may lack its brackets, and
// is then taken for an address without a port; in Forwarded, as RFC 7239 has it,
// it may not. A proxy that copies what a client sent into Forwarded, its host for
// one, must quote it.
//
// On a Unix socket the peer has no address: only Hops believes it, and without a
// client in the header the key is the empty one, as Stat.Empty tells.
//
// For a peer that is believed, grpc-go copies the values of the header, a slice
// for each call. A Trust that cannot be meant panics and says what would be
// right; so does a Header that is no text to gRPC, "…-bin", or that it keeps to
// itself, "grpc-…" and "host". The slice is copied.
func ClientIP(t Trust) Key { return ClientIPPrefix(t, 32, 64) }

// ClientIPPrefix is [ClientIP] with other lengths, as [PeerPrefix] has them. A
// site has often a /48 to take its /64 from; so that it is limited as a whole,
// too, let a second rule count by network:
//
//	network := grpcflow.ClientIPPrefix(trust, 24, 48)
//	network.By = "net"
//	options := grpcflow.Options{Keys: []grpcflow.Key{grpcflow.ClientIP(trust), network}}
func ClientIPPrefix(t Trust, v4, v6 int) Key {
	cut := clientip.NewCut("grpcflow: ClientIPPrefix", v4, v6)
	clients := clientip.New("grpcflow", clientip.Trust(t))
	header := strings.ToLower(clients.Header) // as grpc-go keeps names: other spellings cost a search
	switch {
	case strings.HasSuffix(header, "-bin"):
		panic(fmt.Sprintf("grpcflow: Trust.Header is %q, whose values are bytes to gRPC; want the one in which your proxies write addresses", t.Header))
	case strings.HasPrefix(header, "grpc-"), header == "host":
		panic(fmt.Sprintf("grpcflow: Trust.Header is %q, which gRPC keeps to itself; want the one in which your proxies write addresses", t.Header))
	}
	return Key{By: "ip", Of: func(ctx context.Context) string {
		at := peerAddr(ctx)
		if clients.Believes(at) {
			at = clients.Of(at, metadata.ValueFromIncomingContext(ctx, header))
		}
		return cut.Text(at)
	}}
}
