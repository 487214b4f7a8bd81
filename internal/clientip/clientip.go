// Package clientip tells who the client of a request is that came by way of
// proxies, so that all adapters tell the same.
//
// Everyone may write what he likes into a header, and proxies write behind it. So
// a header is read only when the peer's word is believed, and from its end: what
// the peer has written comes first, and what a client has made up lies to the left
// of what a trusted proxy has written about that client, where nobody looks.
//
// To tell a client allocates nothing, but where a name is in the way of an address
// for the first time, or an address is written with escapes.
package clientip

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Trust says whose word is believed. The adapters have the same type, and describe
// it.
type Trust struct {
	Proxies []netip.Prefix
	Hops    int
	Header  string
}

// most bounds the work for a request: as many elements of a header are looked at,
// of at most maxElement bytes. Who has 64 proxies in a row has a loop.
const (
	most       = 64
	maxElement = 1024
)

// The shortest prefixes that somebody can have for himself: 10.0.0.0/8 and fc00::/7.
// What is shorter, as the halves of 0.0.0.0/0, is strangers too.
const shortest4, shortest6 = 8, 7

// Clients tells clients by a Trust. It does not change, so it is safe for
// concurrent use.
type Clients struct {
	Header    string         // whose lines Of wants
	proxies   []netip.Prefix // sorted, none within another
	hops      int
	single    bool // the header has one value
	forwarded bool // the header is RFC 7239's
}

// New panics, in the name of package who, for a Trust that cannot be meant.
func New(who string, t Trust) *Clients {
	c := &Clients{Header: cmp.Or(t.Header, "X-Forwarded-For"), hops: t.Hops}
	c.forwarded = strings.EqualFold(c.Header, "Forwarded")
	c.single = !c.forwarded && !strings.EqualFold(c.Header, "X-Forwarded-For")
	wrong := func(format string, args ...any) { panic(who + ": Trust." + fmt.Sprintf(format, args...)) }
	switch {
	case t.Hops < 0 || t.Hops > most:
		wrong("Hops is %d; want how many addresses your own proxies append, at most %d", t.Hops, most)
	case strings.ContainsFunc(t.Header, notInName):
		wrong("Header is %q, which cannot be the name of a header", t.Header)
	case t.Header != "" && t.Hops == 0 && len(t.Proxies) == 0:
		wrong("Header is %q, and nobody is trusted to write it; want Proxies or Hops", t.Header)
	case c.single && t.Hops > 1:
		wrong("Header is %q, which has one value, and Hops is %d; want Hops 1, if every peer writes it, or Proxies", t.Header, t.Hops)
	}
	for i, p := range t.Proxies {
		if !p.IsValid() {
			wrong("Proxies[%d] is no prefix; want one such as netip.MustParsePrefix(\"10.0.3.0/28\")", i)
		}
		addr, bits := p.Addr(), p.Bits()
		if addr.Is4In6() {
			addr, bits = addr.Unmap(), bits-96
		}
		least := shortest4
		if addr.Is6() {
			least = shortest6
		}
		switch {
		case bits <= 0:
			wrong("Proxies[%d] is %v, which is everybody: a client would be who it says it is; want the addresses of your own proxies", i, p)
		case bits < least:
			wrong("Proxies[%d] is %v, which is more than one network, so that many a client would be who it says it is; want the addresses of your own proxies, IPv4 by /%d or longer, IPv6 by /%d", i, p, shortest4, shortest6)
		}
		c.proxies = append(c.proxies, netip.PrefixFrom(addr, bits).Masked())
	}
	// Prefixes are apart or one within the other. Sorted, the outer ones come first;
	// without the inner ones, the last that begins at or before an address is the only
	// one that can contain it.
	slices.SortFunc(c.proxies, func(a, b netip.Prefix) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), a.Bits()-b.Bits())
	})
	outer := c.proxies[:0]
	for _, p := range c.proxies {
		if n := len(outer); n == 0 || !outer[n-1].Contains(p.Addr()) {
			outer = append(outer, p)
		}
	}
	c.proxies = outer
	return c
}

// notInName tells what no name of a header or a parameter has in it.
func notInName(r rune) bool {
	letter := 'a' <= r|0x20 && r|0x20 <= 'z'
	return !letter && !('0' <= r && r <= '9') && !strings.ContainsRune("!#$%&'*+-.^_`|~", r)
}

// Believes tells whether Of looks at the header of a request of this peer.
func (c *Clients) Believes(peer Addr) bool {
	if len(c.proxies) == 0 {
		return c.hops > 0
	}
	return c.trusted(peer.Addr)
}

func (c *Clients) trusted(a netip.Addr) bool {
	i, begins := slices.BinarySearchFunc(c.proxies, a, func(p netip.Prefix, a netip.Addr) int { return p.Addr().Compare(a) })
	return begins || i > 0 && c.proxies[i-1].Contains(a)
}

// Of is the client of a request: of its peer, as [Parse] reads it, and all lines
// of the header. It is invalid only if the peer is.
func (c *Clients) Of(peer Addr, lines []string) Addr {
	if !c.Believes(peer) {
		return peer
	}
	if c.single {
		if len(lines) == 1 { // two are of two minds
			if a := Parse(lines[0]); a.IsValid() {
				return a
			}
		}
		return peer
	}
	last := peer // the last hop that is known, and trusted
	elements := list{lines: lines, forwarded: c.forwarded}
	for n := 1; n <= most; n++ {
		element, ok := elements.next()
		if !ok {
			break
		}
		if n < c.hops {
			continue // one of our own, whatever it is called
		}
		if c.forwarded {
			element = forNode(element)
		}
		a := Parse(element)
		if !a.IsValid() {
			break
		}
		if c.hops > 0 || !c.trusted(a.Addr) {
			return a
		}
		last = a
	}
	return last
}
