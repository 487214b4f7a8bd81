package clientip

import "strings"

// A list is the lines of a header, whose elements are read from the end.
//
// In RFC 7239 a comma may stand in a quoted string. What proxies have appended is
// well formed: a quotation mark begins or ends a quoted string, unless it stands in
// one behind an odd number of backslashes. So from the end, too, one can tell them,
// and what a client has written further left, such as a quotation mark that is
// never closed, is not yet read when they are told. A quoted string does not go on
// in the next line, for the line's end is the proxy's.
type list struct {
	lines     []string // those that are not begun
	line      string   // what is left of the one that is
	begun     bool     // there is such a line, though what is left may be ""
	forwarded bool
}

// next is the next element, as it stands; false if there is none, or if it does not
// become clear where it begins.
func (l *list) next() (string, bool) {
	if !l.begun {
		end := len(l.lines) - 1
		if end < 0 {
			return "", false
		}
		l.line, l.lines, l.begun = l.lines[end], l.lines[:end], true
	}
	s, quoted := l.line[max(0, len(l.line)-maxElement-1):], false
	for i := len(s) - 1; i >= 0; i-- {
		switch {
		case s[i] == ',' && !quoted:
			l.line = l.line[:len(l.line)-len(s)+i]
			return strings.Trim(s[i+1:], " \t"), true
		case s[i] == '"' && l.forwarded && !escaped(s[:i]):
			quoted = !quoted
		}
	}
	l.begun = false
	return strings.Trim(s, " \t"), !quoted && len(s) <= maxElement
}

// escaped tells whether the byte that follows s is.
func escaped(s string) bool { return (len(s)-len(strings.TrimRight(s, `\`)))%2 == 1 }

// forNode is the node that the parameter "for" of an element of Forwarded names;
// "" if there is none, or two, or the element is not well formed. The quotation
// marks that a port or an IPv6 address needs may be missing, for they decide
// nothing; brackets may not, since without them one cannot tell an address from
// one with a port.
func forNode(element string) (node string) {
	for element = strings.TrimLeft(element, "; \t"); element != ""; element = strings.TrimLeft(element, "; \t") {
		name, value, rest, ok := cutPair(element)
		if !ok {
			return ""
		}
		if strings.EqualFold(name, "for") {
			if strings.Contains(value, `\`) {
				value = unescaped(value)
			}
			if node != "" || value == "" || value[0] != '[' && strings.Count(value, ":") > 1 {
				return ""
			}
			node = value
		}
		element = rest
	}
	return node
}

// cutPair takes the first parameter from s, with what its quotation marks enclose
// as it stands; what is left is "" or begins with a semicolon.
func cutPair(s string) (name, value, rest string, ok bool) {
	name, value, ok = strings.Cut(s, "=")
	if name == "" || strings.ContainsFunc(name, notInName) {
		ok = false
	}
	text, quoted := strings.CutPrefix(value, `"`)
	if !quoted {
		end := strings.IndexByte(value, ';')
		if end < 0 {
			end = len(value)
		}
		value, rest = strings.TrimRight(value[:end], " \t"), value[end:]
		return name, value, rest, ok && !strings.ContainsAny(value, `"\`)
	}
	for end := range len(text) {
		if text[end] == '"' && !escaped(text[:end]) {
			rest = strings.TrimLeft(text[end+1:], " \t")
			return name, text[:end], rest, ok && (rest == "" || rest[0] == ';')
		}
	}
	return name, value, "", false
}

// unescaped allocates; no proxy is known to escape what is in an address.
func unescaped(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' {
			i++
		}
		b.WriteByte(s[i])
	}
	return b.String()
}
