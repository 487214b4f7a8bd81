// Package options checks what adapters are given, so that all of them refuse the
// same, in the same words.
package options

import (
	"fmt"
	"strings"
)

// Keys panics, in the name of package who, for keys that cannot work: a rule
// would count all requests together, and nobody would notice. Of tells a key's By
// and whether it has a function.
func Keys[K any](who string, keys []K, of func(K) (by string, ok bool)) {
	seen := make(map[string]bool, len(keys))
	for i, k := range keys {
		by, ok := of(k)
		switch {
		case by == "" || !ok:
			panic(fmt.Sprintf("%s: Options.Keys[%d] lacks its By or its Of", who, i))
		case by == "resource":
			panic(fmt.Sprintf("%s: Options.Keys[%d] is By \"resource\", which is the request's own", who, i))
		case strings.Contains(by, ",") || strings.TrimSpace(by) != by:
			panic(fmt.Sprintf("%s: Options.Keys[%d] is By %q, which no rule can name; want no comma, and no space around it", who, i, by))
		case seen[by]:
			panic(fmt.Sprintf("%s: two of Options.Keys are By %q", who, by))
		}
		seen[by] = true
	}
}

// Constant panics, in the name of package who, for the value of a field that is
// none of the field's constants, which end with last.
func Constant[T ~uint8](who, field string, v, last T) {
	if v > last {
		panic(fmt.Sprintf("%s: Options.%s is %d, which is none of the constants", who, field, v))
	}
}
