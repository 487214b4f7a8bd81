package nethttpflow

import (
	"encoding/base64"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// RetryAfter is how long the server that answered res asks to wait, 0 or more, and
// whether it asks at all. That is its Retry-After: seconds, or a date, which is
// compared with the response's own Date, so that two clocks that differ do no harm,
// or with the clock of this machine where there is none; a date that is over is 0.
// Without it, that is the longest t of the policies in RateLimit that have nothing
// left, r=0 (draft-ietf-httpapi-ratelimit-headers-11).
//
// A field that is malformed is as if it were absent, with all that it says. So are
// both in a response that a cache has kept, whose Age is above 0: it was meant for
// somebody else. The status is not looked at: with 429 and 503, Retry-After is about
// calls like this one, with 202 or 301 about the next step. Nothing caps the answer;
// what a server says may be 292 years, which is the longest that a Duration can
// be. A nil res asks nothing.
func RetryAfter(res *http.Response) (wait time.Duration, ok bool) {
	if res == nil {
		return 0, false
	}
	if age, ok := deltaSeconds(res.Header.Get("Age")); ok && age > 0 {
		return 0, false
	}
	if lines := res.Header["Retry-After"]; len(lines) == 1 { // there cannot be two
		if wait, ok := deltaSeconds(lines[0]); ok {
			return wait, true
		}
		if at, err := http.ParseTime(lines[0]); err == nil {
			now, err := http.ParseTime(res.Header.Get("Date"))
			if err != nil {
				now = time.Now()
			}
			return max(0, at.Sub(now)), true
		}
	}
	return exhausted(res.Header)
}

// exhausted is the longest t of those policies in the field RateLimit that have
// nothing left.
func exhausted(h http.Header) (wait time.Duration, ok bool) {
	lines := h["Ratelimit"] // as net/http writes it
	if len(lines) == 0 {
		return 0, false
	}
	f := list(strings.Join(lines, ", "))
	f.skip(" ")
	for {
		r, t, well := f.policy()
		if !well {
			return 0, false
		}
		if r == 0 && t != absent {
			wait, ok = max(wait, inSeconds(uint64(t))), true
		}
		f.skip(" \t")
		if f == "" {
			return wait, ok
		}
		if !f.eat(',') {
			return 0, false
		}
		f.skip(" \t")
	}
}

// deltaSeconds reads a number of seconds, which is digits and nothing else.
func deltaSeconds(s string) (time.Duration, bool) {
	if s == "" || strings.Trim(s, "0123456789") != "" {
		return 0, false
	}
	n, _ := strconv.ParseUint(s, 10, 64) // too large a number is the largest
	return inSeconds(n), true
}

func inSeconds(n uint64) time.Duration {
	return time.Duration(min(n, math.MaxInt64/uint64(time.Second))) * time.Second
}

// A list is what is still to be read of a List of RFC 9651. What reads it says
// whether it was well-formed so far.
type list string

// What a parameter is that is no Integer of 0 or more.
const (
	absent int64 = -1
	other  int64 = -2
)

// policy reads a member of the field RateLimit: a String with parameters, of which
// r must be there. Of one that is given twice the last counts.
func (f *list) policy() (r, t int64, ok bool) {
	r, t = absent, absent
	if !strings.HasPrefix(string(*f), `"`) {
		return 0, 0, false
	}
	if _, ok = f.item(); !ok {
		return 0, 0, false
	}
	for f.eat(';') {
		f.skip(" ")
		if *f == "" || !lower((*f)[0]) && (*f)[0] != '*' {
			return 0, 0, false
		}
		key, n := f.run(keyByte), other // a parameter without a value is true
		if f.eat('=') {
			if n, ok = f.item(); !ok {
				return 0, 0, false
			}
		}
		switch key {
		case "r":
			r = n
		case "t":
			t = n
		}
	}
	return r, t, r >= 0 && t != other
}

// item reads a bare item of any type, and tells the value of an Integer of 0 or
// more.
func (f *list) item() (n int64, ok bool) {
	if *f == "" {
		return other, false
	}
	switch c := (*f)[0]; {
	case digit(c) || c == '-':
		n, isInteger, ok := f.number()
		if !isInteger || n < 0 {
			n = other
		}
		return n, ok
	case c == '"':
		return other, f.text()
	case f.eat('?'):
		return other, f.eat('0') || f.eat('1')
	case f.eat(':'):
		_, err := base64.StdEncoding.DecodeString(f.run(base64Byte))
		return other, err == nil && f.eat(':')
	case f.eat('@'): // a date
		_, isInteger, ok := f.number()
		return other, isInteger && ok
	case f.eat('%'):
		return other, f.display()
	case alpha(c) || c == '*':
		f.run(tokenByte)
		return other, true
	}
	return other, false
}

// number reads an Integer or a Decimal.
func (f *list) number() (n int64, isInteger, ok bool) {
	minus := f.eat('-')
	whole := f.run(digit)
	if whole == "" || len(whole) > 15 {
		return 0, false, false
	}
	if f.eat('.') {
		part := f.run(digit)
		return 0, false, len(whole) <= 12 && 1 <= len(part) && len(part) <= 3
	}
	n, _ = strconv.ParseInt(whole, 10, 64) // it does not fail: 15 digits
	if minus {
		n = -n
	}
	return n, true, true
}

// text reads a String.
func (f *list) text() bool {
	for i := 1; i < len(*f); i++ {
		switch c := (*f)[i]; {
		case c < ' ' || c > '~':
			return false
		case c == '"':
			*f = (*f)[i+1:]
			return true
		case c == '\\':
			if i++; i == len(*f) || (*f)[i] != '"' && (*f)[i] != '\\' {
				return false
			}
		}
	}
	return false
}

// display reads a Display String, after its %: UTF-8, of which all that is not
// printable ASCII is %ff, in lower case.
func (f *list) display() bool {
	if !f.eat('"') {
		return false
	}
	var text []byte
	for i := 0; i < len(*f); i++ {
		c := (*f)[i]
		switch {
		case c < ' ' || c > '~':
			return false
		case c == '"':
			*f = (*f)[i+1:]
			return utf8.Valid(text)
		case c == '%':
			if i+2 >= len(*f) {
				return false
			}
			hex := string((*f)[i+1 : i+3])
			b, err := strconv.ParseUint(hex, 16, 8)
			if err != nil || hex != strings.ToLower(hex) {
				return false
			}
			c, i = byte(b), i+2
		}
		text = append(text, c)
	}
	return false
}

func (f *list) skip(set string) { *f = list(strings.TrimLeft(string(*f), set)) }

func (f *list) eat(c byte) bool {
	if *f == "" || (*f)[0] != c {
		return false
	}
	*f = (*f)[1:]
	return true
}

// run reads the bytes that come next and are of a kind.
func (f *list) run(is func(byte) bool) string {
	i := 0
	for i < len(*f) && is((*f)[i]) {
		i++
	}
	read := string((*f)[:i])
	*f = (*f)[i:]
	return read
}

func digit(c byte) bool      { return '0' <= c && c <= '9' }
func lower(c byte) bool      { return 'a' <= c && c <= 'z' }
func alpha(c byte) bool      { return lower(c | 0x20) }
func keyByte(c byte) bool    { return lower(c) || digit(c) || strings.IndexByte("_-.*", c) >= 0 }
func base64Byte(c byte) bool { return alpha(c) || digit(c) || strings.IndexByte("+/=", c) >= 0 }
func tokenByte(c byte) bool {
	return alpha(c) || digit(c) || strings.IndexByte("!#$%&'*+-.^_`|~:/", c) >= 0
}
