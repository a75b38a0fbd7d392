package e2e_test

import (
	"os"
	"testing"

	"github.com/kubepleg/pleg/internal/e2e/testnode"
)

func init() { testnode.RegisterFlags() }

func TestMain(m *testing.M) {
	testnode.ExitWithoutRoot("e2e")
	os.Exit(m.Run())
}
