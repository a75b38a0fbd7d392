//go:build !race

package criserver_test

const raceEnabled = false
