package nodeagent

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	released "github.com/kubepleg/pleg/internal/e2e/kubelet"
	"github.com/kubepleg/pleg/internal/e2e/testnode"
)

// By default, the test is short and runs only the node agent. docs/KUBELET.md reports results with
// 20 jobs and with kubelets.
var (
	endsCount    = flag.Int("ends.count", 3, "how many jobs of each policy TestJobsThatEndWhileTheRuntimeIsAway runs")
	endsKubelets = flag.String("ends.kubelets", "", "the folder of the kubelets that it runs too, kubelet and stock")
)

// Jobs end with exit code 0 while the runtime is down. The node agent must report all of them as
// succeeded, and must run none of them again. A kubelet that uses the library must do the same. For
// the released kubelet, the test only logs the result.
func TestJobsThatEndWhileTheRuntimeIsAway(t *testing.T) {
	for _, name := range []string{"nodeagent", "kubelet", "stock"} {
		t.Run(name, func(t *testing.T) {
			if name != "nodeagent" && *endsKubelets == "" {
				t.Skip("-ends.kubelets names no folder")
			}
			n := newNode(t)
			var r runner
			if name == "nodeagent" {
				r = n.startAgent()
			} else {
				r = &kubelet{released.Run(t, released.Options{
					Program: filepath.Join(*endsKubelets, name), Daemon: n.daemon, Client: n.client, Manifests: n.manifests,
					Dir: n.dir, NodeName: "live", Changes: map[string]any{"maxPods": 500, "fileCheckFrequency": "1s"},
				})}
			}
			for _, fault := range []struct {
				name string
				do   func(*testnode.Daemon) error
			}{{"sigkill", (*testnode.Daemon).Kill}, {"sigterm", (*testnode.Daemon).Terminate}} {
				n.endJobs(r, fault.name, fault.do, name != "stock")
			}
		})
	}
}

// endJobs runs jobs that end during one outage of the runtime.
func (n *node) endJobs(r runner, outage string, begin func(*testnode.Daemon) error, required bool) {
	n.t.Helper()
	out := filepath.Join(n.dir, "out-"+outage)
	n.must(os.Mkdir(out, 0o755))
	policies := []string{"OnFailure", "Never"}
	var names []string
	for _, policy := range policies {
		for i := range *endsCount {
			name := fmt.Sprintf("%s-%s-%02d", strings.ToLower(policy), outage, i)
			names = append(names, name)
			script := "echo start >> /out/" + name + "; until test -e /out/go; do sleep 0.05; done; echo end >> /out/" + name
			n.write(name, manifest(name, "  restartPolicy: "+policy+"\n  terminationGracePeriodSeconds: 1\n"+
				"  volumes: [{name: out, hostPath: {path: "+out+"}}]\n"+
				shell(script, "    volumeMounts: [{name: out, mountPath: /out}]\n")))
		}
	}
	said := func(name, word string) int {
		text, _ := os.ReadFile(filepath.Join(out, name)) // a job without a file has not started
		return strings.Count(string(text), word)
	}
	all := func(what string, missing func(name string, pod *v1.Pod) bool) {
		n.t.Helper()
		n.eventually(what, func() string {
			pods := r.pods()
			for _, name := range names {
				if pods[name] == nil || missing(name, pods[name]) {
					return name
				}
			}
			return ""
		})
	}
	all("the starts", func(name string, pod *v1.Pod) bool {
		return said(name, "start") == 0 || pod.Status.Phase != v1.PodRunning
	})
	time.Sleep(time.Second)
	n.must(begin(n.daemon))
	back := time.Now().Add(2500 * time.Millisecond)
	n.must(os.WriteFile(filepath.Join(out, "go"), nil, 0o600))
	n.eventually("the ends", func() string {
		for _, name := range names {
			if said(name, "end") == 0 {
				return name
			}
		}
		return ""
	})
	time.Sleep(time.Until(back))
	n.must(n.daemon.Restart(n.t.Context()))
	all("the phases", func(_ string, pod *v1.Pod) bool {
		return pod.Status.Phase != v1.PodSucceeded && pod.Status.Phase != v1.PodFailed
	})
	time.Sleep(5 * time.Second) // in this time, no job may run again
	pods := r.pods()
	for i, policy := range policies {
		once, succeeded := 0, 0
		for _, name := range names[i**endsCount : (i+1)**endsCount] {
			if said(name, "start") == 1 {
				once++
			}
			if pod := pods[name]; pod != nil && pod.Status.Phase == v1.PodSucceeded {
				succeeded++
			}
		}
		if required && min(once, succeeded) < *endsCount {
			n.t.Errorf("%s, %s: of %d, %d ran once, and %d have succeeded", outage, policy, *endsCount, once, succeeded)
		}
		n.t.Logf("%s, %s: of %d, %d ran once, and %d have succeeded", outage, policy, *endsCount, once, succeeded)
	}
	for _, name := range names {
		n.remove(name)
	}
}
