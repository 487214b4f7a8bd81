package echoflow

import (
	"github.com/labstack/echo/v4"

	"github.com/exactflow/exactflow/nethttpflow"
)

// A Key is one thing that requests are known by. Rules count by its name.
type Key struct {
	By string                    // as in Rule.By: "ip", "tenant"
	Of func(echo.Context) string // the request's value; "" counts under the empty key, as Stat.Empty tells
}

// Peer is the key "ip": the address of the connection's other end, an IPv6
// address by its first 64 bits; see [nethttpflow.Peer].
//
// It is not c.RealIP, which before echo 4.16.3 believes what clients say by default;
// behind proxies the key wanted is [ClientIP].
func Peer() Key { return ofRequest(nethttpflow.Peer()) }

// PeerPrefix is [Peer] with other lengths of prefix; see [nethttpflow.PeerPrefix].
func PeerPrefix(v4, v6 int) Key { return ofRequest(nethttpflow.PeerPrefix(v4, v6)) }

// ClientIP is the key "ip" of a server behind proxies, whose word is believed as t
// says; see [nethttpflow.ClientIP].
//
// It does not ask c.RealIP. Until Echo.IPExtractor is set, that is the connection's
// peer from echo 4.16.3 on; before, it is the leftmost address of X-Forwarded-For, or
// else X-Real-IP, from anyone, which is what the client wrote, even where it is no
// address: so a client has as many keys as it likes. IPExtractor does not touch this key. One such as
// echo.ExtractIPFromXFFHeader, which trusts loopback and private addresses too
// unless it is told not to, can still lend its answer, with an IPv6 client counted
// by each of its addresses:
//
//	echoflow.Key{By: "ip", Of: echo.Context.RealIP}
func ClientIP(t nethttpflow.Trust) Key { return ofRequest(nethttpflow.ClientIP(t)) }

// ClientIPPrefix is [ClientIP] with other lengths of prefix; see
// [nethttpflow.ClientIPPrefix], also for a second rule by network.
func ClientIPPrefix(t nethttpflow.Trust, v4, v6 int) Key {
	return ofRequest(nethttpflow.ClientIPPrefix(t, v4, v6))
}

// Header is a key that is a request header's first value. A client can write
// into it what it likes; see [nethttpflow.Header], also for the names it panics
// for.
func Header(by, name string) Key { return ofRequest(nethttpflow.Header(by, name)) }

// Param is a key that is a part of the path: of "/tenants/:tenant",
// Param("tenant", "tenant"). It panics for an empty name.
func Param(by, name string) Key {
	if name == "" {
		panic("echoflow: Param needs the name of the part it reads")
	}
	return Key{By: by, Of: func(c echo.Context) string { return c.Param(name) }}
}

func ofRequest(k nethttpflow.Key) Key {
	return Key{By: k.By, Of: func(c echo.Context) string { return k.Of(c.Request()) }}
}
