package main

import (
	"slices"
	"testing"
)

// A test runs once more only if all tests ran. After a panic or a failed build, others did not.
func TestFailedTests(t *testing.T) {
	const failure = "--- FAIL: TestA (0.01s)\n    --- FAIL: TestA/b (0.00s)\n        x_test.go:1: no\n" +
		"FAIL\nFAIL\tpkg/kubelet\t24.5s\n"
	for output, want := range map[string][]string{
		"ok  \tpkg/kubelet\t1s\n":                                                      nil,
		failure + "ok  \tpkg/kubelet/pleg\t1s\n":                                       {"TestA"},
		failure + "--- FAIL: TestC (0s)\nFAIL\nFAIL\tpkg/c\t1s\n":                      {"TestA", "TestC"},
		failure + "FAIL\tpkg/kubelet/pleg [build failed]\n":                            nil,
		"--- FAIL: TestA (0.01s)\npanic: nil [recovered]\nFAIL\tpkg/c\t1s\n" + failure: nil,
		failure + "--- FAIL: TestC (0s)\nbye\nFAIL\tpkg/c\t1s\n":                       nil,
		failure + "PASS\nleak found\nFAIL\tpkg/kubelet/pleg\t1s\n":                     nil,
	} {
		if got := failedTests(output); !slices.Equal(got, want) {
			t.Errorf("%q: %v, want %v", output, got, want)
		}
	}
}
