//go:build !race

package plegtest_test

const raceEnabled = false
