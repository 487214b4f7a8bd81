//go:build !race

package core_test

const slower = 1
