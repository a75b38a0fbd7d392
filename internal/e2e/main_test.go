package e2e_test

import (
	"os"
	"testing"

	"github.com/kubepleg/pleg/internal/e2e/containerd"
)

func TestMain(m *testing.M) {
	containerd.ExitWithoutRoot("e2e")
	os.Exit(m.Run())
}
