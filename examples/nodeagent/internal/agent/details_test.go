package agent

import (
	"strings"
	"testing"
	"time"
)

// A sidecar that waits for its back-off when the pod's work is done is not shown to wait for ever.
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

// What is no name of an image is not asked for.
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
