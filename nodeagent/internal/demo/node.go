package demo

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/kubepleg/pleg/plegtest/criserver"
)

// Node is a simulated runtime in this process, with a directory of manifests.
type Node struct {
	Dir, Endpoint string
	server        *criserver.Server
}

// Start makes a node, and copies files into its directory.
func Start(files fs.FS) (*Node, error) {
	dir, err := os.MkdirTemp("", "nodeagent-")
	if err != nil {
		return nil, fmt.Errorf("making a directory for the node: %w", err)
	}
	server, err := criserver.Start(criserver.WithPrograms(Programs), criserver.WithVersion("embedded", "v1"))
	if err != nil {
		return nil, fmt.Errorf("making a node in this process: %w", errors.Join(err, os.RemoveAll(dir)))
	}
	n := &Node{Dir: dir, Endpoint: server.Endpoint(), server: server}
	if err := os.CopyFS(dir, files); err != nil {
		n.Stop()
		return nil, fmt.Errorf("making the manifests of the node: %w", err)
	}
	return n, nil
}

// Stop ends the runtime and removes the directory.
func (n *Node) Stop() {
	n.server.Stop()
	_ = os.RemoveAll(n.Dir)
}
