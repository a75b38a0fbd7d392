package docs_test

import (
	"fmt"
	"os"
	"testing"
)

// TestMain changes to the root of the repository, because the tests use paths from there.
func TestMain(m *testing.M) {
	if err := os.Chdir(".."); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	m.Run()
}
