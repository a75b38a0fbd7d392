//go:build !linux

package cri

import (
	"context"
	"fmt"

	"github.com/kubepleg/pleg"
)

// watchExitFiles always fails, because CRI-O runs on Linux only.
func (r *Runtime) watchExitFiles(context.Context, func(), func(pleg.ContainerExit)) error {
	return fmt.Errorf("cri: exit files can be watched on Linux only: %w", pleg.ErrEventsUnsupported)
}

// maxOpenFiles returns a number that is never reached: runtimes run on Linux.
func maxOpenFiles() int { return 1 << 10 }
