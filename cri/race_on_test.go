//go:build race

package cri_test

const raceEnabled = true
