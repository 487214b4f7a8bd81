package flowtest_test

import "testing"

// The examples of the documentation are tests without a T. Here they run.

func TestConformance(t *testing.T) { conformance(t) }

func TestCustomersAreToldWhen(t *testing.T)       { customersAreToldWhen(t) }
func TestOneCustomerStopsNobodyElse(t *testing.T) { oneCustomerStopsNobodyElse(t) }
