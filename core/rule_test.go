package core_test

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/exactflow/exactflow/core"
)

// wrongRules are rules with one thing wrong each, and what the error has to tell
// of it: the value, and what would be right.
var wrongRules = []struct {
	what string
	rule core.Rule
	told []string
}{
	{"a name with a line break", core.Rule{Name: "a\nb", Limit: simple}, []string{`\n`, "printable"}},
	{"a name with a tab", core.Rule{Name: "a\tb", Limit: simple}, []string{`\t`, "printable"}},
	{"a name that is not ASCII", core.Rule{Name: "é", Limit: simple}, []string{"ASCII"}},
	{"a name with DEL", core.Rule{Name: "a\x7f", Limit: simple}, []string{`\x7f`, "printable"}},
	{"a name that is not UTF-8", core.Rule{Name: "a\xff", Limit: simple}, []string{`\xff`, "printable"}},
	{"a name with NUL", core.Rule{Name: "\x00", Limit: simple}, []string{`\x00`, "printable"}},

	{"a name too long for a header", core.Rule{Name: strings.Repeat("n", 257), Limit: simple}, []string{"257 bytes", "256"}},

	{"no limit", core.Rule{Name: "rule"}, []string{"Limit", "Rate", "InFlight"}},
	{"a pointer to a rate", core.Rule{Name: "rule", Limit: &core.Rate{N: 1, Per: time.Second}}, []string{"*core.Rate", "pointer"}},
	{"a pointer to a semaphore", core.Rule{Name: "rule", Limit: &core.InFlight{N: 1}}, []string{"*core.InFlight", "pointer"}},
	{"a pointer to no limit", core.Rule{Name: "rule", Limit: &core.Unlimited{}}, []string{"*core.Unlimited", "pointer"}},
	{"a nil pointer", core.Rule{Name: "rule", Limit: (*core.Rate)(nil)}, []string{"*core.Rate"}},
	{"a nil pointer beside others", core.Rule{Name: "rule", By: "ip", Limit: (*core.InFlight)(nil), For: map[string]core.Limit{"a": core.InFlight{N: 1}}}, []string{"*core.InFlight"}},
	{"a negative rate", core.Rule{Name: "rule", Limit: core.Rate{N: -1, Per: time.Second}}, []string{"N is -1", "0"}},
	{"a negative semaphore", core.Rule{Name: "rule", Limit: core.InFlight{N: -7}}, []string{"N is -7", "0"}},
	{"no window", core.Rule{Name: "rule", Limit: core.Rate{N: 1}}, []string{"Per is 0s", "above 0"}},
	{"a negative window", core.Rule{Name: "rule", Limit: core.Rate{N: 1, Per: -time.Second}}, []string{"Per is -1s", "above 0"}},
	{"no window where nothing passes", core.Rule{Name: "rule", Limit: core.Rate{}}, []string{"Per is 0s", "above 0"}},

	{"an empty part", core.Rule{Name: "rule", By: "tenant,,ip", Limit: simple}, []string{`"tenant,,ip"`, "single commas"}},
	{"an empty part in front", core.Rule{Name: "rule", By: ",ip", Limit: simple}, []string{`",ip"`, "single commas"}},
	{"an empty part behind", core.Rule{Name: "rule", By: "ip,", Limit: simple}, []string{`"ip,"`, "single commas"}},
	{"nothing but a comma", core.Rule{Name: "rule", By: ",", Limit: simple}, []string{`","`, "single commas"}},
	{"a space behind a comma", core.Rule{Name: "rule", By: "tenant, ip", Limit: simple}, []string{`"tenant, ip"`, "single commas"}},
	{"a space behind", core.Rule{Name: "rule", By: "ip ", Limit: simple}, []string{`"ip "`, "single commas"}},
	{"nothing but a space", core.Rule{Name: "rule", By: " ", Limit: simple}, []string{`" "`, "single commas"}},
	{"a part twice", core.Rule{Name: "rule", By: "ip,tenant,ip", Limit: simple}, []string{`"ip,tenant,ip"`, "twice"}},

	{"a negative number of keys", core.Rule{Name: "rule", By: "ip", Limit: simple, MaxKeys: -1}, []string{"MaxKeys is -1", "1<<20"}},

	{"values of nothing", core.Rule{Name: "rule", Limit: simple, For: map[string]core.Limit{"a": simple}}, []string{"For", `""`, "single"}},
	{"values of two", core.Rule{Name: "rule", By: "tenant,ip", Limit: simple, For: map[string]core.Limit{"a": simple}}, []string{"For", `"tenant,ip"`, "single"}},
	{"a value's limit of another kind", core.Rule{Name: "rule", By: "ip", Limit: simple, For: map[string]core.Limit{"a": core.InFlight{N: 2}}}, []string{`For["a"]`, "2 in flight", "N = 0", "Unlimited"}},
	{"values' limits of two kinds", core.Rule{Name: "rule", By: "ip", Limit: core.Unlimited{}, For: map[string]core.Limit{"a": core.InFlight{N: 2}, "b": simple}}, []string{"For[", "N = 0", "Unlimited"}},
	{"no limit for a value", core.Rule{Name: "rule", By: "ip", Limit: simple, For: map[string]core.Limit{"a": nil}}, []string{`For["a"]`, "Rate", "InFlight"}},
	{"a pointer for a value", core.Rule{Name: "rule", By: "ip", Limit: simple, For: map[string]core.Limit{"a": &core.Rate{N: 1, Per: time.Second}}}, []string{`For["a"]`, "pointer"}},
	{"a nil pointer for a value", core.Rule{Name: "rule", By: "ip", Limit: core.Unlimited{}, For: map[string]core.Limit{"a": (*core.Rate)(nil)}}, []string{`For["a"]`, "*core.Rate"}},
	{"a negative limit for a value", core.Rule{Name: "rule", By: "ip", Limit: simple, For: map[string]core.Limit{"a": core.Rate{N: -5, Per: time.Second}}}, []string{`For["a"]`, "N is -5"}},
	{"no window for a value", core.Rule{Name: "rule", By: "ip", Limit: simple, For: map[string]core.Limit{"": core.Rate{N: 5}}}, []string{`For[""]`, "Per is 0s"}},
	{"a negative semaphore for a value", core.Rule{Name: "rule", By: "ip", Limit: simple, For: map[string]core.Limit{"a": core.InFlight{N: -1}}}, []string{`For["a"]`, "N is -1"}},
}

var simple = core.Rate{N: 1, Per: time.Second}

// A wrong rule is an error that names the rule, the value, and what would be
// right. It is never left out with a line in a log.
func TestAWrongRuleIsAnError(t *testing.T) {
	for _, c := range wrongRules {
		err := wrongOf(t, core.Rule{Name: "right", Limit: simple}, c.rule)
		if err == nil {
			t.Errorf("%s: no error", c.what)
			continue
		}
		text := err.Error()
		for _, want := range append(c.told, "core: ", fmt.Sprintf("rule %q", c.rule.Name)) {
			if !strings.Contains(text, want) {
				t.Errorf("%s: error %q; want it to tell %q", c.what, text, want)
			}
		}
		if strings.Contains(text, `"right"`) {
			t.Errorf("%s: error %q names a rule that is right", c.what, text)
		}
	}
}

// wrongOf is what New says of the rules. It must say it and not panic, and make
// nothing beside.
func wrongOf(t *testing.T, rules ...core.Rule) (err error) {
	t.Helper()
	defer func() {
		if r := recover(); r != nil {
			t.Errorf("New panics: %v", r)
		}
	}()
	l, err := core.New(rules...)
	if l != nil && err != nil {
		t.Errorf("there is a limiter beside the error %v", err)
	}
	return err
}

// A rule without a name can only be named by its place.
func TestARuleWithoutANameIsNamedByItsPlace(t *testing.T) {
	err := wrongOf(t, core.Rule{Name: "right", Limit: simple}, core.Rule{Limit: simple}, core.Rule{Limit: simple})
	if err == nil {
		t.Fatal("no error")
	}
	if wrong := errorsIn(err); len(wrong) != 2 {
		t.Errorf("%d errors in %q; want 2", len(wrong), err)
	}
	for _, want := range []string{"2", "3", "empty", "want"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q; want it to tell %q", err, want)
		}
	}
}

// Both of a rate's numbers are looked at, and each is told behind the rule's name.
func TestEachWrongNumberIsTold(t *testing.T) {
	err := wrongOf(t, core.Rule{Name: "rule", By: "ip", Limit: core.Rate{N: -1}, For: map[string]core.Limit{"a": core.Rate{N: -2, Per: -1}}})
	if err == nil || len(errorsIn(err)) != 4 || strings.Count(err.Error(), `rule "rule"`) != 4 {
		t.Errorf("%v; want four errors of the rule", err)
	}
}

// Two rules of one name could not be told apart, even if they are the same.
func TestNamesAreUnique(t *testing.T) {
	twin := core.Rule{Name: "twin", Limit: simple}
	for _, rules := range [][]core.Rule{
		{twin, twin},
		{twin, {Name: "other", Limit: simple}, {Name: "twin", On: "elsewhere", Limit: core.InFlight{N: 3}}},
	} {
		err := wrongOf(t, rules...)
		if err == nil {
			t.Fatalf("%+v: no error", rules)
		}
		for _, want := range []string{`"twin"`, "1", fmt.Sprint(len(rules)), "unique"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("error %q; want it to tell %q", err, want)
			}
		}
	}
	limiterOf(t, core.Rule{Name: "twin", Limit: simple}, core.Rule{Name: "Twin", Limit: simple}, core.Rule{Name: "twin ", Limit: simple})
}

// All that is wrong is told at once: nobody mends a file of rules one error at a
// time.
func TestAllErrorsAreJoined(t *testing.T) {
	var rules []core.Rule
	for i, c := range wrongRules {
		c.rule.Name += fmt.Sprint("-", i)
		rules = append(rules, c.rule, core.Rule{Name: fmt.Sprint("right-", i), Limit: simple})
	}
	for how, all := range map[string]func() error{
		"New":     func() error { return wrongOf(t, rules...) },
		"Replace": func() error { return limiterOf(t).Replace(rules...) },
	} {
		err := all()
		if err == nil {
			t.Fatalf("%s: no error", how)
		}
		if n := len(errorsIn(err)); n != len(wrongRules) {
			t.Errorf("%s: %d errors; want %d", how, n, len(wrongRules))
		}
		for i, c := range wrongRules {
			if name := fmt.Sprintf("rule %q", fmt.Sprint(c.rule.Name, "-", i)); !strings.Contains(err.Error(), name) {
				t.Errorf("%s: %s: the error does not name %s", how, c.what, name)
			}
		}
		if strings.Contains(err.Error(), `"right-`) {
			t.Errorf("%s: error %q names a rule that is right", how, err)
		}
	}

	err := wrongOf(t, core.Rule{Name: "x\n", By: "a,,b", MaxKeys: -2, For: map[string]core.Limit{"v": nil}})
	if n := len(errorsIn(err)); err == nil || n < 5 {
		t.Errorf("%d errors in %q; want all that is wrong with one rule", n, err)
	}
}

// What the messages of errors call wrong is all that is: these are unusual, and
// right.
func TestUnusualRulesAreRight(t *testing.T) {
	limits := map[string]core.Limit{"a": core.Unlimited{}, "b": core.InFlight{}, "c": core.Rate{N: 0, Per: 1}, "": core.Rate{N: 9, Per: time.Hour}}
	for _, rule := range []core.Rule{
		{Name: " ", Limit: simple},
		{Name: `quoted "\` + "`", Limit: simple},
		{Name: strings.Repeat("~", 256), Limit: simple},
		{Name: "rule", Limit: core.Unlimited{}},
		{Name: "rule", Limit: core.InFlight{}},
		{Name: "rule", Limit: core.Rate{N: 0, Per: 1}},
		{Name: "rule", Limit: simple, By: "resource"},
		{Name: "rule", Limit: simple, By: "Ip,ip,the tenant,Ü"},
		{Name: "rule", Limit: simple, By: "ip", For: limits},
		{Name: "rule", Limit: core.Unlimited{}, By: "ip", For: limits},
		{Name: "rule", Limit: simple, By: "ip", For: map[string]core.Limit{}},
		{Name: "rule", Limit: simple, MaxKeys: 1},
		{Name: "rule", Limit: simple, On: "a\x00*\xff"},
	} {
		limiterOf(t, rule)
	}
	limiterOf(t)
}

// A star stands for any run of characters, an empty one and itself included;
// everything else stands for itself; no pattern at all is for all.
func TestAPatternMatchesTheWholeResource(t *testing.T) {
	for _, c := range []struct {
		on      string
		yes, no []string
	}{
		{"", []string{"", "a", "*", "GET /orders/{id}"}, nil},
		{"*", []string{"", "a", "*", "**", "GET /\n\x00\xff"}, nil},
		{"**", []string{"", "a", "*"}, nil},
		{"a", []string{"a"}, []string{"", "aa", "A", "*", "a*", " a"}},
		{"a*", []string{"a", "ab", "a*", "aa", "a\nb"}, []string{"", "b", "ba"}},
		{"*a", []string{"a", "ba", "*a", "aa", "aba"}, []string{"", "ab", "b"}},
		{"*a*", []string{"a", "ba", "ab", "bab", "*a*"}, []string{"", "b", "**"}},
		{"a*a", []string{"aa", "aba", "aaa", "a*a"}, []string{"", "a", "ab", "ba", "aab"}},
		{"a*b*c", []string{"abc", "abbc", "a*b*c", "axbxc", "abcbc", "abcabc"}, []string{"", "ac", "acb", "abcd", "bac", "ab"}},
		{"a**b", []string{"ab", "a*b", "axxb"}, []string{"a", "b", "abx"}},
		{"*ab*ab*", []string{"abab", "xabxabx", "ababab"}, []string{"ab", "aba", "abba"}},
		{"ab*ba", []string{"abba", "abxba", "abababa"}, []string{"aba", "ab", "ba"}},
		{"aab*aab", []string{"aabaab", "aabaaab"}, []string{"aab", "aabab", "aaab"}},
		{"GET /orders/{id}", []string{"GET /orders/{id}"}, []string{"GET /orders/1", "POST /orders/{id}", "GET /orders/{id}/"}},
		{"GET *", []string{"GET /", "GET ", "GET * /"}, []string{"GET", "HEAD /", "get /"}},
		{"* /orders*", []string{"GET /orders", "GET /orders/{id}", " /orders"}, []string{"/orders", "GET /order"}},
		{"a?[b]", []string{"a?[b]"}, []string{"axb", "ab", "a?b"}},
		{".*", []string{".", ".x", ".*"}, []string{"", "x", "x."}},
		{`\*`, []string{`\`, `\x`, `\*`}, []string{"*", "x"}},
		{"é*", []string{"é", "éa"}, []string{"e", "\xc3"}},
	} {
		l := limiterOf(t, core.Rule{Name: "rule", On: c.on, Limit: core.InFlight{}})
		for range 2 { // looked up for the first time, and seen before
			for _, on := range c.yes {
				if _, ok := l.Try(core.Request{On: on}); ok {
					t.Errorf("pattern %q does not match %q", c.on, on)
				}
			}
			for _, on := range c.no {
				if _, ok := l.Try(core.Request{On: on}); !ok {
					t.Errorf("pattern %q matches %q", c.on, on)
				}
			}
		}
	}
}

// A pattern of many stars on a resource that almost matches is decided in no
// time: it does not try all ways to fit.
func TestAPatternOfManyStarsIsNoTrap(t *testing.T) {
	l := limiterOf(t, core.Rule{Name: "rule", On: strings.Repeat("a*", 50) + "b", Limit: core.InFlight{}})
	if n := passes(l, core.Request{On: strings.Repeat("a", 10_000)}, 1); n != 1 {
		t.Error("matches; want no match: there is no b")
	}
	refused(t, l, core.Request{On: strings.Repeat("a", 10_000) + "b"})
}

// More resources than the limiter remembers pass by, and each meets the rules
// that are for it. Who stops checking beyond some number of resources, or keeps
// an answer under the wrong one, is wrong here.
func TestEveryResourceMeetsItsRules(t *testing.T) {
	l := limiterOf(t,
		core.Rule{Name: "odd", On: "*1", Limit: core.InFlight{}},
		core.Rule{Name: "seven", On: "7*", By: "resource", Limit: core.Rate{N: 1, Per: time.Hour}})
	for range 2 {
		for i := range 20_000 {
			on := fmt.Sprint(i)
			_, ok := l.Try(core.Request{On: on})
			if want := !strings.HasSuffix(on, "1"); !strings.HasPrefix(on, "7") && ok != want {
				t.Fatalf("%s: admitted %t; want %t", on, ok, want)
			}
			if strings.HasPrefix(on, "7") {
				p, ok := l.Try(core.Request{On: on})
				if ok || p.Refusal().Rule == "" {
					t.Fatalf("%s: admitted twice", on)
				}
			}
		}
	}
}

// A value named in For has a limit of its own: more, less, none at all, or
// nothing.
func TestAValueHasItsOwnLimit(t *testing.T) {
	for name, want := range map[string]map[string]int{
		"rate":      {"more": 7, "less": 1, "free": 20, "blocked": 0, "blocked too": 0, "": 4, "other": 3, "another": 3},
		"in flight": {"more": 7, "less": 1, "free": 20, "blocked": 0, "blocked too": 0, "": 4, "other": 3, "another": 3},
		"unlimited": {"more": 7, "less": 1, "free": 20, "blocked": 0, "blocked too": 0, "": 4, "other": 20, "another": 20},
	} {
		synctest.Test(t, func(t *testing.T) {
			limit := func(n int) core.Limit {
				if name == "in flight" {
					return core.InFlight{N: n}
				}
				return core.Rate{N: n, Per: time.Hour}
			}
			rule := core.Rule{Name: "rule", By: "user", Limit: limit(3), For: map[string]core.Limit{
				"more": limit(7), "less": limit(1), "free": core.Unlimited{}, "": limit(4),
				"blocked": core.InFlight{}, "blocked too": core.Rate{Per: time.Second},
			}}
			if name == "unlimited" {
				rule.Limit = core.Unlimited{}
			}
			l := limiterOf(t, rule)
			for _, user := range slices.Sorted(maps.Keys(want)) {
				n := 0
				for range 20 {
					if _, ok := l.Try(of("user", user)); ok {
						n++
					}
				}
				if n != want[user] {
					t.Errorf("%s: %q passed %d times; want %d", name, user, n, want[user])
				}
			}
			for _, user := range []string{"blocked", "blocked too"} {
				if r := refused(t, l, of("user", user)); r.Rule != "rule" || r.Reason != core.ReasonNever || r.Known {
					t.Errorf("%s: %q is refused with %+v; want never", name, user, r)
				}
			}
		})
	}
}

// A value in For is that value as a whole, and of that key only.
func TestAValueIsThatOfTheRulesKey(t *testing.T) {
	l := limiterOf(t, core.Rule{Name: "rule", By: "user", Limit: core.InFlight{}, For: map[string]core.Limit{"ann": core.Unlimited{}, "*": core.Unlimited{}}})
	hold(t, l, of("user", "ann"))
	hold(t, l, of("user", "*"))
	for _, r := range []core.Request{of("user", "Ann"), of("user", "ann "), of("user", "an"), of("name", "ann"), {On: "ann"}, {}} {
		refused(t, l, r)
	}
	l = limiterOf(t, core.Rule{Name: "rule", By: "resource", Limit: core.InFlight{}, For: map[string]core.Limit{"GET /": core.Unlimited{}}})
	hold(t, l, core.Request{On: "GET /"})
	refused(t, l, core.Request{On: "POST /"})
}

// A rule without a limit counts nothing and refuses nobody.
func TestUnlimitedCountsNothing(t *testing.T) {
	for _, by := range []string{"", "ip", "ip,resource"} {
		l := limiterOf(t, core.Rule{Name: "rule", By: by, Limit: core.Unlimited{}})
		for range 100 {
			p := hold(t, l, of("ip", "a"))
			if q := p.Quota(); q != (core.Quota{}) {
				t.Fatalf("by %q: quota %+v; want none", by, q)
			}
		}
		if s := statOf(t, l, "rule"); s.InFlight != 0 || s.Keys != 0 {
			t.Errorf("by %q: %+v; want nothing held and no keys", by, s)
		}
	}
}

// A value of 256 bytes is kept as it is, and one of 257 as its sum: a key is one
// key either way, and two that differ in the last byte are two. The sum of a long
// value, sent as a short one, is a third.
func TestLongValuesAreApart(t *testing.T) {
	for _, n := range []int{255, 256, 257, 258, 10_000} {
		long := strings.Repeat("v", n-1)
		sum := sha256.Sum256([]byte(long + "a"))
		values := []string{long + "a", long + "b", long, string(sum[:]), fmt.Sprintf("%x", sum)}
		for _, by := range []string{"key", "key,resource", "other,key"} {
			l := limiterOf(t, core.Rule{Name: "rule", By: by, Limit: core.Rate{N: 1, Per: time.Hour}})
			for round, want := range []int{1, 0} {
				for i, v := range values {
					if got := passes(l, of("key", v), 1); got != want {
						t.Errorf("%d bytes, by %q, round %d: value %d passed %d times; want %d", n, by, round, i, got, want)
					}
				}
			}
		}

		l := limiterOf(t, core.Rule{Name: "rule", By: "key", Limit: core.InFlight{}, For: map[string]core.Limit{long + "a": core.InFlight{N: 1}}})
		hold(t, l, of("key", long+"a"))
		for _, v := range values {
			refused(t, l, of("key", v))
		}
	}
}
