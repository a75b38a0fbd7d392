package live

import (
	"os"
	"testing"

	"github.com/kubepleg/pleg/internal/e2e/testnode"
)

func TestMain(m *testing.M) {
	testnode.ExitWithoutRoot("live")
	os.Exit(m.Run())
}
