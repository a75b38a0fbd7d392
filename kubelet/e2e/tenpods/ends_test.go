package tenpods

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"testing"
	"time"

	"github.com/kubepleg/pleg/internal/e2e/testnode"
)

var ends = flag.Int("ends", 12, "how many containers TestEndsReadOnce has end, under each kubelet")

// endings are ways in which containers end, each with the status that the kubelet must show.
var endings = []struct {
	name, policy, script string
	code                 int
	reason, message      string // the message is followed by the pod's name
}{
	{"job", "Never", "echo -n result of $0 > /dev/termination-log; exit 3", 3, "Error", "result of "},
	{"done", "OnFailure", "echo -n result of $0 > /dev/termination-log", 0, "Completed", "result of "},
	{"crash", "Always", "echo -n result of $0 > /dev/termination-log; exit 3", 3, "Error", "result of "},
	{"oom", "Never", "x=aaaaaaaaaaaaaaaa; while :; do x=$x$x; done", 137, "OOMKilled", ""},
}

// once begins every script. The first instance of the container creates a file. A restarted
// container finds this file and only sleeps.
const once = "test -e /once/begun && sleep 1000000; > /once/begun; sleep 1; "

// terminated is the end of a container in the kubelet's status.
type terminated struct {
	ExitCode                     int
	Reason, Message, ContainerID string
}

// TestEndsReadOnce reads the end of a container from the first status that shows the end. Programs
// that wait for a result do this. The status must contain the exit code, reason and termination
// message, as with the released kubelet.
func TestEndsReadOnce(t *testing.T) {
	for _, program := range []string{"kubelet", "stock"} {
		t.Run(program, func(t *testing.T) { endsReadOnce(t, program) })
	}
}

func endsReadOnce(t *testing.T, program string) {
	n := newEmptyNode(t)
	n.options.Changes["maxPods"] = 2 * *ends
	n.run(program)
	want := make(map[string]terminated)
	for i := range *ends {
		e := endings[i%len(endings)]
		name := fmt.Sprintf("%s%03d", e.name, i)
		if e.message != "" {
			e.message += name
		}
		want[name+"-"+nodeName] = terminated{ExitCode: e.code, Reason: e.reason, Message: e.message}
		pod := testnode.StaticPod(name, map[string]any{
			"command":      []string{"sh", "-c", once + e.script, name},
			"resources":    map[string]any{"limits": map[string]string{"memory": "32Mi"}},
			"volumeMounts": []any{map[string]any{"name": "once", "mountPath": "/once"}},
		})
		spec := pod["spec"].(map[string]any)
		spec["restartPolicy"], spec["volumes"] = e.policy, []any{map[string]any{"name": "once", "emptyDir": map[string]any{}}}
		n.must(n.options.WriteManifest(name, pod))
	}

	ctx, cancel := context.WithTimeout(t.Context(), 2*patience+time.Duration(*ends)*time.Second)
	defer cancel()
	read, wrong := make(map[string]bool), 0
	for len(read) < len(want) {
		var list struct {
			Items []struct {
				Metadata struct{ Name string }
				Status   struct {
					ContainerStatuses []struct {
						State, LastState struct{ Terminated *terminated }
					}
				}
			}
		}
		answer, err := n.kubelet.Get(ctx, "/pods")
		if ctx.Err() != nil {
			t.Fatalf("%d of %d ends were read", len(read), len(want))
		}
		if err != nil || json.Unmarshal(answer, &list) != nil {
			continue // the kubelet has just started
		}
		for _, p := range list.Items {
			for _, s := range p.Status.ContainerStatuses {
				got := s.State.Terminated
				if got == nil {
					got = s.LastState.Terminated
				}
				if got == nil || read[p.Metadata.Name] {
					continue
				}
				read[p.Metadata.Name] = true
				got.ContainerID = ""
				if *got != want[p.Metadata.Name] {
					wrong++
					t.Logf("the end of %s was read as %+v", p.Metadata.Name, *got)
				}
			}
		}
	}
	t.Logf("%d of %d ends were read once and right", len(want)-wrong, len(want))
	if wrong > 0 && program == "kubelet" {
		t.Errorf("%d were not", wrong)
	}
}
