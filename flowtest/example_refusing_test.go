package flowtest_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/exactflow/exactflow/core"
	"github.com/exactflow/exactflow/flowtest"
)

// order is a service: it tells its customers what it does when it is refused.
func order(ctx context.Context, l *core.Limiter, customer string) string {
	err := l.Do(ctx, core.Request{On: "order", Keys: []core.Key{{By: "customer", Value: customer}}}, func(context.Context) error { return nil })
	var r core.Refusal
	switch {
	case errors.As(err, &r) && r.Known:
		return fmt.Sprintf("Please come back in %v.", r.RetryAfter.Round(time.Second))
	case errors.As(err, &r):
		return "We are busy."
	case err != nil:
		return "Goodbye."
	}
	return "Thank you."
}

func customersAreToldWhen(t *testing.T) {
	for want, l := range map[string]*core.Limiter{
		"Please come back in 30s.": flowtest.Refusing(t, core.ReasonRate, 30*time.Second),
		"We are busy.":             flowtest.Refusing(t, core.ReasonInFlight, 0),
	} {
		if got := order(t.Context(), l, "anna"); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// The same with the rules that the service has, and with a look at what it leaves.
func oneCustomerStopsNobodyElse(t *testing.T) {
	l, err := core.New(
		core.Rule{Name: "service", Limit: core.InFlight{N: 100}},
		core.Rule{Name: "per-customer", By: "customer", Limit: core.Rate{N: 5, Per: time.Hour}})
	if err != nil {
		t.Fatal(err)
	}
	flowtest.NoneHeld(t, l)
	flowtest.Fill(t, l, core.Request{On: "order", Keys: []core.Key{{By: "customer", Value: "anna"}}})
	if got := order(t.Context(), l, "anna"); got != "Please come back in 1h0m0s." {
		t.Errorf("anna: %q", got)
	}
	if got := order(t.Context(), l, "bert"); got != "Thank you." {
		t.Errorf("bert: %q", got)
	}
}

// Two tests of a service that tells its customers when to come back.
func ExampleRefusing() {
	_, _ = customersAreToldWhen, oneCustomerStopsNobodyElse
}
