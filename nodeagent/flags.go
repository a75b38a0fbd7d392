package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/kubepleg/pleg/cri"
	"github.com/kubepleg/pleg/nodeagent/internal/images"
	"github.com/kubepleg/pleg/nodeagent/internal/logs"
)

type flags struct {
	manifests, endpoint, stateDir, listen string
	nodeName, cgroupParent, exitEvents    string
	nodeIP                                netip.Addr
	verbosity                             int
	logs                                  logs.Limits
	images                                images.Limits
}

func parseFlags(args []string, stderr io.Writer) (flags, error) {
	f := flags{}
	hostname, _ := os.Hostname()
	set := flag.NewFlagSet("nodeagent", flag.ContinueOnError)
	set.SetOutput(stderr)
	set.StringVar(&f.manifests, "manifests", "", "directory of the manifests; the ones that come with the agent if empty")
	set.StringVar(&f.endpoint, "runtime-endpoint", "", "socket of a CRI runtime, unix:///…; one in this process if empty")
	set.StringVar(&f.stateDir, "state-dir", "", "where statuses, volumes and logs are; /var/lib/nodeagent if empty")
	set.StringVar(&f.listen, "listen", "127.0.0.1:10270", "loopback address of the page, /pods, /healthz and /metrics")
	set.StringVar(&f.exitEvents, "exit-events", cri.DefaultExitsDir, "CRI-O's folder of exit files, empty for none")
	set.StringVar(&f.nodeName, "node-name", hostname, "name of the node")
	set.TextVar(&f.nodeIP, "node-ip", netip.MustParseAddr("127.0.0.1"), "address of pods on the host's network")
	set.StringVar(&f.cgroupParent, "cgroup-parent", "", "cgroup of the pods; the runtime's default if empty")
	// The following flags use the names and defaults of the kubelet's configuration.
	f.logs.MaxSize.Quantity = resource.MustParse("10Mi")
	set.Var(&f.logs.MaxSize, "container-log-max-size", "size at which a log is rotated")
	set.IntVar(&f.logs.MaxFiles, "container-log-max-files", 5, "files that a container's log may have")
	set.IntVar(&f.images.HighPercent, "image-gc-high-threshold-percent", 85, "when unused images go: how full the disk is")
	set.IntVar(&f.images.LowPercent, "image-gc-low-threshold-percent", 80, "until when: how full it may stay")
	set.DurationVar(&f.images.MinAge, "image-minimum-gc-age", 2*time.Minute, "how long an unused image stays")
	set.IntVar(&f.verbosity, "v", 0, "verbosity of the log: 1 for actions, 2 also for ends of containers, 4 for events")
	if err := set.Parse(args); err != nil {
		return f, err
	}
	var err error
	switch {
	case set.NArg() > 0:
		err = fmt.Errorf("%q is no flag", set.Arg(0))
	case f.endpoint != "" && f.manifests == "":
		err = errors.New("--manifests is needed with --runtime-endpoint")
	case f.logs.MaxSize.Sign() <= 0 || f.logs.MaxFiles < 2 || f.images.LowPercent < 0 ||
		f.images.LowPercent >= f.images.HighPercent:
		err = errors.New("a limit of logs or images is out of range")
	default:
		return f, nil
	}
	fmt.Fprintln(stderr, "nodeagent:", err)
	return f, err
}
