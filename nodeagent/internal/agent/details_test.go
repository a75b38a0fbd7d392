package agent

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// A sidecar may be in back-off when the other containers of its pod have ended. The pod's status
// then shows the sidecar as ended.
func TestSidecarOfEndedPod(t *testing.T) {
	for code, want := range map[string]string{
		"0": "Succeeded; side 1 Error(1); job 0 Completed(0)",
		"3": "Failed; side 1 Error(1); job 0 Error(3)",
	} {
		inBubble(t, func(_ *testing.T, n *node) {
			n.run(time.Minute, n.pod("a", `  restartPolicy: Never
  initContainers: [{name: side, image: exit, imagePullPolicy: Never, restartPolicy: Always, args: ['1', '2s']}]
  containers: [{name: job, image: exit, imagePullPolicy: Never, args: ['`+code+`', '6s']}]
`))
			n.want("a", want)
		})
	}
}

// The agent does not ask the runtime for an invalid image name.
func TestInvalidImageName(t *testing.T) {
	inBubble(t, func(t *testing.T, n *node) {
		n.run(5*time.Second, n.pod("a", "  containers: [{name: c, image: 'UPPER:a:b'}]\n"))
		n.want("a", "Pending; c 0 InvalidImageName")
		if n.server.Calls("ImageStatus")+n.server.Calls("PullImage") > 0 {
			t.Error("the runtime was asked for it")
		}
	})
}

// A healthy start logs no error.
func TestHealthyStart(t *testing.T) {
	inBubble(t, func(t *testing.T, n *node) {
		n.run(time.Minute, n.pod("a", always))
		for _, line := range n.lines() {
			if strings.Contains(line, `"error"=`) {
				t.Error(line)
			}
		}
	})
}

// If a hostPath is missing or of the wrong type, the pod waits for the path without a sandbox, as
// in the kubelet.
func TestHostPathThatIsMissing(t *testing.T) {
	inBubble(t, func(t *testing.T, n *node) {
		path := filepath.Join(n.dir, "host")
		spec := "  volumes: [{name: v, hostPath: {path: " + path + ", type: Directory}}]\n" +
			"  containers: [{name: web, image: sleep, imagePullPolicy: Never, volumeMounts: [{name: v, mountPath: /v}]}]\n"
		init := "  initContainers: [{name: init, image: sleep, imagePullPolicy: Never}]\n"
		n.run(5*time.Second, n.pod("a", spec), n.pod("b", init+spec))
		n.want("a", "Pending; web 0 ContainerCreating")
		n.want("b", "Pending NotInitialized; init 0 PodInitializing; web 0 PodInitializing")
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		n.wait(30 * time.Second)
		n.want("a", "Pending; web 0 ContainerCreating")
		if calls := n.server.Calls("RunPodSandbox"); calls != 0 {
			t.Errorf("%d sandboxes", calls)
		}
		if !slices.ContainsFunc(n.lines(), func(line string) bool {
			return strings.Contains(line, "A pod could not be synced") && strings.Contains(line, path+" is no Directory")
		}) {
			t.Error("the log does not say why")
		}
		if err := errors.Join(os.Remove(path), os.Mkdir(path, 0o700)); err != nil {
			t.Fatal(err)
		}
		n.wait(11 * time.Second)
		n.want("a", "Running Ready; web 0 running")
	})
}
