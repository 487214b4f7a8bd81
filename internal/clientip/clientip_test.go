package clientip

import (
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// own are the proxies of the tests: two networks, one within the other, and one of
// IPv6.
var own = []netip.Prefix{
	netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("2001:db8:1::/48"), netip.MustParsePrefix("10.0.0.0/8"),
}

func TestTheClientIsTheFirstFromTheRightThatIsNoProxy(t *testing.T) {
	proxies, counted, both := Trust{Proxies: own}, Trust{Hops: 2}, Trust{Proxies: own, Hops: 2}
	rfc, counting := Trust{Proxies: own, Header: "FORWARDED"}, Trust{Hops: 2, Header: "forwarded"}
	single, always := Trust{Proxies: own, Header: "X-Real-IP"}, Trust{Hops: 1, Header: "x-real-ip"}
	for _, tt := range []struct {
		trust Trust
		peer  string
		lines []string
		want  string
	}{
		// Whose word is not believed may say what he likes.
		{Trust{}, "10.0.0.1:80", []string{"203.0.113.9"}, "10.0.0.1"},
		{proxies, "198.51.100.1:80", []string{"203.0.113.9"}, "198.51.100.1"},
		{proxies, "198.51.100.1:80", []string{"203.0.113.9, 10.0.0.2"}, "198.51.100.1"},
		{proxies, "@", []string{"203.0.113.9"}, ""},
		{both, "198.51.100.1:80", []string{"203.0.113.9, 10.0.0.2"}, "198.51.100.1"},
		{single, "198.51.100.1:80", []string{"203.0.113.9"}, "198.51.100.1"},
		{rfc, "198.51.100.1:80", []string{"for=203.0.113.9"}, "198.51.100.1"},

		// The walk passes what is trusted, and nothing else.
		{proxies, "10.0.0.1:80", nil, "10.0.0.1"},
		{proxies, "10.0.0.1:80", []string{"203.0.113.9"}, "203.0.113.9"},
		{proxies, "10.0.0.1:80", []string{"1.1.1.1, 203.0.113.9,10.0.0.2 ,\t10.9.9.9"}, "203.0.113.9"},
		{proxies, "10.0.0.1:80", []string{"1.1.1.1", "203.0.113.9,10.0.0.2", "10.9.9.9"}, "203.0.113.9"},
		{proxies, "10.1.255.255:80", []string{"203.0.113.9"}, "203.0.113.9"},
		{proxies, "10.255.255.255:80", []string{"203.0.113.9"}, "203.0.113.9"},
		{proxies, "11.0.0.0:80", []string{"203.0.113.9"}, "11.0.0.0"},
		{proxies, "9.255.255.255:80", []string{"203.0.113.9"}, "9.255.255.255"},
		{proxies, "[2001:db8:1::1]:80", []string{"2001:db8:2::1"}, "2001:db8:2::1"},
		{proxies, "[2001:db8:2::1]:80", []string{"203.0.113.9"}, "2001:db8:2::1"},
		{proxies, "[::ffff:10.0.0.1]:80", []string{"::ffff:203.0.113.9"}, "203.0.113.9"},
		{proxies, "[2001:db8:1::1%eth0]:80", []string{"fe80::1%eth0, 2001:db8:1::2%eth0"}, "fe80::1"},
		{proxies, "10.0.0.1", []string{"203.0.113.9:4711, [2001:db8:1::2]:80, [2001:db8:1::3]"}, "203.0.113.9"},
		{proxies, "10.0.0.1:80", []string{"2001:db8::1:80"}, "2001:db8::1:80"},
		{Trust{Proxies: []netip.Prefix{netip.MustParsePrefix("::ffff:10.0.0.0/104")}}, "10.0.0.1:80", []string{"203.0.113.9"}, "203.0.113.9"},
		{Trust{Proxies: []netip.Prefix{netip.MustParsePrefix("10.1.2.3/8")}}, "10.0.0.1:80", []string{"203.0.113.9"}, "203.0.113.9"},

		// All trusted: the furthest.
		{proxies, "10.0.0.1:80", []string{"10.0.0.3, 10.0.0.2"}, "10.0.0.3"},

		// Garbage ends the walk at the last proxy.
		{proxies, "10.0.0.1:80", []string{"203.0.113.9, unknown"}, "10.0.0.1"},
		{proxies, "10.0.0.1:80", []string{"203.0.113.9, unknown, 10.0.0.2"}, "10.0.0.2"},
		{proxies, "10.0.0.1:80", []string{"203.0.113.9,,10.0.0.2"}, "10.0.0.2"},
		{proxies, "10.0.0.1:80", []string{"203.0.113.9", "", "10.0.0.2"}, "10.0.0.2"},
		{proxies, "10.0.0.1:80", []string{"203.0.113.9,"}, "10.0.0.1"},
		{proxies, "10.0.0.1:80", []string{""}, "10.0.0.1"},
		{proxies, "10.0.0.1:80", []string{"_hidden"}, "10.0.0.1"},
		{proxies, "10.0.0.1:80", []string{"203.0.113.009"}, "10.0.0.1"},
		{proxies, "10.0.0.1:80", []string{"203.0.113.9:"}, "10.0.0.1"},
		{proxies, "10.0.0.1:80", []string{"203.0.113.9:http"}, "10.0.0.1"},
		{proxies, "10.0.0.1:80", []string{"203.0.113.9:123456"}, "10.0.0.1"},
		{proxies, "10.0.0.1:80", []string{"[203.0.113.9]:80"}, "10.0.0.1"},
		{proxies, "10.0.0.1:80", []string{"203.0.113.9%eth0"}, "10.0.0.1"},
		{proxies, "10.0.0.1:80", []string{"[2001:db8::1"}, "10.0.0.1"},
		{proxies, "10.0.0.1:80", []string{"[2001:db8::1]80"}, "10.0.0.1"},
		{proxies, "10.0.0.1:80", []string{"1:2:3:4:5:6:7:8:80"}, "10.0.0.1"},
		{proxies, "10.0.0.1:80", []string{`"203.0.113.9"`}, "10.0.0.1"},
		{proxies, "10.0.0.1:80", []string{"for=203.0.113.9"}, "10.0.0.1"},

		// Counted, the addresses of one's own proxies do not matter.
		{counted, "198.51.100.1:80", []string{"1.1.1.1, 203.0.113.9, 198.51.100.2"}, "203.0.113.9"},
		{counted, "@", []string{"1.1.1.1", "203.0.113.9", "unix:"}, "203.0.113.9"},
		{counted, "@", []string{"203.0.113.9", "198.51.100.2:80"}, "203.0.113.9"},
		{counted, "10.0.0.1:80", []string{"203.0.113.9, "}, "203.0.113.9"},
		{counted, "10.0.0.1:80", []string{"10.0.0.7, 203.0.113.9"}, "10.0.0.7"},
		{counted, "10.0.0.1:80", []string{"203.0.113.9"}, "10.0.0.1"}, // too few
		{counted, "10.0.0.1:80", nil, "10.0.0.1"},
		{counted, "@", []string{"203.0.113.9"}, ""},
		{counted, "10.0.0.1:80", []string{"1.1.1.1, unknown, 203.0.113.9"}, "10.0.0.1"}, // garbage
		{counted, "10.0.0.1:80", []string{`1.1.1.1, 203.0.113.9, "`}, "203.0.113.9"},
		{both, "10.0.0.1:80", []string{"1.1.1.1, 203.0.113.9, 198.51.100.2"}, "203.0.113.9"},
		{both, "@", []string{"1.1.1.1, 203.0.113.9, 198.51.100.2"}, ""},

		// One value, or nothing.
		{single, "10.0.0.1:80", []string{"203.0.113.9"}, "203.0.113.9"},
		{single, "10.0.0.1:80", []string{"10.0.0.7"}, "10.0.0.7"},
		{single, "10.0.0.1:80", []string{"203.0.113.9", "203.0.113.9"}, "10.0.0.1"},
		{single, "10.0.0.1:80", []string{"203.0.113.9, 203.0.113.8"}, "10.0.0.1"},
		{single, "10.0.0.1:80", []string{"unknown"}, "10.0.0.1"},
		{single, "10.0.0.1:80", []string{""}, "10.0.0.1"},
		{single, "10.0.0.1:80", nil, "10.0.0.1"},
		{always, "@", []string{"2001:db8::1"}, "2001:db8::1"},
		{always, "198.51.100.1:80", []string{"203.0.113.9:80"}, "203.0.113.9"},
		{always, "@", nil, ""},

		// RFC 7239.
		{rfc, "10.0.0.1:80", []string{"for=203.0.113.9"}, "203.0.113.9"},
		{rfc, "10.0.0.1:80", []string{`for=1.1.1.1, FOR="203.0.113.9:4711";proto=https, by=10.0.0.1; For=10.0.0.2`}, "203.0.113.9"},
		{rfc, "10.0.0.1:80", []string{`for=1.1.1.1`, `proto=http;for="[2001:db8::9]:4711";by=_me`, "for=10.0.0.2"}, "2001:db8::9"},
		{rfc, "10.0.0.1:80", []string{`for="[2001:db8::9]"`}, "2001:db8::9"},
		{rfc, "10.0.0.1:80", []string{`for="203.0.113.9:_port"`}, "203.0.113.9"},
		{rfc, "10.0.0.1:80", []string{`for=203.0.113.9:80`}, "203.0.113.9"},
		{rfc, "10.0.0.1:80", []string{`for=[2001:db8::9]:80`}, "2001:db8::9"},
		{rfc, "10.0.0.1:80", []string{`;;for=203.0.113.9;; ;`}, "203.0.113.9"},
		{rfc, "10.0.0.1:80", []string{`host="a" ; for="203.0.113.9" ; proto=http`}, "203.0.113.9"},
		{rfc, "10.0.0.1:80", []string{`for="203\.0.113\.9"`}, "203.0.113.9"},
		{rfc, "10.0.0.1:80", []string{`for="\[2001:db8::9\]"`}, "2001:db8::9"},
		{rfc, "10.0.0.1:80", []string{`for=203\.0.113.9`}, "10.0.0.1"},
		{rfc, "10.0.0.1:80", []string{`for=203.0.113.9;host="a,for=1.1.1.1"`}, "203.0.113.9"},
		{rfc, "10.0.0.1:80", []string{`for=203.0.113.9;host="a\",for=1.1.1.1;x=\""`}, "203.0.113.9"},
		{rfc, "10.0.0.1:80", []string{`for=203.0.113.9;host="a\\" , for=10.0.0.2`}, "203.0.113.9"},
		{rfc, "10.0.0.1:80", []string{`for=203.0.113.9;host="\\\"" , for=10.0.0.2`}, "203.0.113.9"},
		{rfc, "10.0.0.1:80", []string{`for=203.0.113.9;host=""`}, "203.0.113.9"},
		// What a client leaves open does not swallow what follows.
		{rfc, "10.0.0.1:80", []string{`for="1.1.1.1, for=203.0.113.9`}, "203.0.113.9"},
		{rfc, "10.0.0.1:80", []string{`for="1.1.1.1, for="[2001:db8::9]:80"`}, "2001:db8::9"},
		{rfc, "10.0.0.1:80", []string{`for=1.1.1.1\, for="[2001:db8::9]:80", for=10.0.0.2`}, "2001:db8::9"},
		{rfc, "10.0.0.1:80", []string{`for="1.1.1.1`, `for="203.0.113.9"`}, "203.0.113.9"},
		{rfc, "10.0.0.1:80", []string{`for="1.1.1.1`, `for=10.0.0.2`}, "10.0.0.2"},
		{rfc, "10.0.0.1:80", []string{`for="1.1.1.1, for=10.0.0.2`}, "10.0.0.2"},
		{rfc, "10.0.0.1:80", []string{`x="`, `for="1.1.1.1`}, "10.0.0.1"},
		{rfc, "10.0.0.1:80", []string{`for=1.1.1.1, for=10.0.0.2;x="a"b, for=10.0.0.3`}, "10.0.0.3"},
		{rfc, "10.0.0.1:80", []string{`for="203.0.113.9\"`}, "10.0.0.1"},
		{rfc, "10.0.0.1:80", []string{`for=unknown`}, "10.0.0.1"},
		{rfc, "10.0.0.1:80", []string{`for=_hidden`}, "10.0.0.1"},
		{rfc, "10.0.0.1:80", []string{`for="_hidden:80"`}, "10.0.0.1"},
		{rfc, "10.0.0.1:80", []string{`for=203.0.113.9;for=203.0.113.9`}, "10.0.0.1"},
		{rfc, "10.0.0.1:80", []string{`for=203.0.113.9;For="203.0.113.8"`}, "10.0.0.1"},
		{rfc, "10.0.0.1:80", []string{`by=203.0.113.9`}, "10.0.0.1"},
		{rfc, "10.0.0.1:80", []string{`fort=203.0.113.9`}, "10.0.0.1"},
		{rfc, "10.0.0.1:80", []string{`for =203.0.113.9`}, "10.0.0.1"},
		{rfc, "10.0.0.1:80", []string{`for= 203.0.113.9`}, "10.0.0.1"},
		{rfc, "10.0.0.1:80", []string{`for`}, "10.0.0.1"},
		{rfc, "10.0.0.1:80", []string{`for=`}, "10.0.0.1"},
		{rfc, "10.0.0.1:80", []string{`=203.0.113.9`}, "10.0.0.1"},
		{rfc, "10.0.0.1:80", []string{`for=203.0.113.9;secret`}, "10.0.0.1"},
		{rfc, "10.0.0.1:80", []string{`for=203.0.113.9;x=a"`}, "10.0.0.1"},
		{rfc, "10.0.0.1:80", []string{`for=203.0.113.9;=a`}, "10.0.0.1"},
		{rfc, "10.0.0.1:80", []string{`for=203.0.113.9;x y="a"`}, "10.0.0.1"},
		{rfc, "10.0.0.1:80", []string{`x="a"for=203.0.113.9`}, "10.0.0.1"},
		{rfc, "10.0.0.1:80", []string{`for=203.0.113.9;x y=a`}, "10.0.0.1"},
		{rfc, "10.0.0.1:80", []string{`for=203.0.113.9;x=a"b"`}, "10.0.0.1"},
		{rfc, "10.0.0.1:80", []string{`203.0.113.9`}, "10.0.0.1"},
		{rfc, "10.0.0.1:80", []string{`for="2001:db8::9"`}, "10.0.0.1"}, // without brackets
		{rfc, "10.0.0.1:80", []string{``}, "10.0.0.1"},
		{counting, "@", []string{`for=1.1.1.1, for=203.0.113.9, for=_hidden;x="a,b"`}, "203.0.113.9"},
		{counting, "@", []string{`for=1.1.1.1, for=203.0.113.9, _x"`}, ""},
		{counting, "@", []string{`for=1.1.1.1, for=203.0.113.9`, `_x"`}, ""},
	} {
		got := ""
		if a := New("test", tt.trust).Of(Parse(tt.peer), tt.lines); a.IsValid() {
			got = a.String()
		}
		if got != tt.want {
			t.Errorf("%+v, peer %s, %q: %q, want %q", tt.trust, tt.peer, tt.lines, got, tt.want)
		}
	}
}

// Proxies that are many, nested, and in no order are found like few.
func TestProxiesAreFoundAmongMany(t *testing.T) {
	var many []netip.Prefix
	for i := range 256 {
		many = append(many,
			netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i * 37), 0, 0}), 16+i%3),
			netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i * 37), byte(i), 0}), 24),
			netip.PrefixFrom(netip.AddrFrom16([16]byte{0x20, 1, byte(i), 15: 1}), 24+i%5))
	}
	c := New("test", Trust{Proxies: many})
	for i := range 4096 {
		for _, a := range []netip.Addr{
			netip.AddrFrom4([4]byte{10, byte(i), byte(i >> 4), byte(i)}),
			netip.AddrFrom16([16]byte{0x20, 1, byte(i), byte(i >> 5)}),
		} {
			if got, want := c.trusted(a), slices.ContainsFunc(many, func(p netip.Prefix) bool { return p.Contains(a) }); got != want {
				t.Fatalf("%v: %v, want %v", a, got, want)
			}
		}
	}
}

// A header as long as a server lets in costs no more than its right end, and what
// is cut off is not taken for what it was.
func TestTheWorkIsBounded(t *testing.T) {
	xff, rfc := New("test", Trust{Proxies: own}), New("test", Trust{Proxies: own, Header: "Forwarded"})
	peer := Parse("10.0.0.1:80")
	fill := func(n int) string { return strings.Repeat(" ", n) }
	for _, tt := range []struct {
		name string
		c    *Clients
		line string
		want string
	}{
		{"63 proxies", xff, "203.0.113.9" + strings.Repeat(",10.0.0.2", 63), "203.0.113.9"},
		{"64 proxies", xff, "203.0.113.9" + strings.Repeat(",10.0.0.2", 64), "10.0.0.2"},
		{"an element of 1 KiB", xff, "10.0.0.3," + fill(maxElement-11) + "203.0.113.9", "203.0.113.9"},
		{"the line's only element, of 1 KiB", xff, fill(maxElement-11) + "203.0.113.9", "203.0.113.9"},
		{"one above 1 KiB", xff, "10.0.0.3," + fill(maxElement-10) + "203.0.113.9", "10.0.0.1"},
		{"the line's only one, above 1 KiB", xff, fill(maxElement-10) + "203.0.113.9", "10.0.0.1"},
		{"the same of Forwarded", rfc, `for=203.0.113.9;x="` + strings.Repeat(`\\`, maxElement) + `"`, "10.0.0.1"},
		{"an odd one", rfc, `for=203.0.113.9;x="` + strings.Repeat(`\"`, maxElement) + `"`, "10.0.0.1"},
		{"a megabyte on the left", rfc, strings.Repeat(`",\`, 1<<20) + `, for="203.0.113.9"`, "203.0.113.9"},
	} {
		if got := tt.c.Of(peer, []string{tt.line}).String(); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
	read := func(c *Clients, line string) (n int) {
		l := list{lines: []string{line}, forwarded: c.forwarded}
		for range most {
			if _, ok := l.next(); !ok {
				return most*maxElement + 1
			}
		}
		return len(line) - len(l.line)
	}
	if n := read(xff, strings.Repeat(",", 1<<20)); n > most {
		t.Errorf("of commas, %d bytes were read", n)
	}
	if n := read(rfc, strings.Repeat(`a="`+strings.Repeat(`,`, 500)+`",`, 1<<10)); n > most*maxElement {
		t.Errorf("of quoted commas, %d bytes were read", n)
	}
}

func TestTellingAClientAllocatesNothing(t *testing.T) {
	cut := NewCut("test", 32, 64)
	for _, tt := range []struct {
		trust Trust
		peer  string
		lines []string
		want  string
	}{
		{Trust{}, "192.0.2.7:80", nil, "192.0.2.7"},
		{Trust{}, "[2001:db8:1:2:3:4:5:6]:80", nil, "2001:db8:1:2::/64"},
		{Trust{}, "[fe80::1%eth0]:80", nil, "fe80::/64"},
		{Trust{}, "[::ffff:192.0.2.7]:80", nil, "192.0.2.7"},
		{Trust{}, "@", nil, ""},
		{Trust{Proxies: own}, "10.0.0.1:80", []string{"evil", "203.0.113.9, 10.0.0.2"}, "203.0.113.9"},
		{Trust{Proxies: own}, "10.0.0.1:80", []string{"2001:db8:9:9::9, 10.0.0.2"}, "2001:db8:9:9::/64"},
		{Trust{Proxies: own}, "10.0.0.1:80", []string{"unknown"}, "10.0.0.1"},
		{Trust{Hops: 2}, "@", []string{"2001:db8:9:9::9, unix:"}, "2001:db8:9:9::/64"},
		{Trust{Hops: 1, Header: "X-Real-IP"}, "@", []string{"2001:db8:9:9::9"}, "2001:db8:9:9::/64"},
		{Trust{Proxies: own, Header: "Forwarded"}, "10.0.0.1:80",
			[]string{`evil", for="[2001:db8:9:9::9]:80";proto=https;host="a\"b", for=10.0.0.2`}, "2001:db8:9:9::/64"},
	} {
		c, got := New("test", tt.trust), ""
		if n := testing.AllocsPerRun(1000, func() { got = cut.Text(c.Of(Parse(tt.peer), tt.lines)) }); n != 0 || got != tt.want {
			t.Errorf("%+v, %s, %q: %q with %v allocations, want %q with none", tt.trust, tt.peer, tt.lines, got, n, tt.want)
		}
	}
}

func TestAKeyIsCutToItsLength(t *testing.T) {
	for _, tt := range []struct {
		v4, v6       int
		addr4, addr6 string
	}{
		{32, 128, "203.0.113.255", "2001:db8:ffff:ffff:ffff:ffff:ffff:ffff"}, {31, 127, "203.0.113.254/31", "2001:db8:ffff:ffff:ffff:ffff:ffff:fffe/127"},
		{24, 48, "203.0.113.0/24", "2001:db8:ffff::/48"}, {1, 1, "128.0.0.0/1", "::/1"},
	} {
		cut := NewCut("test", tt.v4, tt.v6)
		if got := cut.Text(Parse("203.0.113.255")); got != tt.addr4 {
			t.Errorf("%d bits: %s, want %s", tt.v4, got, tt.addr4)
		}
		if got := cut.Text(Parse("2001:db8:ffff:ffff:ffff:ffff:ffff:ffff")); got != tt.addr6 {
			t.Errorf("%d bits: %s, want %s", tt.v6, got, tt.addr6)
		}
	}
}

func TestAnIPOfPackageNetIsTheSameAddress(t *testing.T) {
	cut := NewCut("test", 32, 64)
	for _, s := range []string{"192.0.2.7", "::ffff:192.0.2.7", "2001:db8::1", "none"} {
		if got, want := cut.Text(FromIP(net.ParseIP(s))), cut.Text(Parse(s)); got != want {
			t.Errorf("%s: %q, want %q", s, got, want)
		}
	}
	if got := cut.Text(FromIP(net.IPv4(192, 0, 2, 7).To4())); got != "192.0.2.7" {
		t.Errorf("in four bytes: %q", got)
	}
}

// A server with a wrong Trust does not start, and says what would be right.
func TestAWrongTrustPanicsWithWhatWouldBeRight(t *testing.T) {
	all4, all6 := netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")
	everybody := "which is everybody: a client would be who it says it is; want the addresses of your own proxies"
	for _, tt := range []struct {
		trust Trust
		want  string
	}{
		{Trust{Hops: -1}, "who: Trust.Hops is -1; want how many addresses your own proxies append, at most 64"},
		{Trust{Hops: 65}, "who: Trust.Hops is 65; want how many addresses your own proxies append, at most 64"},
		{Trust{Hops: 1, Header: "X Real"}, `who: Trust.Header is "X Real", which cannot be the name of a header`},
		{Trust{Hops: 1, Header: ":authority"}, `who: Trust.Header is ":authority", which cannot be the name of a header`},
		{Trust{Hops: 1, Header: "X-Réal"}, `who: Trust.Header is "X-Réal", which cannot be the name of a header`},
		{Trust{Header: "X-Real-IP"}, `who: Trust.Header is "X-Real-IP", and nobody is trusted to write it; want Proxies or Hops`},
		{Trust{Header: "X-Forwarded-For"}, `who: Trust.Header is "X-Forwarded-For", and nobody is trusted to write it; want Proxies or Hops`},
		{Trust{Header: "X-Real-IP", Hops: 2},
			`who: Trust.Header is "X-Real-IP", which has one value, and Hops is 2; want Hops 1, if every peer writes it, or Proxies`},
		{Trust{Proxies: []netip.Prefix{own[0], {}}}, `who: Trust.Proxies[1] is no prefix; want one such as netip.MustParsePrefix("10.0.3.0/28")`},
		{Trust{Proxies: []netip.Prefix{netip.PrefixFrom(own[0].Addr(), 33)}},
			`who: Trust.Proxies[0] is no prefix; want one such as netip.MustParsePrefix("10.0.3.0/28")`},
		{Trust{Proxies: []netip.Prefix{all4}}, "who: Trust.Proxies[0] is 0.0.0.0/0, " + everybody},
		{Trust{Proxies: []netip.Prefix{own[0], all6}, Hops: 1}, "who: Trust.Proxies[1] is ::/0, " + everybody},
		{Trust{Proxies: []netip.Prefix{netip.MustParsePrefix("::ffff:0.0.0.0/96")}}, "who: Trust.Proxies[0] is ::ffff:0.0.0.0/96, " + everybody},
		{Trust{Proxies: []netip.Prefix{netip.MustParsePrefix("::ffff:0.0.0.0/80")}}, "who: Trust.Proxies[0] is ::ffff:0.0.0.0/80, " + everybody},
	} {
		func() {
			defer func() {
				if got := recover(); got != tt.want {
					t.Errorf("%+v: %v, want %s", tt.trust, got, tt.want)
				}
			}()
			New("who", tt.trust)
		}()
	}
}

// Everybody can be said in parts, two halves or eight eighths, and a part of everybody
// is strangers still. A private network is the largest that somebody has.
func TestAPrefixWithStrangersInItPanics(t *testing.T) {
	for _, tt := range []struct {
		prefix string
		wrong  bool
	}{
		{"0.0.0.0/1", true}, {"128.0.0.0/1", true}, {"64.0.0.0/2", true}, {"8.0.0.0/7", true}, {"10.1.2.3/7", true},
		{"10.0.0.0/8", false}, {"10.1.2.3/8", false}, {"192.0.2.7/32", false},
		{"::ffff:0.0.0.0/97", true}, {"::ffff:10.0.0.0/103", true}, {"::ffff:10.0.0.0/104", false},
		{"::/1", true}, {"8000::/1", true}, {"2000::/3", true}, {"fc00::/6", true},
		{"fc00::/7", false}, {"fd00::/8", false}, {"2001:db8::/32", false}, {"2001:db8::1/128", false},
	} {
		func() {
			want := fmt.Sprintf("who: Trust.Proxies[1] is %s, which is more than one network, so that many a client would be who it says it is; "+
				"want the addresses of your own proxies, IPv4 by /8 or longer, IPv6 by /7", tt.prefix)
			defer func() {
				if got := recover(); tt.wrong && got != want || !tt.wrong && got != nil {
					t.Errorf("%s: %v", tt.prefix, got)
				}
			}()
			New("who", Trust{Proxies: []netip.Prefix{own[0], netip.MustParsePrefix(tt.prefix)}})
		}()
	}
}

// Some load balancers append two addresses, the client's and their own: it is
// addresses that are counted, not machines.
func TestALoadBalancerThatAppendsTwoCountsTwice(t *testing.T) {
	const lb = ", 203.0.113.50"
	two := New("test", Trust{Hops: 2})
	apart := New("test", Trust{Proxies: []netip.Prefix{netip.MustParsePrefix("35.191.0.0/16"), netip.MustParsePrefix("203.0.113.50/32")}})
	for _, c := range []*Clients{two, apart} {
		for _, client := range []string{"198.51.100.1", "198.51.100.2"} {
			if got := c.Of(Parse("35.191.0.9:1"), []string{"1.1.1.1, " + client + lb}).String(); got != client {
				t.Errorf("%+v: %s, want %s", c, got, client)
			}
		}
	}
}

func TestTheTrustStaysTheCallers(t *testing.T) {
	mine := []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("9.9.9.9/8"), netip.MustParsePrefix("10.0.0.0/8")}
	before := slices.Clone(mine)
	c := New("test", Trust{Proxies: mine})
	if !slices.Equal(mine, before) {
		t.Fatalf("New changed it: %v", mine)
	}
	mine[2] = netip.MustParsePrefix("192.0.2.0/24")
	if !c.Believes(Parse("10.0.0.1")) || c.Believes(Parse("192.0.2.1")) {
		t.Fatal("a later change was heard")
	}
}

// What follows is the obvious way to do it, and fuzzers that compare. All is split,
// put into a list with the peer at its end, and walked.

var (
	aPort   = "(?:|:[0-9]{1,5}|:_" + token + ")"
	token   = "[-!#$%&'*+.^_`|~0-9A-Za-z]+"
	v4Text  = regexp.MustCompile(`^([0-9.]+)` + aPort + `$`)
	v6Text  = regexp.MustCompile(`^([0-9a-fA-F:.]+)(?s:|%.*)$`)
	boxed   = regexp.MustCompile(`^\[([0-9a-fA-F:.]+)(?:%[^\]]*)?\]` + aPort + `$`)
	pair    = token + "=(?:\"(?s:[^\"\\\\]|\\\\.)*\"|[^\",;\\\\]*)"
	element = `[ \t]*(?:` + pair + `)?(?:[ \t]*;[ \t]*(?:` + pair + `)?)*[ \t]*`
	aLine   = regexp.MustCompile(`^` + element + `(?:,` + element + `)*$`)
	aPair   = regexp.MustCompile(pair)
	aPiece  = regexp.MustCompile(`"(?s:[^"\\]|\\.)*"|,|[^",]+`)
	escape  = regexp.MustCompile(`(?s)\\(.)`)
)

func slowParse(s string) netip.Addr {
	for _, form := range []*regexp.Regexp{v4Text, v6Text, boxed} {
		if m := form.FindStringSubmatch(s); m != nil {
			if a, err := netip.ParseAddr(m[1]); err == nil && a.Is4() == (form == v4Text) {
				return a.Unmap()
			}
		}
	}
	return netip.Addr{}
}

// slowFor is the node of an element that the grammar knows.
func slowFor(s string) string {
	var nodes []string
	for _, p := range aPair.FindAllString(s, -1) {
		name, value, _ := strings.Cut(p, "=")
		if !strings.EqualFold(name, "for") {
			continue
		}
		if strings.HasPrefix(value, `"`) {
			value = escape.ReplaceAllString(value[1:len(value)-1], "$1")
		} else {
			value = strings.TrimRight(value, " \t")
		}
		nodes = append(nodes, value)
	}
	if len(nodes) != 1 || strings.Count(nodes[0], ":") > 1 && nodes[0][0] != '[' {
		return ""
	}
	return nodes[0]
}

// slow is the client; false if RFC 7239's grammar has no elements for what would
// have to be looked at.
func slow(t Trust, peer netip.Addr, lines []string) (netip.Addr, bool) {
	trusted := func(a netip.Addr) bool {
		return slices.ContainsFunc(t.Proxies, func(p netip.Prefix) bool { return p.Contains(a) })
	}
	if len(t.Proxies) > 0 && !trusted(peer) || len(t.Proxies) == 0 && t.Hops == 0 {
		return peer, true
	}
	type hop struct {
		addr   netip.Addr
		broken bool
	}
	var hops []hop
	switch t.Header {
	case "X-Real-IP":
		if len(lines) == 1 && slowParse(lines[0]).IsValid() {
			return slowParse(lines[0]), true
		}
		return peer, true
	case "Forwarded":
		for _, line := range lines {
			if !aLine.MatchString(line) {
				hops = append(hops, hop{broken: true})
				continue
			}
			current := ""
			for _, piece := range append(aPiece.FindAllString(line, -1), ",") {
				if piece != "," {
					current += piece
					continue
				}
				h := hop{broken: len(current) > maxElement}
				h.addr = slowParse(slowFor(strings.Trim(current, " \t")))
				hops, current = append(hops, h), ""
			}
		}
	default:
		if len(lines) > 0 {
			for _, e := range strings.Split(strings.Join(lines, ","), ",") {
				h := hop{addr: slowParse(strings.Trim(e, " \t"))}
				if len(e) > maxElement {
					return netip.Addr{}, false
				}
				hops = append(hops, h)
			}
		}
	}
	hops = append(hops, hop{addr: peer})
	slices.Reverse(hops)
	if len(hops) > most+1 {
		hops = hops[:most+1]
	}
	if t.Hops > 0 {
		for _, h := range hops[:min(t.Hops+1, len(hops))] {
			if h.broken {
				return netip.Addr{}, false
			}
		}
		if len(hops) > t.Hops && hops[t.Hops].addr.IsValid() {
			return hops[t.Hops].addr, true
		}
		return peer, true
	}
	client := peer
	for _, h := range hops {
		if h.broken {
			return netip.Addr{}, false
		}
		if !h.addr.IsValid() {
			break
		}
		client = h.addr
		if !trusted(h.addr) {
			break
		}
	}
	return client, true
}

func FuzzClientIP(f *testing.F) {
	for _, lines := range []string{
		"203.0.113.9", "1.1.1.1, 203.0.113.9:80,10.0.0.2 ,\t10.9.9.9", "[2001:db8::1%eth0]:80\n2001:db8:1::2\n10.1.2.3",
		"::ffff:10.0.0.1, ::ffff:1.2.3.4", "unknown,10.0.0.2", ",,,", "203.0.113.9,_x\n\n", "10.0.0.2:_x,1.2.3.4%5", "10.0.0.2:_x:_x,10.0.0.3:_",
	} {
		for hops := range byte(3) {
			f.Add("10.0.0.1:80", lines, hops, true, false)
			f.Add("198.51.100.1:80", lines, hops, hops == 0, hops == 1)
		}
	}
	f.Add("@", "203.0.113.9", byte(1), false, true)
	f.Fuzz(func(t *testing.T, peer, text string, hops byte, proxies, single bool) {
		trust := Trust{Hops: int(hops % 4)}
		if proxies {
			trust.Proxies = own
		}
		if single && (proxies || trust.Hops > 0) {
			trust.Header, trust.Hops = "X-Real-IP", min(trust.Hops, 1)
		}
		lines := strings.Split(text, "\n")
		at, c := Parse(peer), New("test", trust)
		if at.Addr != slowParse(peer) {
			t.Fatalf("%q is %v, want %v", peer, at, slowParse(peer))
		}
		got := c.Of(at, lines)
		if want, ok := slow(trust, at.Addr, lines); ok && got.Addr != want {
			t.Fatalf("%+v, %v, %q: %v, want %v", trust, at, lines, got, want)
		}
		promises(t, trust, lines, "%s")
	})
}

func FuzzForwarded(f *testing.F) {
	for _, lines := range []string{
		"for=203.0.113.9", `for="[2001:db8::9]:4711";proto=https;by=_me, FOR=10.0.0.2`, `for="a\",b\\", for=10.0.0.2;x="a,;=b"`,
		"for=\"1.1.1.1\nfor=\"[2001:db8:1::2]\"", `for=_x, for=unknown;for=1.1.1.1`, `;; for=1.2.3.4 ; ;,`, `for="1\.2.3.4"`, `x="\`, `for="1.2.3.4 "`,
	} {
		f.Add("10.0.0.1:80", lines, byte(0), true)
		f.Add("@", lines, byte(2), false)
	}
	f.Fuzz(func(t *testing.T, peer, text string, hops byte, proxies bool) {
		trust := Trust{Hops: int(hops % 4), Header: "Forwarded"}
		if proxies || trust.Hops == 0 {
			trust.Proxies = own
		}
		lines := strings.Split(text, "\n")
		at, c := Parse(peer), New("test", trust)
		got := c.Of(at, lines)
		if want, ok := slow(trust, at.Addr, lines); ok && got.Addr != want {
			t.Fatalf("%+v, %v, %q: %v, want %v", trust, at, lines, got, want)
		}
		promises(t, trust, lines, `for="%s:80";host="a,\"b\\"`)
	})
}

// promises checks what holds whatever a client has written into lines; form is how
// a proxy writes an address.
func promises(t *testing.T, trust Trust, lines []string, form string) {
	t.Helper()
	trust.Hops = min(trust.Hops, 1) // the appended element is the one that counts
	stranger, proxy := Parse("198.51.100.1"), Parse("10.0.0.1")
	c := New("test", trust)
	if len(trust.Proxies) > 0 {
		if got := c.Of(stranger, lines); got.Addr != stranger.Addr {
			t.Fatalf("%+v: a stranger's %q made it %v", trust, lines, got)
		}
	}
	if trust.Header == "X-Real-IP" || trust.Hops == 0 && len(trust.Proxies) == 0 {
		return
	}
	appended := func(addr string) [][]string {
		element := fmt.Sprintf(form, addr)
		joined := slices.Clone(lines)
		joined[len(joined)-1] += ", " + element
		return [][]string{joined, append(slices.Clone(lines), element)}
	}
	for _, lines := range appended("203.0.113.9") {
		if got := c.Of(proxy, lines).String(); got != "203.0.113.9" {
			t.Fatalf("%+v: left of what a proxy has written, %q made it %v", trust, lines, got)
		}
	}
	if trust.Hops > 0 {
		return
	}
	// A proxy in the list is as good as a peer.
	for _, longer := range appended("10.0.0.2") {
		if got, want := c.Of(proxy, longer), c.Of(Parse("10.0.0.2"), lines); got.Addr != want.Addr && strings.Count(strings.Join(lines, ","), ",") < most-1 {
			t.Fatalf("%q: %v, want %v", longer, got, want)
		}
	}
}
