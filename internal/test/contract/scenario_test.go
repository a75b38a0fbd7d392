package contract_test

import (
	"path/filepath"
	"testing"

	"github.com/kubepleg/pleg/internal/test/scenario"
)

// TestScenarios runs the scripts in testdata. docs/INTERNALS.md describes their language. The flag
// -rewrite updates the expected output.
func TestScenarios(t *testing.T) {
	paths, err := filepath.Glob("../../../testdata/*.txt")
	if err != nil || len(paths) == 0 {
		t.Fatalf("there are no scripts: %v", err)
	}
	for _, path := range paths {
		scenario.Run(t, path)
	}
}
