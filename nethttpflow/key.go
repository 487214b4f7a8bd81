package nethttpflow

import (
	"net/http"

	"github.com/exactflow/exactflow/internal/clientip"
)

// A Key is one thing that requests are known by. Rules count by its name.
type Key struct {
	By string                     // as in Rule.By: "ip", "tenant"
	Of func(*http.Request) string // the request's value; "" counts under the empty key, as Stat.Empty tells
}

// Peer is the key "ip": the address of the connection's other end, from
// RemoteAddr. An IPv4 address is taken whole, "192.0.2.7"; of an IPv6 address
// the first 64 bits, "2001:db8:1:2::/64", because a host has all that follow. An
// IPv4 address written as IPv6 is IPv4; a zone is dropped; what is no address is
// the empty key.
//
// Headers that claim another address, such as X-Forwarded-For, are not
// believed: whoever sends the request writes them. So behind a proxy the peer is
// the proxy, and the key wanted is [ClientIP].
func Peer() Key { return PeerPrefix(32, 64) }

// PeerPrefix is [Peer] with other lengths: the first v4 bits of an IPv4
// address, 1 to 32, and the first v6 of an IPv6 address, 1 to 128. What is cut
// short is written as a prefix, "192.0.2.0/24". Other lengths panic.
func PeerPrefix(v4, v6 int) Key {
	cut := clientip.NewCut("nethttpflow: PeerPrefix", v4, v6)
	return Key{By: "ip", Of: func(r *http.Request) string { return cut.Text(clientip.Parse(r.RemoteAddr)) }}
}

// Header is a key that is a request header's first value, such as an API key.
// A client can write into it what it likes, so count by it only what something
// before this has checked, or count by [Peer] beside it. It panics for an empty
// name, and for Host, which net/http takes out of the headers: that is a Key of
// your own, whose Of returns r.Host.
func Header(by, name string) Key {
	name = http.CanonicalHeaderKey(name)
	switch name {
	case "":
		panic("nethttpflow: Header needs the name of the header it reads")
	case "Host":
		panic("nethttpflow: Host is not among net/http's headers; want a Key whose Of returns the request's Host")
	}
	return Key{By: by, Of: func(r *http.Request) string { return r.Header.Get(name) }}
}

// PathValue is a key that is a part of the path: of "GET /tenants/{tenant}",
// PathValue("tenant", "tenant"). It is known inside a route only: around a
// ServeMux, where Options.Mux finds the route, it is the empty key. It panics for
// an empty name.
func PathValue(by, name string) Key {
	if name == "" {
		panic("nethttpflow: PathValue needs the name of the wildcard it reads")
	}
	return Key{By: by, Of: func(r *http.Request) string { return r.PathValue(name) }}
}
