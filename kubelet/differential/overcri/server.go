package overcri

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/kubepleg/pleg/internal/serverconfig"
	"github.com/kubepleg/pleg/plegtest/criserver"
)

// serverEnv is an environment variable with a number of containers. If it is set, a test binary
// runs as the server.
const serverEnv = "PLEG_CRI_SERVER_CONTAINERS"

// ServeIfAsked runs the server and exits if this process was started as the server. Otherwise it
// does nothing. TestMain calls it first.
func ServeIfAsked() {
	asked := os.Getenv(serverEnv)
	if asked == "" {
		return
	}
	if err := serve(asked); err != nil {
		fmt.Fprintln(os.Stderr, "CRI server:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// serve serves until standard input ends. Each pod contains two containers with the labels and
// annotations of the kubelet. So a list contains about a kilobyte for each container.
func serve(asked string) error {
	containers, err := strconv.Atoi(asked)
	if err != nil {
		return err
	}
	s, err := criserver.Start(
		serverconfig.With[criserver.Option](serverconfig.Config{EncodedLists: true, PlainLists: true}),
		criserver.WithModel(criserver.CRIOWithoutEvents))
	if err != nil {
		return err
	}
	defer s.Stop()
	for range containers / 2 {
		sandbox := s.RunPod(criserver.PodConfig{})
		for _, name := range []string{"app", "sidecar"} {
			_, err := s.RunContainer(sandbox, criserver.ContainerConfig{Name: name, Annotations: map[string]string{
				"io.kubernetes.container.hash":                     "5ef0b6d4",
				"io.kubernetes.container.restartCount":             "0",
				"io.kubernetes.container.terminationMessagePath":   "/dev/termination-log",
				"io.kubernetes.container.terminationMessagePolicy": "File",
				"io.kubernetes.pod.terminationGracePeriod":         "30",
				"io.kubernetes.container.ports":                    `[{"name":"http","containerPort":8080,"protocol":"TCP"}]`,
			}})
			if err != nil {
				return err
			}
		}
	}
	fmt.Println(s.Endpoint())
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// StartServer starts the server and returns its endpoint. The server runs in a separate process, so
// that its work is not measured.
func StartServer(tb testing.TB, containers int) string {
	tb.Helper()
	self, err := os.Executable()
	if err != nil {
		tb.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), serverEnv+"="+strconv.Itoa(containers))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		tb.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		tb.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		_ = in.Close()
		if err := cmd.Wait(); err != nil {
			tb.Error(err)
		}
	})
	endpoint, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		tb.Fatalf("the CRI server does not start: %v", err)
	}
	return strings.TrimSpace(endpoint)
}
