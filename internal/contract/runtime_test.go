package contract_test

import (
	"testing"

	"github.com/kubepleg/pleg"
)

func TestContainerIDString(t *testing.T) {
	if got := (pleg.ContainerID{Type: "containerd", ID: "3f2a"}).String(); got != "containerd://3f2a" {
		t.Errorf("%q", got)
	}
}
