// Package options checks what adapters are given, so that all of them refuse the
// same, in the same words.
package options

import (
	"fmt"
	"strings"

	"github.com/exactflow/exactflow/core"
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
			panic(fmt.Sprintf("%s: Options.Keys[%d] lacks its By or its Of; want both", who, i))
		case seen[by]:
			panic(fmt.Sprintf("%s: two of Options.Keys are By %q; want one, since of two only the first would count", who, by))
		}
		By(who, fmt.Sprintf("Options.Keys[%d]", i), by)
		seen[by] = true
	}
}

// By panics, in the name of package who, for the By of a key that no rule can count by.
func By(who, key, by string) {
	switch {
	case by == "resource":
		panic(fmt.Sprintf("%s: %s is By \"resource\", which is the request's own", who, key))
	case strings.Contains(by, ",") || strings.TrimSpace(by) != by:
		panic(fmt.Sprintf("%s: %s is By %q, which no rule can name; want no comma, and no space around it", who, key, by))
	}
}

// Constant panics, in the name of package who, for the value of a field that is
// none of the field's constants, which end with last.
func Constant[T ~uint8](who, field string, v, last T) {
	if v > last {
		panic(fmt.Sprintf("%s: Options.%s is %d, which is none of the constants; want 0 to %d", who, field, v, last))
	}
}

// Held panics, in the name of package who, if a rule of l holds units until the end of
// a request, of which what is not told; instead of it is what is.
func Held(who, what, instead string, l *core.Limiter) {
	for _, r := range l.Rules() {
		limits := []core.Limit{r.Limit}
		for _, limit := range r.For {
			limits = append(limits, limit)
		}
		for _, limit := range limits {
			_, inFlight := limit.(core.InFlight)
			rate, _ := limit.(core.Rate)
			if !r.Shadow && (inFlight || rate.Charge != core.ChargeAll) {
				panic(fmt.Sprintf("%s: rule %q holds units until a request ends (%v), which a %s is not told; want rules without InFlight, and rates with ChargeAll, or %s", who, r.Name, limit, what, instead))
			}
		}
	}
}
