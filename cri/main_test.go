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

	"github.com/kubepleg/pleg/plegtest"
)

// envServer makes this test binary run a CRI server with that many containers instead of
// tests, so that benchmarks do not measure the server's CPU time.
const envServer = "PLEG_CRI_TEST_SERVER"

func TestMain(m *testing.M) {
	if n := os.Getenv(envServer); n != "" {
		serve(n)
		return
	}
	goleak.VerifyTestMain(m)
}

// serve runs a CRI server with encoded lists until stdin ends.
func serve(containers string) {
	n, err := strconv.Atoi(containers)
	check(err)
	s, err := plegtest.StartCRIServer(plegtest.WithEncodedLists())
	check(err)
	defer s.Stop()
	fill(s, n)
	fmt.Println(s.Endpoint())
	_, _ = io.Copy(io.Discard, os.Stdin)
}

const ports = `[{"name":"http","containerPort":8080,"protocol":"TCP"}]`

// fill creates pods of two containers each, with the usual labels and annotations.
func fill(s *plegtest.CRIServer, containers int) {
	for i := range containers / 2 {
		sandbox := s.RunPod(plegtest.PodConfig{
			UID:       types.UID(fmt.Sprintf("5d4f0c1e-7b1a-4b53-9c55-%012d", i)),
			Name:      fmt.Sprintf("frontend-6d4cf56db6-%05d", i),
			Namespace: "production",
		})
		for _, name := range []string{"server", "sidecar"} {
			_, err := s.RunContainer(sandbox, plegtest.ContainerConfig{
				Name:  name,
				Image: "registry.example.com/team/" + name + ":v1.2.3",
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

// startServerProcess starts a CRI server with that many containers in another process, and
// returns its endpoint.
func startServerProcess(tb testing.TB, containers int) string {
	tb.Helper()
	exe, err := os.Executable()
	if err != nil {
		tb.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), envServer+"="+strconv.Itoa(containers))
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
