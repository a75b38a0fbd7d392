package agent

import (
	"slices"
	"testing"
	"time"
)

// A container that the manifest no longer has is ended, a sidecar too; the others run on.
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

// An init container that hangs is replaced when its specification changes.
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

// A volume that changes replaces the containers that mount it, and no others.
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

// A pod with the UID of another replaces it, like any pod that is another.
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
