//go:build race

package core_test

// slower is about how many times slower a test is under the race detector. Long
// runs are shorter there by as much.
const slower = 20
