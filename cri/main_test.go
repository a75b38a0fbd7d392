package cri_test

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg/internal/serverconfig"
	"github.com/kubepleg/pleg/plegtest/criserver"
)

// envServer makes this test binary run a CRI server instead of tests, so that benchmarks do not
// measure the server's CPU time. Its value is the number of containers and the number of labels:
// see fill.
const envServer = "PLEG_CRI_TEST_SERVER"

func TestMain(m *testing.M) {
	if node := os.Getenv(envServer); node != "" {
		serve(node)
		return
	}
	goleak.VerifyTestMain(m)
}

// serve runs a CRI server with Config.EncodedLists until stdin ends.
func serve(node string) {
	var containers, labels int
	_, err := fmt.Sscan(node, &containers, &labels)
	check(err)
	s, err := criserver.Start(serverconfig.With[criserver.Option](serverconfig.Config{EncodedLists: true}))
	check(err)
	defer s.Stop()
	fill(s, containers, labels)
	fmt.Println(s.Endpoint())
	_, _ = io.Copy(io.Discard, os.Stdin)
}

const ports = `[{"name":"http","containerPort":8080,"protocol":"TCP"}]`

// fill creates pods of two containers each, with the usual labels and annotations. In addition,
// every sandbox and container gets the given number of labels.
func fill(s *criserver.Server, containers, labels int) {
	for i := range containers / 2 {
		sandbox := s.RunPod(criserver.PodConfig{
			UID:       types.UID(fmt.Sprintf("5d4f0c1e-7b1a-4b53-9c55-%012d", i)),
			Name:      fmt.Sprintf("frontend-6d4cf56db6-%05d", i),
			Namespace: "production",
			Labels:    labelsOfPod(i, labels),
		})
		for _, name := range []string{"server", "sidecar"} {
			_, err := s.RunContainer(sandbox, criserver.ContainerConfig{
				Name:   name,
				Image:  "registry.example.com/team/" + name + ":v1.2.3",
				Labels: labelsOfPod(i, labels),
				Annotations: map[string]string{
					"io.kubernetes.container.terminationMessagePath":   "/dev/termination-log",
					"io.kubernetes.container.terminationMessagePolicy": "File",
					"io.kubernetes.pod.terminationGracePeriod":         "30",
					"io.kubernetes.container.ports":                    ports,
				},
			})
			check(err)
		}
	}
}

// labelsOfPod returns n labels of ordinary length: first the labels that Kubernetes recommends,
// then some that controllers set, then numbered labels.
func labelsOfPod(pod, n int) map[string]string {
	labels := make(map[string]string, n)
	for i := range n {
		switch i {
		case 0:
			labels["app.kubernetes.io/name"] = "frontend"
		case 1:
			labels["app.kubernetes.io/instance"] = "frontend-production"
		case 2:
			labels["app.kubernetes.io/version"] = "v1.2.3"
		case 3:
			labels["app.kubernetes.io/component"] = "webserver"
		case 4:
			labels["app.kubernetes.io/part-of"] = "storefront"
		case 5:
			labels["app.kubernetes.io/managed-by"] = "Helm"
		case 6:
			labels["pod-template-hash"] = "6d4cf56db6"
		case 7:
			labels["topology.kubernetes.io/zone"] = "eu-central-1a"
		case 8:
			labels["apps.kubernetes.io/pod-index"] = strconv.Itoa(pod)
		case 9:
			labels["team.example.com/cost-center"] = "cc-4711-checkout"
		default:
			labels[fmt.Sprintf("example.com/label-%07d", i)] = fmt.Sprintf("value-%d", i)
		}
	}
	return labels
}

// startServerProcess starts a CRI server in another process, creates pods with the given number of
// containers and labels in it, and returns its endpoint.
func startServerProcess(tb testing.TB, containers, labels int) string {
	tb.Helper()
	exe, err := os.Executable()
	if err != nil {
		tb.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d %d", envServer, containers, labels))
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		tb.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		tb.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		_ = stdin.Close()
		_ = cmd.Wait()
	})
	endpoint, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		tb.Fatal(err)
	}
	return strings.TrimSpace(endpoint)
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
