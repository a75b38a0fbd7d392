//go:build !race

package pleg_test

const raceEnabled = false
