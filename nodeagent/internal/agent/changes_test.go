package agent

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// If a container or sidecar is removed from a manifest, the agent ends it. The pod's other
// containers run on.
func TestContainerLeavesManifest(t *testing.T) {
	inBubble(t, func(t *testing.T, n *node) {
		const side = "  initContainers: [{name: side, image: sleep, imagePullPolicy: Never, restartPolicy: Always}]\n"
		const two = "  containers: [{name: web, image: sleep, imagePullPolicy: Never}, " +
			"{name: more, image: sleep, imagePullPolicy: Never}]\n"
		n.run(2*time.Second, n.pod("a", side+two))
		n.want("a", "Running Ready; side 0 running; web 0 running; more 0 running")
		n.run(2*time.Second, n.pod("a", always))
		n.want("a", "Running Ready; web 0 running")
		notes := n.notes()[3:]
		slices.Sort(notes)
		if want := []string{"more exits 0", "side exits 0"}; !slices.Equal(notes, want) {
			t.Errorf("%q, want %q", notes, want)
		}
	})
}

// If the specification of a running init container changes, the agent replaces the init container.
func TestChangedInitContainer(t *testing.T) {
	inBubble(t, func(_ *testing.T, n *node) {
		spec := func(image string) string {
			return "  initContainers: [{name: init, image: " + image + ", imagePullPolicy: Never, args: ['0']}]\n" + always
		}
		n.run(2*time.Second, n.pod("a", spec("sleep")))
		n.want("a", "Pending NotInitialized; init 0 running; web 0 PodInitializing")
		n.run(2*time.Second, n.pod("a", spec("exit")))
		n.want("a", "Running Ready; init 1 Completed(0) after Completed(0); web 0 running")
	})
}

// If a volume changes, the agent replaces the containers that mount the volume. It replaces no
// other container.
func TestChangedVolume(t *testing.T) {
	inBubble(t, func(_ *testing.T, n *node) {
		spec := func(path string) string {
			return "  volumes: [{name: v, hostPath: {path: " + path + "}}]\n" +
				"  containers: [{name: a, image: sleep, imagePullPolicy: Never, volumeMounts: [{name: v, mountPath: /v}]}, " +
				"{name: b, image: sleep, imagePullPolicy: Never}]\n"
		}
		n.run(2*time.Second, n.pod("a", spec("/one")))
		n.run(2*time.Second, n.pod("a", spec("/two")))
		n.want("a", "Running Ready; a 1 running after Completed(0); b 0 running")
	})
}

// If a pod's name changes but its UID does not, the new pod replaces the earlier pod.
func TestUIDOfAnother(t *testing.T) {
	inBubble(t, func(t *testing.T, n *node) {
		first, second := n.pod("a", always), n.pod("b", always)
		second.UID = first.UID
		n.run(2*time.Second, first)
		n.run(15*time.Second, second)
		n.want("a", "")
		n.want("b", "Running Ready; web 0 running")
		if len(n.sink.pods) != 1 || n.sink.pods["b"] == nil {
			t.Errorf("written: %v", n.sink.pods)
		}
	})
}

// If a container's image changes to a missing image, the status reports ErrImageNeverPull, with
// every restart policy. When the manifest is corrected, the container runs without a back-off.
func TestMissingImageAndBack(t *testing.T) {
	for _, policy := range []string{"Always", "OnFailure", "Never"} {
		t.Run(policy, func(t *testing.T) {
			inBubble(t, func(_ *testing.T, n *node) {
				spec := func(image string) string {
					return "  restartPolicy: " + policy + "\n  containers: [{name: web, image: " + image +
						", imagePullPolicy: Never}]\n"
				}
				for i := range 4 {
					n.run(2*time.Second, n.pod("a", spec([]string{"sleep", "sleep2"}[i%2])))
					brief := fmt.Sprintf("Running Ready; web %d running", i)
					if i > 0 {
						brief += " after Completed(0)"
					}
					n.want("a", brief)
					n.run(15*time.Second, n.pod("a", spec("missing")))
					n.want("a", fmt.Sprintf("Running; web %d ErrImageNeverPull after Completed(0)", i))
				}
			})
		})
	}
}

// If an init container is added or changed in a running pod, the pod starts again and runs the init
// container.
func TestInitContainerComes(t *testing.T) {
	inBubble(t, func(t *testing.T, n *node) {
		spec := func(code string) string {
			return "  initContainers: [{name: init, image: exit, imagePullPolicy: Never, args: ['" + code + "', '1s']}]\n" +
				always
		}
		n.run(2*time.Second, n.pod("a", always))
		n.run(500*time.Millisecond, n.pod("a", spec("0")))
		n.want("a", "Pending; init 0 running; web 0 Completed(0)")
		n.run(2*time.Second, n.pod("a", spec("0")))
		n.want("a", "Running Ready; init 0 Completed(0); web 1 running after Completed(0)")
		n.run(5*time.Second, n.pod("a", spec("1")))
		n.want("a", "Pending; init 2 CrashLoopBackOff after Error(1); web 1 Completed(0) after Completed(0)")
		if want := "web started, web exits 0, init started, init exits 0, web started, web exits 0, init started, " +
			"init exits 1, init started, init exits 1"; strings.Join(n.notes(), ", ") != want {
			t.Errorf("%q", n.notes())
		}
	})
}
