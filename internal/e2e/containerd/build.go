package containerd

import (
	"context"

	"github.com/kubepleg/pleg/internal/e2e/pinned"
)

// packages are the programs of containerd that are built.
var packages = []string{
	"github.com/containerd/containerd/v2/cmd/containerd",
	"github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
	"github.com/containerd/containerd/v2/cmd/ctr",
}

// Build returns the folder that holds containerd's binaries and the test images,
// building what is missing. The folder is below .cache at the root of the
// repository and is used again until the pinned versions change.
func Build(ctx context.Context) (string, error) {
	programs, err := pinned.Open(ctx, "containerd")
	if err != nil {
		return "", err
	}
	defer programs.Close()
	if err := installDistribution(ctx); err != nil {
		return "", err
	}
	if err := programs.Build(ctx, packages...); err != nil {
		return "", err
	}
	if err := programs.BuildOwn(ctx, "containerd/pause"); err != nil {
		return "", err
	}
	if err := writeImages(programs.Dir); err != nil {
		return "", err
	}
	return programs.Dir, nil
}
