//go:build !linux

package cri

import (
	"context"

	"github.com/kubepleg/pleg"
)

// nodeWatch watches nothing: runtimes run on Linux.
type nodeWatch struct{}

func newNodeWatch(*Runtime, func(witness, pleg.ContainerExit)) *nodeWatch { return nil }

func (*nodeWatch) follow([]runningContainer, uint64) {}
func (*nodeWatch) started(string, int, uint64)       {}
func (*nodeWatch) state(witness) (int, error)        { return 0, nil }
func (*nodeWatch) watches() bool                     { return false }
func (*nodeWatch) await(context.Context) bool        { return false }
func (*nodeWatch) close()                            {}
