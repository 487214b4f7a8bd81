package nethttpflow

import (
	"fmt"
	"net/http"
	"net/netip"
	"strings"
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
// the proxy.
func Peer() Key { return PeerPrefix(32, 64) }

// PeerPrefix is [Peer] with other lengths: the first v4 bits of an IPv4
// address, 1 to 32, and the first v6 of an IPv6 address, 1 to 128. What is cut
// short is written as a prefix, "192.0.2.0/24". Other lengths panic.
func PeerPrefix(v4, v6 int) Key {
	if v4 < 1 || v4 > 32 || v6 < 1 || v6 > 128 {
		panic(fmt.Sprintf("nethttpflow: PeerPrefix(%d, %d): want 1 to 32 and 1 to 128 bits", v4, v6))
	}
	return Key{By: "ip", Of: func(r *http.Request) string {
		text := host(r.RemoteAddr)
		addr, err := netip.ParseAddr(text)
		if err != nil {
			return ""
		}
		if addr.Is4() && v4 == 32 {
			return text // there is one way to write it: ParseAddr takes no leading zeros
		}
		bits := v6
		if addr = addr.Unmap(); addr.Is4() {
			bits = v4
		}
		if bits < addr.BitLen() {
			// It does not fail: the address is valid and bits is below its length.
			prefix, _ := addr.Prefix(bits)
			var b [len("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff/128")]byte
			return string(prefix.AppendTo(b[:0]))
		}
		return addr.String()
	}}
}

// host is RemoteAddr without port, brackets and zone. Some middlewares set an
// address without a port.
func host(remote string) string {
	if rest, ok := strings.CutPrefix(remote, "["); ok {
		remote, _, _ = strings.Cut(rest, "]")
	} else if before, port, _ := strings.Cut(remote, ":"); !strings.Contains(port, ":") {
		remote = before
	}
	remote, _, _ = strings.Cut(remote, "%")
	return remote
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
