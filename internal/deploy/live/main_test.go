package live

import (
	"os"
	"testing"

	"github.com/kubepleg/pleg/internal/e2e/containerd"
)

func TestMain(m *testing.M) {
	containerd.ExitWithoutRoot("live")
	os.Exit(m.Run())
}
