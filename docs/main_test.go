package docs_test

import (
	"fmt"
	"os"
	"testing"
)

// The tests of the documents read the repository from its root.
func TestMain(m *testing.M) {
	if err := os.Chdir(".."); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	m.Run()
}
