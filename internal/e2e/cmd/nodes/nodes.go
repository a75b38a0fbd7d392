package main

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

// node is a kind of node.
type node struct {
	name, about  string
	arch, kernel string // kernel is the Debian package of the kernel
	// arguments are kernel arguments that guest/boot and guest/run read.
	arguments string
	packages  []string // in addition to basePackages
	runtimes  []string
}

// basePackages are on every node; crioPackages only on nodes with CRI-O.
var (
	basePackages = []string{"busybox-static", "runc", "procps"}
	crioPackages = []string{"conmon", "skopeo", "xz-utils"}
)

// runtimes are all runtimes that can run on a node.
var runtimes = []string{
	"containerd-1.6", "containerd-1.7", "containerd-2.0", "containerd-2.2", "containerd-2.4", "crio",
}

var nodes = []node{
	{name: "amd64-6.1", about: "amd64, Linux 6.1, cgroup v2",
		arch: "amd64", kernel: "linux-image-cloud-amd64", runtimes: runtimes},
	{name: "amd64-6.12", about: "amd64, Linux 6.12, cgroup v2",
		arch: "amd64", kernel: "linux-image-6.12-cloud-amd64", runtimes: []string{"containerd-1.7", "containerd-2.4"}},
	{name: "cgroup-v1", about: "amd64, Linux 6.1, cgroup v1",
		arch: "amd64", kernel: "linux-image-cloud-amd64", arguments: "node.cgroups=v1",
		runtimes: []string{"containerd-2.4"}},
	{name: "systemd", about: "amd64, Linux 6.1, cgroup v2, systemd and its cgroup driver",
		arch: "amd64", kernel: "linux-image-cloud-amd64", arguments: "node.init=systemd node.driver=systemd",
		packages: []string{"systemd"}, runtimes: []string{"containerd-2.4"}},
	{name: "daemonset", about: "amd64, Linux 6.1, cgroup v2, agents as plegwatch/deploy/ runs them",
		arch: "amd64", kernel: "linux-image-cloud-amd64", arguments: "node.contained=yes",
		runtimes: []string{"containerd-2.4"}},
	{name: "arm64-6.1", about: "arm64, Linux 6.1, cgroup v2",
		arch: "arm64", kernel: "linux-image-cloud-arm64", runtimes: []string{"containerd-2.4"}},
}

// leftOut lists what is not run: all tests on a node with a runtime, or one test there. For all
// tests, the field test is empty. The patterns are for path.Match.
var leftOut = []struct{ node, runtime, test, reason string }{
	{"*", "crio", "TestRunbookOfBlockedLists", "CRI-O's lists do not wait for the status of a container"},
	{"*", "crio", "TestExecWithTheContainersID", "only containerd has IDs of commands"},
	{"*", "crio", "TestShimsKeepNothing", "only containerd has shims"},
	{"*", "crio", "TestFrozenAndKilledShims", "only containerd has shims"},
	{"*", "crio", "TestRemovalOfPodsWhoseShimsAreAsked", "only containerd has shims"},
	{"*", "containerd-*", "TestConmonIsKilled", "only CRI-O has conmon"},
	{"arm64-*", "crio", "", "its programs are for amd64"},
	{"arm64-*", "containerd-1.6", "", "it is Debian's, and would run a node for one version only"},
	{"arm64-*", "containerd-*", "", "an emulated arm64 takes too long for more than one version"},
	{"amd64-6.12", "*", "", "1.7 and 2.4 show what the kernel changes"},
	{"cgroup-v1", "*", "", "one shows what cgroups change"},
	{"systemd", "crio", "", "the tests run CRI-O with the cgroupfs driver only"},
	{"systemd", "*", "", "one shows what systemd changes"},
	{"daemonset", "*", "", "one shows what a container changes for an agent"},
}

// reason returns why a node with a runtime, or a test on it, is not run. It returns "" if there is
// no reason.
func reason(node, runtime, test string) string {
	for _, l := range leftOut {
		if matches(l.node, node) && matches(l.runtime, runtime) && (l.test == test || l.test != "" && matches(l.test, test)) {
			return l.reason
		}
	}
	return ""
}

func matches(pattern, name string) bool {
	is, err := path.Match(pattern, name)
	return is && err == nil
}

// cell is a node with one runtime: a cell of the table.
type cell struct {
	node
	runtime string
}

func (c cell) String() string { return c.name + "/" + c.runtime }

// rounds returns the number of rounds of TestExitsWhileTheRuntimeIsAway.
func (c cell) rounds() int {
	switch {
	case *rounds > 0:
		return *rounds
	case c.name == "amd64-6.1" && (c.runtime == "containerd-1.7" || c.runtime == "containerd-2.4"):
		return 10 // 1.7 is the most common version, 2.4 the newest
	}
	return 2
}

// everyCell returns every node with every runtime.
func everyCell() (all []cell) {
	for _, n := range nodes {
		for _, r := range runtimes {
			all = append(all, cell{n, r})
		}
	}
	return all
}

// allCells returns the cells that are run.
func allCells() []cell {
	return slices.DeleteFunc(everyCell(), func(c cell) bool { return !slices.Contains(c.runtimes, c.runtime) })
}

// choose returns the cells with the given names, which are NODE or NODE/RUNTIME. The latter may be a cell
// that is left out. Without names, choose returns all cells that are not.
func choose(names []string) (chosen []cell, err error) {
	if len(names) == 0 {
		return allCells(), nil
	}
	all := everyCell()
	for _, name := range names {
		before := len(chosen)
		for _, c := range all {
			if name == c.String() || name == c.name && slices.Contains(c.runtimes, c.runtime) {
				chosen = append(chosen, c)
			}
		}
		if len(chosen) == before {
			var known []string
			for _, c := range all {
				known = append(known, c.String())
			}
			return nil, fmt.Errorf("there is no node %q; there are %s", name, strings.Join(known, ", "))
		}
	}
	return slices.Clip(chosen), nil
}
