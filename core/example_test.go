package core_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/exactflow/exactflow/core"
)

// Three rules, and what they do to one resource.
func Example() {
	limiter, err := core.New(
		core.Rule{Name: "busy", Limit: core.InFlight{N: 100}},
		core.Rule{Name: "orders", On: "* /orders*", Limit: core.Rate{N: 1000, Per: time.Second}},
		core.Rule{Name: "client", By: "ip", Limit: core.Rate{N: 2, Per: time.Minute}},
	)
	if err != nil {
		panic(err)
	}
	for range 3 {
		permit, ok := limiter.Try(core.Request{
			On:   "GET /orders/{id}",
			Keys: []core.Key{{By: "ip", Value: "192.0.2.7"}},
		})
		if !ok {
			fmt.Println("refused by", permit.Refusal().Rule)
			continue
		}
		fmt.Println("admitted")
		permit.Release()
	}
	// Output:
	// admitted
	// admitted
	// refused by client
}

// All that is wrong with some rules is told at once.
func ExampleNew() {
	_, err := core.New(
		core.Rule{Name: "orders", Limit: core.Rate{N: -1, Per: time.Second}},
		core.Rule{Name: "client", By: "tenant, ip", Limit: core.InFlight{N: 8}},
	)
	fmt.Println(err)
	// Output:
	// core: rule "orders" (number 1): Limit: Rate.N is -1; want 0, which blocks, or more
	// core: rule "client" (number 2): By is "tenant, ip"; want the names of keys joined by single commas, without spaces, such as "tenant,resource"
}

// A permit is the right to run until it is released.
func ExampleLimiter_Try() {
	limiter, err := core.New(core.Rule{Name: "uploads", Limit: core.InFlight{N: 1}})
	if err != nil {
		panic(err)
	}
	first, ok := limiter.Try(core.Request{On: "upload"})
	fmt.Println(ok)
	second, ok := limiter.Try(core.Request{On: "upload"})
	fmt.Println(ok, second.Refusal().Reason)
	first.Release()
	_, ok = limiter.Try(core.Request{On: "upload"})
	fmt.Println(ok)
	// Output:
	// true
	// false in_flight
	// true
}

// A context that has ended takes nothing; a refusal is in the permit.
func ExampleLimiter_Wait() {
	limiter, err := core.New(core.Rule{Name: "reports", Limit: core.Rate{N: 1, Per: time.Hour}})
	if err != nil {
		panic(err)
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	for _, ctx := range []context.Context{ended, context.Background(), context.Background()} {
		permit, err := limiter.Wait(ctx, core.Request{})
		switch {
		case errors.Is(err, core.ErrRefused):
			r := permit.Refusal()
			fmt.Printf("%s: come back in %v\n", r.Rule, r.RetryAfter.Round(time.Hour))
		case err != nil:
			fmt.Println(err)
		default:
			fmt.Println("admitted")
			permit.Release()
		}
	}
	// Output:
	// context canceled
	// admitted
	// reports: come back in 1h0m0s
}

// Do asks, runs a function, and releases however that ends.
func ExampleLimiter_Do() {
	limiter, err := core.New(core.Rule{Name: "mails", Limit: core.Rate{N: 1, Per: time.Hour}})
	if err != nil {
		panic(err)
	}
	send := func(context.Context) error {
		fmt.Println("sent")
		return nil
	}
	for range 2 {
		err := limiter.Do(context.Background(), core.Request{On: "mail"}, send)
		var refusal core.Refusal
		if errors.As(err, &refusal) {
			fmt.Println("not sent:", refusal.Rule, refusal.Reason)
		}
	}
	// Output:
	// sent
	// not sent: mails rate
}

// Other rules take over at once, and a rule that stays keeps its counts: raised
// from two to three with two used, it lets one more pass.
func ExampleLimiter_Replace() {
	limiter, err := core.New(core.Rule{Name: "orders", Limit: core.Rate{N: 2, Per: time.Hour}})
	if err != nil {
		panic(err)
	}
	pass := func() (n int) {
		for range 10 {
			if _, ok := limiter.Try(core.Request{}); ok {
				n++
			}
		}
		return n
	}
	fmt.Println(pass())
	err = limiter.Replace(core.Rule{Name: "orders", Limit: core.Rate{N: 3, Per: time.Hour}})
	fmt.Println(pass(), err)
	// Output:
	// 2
	// 1 <nil>
}

// Each client is counted apart, and some have other limits: a partner more, a
// monitor none, a known abuser nothing.
func ExampleRule_for() {
	limiter, err := core.New(core.Rule{
		Name:  "client",
		By:    "client",
		Limit: core.Rate{N: 2, Per: time.Hour},
		For: map[string]core.Limit{
			"partner": core.Rate{N: 4, Per: time.Hour},
			"monitor": core.Unlimited{},
			"abuser":  core.Rate{N: 0, Per: time.Hour},
			"":        core.Rate{N: 1, Per: time.Hour}, // who does not say
		},
	})
	if err != nil {
		panic(err)
	}
	for _, client := range []string{"ann", "bob", "partner", "monitor", "abuser", ""} {
		n := 0
		for range 10 {
			_, ok := limiter.Try(core.Request{Keys: []core.Key{{By: "client", Value: client}}})
			if ok {
				n++
			}
		}
		fmt.Printf("%q: %d of 10\n", client, n)
	}
	// Output:
	// "ann": 2 of 10
	// "bob": 2 of 10
	// "partner": 4 of 10
	// "monitor": 10 of 10
	// "abuser": 0 of 10
	// "": 1 of 10
}

// An operator pardons one client, and nobody else.
func ExampleLimiter_Forget() {
	limiter, err := core.New(core.Rule{Name: "client", By: "ip", Limit: core.Rate{N: 1, Per: time.Hour}})
	if err != nil {
		panic(err)
	}
	try := func(ip string) bool {
		_, ok := limiter.Try(core.Request{Keys: []core.Key{{By: "ip", Value: ip}}})
		return ok
	}
	fmt.Println(try("192.0.2.7"), try("192.0.2.8"))
	fmt.Println(try("192.0.2.7"), try("192.0.2.8"))
	if err := limiter.Forget("client", "192.0.2.7"); err != nil {
		panic(err)
	}
	fmt.Println(try("192.0.2.7"), try("192.0.2.8"))
	// Output:
	// true true
	// false false
	// true false
}

// Statistics are pulled, rule by rule.
func ExampleLimiter_Stats() {
	limiter, err := core.New(
		core.Rule{Name: "busy", Limit: core.InFlight{N: 9}},
		core.Rule{Name: "orders", On: "orders", Limit: core.Rate{N: 2, Per: time.Hour}},
	)
	if err != nil {
		panic(err)
	}
	for range 5 {
		limiter.Try(core.Request{On: "orders"})
	}
	for _, s := range limiter.Stats() {
		fmt.Printf("%s: %d admitted, %d in flight, refused %v\n", s.Rule, s.Admitted, s.InFlight, s.Refused)
	}
	// Output:
	// busy: 2 admitted, 2 in flight, refused map[]
	// orders: 2 admitted, 0 in flight, refused map[rate:3]
}

// A quota tells a client what it has left before it is refused.
func ExamplePermit_Quota() {
	limiter, err := core.New(core.Rule{Name: "client", By: "ip", Limit: core.Rate{N: 10, Per: time.Minute}})
	if err != nil {
		panic(err)
	}
	permit, _ := limiter.Try(core.Request{Cost: 3})
	defer permit.Release()
	q := permit.Quota()
	fmt.Printf("%s: %d of %d left, more in %v\n", q.Rule, q.Remaining, q.Limit, q.Reset)
	// Output:
	// client: 7 of 10 left, more in 1m0s
}

// Five wrong passwords, and the account has to wait. Right ones count for nothing, and
// no more than five are tried at once.
func ExampleCharge() {
	limiter, err := core.New(core.Rule{Name: "wrong-passwords", By: "account",
		Limit: core.Rate{N: 5, Per: 15 * time.Minute, Charge: core.ChargeFailed}})
	if err != nil {
		panic(err)
	}
	login := func(account, password string) string {
		permit, ok := limiter.Try(core.Request{Keys: []core.Key{{By: "account", Value: account}}})
		if !ok {
			return permit.Refusal().RetryAfter.Round(time.Minute).String()
		}
		defer permit.Release()
		if password != "right" {
			permit.Fail()
			return "wrong"
		}
		return "welcome"
	}
	for range 3 {
		fmt.Print(login("ann", "right"), " ")
	}
	for range 6 {
		fmt.Print(login("ann", "guess"), " ")
	}
	// Output: welcome welcome welcome wrong wrong wrong wrong wrong 15m0s
}

// A request that may use up to 1000 tokens, and tells in the end how many it did.
func ExamplePermit_Settle() {
	limiter, err := core.New(core.Rule{Name: "tokens", Limit: core.Rate{N: 1500, Per: time.Minute}})
	if err != nil {
		panic(err)
	}
	permit, _ := limiter.Try(core.Request{Cost: 1000})
	defer permit.Release()

	_, ok := limiter.Peek(core.Request{Cost: 1000})
	fmt.Println("room for another:", ok)
	permit.Settle(120)
	seen, ok := limiter.Peek(core.Request{Cost: 1000})
	fmt.Println("room for another:", ok, "of", seen.Quota().Remaining)
	// Output:
	// room for another: false
	// room for another: true of 1380
}

// Ten connections, but one handshake at a time; and the connection outlives the
// function that accepts it.
func ExamplePermit_Detach() {
	limiter, err := core.New(
		core.Rule{Name: "handshakes", Limit: core.InFlight{N: 1, SetUp: true}},
		core.Rule{Name: "connections", Limit: core.InFlight{N: 10}},
	)
	if err != nil {
		panic(err)
	}
	var open []core.Permit
	accept := func() {
		permit, ok := limiter.Try(core.Request{})
		if !ok {
			fmt.Println("refused by", permit.Refusal().Rule)
			return
		}
		defer permit.Release() // of no effect after Detach
		permit.Ready()         // the handshake is over
		open = append(open, permit.Detach())
	}
	for range 11 {
		accept()
	}
	open[0].Release()
	accept()
	fmt.Println(limiter.Stats()[1].InFlight, "are open")
	// Output:
	// refused by connections
	// 10 are open
}
