package clientip

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"unique"
)

// An Addr is an address, never IPv4 in IPv6 and without a zone, or none, if it is
// invalid.
type Addr struct {
	netip.Addr
	text string // of an IPv4 address that was text, which spares writing it; or ""
}

// Parse is the address that s names: "192.0.2.7", "2001:db8::1", "[2001:db8::1]",
// and with a port "192.0.2.7:80", "[2001:db8::1]:80", where RFC 7239's obfuscated
// port will do. It is invalid if s names none. "2001:db8::1:80" is an address
// without a port.
func Parse(s string) Addr {
	host, port, whole := s, "", true
	rest, bracketed := strings.CutPrefix(s, "[")
	if bracketed {
		host, port, whole = strings.Cut(rest, "]")
	} else if i := strings.IndexByte(s, ':'); i >= 0 && i == strings.LastIndexByte(s, ':') {
		host, port = s[:i], s[i:]
	}
	if !whole || port != "" && !isPort(port) {
		return Addr{}
	}
	host, _, zoned := strings.Cut(host, "%")
	if strings.IndexByte(host, '.') < 0 && strings.IndexByte(host, ':') < 0 {
		return Addr{} // "@", "unknown" and "_name" are usual: they are spared ParseAddr's error
	}
	a, err := netip.ParseAddr(host)
	switch {
	case err != nil || a.Is4() && (bracketed || zoned):
		return Addr{}
	case a.Is4():
		return Addr{a, host} // there is one way to write it: no leading zeros
	}
	return Addr{Addr: a.Unmap()}
}

// FromIP is the address of package net, for peers that need no parsing.
func FromIP(ip net.IP) Addr {
	a, _ := netip.AddrFromSlice(ip)
	return Addr{Addr: a.Unmap()}
}

func isPort(s string) bool {
	number, ok := strings.CutPrefix(s, ":")
	if name, obfuscated := strings.CutPrefix(number, "_"); obfuscated {
		return ok && name != "" && !strings.ContainsFunc(name, notInName)
	}
	for i := range len(number) {
		ok = ok && '0' <= number[i] && number[i] <= '9'
	}
	return ok && 1 <= len(number) && len(number) <= 5
}

// A Cut is how much of an address a key has.
type Cut struct{ v4, v6 int }

// NewCut panics, in the name of who, for what no address has.
func NewCut(who string, v4, v6 int) Cut {
	if v4 < 1 || v4 > 32 || v6 < 1 || v6 > 128 {
		panic(fmt.Sprintf("%s(%d, %d): want 1 to 32 and 1 to 128 bits", who, v4, v6))
	}
	return Cut{v4, v6}
}

// Text is the address cut to its length, as a prefix if that is shorter than the
// address; "" for an invalid one.
//
// The key of a rule is text, for core.Rule's For to name it, and an address
// is bytes. So that a request does not allocate for what the request before had
// allocated, equal texts share one: package unique keeps a text until a garbage
// collection finds it unused, and looks it up, from our stack, without an
// allocation. No bound of ours is needed, and nothing to clean up.
func (c Cut) Text(a Addr) string {
	bits := c.v6
	if a.Is4() {
		bits = c.v4
	}
	var b [64]byte
	t := b[:0]
	switch {
	case !a.IsValid():
		return ""
	case bits < a.BitLen():
		prefix, _ := a.Prefix(bits) // no error: the address is longer
		t = prefix.AppendTo(t)
	case a.text != "":
		return a.text
	default:
		t = a.AppendTo(t)
	}
	return unique.Make(string(t)).Value()
}
