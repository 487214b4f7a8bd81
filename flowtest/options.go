package flowtest

import (
	"strconv"
	"sync/atomic"
	"time"

	"github.com/exactflow/exactflow/core"
)

// The promises about what a call is for the rules: keys, resource, cost, priority.

// The headers of the calls.
const (
	clientHeader   = "flowtest-client"
	tenantHeader   = "flowtest-tenant"
	costHeader     = "flowtest-cost"
	priorityHeader = "flowtest-priority"
	skipHeader     = "flowtest-skip"
	nameHeader     = "flowtest-name"
)

// with is a call with one header.
func with(name, value string) Call { return Call{Header: map[string]string{name: value}} }

// costs reads a call's cost.
func costs(h Header) int { n, _ := strconv.Atoi(h(costHeader)); return n }

// As many calls as the limit allows pass for each client, each tenant, and each pair
// of them, whoever else called; one who has a limit of his own has that one; a call
// that lacks a key counts as such.
func keysAreApart(x *exam) {
	per := func(n int) core.Rate { return core.Rate{N: n, Per: time.Hour} }
	l := x.limiter(
		core.Rule{Name: "clients", By: "client", Limit: per(1), For: map[string]core.Limit{"large": per(9), "larger": per(9)}},
		core.Rule{Name: "tenants", By: "tenant", Limit: per(5)},
		core.Rule{Name: "pairs", By: "client,tenant", Limit: per(3)})
	var ran atomic.Int32
	s := x.serve(l, Options{Keys: []Key{
		{By: "client", Of: func(h Header) string { return h(clientHeader) }},
		{By: "tenant", Of: func(h Header) string { return h(tenantHeader) }},
	}}, returns(OK, &ran))
	for _, c := range []struct {
		client, tenant string
		pass           int
		then           string // the rule that refuses the next
	}{
		{"a", "b", 1, "clients"},
		{"b", "a", 1, "clients"},
		{"large", "a", 3, "pairs"},
		{"c", "large", 1, "clients"},
		{"A", "b", 1, "clients"},
		{"larger", "a", 1, "tenants"},
		{"d", "a", 0, "tenants"},
		{"larger", "A", 3, "pairs"},
	} {
		call := Call{Header: map[string]string{clientHeader: c.client, tenantHeader: c.tenant}}
		for i := range c.pass {
			if a := x.call(s, call); a.Outcome != OK {
				x.Errorf("client %s of tenant %s, call %d: %v; want %d to pass", c.client, c.tenant, i, a, c.pass)
			}
		}
		if a := x.call(s, call); a.Outcome != Refused || a.Rule != c.then {
			x.Errorf("client %s of tenant %s, call %d: %v; want %d to pass, and rule %q to refuse", c.client, c.tenant, c.pass, a, c.pass, c.then)
		}
	}
	x.want("a call without keys", x.call(s, Call{}), OK)
	for _, s := range l.Stats() {
		if s.Empty != 1 {
			x.Errorf("for rule %q %d calls lacked a key; want the one without keys", s.Rule, s.Empty)
		}
	}
}

func routesAreApart(x *exam) {
	if r := x.adapter.Resources; r[0] == "" || r[1] == "" || r[0] == r[1] {
		x.Fatalf("the Resources are %q; want what the adapter calls its two routes", r)
	}
	for closed := range 2 {
		l := x.limiter(core.Rule{Name: "closed", On: x.adapter.Resources[closed], Limit: core.InFlight{N: 0}})
		var ran atomic.Int32
		s := x.serve(l, Options{}, returns(OK, &ran))
		x.wantRefused("the route with a rule", x.call(s, Call{Route: closed}), "closed", unknown)
		x.want("the other route", x.call(s, Call{Route: 1 - closed}), OK)
	}
}

func ownResource(x *exam) {
	l := x.limiter(core.Rule{Name: "closed", On: "mine", Limit: core.InFlight{N: 0}})
	var ran atomic.Int32
	s := x.serve(l, Options{Resource: func(h Header) string { return h(nameHeader) }}, returns(OK, &ran))
	x.wantRefused("a call that is mine", x.call(s, with(nameHeader, "mine")), "closed", unknown)
	x.want("a call that is not", x.call(s, with(nameHeader, "yours")), OK)
}

func costIsTaken(x *exam) {
	l := x.limiter(core.Rule{Name: "r", Limit: core.Rate{N: 10, Per: time.Hour}})
	var ran atomic.Int32
	s := x.serve(l, Options{Cost: costs}, returns(OK, &ran))
	for _, c := range []struct {
		cost string
		want Outcome
	}{{"7", OK}, {"4", Refused}, {"2", OK}, {"0", OK}, {"0", Refused}, {"11", Refused}, {"-1", Refused}} {
		x.want("of 10 units, after what came before, a call of "+c.cost, x.call(s, with(costHeader, c.cost)), c.want)
	}
	if s := x.stat(l, "r"); s.Refused[core.ReasonNever] != 2 {
		x.Errorf("what costs 11 of 10, or -1, is refused as never: %v; want 2", s.Refused)
	}

	l = x.limiter(core.Rule{Name: "held", Limit: core.InFlight{N: 5}})
	w := x.work()
	s = x.serve(l, Options{Cost: costs}, w.handle)
	running := x.begin(s, with(costHeader, "4"))
	if n := x.stat(l, "held").InFlight; n != 4 {
		x.Errorf("a call of 4 holds %d", n)
	}
	x.want("a call of 2 beside one of 4 of 5", <-x.begin(s, with(costHeader, "2")), Refused)
	w.let(OK)
	x.want("a call of 4", <-running, OK)
}

// Units are kept for the more important calls; without the option all are as
// important.
func priorityReaches(x *exam) {
	rule := core.Rule{Name: "r", Limit: core.Rate{N: 3, Per: time.Hour}, Reserve: core.Reserve{Default: 1, Critical: 1}}
	for _, c := range []struct {
		name string
		o    Options
		pass [6]bool
	}{
		{"with Priority", Options{Priority: func(h Header) core.Priority {
			n, _ := strconv.Atoi(h(priorityHeader))
			return core.Priority(n)
		}}, [6]bool{true, false, true, false, true, false}},
		{"without", Options{}, [6]bool{true, true, false, false, false, false}},
	} {
		var ran atomic.Int32
		s := x.serve(x.limiter(rule), c.o, returns(OK, &ran))
		for i, pass := range c.pass {
			p, want := core.Priority(i/2-1), Refused
			if pass {
				want = OK
			}
			x.want(c.name+", a call that is "+p.String(), x.call(s, with(priorityHeader, strconv.Itoa(int(p)))), want)
		}
	}
}

func skippedIsNotAsked(x *exam) {
	l := x.limiter(core.Rule{Name: "closed", Limit: core.InFlight{N: 0}}, core.Rule{Name: "open", Limit: core.InFlight{N: 9}})
	var ran atomic.Int32
	s := x.serve(l, Options{Skip: func(h Header) bool { return h(skipHeader) == "yes" }}, returns(OK, &ran))
	x.want("a call that is skipped", x.call(s, with(skipHeader, "yes")), OK)
	if n := x.stat(l, "closed").Refused[core.ReasonNever] + x.stat(l, "open").Admitted; n != 0 {
		x.Errorf("the limiter was asked for a call that is skipped")
	}
	x.want("another call", x.call(s, Call{}), Refused)
	if n := x.stat(l, "closed").Refused[core.ReasonNever]; n != 1 {
		x.Errorf("the limiter has refused %d others; want 1", n)
	}

	l = x.limiter(core.Rule{Name: "open", Limit: core.Rate{N: 9, Per: time.Hour}})
	s = x.serve(l, Options{Skip: func(Header) bool { return true }}, returns(OK, &ran))
	x.want("a call that is skipped", x.call(s, Call{}), OK)
	if n := x.stat(l, "open").Admitted; n != 0 {
		x.Errorf("a call that is skipped was counted")
	}
}

// A rule on trial counts, and no client notices.
func shadowRefusesNobody(x *exam) {
	l := x.limiter(
		core.Rule{Name: "trial", Limit: core.Rate{N: 1, Per: time.Hour}, Shadow: true},
		core.Rule{Name: "real", Limit: core.Rate{N: 3, Per: time.Hour}})
	var ran atomic.Int32
	s := x.serve(l, Options{}, returns(OK, &ran))
	for i := range 3 {
		x.want("call "+strconv.Itoa(i)+", beyond a shadow rule's limit", x.call(s, Call{}), OK)
	}
	x.wantRefused("a call beyond the real limit", x.call(s, Call{}), "real", time.Hour)
	if s := x.stat(l, "trial"); s.Shadowed != 2 || s.Admitted != 1 || ran.Load() != 3 {
		x.Errorf("the shadow rule has admitted %d and would have refused %d, and %d ran; want 1, 2 and 3", s.Admitted, s.Shadowed, ran.Load())
	}
}
