package nodeagent

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubepleg/pleg/internal/e2e/testnode"
)

// The agent limits the log files of a container that writes a lot, and the container keeps running.
// When the disk reaches its limit, the agent removes unused images.
func TestLimits(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	const unused = "localhost/unused:test"
	n.must(n.daemon.ImportBusyboxWith(t.Context(), unused, "1234", nil))
	n.write("writes", manifest("writes", "  terminationGracePeriodSeconds: 1\n"+
		shell("while true; do echo "+strings.Repeat("x", 500)+"; sleep 0.05; done", "")))
	a := n.startAgent() // no limits yet, because the agent would remove the pod's image
	n.eventually("running", a.is("writes", v1.PodRunning))
	a.end(syscall.SIGTERM)
	a = n.startAgent("--container-log-max-size=16Ki", "--container-log-max-files=3", "--image-minimum-gc-age=0s",
		"--image-gc-high-threshold-percent=1", "--image-gc-low-threshold-percent=0")

	conn, err := grpc.NewClient(n.daemon.Endpoint(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	n.must(err)
	defer conn.Close()
	n.eventually("the unused image is gone", func() string {
		list, err := runtimeapi.NewImageServiceClient(conn).ListImages(t.Context(), &runtimeapi.ListImagesRequest{})
		n.must(err)
		var names []string
		for _, i := range list.Images {
			names = append(names, i.RepoTags...)
		}
		for _, name := range []string{image, testnode.PauseImage} {
			if !slices.Contains(names, name) {
				t.Fatalf("%s is gone, left are %q", name, names)
			}
		}
		if slices.Contains(names, unused) {
			return unused + " is there"
		}
		return ""
	})
	rotated := map[string]bool{}
	n.eventually("three rotations", func() string {
		logs, err := filepath.Glob(filepath.Join(n.dir, "state", "logs", "*", "main", "0.log*"))
		n.must(err)
		for _, log := range logs {
			if info, err := os.Stat(log); err == nil && strings.Contains(log, ".log.") && info.Size() > 0 {
				rotated[log] = true
			}
		}
		if len(logs) > 4 { // the agent removes an old file only after it has begun a new file
			t.Errorf("logs: %q", logs)
		}
		if len(rotated) < 3 {
			return fmt.Sprintf("%d", len(rotated))
		}
		return ""
	})
	n.eventually("running", a.is("writes", v1.PodRunning))
	if s := a.pods()["writes"].Status.ContainerStatuses[0]; s.RestartCount != 0 {
		t.Errorf("%v", s)
	}
}
