//go:build race

package plegtest_test

const raceEnabled = true
