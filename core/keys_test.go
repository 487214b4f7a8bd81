package core_test

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/exactflow/exactflow/core"
)

// user is a rule that counts users apart.
func user(limit core.Limit, maxKeys int) core.Rule {
	return core.Rule{Name: "user", By: "user", Limit: limit, MaxKeys: maxKeys}
}

// Each key has the whole limit, and none has a bit of another's, up to the last
// that MaxKeys allows.
func TestKeysAreCountedApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const keys = 1000
		l := limiterOf(t, user(core.Rate{N: 3, Per: time.Second}, keys))
		for second := range time.Duration(3) {
			sleepUntil(t, second*time.Second)
			for i := range keys {
				if n := passes(l, of("user", fmt.Sprint(i)), 5); n != 3 {
					t.Fatalf("second %d: key %d passed %d times; want 3", second, i, n)
				}
			}
		}
		if s := statOf(t, l, "user"); s.Keys != keys || s.Overflowed != 0 {
			t.Errorf("%d keys, %d overflowed; want %d and none", s.Keys, s.Overflowed, keys)
		}
	})
}

// Keys without end: memory holds as many as it may, and those beyond are counted,
// too, in what they share.
func TestAFloodOfKeysIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most = 200
		l := limiterOf(t, user(core.Rate{N: 2, Per: time.Minute}, most))
		passed := 0
		for i := range 20_000 {
			passed += passes(l, of("user", fmt.Sprint("flood-", i)), 1)
			if i%1000 == 0 {
				time.Sleep(time.Second)
			}
		}
		s := statOf(t, l, "user")
		if s.Keys > most {
			t.Errorf("%d keys are kept; want %d at most", s.Keys, most)
		}
		if s.Overflowed != 20_000-most {
			t.Errorf("%d overflowed; want %d", s.Overflowed, 20_000-most)
		}
		if passed < most || passed > 20_000/2 {
			t.Errorf("%d of 20,000 passed; want those that were kept, and few of the others", passed)
		}
	})
}

// As many keys as there is room for have come, and gone idle. They stand in
// nobody's way: newcomers, up to half as many, have each their own count.
func TestIdleKeysMakeRoom(t *testing.T) {
	for _, most := range []int{100, 1000, 10_000} {
		synctest.Test(t, func(t *testing.T) {
			l := limiterOf(t, user(core.Rate{N: 2, Per: time.Minute}, most))
			for i := range most {
				passes(l, of("user", fmt.Sprint("once-", i)), 1)
			}
			time.Sleep(time.Minute)
			wrong := 0
			for i := range most / 2 {
				if passes(l, of("user", fmt.Sprint("later-", i)), 3) != 2 {
					wrong++
				}
			}
			if wrong > 0 {
				t.Errorf("MaxKeys %d, all idle: %d of %d newcomers were refused below their limit", most, wrong, most/2)
			}
		})
	}
}

// One user is at its limit, and then a crowd of others comes. Who forgets the key
// that was asked for the longest time ago forgives the user.
func TestAFloodForgivesNobody(t *testing.T) {
	for _, maxKeys := range []int{1, 100, 1000, 0} {
		synctest.Test(t, func(t *testing.T) {
			l := limiterOf(t, user(core.Rate{N: 3, Per: time.Minute}, maxKeys))
			ann := of("user", "ann")
			trace(t, l, ann, volley{0, 2, 2}, volley{30 * time.Second, 1, 5})
			for i := range 5000 {
				passes(l, of("user", fmt.Sprint(i)), 1)
			}
			trace(t, l, ann, volley{30 * time.Second, 0, 5}, volley{time.Minute - 1, 0, 5})
			for i := range 5000 {
				passes(l, of("user", fmt.Sprint(i)), 1)
			}
			trace(t, l, ann, volley{time.Minute, 2, 5})
			for i := range 5000 {
				passes(l, of("user", fmt.Sprint("more-", i)), 1)
			}
			trace(t, l, ann, volley{90*time.Second - 1, 0, 5}, volley{90 * time.Second, 1, 5})
		})
	}
}

// Many keys come and go at random, more than MaxKeys. Each moves in and out of
// what is shared, and not one gets more than its limit in any window.
func TestNoKeyGetsMoreThanItsLimitHoweverManyThereAre(t *testing.T) {
	for seed := range uint64(15) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 5))
			n := 1 + random.IntN(4)
			per := time.Duration(20 + random.IntN(200))
			keys := 2 + random.IntN(150)
			l := limiterOf(t, user(core.Rate{N: n, Per: per}, 1+random.IntN(keys)))
			logs := make([][]admission, keys)
			for range 6000 {
				k := random.IntN(keys)
				if random.IntN(3) == 0 {
					k = random.IntN(2) // two that come often
				}
				cost := 1 + random.IntN(2)
				r := of("user", fmt.Sprint(k))
				r.Cost = cost
				if _, ok := l.Try(r); ok {
					logs[k] = append(logs[k], admission{time.Since(midnight), cost})
				}
				if random.IntN(4) == 0 {
					time.Sleep(time.Duration(random.IntN(8)))
				}
				if random.IntN(2000) == 0 {
					time.Sleep(per)
				}
			}
			passed := 0
			for k, log := range logs {
				passed += len(log)
				if most := mostIn(per, log); most > n {
					t.Errorf("seed %d: key %d got %d in some stretch of %v; want %d at most", seed, k, most, per, n)
				}
			}
			if s := statOf(t, l, "user"); passed == 0 || s.Overflowed == 0 && s.Keys > keys {
				t.Errorf("seed %d: %d passed, %+v: too little to tell", seed, passed, s)
			}
		})
	}
}

// A key named in For has its place beside the others, whatever they do.
func TestAFloodDoesNotReachTheNamed(t *testing.T) {
	for _, limits := range [][2]core.Limit{
		{core.Rate{N: 1, Per: time.Hour}, core.Rate{N: 5, Per: time.Hour}},
		{core.InFlight{N: 1}, core.InFlight{N: 5}},
	} {
		rule := user(limits[0], 1)
		rule.For = map[string]core.Limit{"vip": limits[1], "": limits[1]}
		l := limiterOf(t, rule)
		for i := range 1000 {
			l.Try(of("user", fmt.Sprint(i))) // and hold what there is to hold
		}
		for _, r := range []core.Request{of("user", "vip"), {}} {
			for range 5 {
				hold(t, l, r)
			}
			if r := refused(t, l, r); r.Reason == core.ReasonKeys {
				t.Errorf("%v: refused as %q; want for its own limit", limits[0], r.Reason)
			}
		}
	}
}

// A key that had no place of its own is named in For. What it has used stays used,
// and so it does when it is one of many again.
func TestAKeyNamedLaterBringsWhatItUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plain := user(core.Rate{N: 2, Per: time.Hour}, 1)
		named := plain
		named.For = map[string]core.Limit{"ann": core.Rate{N: 3, Per: time.Hour}}
		ann := of("user", "ann")
		l := limiterOf(t, plain)
		passes(l, of("user", "first"), 1)
		trace(t, l, ann, volley{0, 2, 3})
		replace(t, l, named)
		if n := passes(l, ann, 9); n > 1 {
			t.Errorf("named: %d more passed; want 1 at most, beside 2 of 3 that were used", n)
		}
		replace(t, l, plain)
		trace(t, l, ann, volley{0, 0, 9}, volley{time.Hour - 1, 0, 9})
		replace(t, l, named)
		trace(t, l, ann, volley{time.Hour, 3, 9})
		replace(t, l, plain)
		trace(t, l, ann, volley{time.Hour, 0, 9}, volley{2*time.Hour - 1, 0, 9}, volley{2 * time.Hour, 2, 9})
	})
}

// One slot a key, ten keys, and other keys in between, many more than ten. The key
// that holds its slot is not forgotten, so it gets no second one.
func TestAKeyThatHoldsIsNotForgotten(t *testing.T) {
	l := limiterOf(t, user(core.InFlight{N: 1}, 10))
	ann := of("user", "ann")
	p := hold(t, l, ann)
	for i := range 1000 {
		hold(t, l, of("user", fmt.Sprint(i))).Release()
		if r := refused(t, l, ann); r.Reason != core.ReasonInFlight {
			t.Fatalf("after %d others, refused as %q; want %q", i+1, r.Reason, core.ReasonInFlight)
		}
	}
	p.Release()
	hold(t, l, ann)
	refused(t, l, ann)
}

// Where MaxKeys keys hold something, a further one is told so, and passes as soon
// as one of them has gone.
func TestTooManyHoldingKeysRefuseAFurtherOne(t *testing.T) {
	const most = 10
	l := limiterOf(t, user(core.InFlight{N: 2}, most))
	var held []core.Permit
	for i := range most {
		held = append(held, hold(t, l, of("user", fmt.Sprint(i))))
	}
	for i := range 100 {
		want := core.Refusal{Rule: "user", By: "user", Reason: core.ReasonKeys}
		if r := refused(t, l, of("user", fmt.Sprint("new-", i))); r != want {
			t.Fatalf("refusal %+v; want %+v", r, want)
		}
	}
	second := hold(t, l, of("user", "0")) // who is there may hold more
	if r := refused(t, l, of("user", "0")); r.Reason != core.ReasonInFlight {
		t.Errorf("refused as %q; want %q", r.Reason, core.ReasonInFlight)
	}
	if s := statOf(t, l, "user"); s.Refused[core.ReasonKeys] != 100 || s.Overflowed != 100 {
		t.Errorf("%v refused, %d overflowed; want 100 for %q, 100", s.Refused, s.Overflowed, core.ReasonKeys)
	}
	held[0].Release()
	if r := refused(t, l, of("user", "new")); r.Reason != core.ReasonKeys {
		t.Errorf("one of two units has gone: refused as %q; want %q", r.Reason, core.ReasonKeys)
	}
	second.Release()
	p := hold(t, l, of("user", "new"))
	refused(t, l, of("user", "newer"))
	p.Release()
	hold(t, l, of("user", "newer"))
	held[1].Release()
	for range 2 {
		hold(t, l, of("user", "newest"))
	}
}

// A cost that never fits is told as such, though there is no room for the key
// either.
func TestACostTooLargeIsNotAboutKeys(t *testing.T) {
	l := limiterOf(t, user(core.InFlight{N: 2}, 1))
	hold(t, l, of("user", "ann"))
	r := of("user", "bob")
	r.Cost = 3
	if got := refused(t, l, r); got.Reason != core.ReasonNever {
		t.Errorf("refused as %q; want %q", got.Reason, core.ReasonNever)
	}
}

// Composite keys are compared part by part. Values that come out alike when they
// are joined by whatever character are different keys.
func TestCompositeKeysAreNotJoined(t *testing.T) {
	pairs := [][2]string{
		{"", ""}, {"a", ""}, {"", "a"}, {"a", "a"}, {"aa", ""}, {"", "aa"},
		{"\x00", ""}, {"", "\x00"}, {"\x01a", ""}, {"\x02", "a"}, {"a\x02", "b"}, {"a", "\x02b"},
	}
	for _, joint := range []string{":", ",", "/", "|", "\x00", "\x01", "\xff", " ", "\n", `"`, `\`, "=", "::"} {
		pairs = append(pairs, [2]string{"a" + joint + "b", "c"}, [2]string{"a", "b" + joint + "c"},
			[2]string{"a" + joint, "c"}, [2]string{"a", joint + "c"}, [2]string{"a" + joint + "c", ""}, [2]string{"", "a" + joint + "c"})
	}
	for _, n := range []int{63, 64, 127, 128, 255, 256, 257} { // where lengths take another form
		a := strings.Repeat("a", n)
		pairs = append(pairs, [2]string{a, "b"}, [2]string{a + "b", ""}, [2]string{"", a + "b"}, [2]string{a[1:], "ab"}, [2]string{a, ""})
	}
	once := map[[2]string]bool{}
	l := limiterOf(t,
		core.Rule{Name: "keys", By: "x,y", Limit: core.Rate{N: 1, Per: time.Hour}},
		core.Rule{Name: "reversed", By: "y,resource,x", Limit: core.Rate{N: 1, Per: time.Hour}})
	for round := range 2 {
		for _, p := range pairs {
			if round == 0 && once[p] {
				continue
			}
			once[p] = true
			r := core.Request{Keys: []core.Key{{By: "y", Value: p[1]}, {By: "x", Value: p[0]}}} // in any order
			if n := passes(l, r, 1); n != 1-round {
				t.Errorf("round %d: %q passed %d times; want %d", round, p, n, 1-round)
			}
		}
	}
	if s := statOf(t, l, "keys"); s.Admitted != uint64(len(once)) {
		t.Errorf("%d keys passed; want %d", s.Admitted, len(once))
	}
}

// The caller uses its slice of keys again for the next request. What is held is
// given back to the key that took it.
func TestTheCallersKeysAreCopied(t *testing.T) {
	for _, by := range []string{"user", "user,resource", "tenant,user"} {
		l := limiterOf(t, core.Rule{Name: "rule", By: by, Limit: core.InFlight{N: 1}})
		keys := []core.Key{{By: "tenant", Value: "t"}, {By: "user", Value: "ann"}}
		r := core.Request{On: "r", Keys: keys}
		ann := hold(t, l, r)
		keys[1].Value = "bob"
		bob := hold(t, l, r)
		keys[1] = core.Key{}
		keys[0] = core.Key{By: "user", Value: "cat"}
		ann.Release()
		keys[0] = core.Key{By: "tenant", Value: "t"}
		keys[1] = core.Key{By: "user", Value: "ann"}
		hold(t, l, r)
		refused(t, l, r)
		keys[1].Value = "bob"
		refused(t, l, r)
		bob.Release()
		hold(t, l, r)
		if n := statOf(t, l, "rule").InFlight; n != 2 {
			t.Errorf("by %q: %d in flight; want 2", by, n)
		}
	}
}

// Some servers hand out strings over a buffer that the next request fills. The
// bytes, too, are copied where they are kept.
func TestTheCallersBytesAreCopied(t *testing.T) {
	for _, by := range []string{"user", "resource", "user,resource"} {
		for _, size := range []int{3, 300} {
			l := limiterOf(t,
				core.Rule{Name: "rule", By: by, Limit: core.Rate{N: 1, Per: time.Hour}},
				core.Rule{Name: "on", On: "closed*", Limit: core.InFlight{}})
			buffer := []byte(strings.Repeat("a", size))
			text := unsafe.String(&buffer[0], len(buffer))
			r := core.Request{On: text, Keys: []core.Key{{By: "user", Value: text}}}
			hold(t, l, r)
			fill := func(c string) { copy(buffer, strings.Repeat(c, size)) }
			fill("b")
			hold(t, l, r)
			fill("a")
			refused(t, l, r)
			fill("c")
			hold(t, l, r)
			same := strings.Repeat("b", size)
			refused(t, l, core.Request{On: same, Keys: []core.Key{{By: "user", Value: same}}})
		}
	}
}

// A client invents resources without end. A rule for all of them still counts
// them, one for each of them is bounded, and what is remembered of them does not
// grow with their number.
func TestInventedResourcesAreBounded(t *testing.T) {
	const (
		invented = 60_000
		size     = 2000
		most     = 40 << 20 // all of them would be three times that
	)
	l := limiterOf(t,
		core.Rule{Name: "all", On: "GET *", Limit: core.Rate{N: 5, Per: time.Hour}},
		core.Rule{Name: "posts", On: "POST *", By: "resource", Limit: core.Rate{N: 1, Per: time.Hour}, MaxKeys: 100})
	before := heap()
	passed := 0
	long := strings.Repeat("x", size)
	for i := range invented {
		passed += passes(l, core.Request{On: fmt.Sprint("GET /", i, long)}, 1)
	}
	if passed != 5 {
		t.Errorf("%d of all passed; want 5", passed)
	}
	for i := range 1000 {
		passes(l, core.Request{On: fmt.Sprint("POST /", i)}, 1)
	}
	if n := statOf(t, l, "posts").Keys; n > 100 {
		t.Errorf("%d resources are counted apart; want 100 at most", n)
	}
	if after := heap(); after > before+most {
		t.Errorf("%d invented resources take %d MB", invented, (after-before)>>20)
	}
	refused(t, l, core.Request{On: "GET /"})
	runtime.KeepAlive(l)
}

// heap is what is in use after all that nobody uses has been freed.
func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// One per hour, and a try each ten minutes. Who forgets a key after three idle
// minutes lets twelve pass in two hours.
func TestAnIdleKeyOfASlowLimitIsRemembered(t *testing.T) {
	for _, flood := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			l := limiterOf(t, user(core.Rate{N: 1, Per: time.Hour}, 50))
			ann := of("user", "ann")
			for i := range time.Duration(60) {
				sleepUntil(t, i*10*time.Minute)
				want := 0
				if i%6 == 0 {
					want = 1
				}
				if n := passes(l, ann, 1); n != want {
					t.Fatalf("flood %t, after %v: %d passed; want %d", flood, time.Since(midnight), n, want)
				}
				if flood { // others, whose coming makes room by forgetting the idle
					for j := range 100 {
						passes(l, of("user", fmt.Sprint(i, "-", j)), 1)
					}
				}
			}
		})
	}
}

// Of two keys with one By the first counts, and the order of different ones does
// not matter.
func TestTheFirstOfTwoKeysCounts(t *testing.T) {
	l := limiterOf(t, user(core.Rate{N: 1, Per: time.Hour}, 0))
	hold(t, l, core.Request{Keys: []core.Key{{By: "ip", Value: "1"}, {By: "user", Value: "ann"}, {By: "user", Value: "bob"}}})
	refused(t, l, of("user", "ann"))
	hold(t, l, core.Request{Keys: []core.Key{{By: "user", Value: "bob"}, {By: "user", Value: "ann"}}})
	refused(t, l, of("user", "bob"))
	hold(t, l, core.Request{Keys: []core.Key{{By: "user", Value: ""}, {By: "user", Value: "ann"}}})
	refused(t, l, core.Request{})
}

// A request that lacks the key is counted under the empty one, for all to see. It
// is neither free nor an error.
func TestAMissingKeyIsTheEmptyOne(t *testing.T) {
	for _, by := range []string{"user", "user,resource", "resource,user"} {
		l := limiterOf(t, core.Rule{Name: "rule", By: by, Limit: core.Rate{N: 3, Per: time.Hour}})
		hold(t, l, core.Request{On: "r"})
		hold(t, l, core.Request{On: "r", Keys: []core.Key{{By: "user"}}})
		hold(t, l, core.Request{On: "r", Keys: []core.Key{{By: "User", Value: "ann"}, {By: "", Value: "ann"}}})
		refused(t, l, core.Request{On: "r"})
		hold(t, l, core.Request{On: "r", Keys: []core.Key{{By: "user", Value: "ann"}}})
		if n := statOf(t, l, "rule").Empty; n != 4 {
			t.Errorf("by %q: %d decisions without a key; want 4", by, n)
		}
	}
}

// "resource" is the resource itself, and no key of that name takes its place.
func TestTheResourceIsAKey(t *testing.T) {
	l := limiterOf(t, core.Rule{Name: "rule", On: "r*", By: "resource", Limit: core.Rate{N: 1, Per: time.Hour}})
	hold(t, l, core.Request{On: "r1"})
	hold(t, l, core.Request{On: "r2"})
	refused(t, l, core.Request{On: "r1", Keys: []core.Key{{By: "resource", Value: "r3"}}})
	hold(t, l, core.Request{On: "r3"})
}

// An operator's pardon gives a key its whole limit again: that one, or all. What
// the pardon names must be there.
func TestAPardonIsForTheNamedKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		two := core.Rate{N: 2, Per: time.Hour}
		l := limiterOf(t,
			core.Rule{Name: "user", On: "u", By: "user", Limit: two, For: map[string]core.Limit{"vip": core.Rate{N: 3, Per: time.Hour}}},
			core.Rule{Name: "pair", On: "p", By: "user,resource", Limit: two},
			core.Rule{Name: "all", On: "a", Limit: two})
		ask := func(on, user string) int {
			r := of("user", user)
			r.On = on
			return passes(l, r, 10)
		}
		forget := func(rule string, key ...string) {
			t.Helper()
			if err := l.Forget(rule, key...); err != nil {
				t.Errorf("Forget(%q, %q): %v", rule, key, err)
			}
		}
		check := func(on, user string, want int) {
			t.Helper()
			if n := ask(on, user); n != want {
				t.Errorf("%s, %q: %d passed; want %d", on, user, n, want)
			}
		}
		spend := func() {
			for _, on := range []string{"u", "p", "a"} {
				for _, user := range []string{"ann", "bob", "vip", ""} {
					ask(on, user)
				}
			}
		}
		spend()
		forget("user", "ann")
		check("u", "ann", 2)
		check("u", "bob", 0)
		check("p", "ann", 0)
		forget("user", "vip")
		check("u", "vip", 3)
		forget("user", "")
		check("u", "", 2)
		forget("user", "nobody")
		check("u", "ann", 0)
		forget("pair", "ann", "other")
		check("p", "ann", 0)
		forget("pair", "ann", "p")
		check("p", "ann", 2)
		check("p", "bob", 0)
		forget("pair")
		check("p", "ann", 2)
		check("p", "bob", 2)
		forget("user")
		check("u", "bob", 2)
		check("u", "vip", 3)
		check("a", "ann", 0)
		forget("all")
		check("a", "ann", 2)

		spend()
		for _, wrong := range [][]string{{"nobody"}, {""}, {"user", "a", "b"}, {"pair", "ann"}, {"pair", "ann", "p", "x"}, {"all", "ann"}} {
			err := l.Forget(wrong[0], wrong[1:]...)
			if err == nil {
				t.Errorf("Forget(%q): no error", wrong)
				continue
			}
			if text := err.Error(); !strings.HasPrefix(text, "core: ") || !strings.Contains(text, fmt.Sprintf("%q", wrong[0])) {
				t.Errorf("Forget(%q): error %q; want the rule named", wrong, text)
			}
		}
		for _, on := range []string{"u", "p", "a"} {
			check(on, "ann", 0)
		}
	})
}

// A pardon for all is for those beyond MaxKeys, too.
func TestAPardonForAllReachesTheOverflow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, user(core.Rate{N: 1, Per: time.Hour}, 1))
		for i := range 2000 {
			passes(l, of("user", fmt.Sprint(i)), 2)
		}
		r := of("user", "1999")
		refused(t, l, r)
		if err := l.Forget("user"); err != nil {
			t.Fatal(err)
		}
		hold(t, l, r)
		refused(t, l, r)
	})
}

// Many goroutines ask for the same few keys at their first moment, and for many
// others that make the tables grow. Each key is counted in one place.
func TestKeysAreMadeOnceInARace(t *testing.T) {
	const threads, keys, n = 8, 1000, 3
	for range 3 {
		l := limiterOf(t, user(core.Rate{N: n, Per: time.Hour}, 0))
		passed := make([][keys]int, threads)
		var all sync.WaitGroup
		for i := range threads {
			all.Go(func() {
				for k := range keys {
					passed[i][k] = passes(l, of("user", fmt.Sprint(k)), 2)
				}
			})
		}
		all.Wait()
		for k := range keys {
			sum := 0
			for i := range threads {
				sum += passed[i][k]
			}
			if sum != n {
				t.Fatalf("key %d passed %d times; want %d", k, sum, n)
			}
		}
	}
}

// Many goroutines hold slots of keys that are forgotten and made again all the
// time. No key has more than its slot, and all comes back.
func TestKeysAreForgottenOnlyWhenIdleInARace(t *testing.T) {
	const threads, keys = 8, 40
	l := limiterOf(t, user(core.InFlight{N: 1}, 20))
	var in [keys]sync.Mutex
	var all sync.WaitGroup
	for i := range threads {
		all.Go(func() {
			random := rand.New(rand.NewPCG(uint64(i), 9))
			for range 4000 {
				k := random.IntN(keys)
				p, ok := l.Try(of("user", fmt.Sprint(k)))
				if !ok {
					continue
				}
				if !in[k].TryLock() {
					t.Errorf("key %d is held twice", k)
				} else {
					runtime.Gosched()
					in[k].Unlock()
				}
				p.Release()
			}
		})
	}
	all.Wait()
	if n := statOf(t, l, "user").InFlight; n != 0 {
		t.Errorf("%d in flight after all have gone", n)
	}
	for k := range 20 {
		hold(t, l, of("user", fmt.Sprint(k)))
	}
}

// MaxKeys is lowered while many idle keys are in memory. They are nobody, so
// newcomers find room at once, in tables that were made for many more.
func TestIdleKeysMakeRoomAfterMaxKeysIsLowered(t *testing.T) {
	for _, c := range []struct{ idle, most int }{{2000, 1000}, {50_000, 1000}, {50_000, 5000}} {
		synctest.Test(t, func(t *testing.T) {
			l := limiterOf(t, user(core.Rate{N: 1, Per: time.Second}, c.idle))
			for i := range c.idle {
				l.Try(of("user", fmt.Sprint("idle-", i)))
			}
			time.Sleep(time.Hour)
			replace(t, l, user(core.Rate{N: 1, Per: time.Second}, c.most))
			for volley := range 5 {
				for i := range c.most * 9 / 10 {
					if _, ok := l.Try(of("user", fmt.Sprint(volley, "-", i))); !ok {
						t.Fatalf("%d idle, %d may live: newcomer %d of volley %d is refused", c.idle, c.most, i, volley)
					}
				}
				time.Sleep(time.Hour)
			}
		})
	}
}

// As many keys as may live come in each window, always others.
func TestAFullHouseOfNewKeysInEachWindow(t *testing.T) {
	for _, most := range []int{300, 1000} {
		synctest.Test(t, func(t *testing.T) {
			l := limiterOf(t, user(core.Rate{N: 1, Per: time.Second}, most))
			for round := range 200 {
				for i := range most {
					if _, ok := l.Try(of("user", fmt.Sprint(round, "-", i))); !ok {
						t.Fatalf("of %d, newcomer %d of round %d is refused", most, i, round)
					}
				}
				time.Sleep(time.Second)
			}
		})
	}
}

// A key that was busy once, and now asks once in each window, does not hold the
// memory of its busy time.
func TestAKeyShrinksAfterItWasBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const keys, n = 200, 4096
		l := limiterOf(t, user(core.Rate{N: n, Per: time.Second}, 0))
		before := heap()
		ask := func(times int) {
			for i := range keys {
				for range times {
					l.Try(of("user", fmt.Sprint(i)))
					time.Sleep(time.Nanosecond)
				}
			}
		}
		ask(n)
		busy := heap() - before
		for range 10 {
			time.Sleep(2 * time.Second)
			ask(1)
		}
		if calm := heap() - before; calm > keys*2048 || busy < keys*n*12 { // 12 bytes each on 32 bits
			t.Errorf("%d bytes when busy, %d after; want at most 2 KiB a key", busy, calm)
		}
		runtime.KeepAlive(l)
	})
}
