package echo5flow

import (
	"github.com/labstack/echo/v5"

	"github.com/exactflow/exactflow/nethttpflow"
)

// A Key is one thing that requests are known by. Rules count by its name.
type Key struct {
	By string                     // as in Rule.By: "ip", "tenant"
	Of func(*echo.Context) string // the request's value; "" counts under the empty key, as Stat.Empty tells
}

// Peer is the key "ip": the address of the connection's other end, an IPv6
// address by its first 64 bits; see [nethttpflow.Peer].
//
// It is not c.RealIP, which tells an IPv6 address in full, so that a host can have
// as many keys as it likes; and which, once a server sets Echo.IPExtractor, is what
// that believes.
func Peer() Key { return ofRequest(nethttpflow.Peer()) }

// PeerPrefix is [Peer] with other lengths of prefix; see [nethttpflow.PeerPrefix].
func PeerPrefix(v4, v6 int) Key { return ofRequest(nethttpflow.PeerPrefix(v4, v6)) }

// Header is a key that is a request header's first value. A client can write
// into it what it likes; see [nethttpflow.Header], also for the names it panics
// for.
func Header(by, name string) Key { return ofRequest(nethttpflow.Header(by, name)) }

// Param is a key that is a part of the path: of "/tenants/:tenant",
// Param("tenant", "tenant"). It panics for an empty name.
func Param(by, name string) Key {
	if name == "" {
		panic("echo5flow: Param needs the name of the part it reads")
	}
	return Key{By: by, Of: func(c *echo.Context) string { return c.Param(name) }}
}

func ofRequest(k nethttpflow.Key) Key {
	return Key{By: k.By, Of: func(c *echo.Context) string { return k.Of(c.Request()) }}
}
