package nodeagent

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// besideAll makes TestBesideKubelet compare all pods, as "make live" does.
var besideAll = flag.Bool("beside.all", false, "TestBesideKubelet compares all pods")

// difference is an intended difference between the agent and the kubelet.
type difference struct {
	why string
	// covers reports whether this difference alone distinguishes the agent's pod from the kubelet's
	// pod.
	covers func(name string, agent, kubelet *v1.Pod) bool
	races  bool // true if some runs do not show the difference
	seen   bool
}

// differences contains the intended differences between the agent and the kubelet. Two more are not
// in it. The kubelet appends the node's name to pod names. If a manifest contains no UID, the
// kubelet gives the pod a new UID at each change.
var differences = []*difference{{
	why: "The kubelet sets a pod's status before it syncs the pod, so that a container which waits for its back-off " +
		"is shown as terminated until the sync after, or with what its last start failed of. The agent sets it after " +
		"the sync as well.",
	covers: func(_ string, agent, kubelet *v1.Pod) bool {
		return compared(ended(agent)) == compared(ended(kubelet))
	},
}, {
	why: "The kubelet gives a sandbox the pod's runAsGroup without a user, which containerd refuses: the pod never " +
		"runs. The agent's sandbox has neither, and its containers have the group.",
	covers: func(name string, agent, kubelet *v1.Pod) bool {
		return strings.HasSuffix(name, "-pod-group") && agent.Status.Phase == v1.PodSucceeded &&
			kubelet.Status.Phase == v1.PodPending
	},
}, {
	why: "A sidecar that waits for its back-off when its pod ends is ContainerStatusUnknown in the kubelet if the " +
		"status from before said that it waits. In the agent it has ended as it has.",
	covers: func(_ string, agent, kubelet *v1.Pod) bool {
		agent, kubelet = agent.DeepCopy(), kubelet.DeepCopy()
		own := agent.Status.InitContainerStatuses
		for i := range kubelet.Status.InitContainerStatuses {
			s := &kubelet.Status.InitContainerStatuses[i]
			if t := s.State.Terminated; i < len(own) && t != nil && t.Reason == "ContainerStatusUnknown" {
				s.State, s.LastTerminationState = s.LastTerminationState, own[i].LastTerminationState
			}
		}
		return compared(agent) == compared(kubelet)
	},
	races: true,
}}

// ended returns a copy of a pod that shows containers in back-off as terminated. If a terminated
// container was restarted, the copy does not contain its earlier termination.
func ended(pod *v1.Pod) *v1.Pod {
	pod = pod.DeepCopy()
	containers(pod, func(s *v1.ContainerStatus) {
		if w := s.State.Waiting; w != nil && (w.Reason == "CrashLoopBackOff" || w.Reason == "RunContainerError") {
			s.State = s.LastTerminationState
		}
		if s.State.Terminated != nil && s.RestartCount > 0 {
			s.LastTerminationState = v1.ContainerState{}
		}
	})
	return pod
}

// containers calls f for the status of every container.
func containers(pod *v1.Pod, f func(*v1.ContainerStatus)) {
	for _, list := range [][]v1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for i := range list {
			f(&list[i])
		}
	}
}

// alike reports whether two pods are equal, or differ only in an intended way. It marks the
// intended difference as seen.
func alike(name string, agent, kubelet *v1.Pod) bool {
	if compared(agent) == compared(kubelet) {
		return true
	}
	for _, d := range differences {
		if agent != nil && kubelet != nil && d.covers(name, agent, kubelet) {
			d.seen = true
			return true
		}
	}
	return false
}

// compared returns the parts of a pod's status that the test compares, as text.
func compared(pod *v1.Pod) string {
	if pod == nil {
		return "gone"
	}
	var text strings.Builder
	fmt.Fprintf(&text, "%s", pod.Status.Phase)
	conditions := map[string]string{}
	for _, c := range pod.Status.Conditions {
		conditions[string(c.Type)] = fmt.Sprintf("%s(%s)", c.Status, c.Reason)
	}
	for _, name := range slices.Sorted(maps.Keys(conditions)) {
		fmt.Fprintf(&text, " %s=%s", name, conditions[name])
	}
	containers(pod, func(c *v1.ContainerStatus) {
		fmt.Fprintf(&text, "\n  %s restarts %d ready %v started %v %s after %s", c.Name, c.RestartCount, c.Ready,
			c.Started != nil && *c.Started, describe(c.State), describe(c.LastTerminationState))
	})
	return text.String()
}

func describe(s v1.ContainerState) string {
	switch {
	case s.Running != nil:
		return "running"
	case s.Terminated != nil:
		return fmt.Sprintf("terminated %d %s", s.Terminated.ExitCode, s.Terminated.Reason)
	case s.Waiting != nil:
		return "waiting " + s.Waiting.Reason
	}
	return "nothing"
}

// A stock kubelet and the agent run the same manifests. Their pods must end with the same statuses,
// and print the same users, groups and rights. With dozens of pods on one machine, races can make a
// pod differ. The test then runs only the differing pods again. They must not differ a second time.
func TestBesideKubelet(t *testing.T) {
	t.Parallel()
	buildKubelet(t)
	pods, shown := 0, 0
	for i, names := range batches(*besideAll) {
		var differ map[string]string
		run := func(name string, names []string) {
			t.Run(name, func(t *testing.T) {
				var n int
				differ, n = compare(t, names)
				pods, shown = pods+len(names), shown+n
			})
		}
		run(fmt.Sprint(i), names)
		for name, how := range differ {
			t.Logf("%s differs among %d pods:\n%s", name, len(names), how)
		}
		if len(differ) > 0 {
			run(fmt.Sprint(i, " again"), slices.Sorted(maps.Keys(differ)))
		}
		for name, how := range differ {
			t.Errorf("%s differs again:\n%s", name, how)
		}
	}
	for _, d := range differences {
		if *besideAll && !d.seen && !d.races {
			t.Errorf("does not differ any more: %s", d.why)
		}
	}
	t.Logf("%d pods compared, %d of them from inside", pods, shown)
}

// edited maps pod names to changes of the pods' manifests. The test makes the changes once these
// pods are ready.
var edited = map[string]func(n *node, name, text string){
	"changed":      func(n *node, name, text string) { n.write(name, strings.ReplaceAll(text, image, otherImage)) },
	"removed":      func(n *node, name, _ string) { n.remove(name) },
	"removed-deaf": func(n *node, name, _ string) { n.remove(name) },
}

// compare runs the named pods with the agent and with a kubelet. It returns the differences by pod
// name. shown is the number of pods compared by the output of their containers.
func compare(t *testing.T, names []string) (differ map[string]string, shown int) {
	ours, theirs := newNode(t), newNode(t)
	texts := map[*node]map[string]string{
		ours: manifests(20000, ours.dir, "127.77.1.1"), theirs: manifests(21000, theirs.dir, "127.77.2.1"),
	}
	for n := range texts {
		n.importImages()
		n.must(os.MkdirAll(filepath.Join(n.dir, "etc", "kubernetes"), 0o755)) // kubeadm creates this directory
		for _, name := range names {
			n.write(name, texts[n][name])
		}
	}
	edits := maps.Clone(edited)
	maps.DeleteFunc(edits, func(name string, _ func(*node, string, string)) bool { return !slices.Contains(names, name) })
	a, k := ours.startAgent(), theirs.startKubelet()
	began := time.Now()
	for n, r := range map[*node]runner{ours: a, theirs: k} {
		n.eventually("the pods", func() string {
			pods := r.pods()
			return strings.Join(slices.DeleteFunc(slices.Clone(names), func(name string) bool { return pods[name] != nil }), " ")
		})
		n.eventually("running", func() string {
			for name := range edits {
				if pod := r.pods()[name]; pod == nil || !ready(pod) {
					return name + " is not ready"
				}
			}
			return ""
		})
		for name, edit := range edits {
			edit(n, name, texts[n][name])
		}
	}

	// Flapping and crashing pods are equal only at some moments. 35 s after the start, crash loops
	// are in their back-off of 40 s.
	time.Sleep(time.Until(began.Add(35 * time.Second)))
	left := slices.Sorted(slices.Values(names))
	var got, want map[string]*v1.Pod
	for deadline := time.Now().Add(patience); len(left) > 0 && time.Now().Before(deadline); {
		time.Sleep(100 * time.Millisecond)
		got, want = a.pods(), k.pods()
		left = slices.DeleteFunc(left, func(name string) bool { return alike(name, got[name], want[name]) })
	}
	differ = map[string]string{}
	for _, name := range left {
		differ[name] = fmt.Sprintf("the agent: %s\nthe kubelet: %s", compared(got[name]), compared(want[name]))
	}
	x, y := ours.insides(), theirs.insides()
	for name := range x {
		if y[name] == "" {
			continue // the kubelet never ran this container, so only the statuses are compared
		}
		shown++
		if x[name] != y[name] {
			differ[name] += fmt.Sprintf("\ninside the agent's is\n%s\ninside the kubelet's\n%s", x[name], y[name])
		}
	}
	return differ, shown
}

// importImages imports the images that the manifests use and the runtime does not contain.
func (n *node) importImages() {
	n.t.Helper()
	for user, name := range users {
		if user != "root" {
			n.must(n.daemon.ImportBusyboxWith(n.t.Context(), name, user, nil))
		}
	}
	for name, text := range kubeadmManifests {
		found := regexp.MustCompile(`image: (\S+)`).FindStringSubmatch(text)
		n.must(n.daemon.ImportBusyboxWith(n.t.Context(), found[1], "", map[string]string{name: filepath.Join(bin, "app")}))
	}
}

// insides returns the users, groups and rights that containers have printed, by pod name.
func (n *node) insides() map[string]string {
	n.t.Helper()
	relevant := regexp.MustCompile(`^((Uid|Gid|Groups|Cap\w+|NoNewPrivs|Seccomp|Seccomp_filters):|oom|work|root|sh:)`)
	texts := map[string]string{}
	_, all, err := n.left()
	n.must(err)
	for _, c := range all {
		name := strings.TrimSuffix(c.Labels[labelPod], "-live")
		if !strings.HasPrefix(name, "as-") {
			continue
		}
		s, err := n.client.ContainerStatus(n.t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: c.Id})
		n.must(err)
		log, err := os.ReadFile(s.Status.LogPath)
		n.must(err)
		for line := range strings.Lines(string(log)) {
			fields := strings.SplitN(line, " ", 4) // time, stream, P (partial) or F (full), text
			if len(fields) == 4 && relevant.MatchString(fields[3]) {
				texts[name] += fields[3]
			}
		}
	}
	return texts
}
