package agent

import (
	"testing"
	"time"
)

// If runAsNonRoot is set and a container would run as root, the agent does not create the
// container, and its status gives the reason. When the manifest names another user, the container
// starts.
func TestNotRoot(t *testing.T) {
	inBubble(t, func(t *testing.T, n *node) {
		const restricted = "  securityContext: {runAsNonRoot: true, seccompProfile: {type: RuntimeDefault}}\n" + always
		n.run(5*time.Second, n.pod("a", restricted))
		n.want("a", "Pending; web 0 CreateContainerConfigError")
		if n.server.Calls("CreateContainer") != 0 {
			t.Error("a container was created")
		}
		n.run(30*time.Second, n.pod("a", "  securityContext: {runAsNonRoot: true, runAsUser: 7}\n"+always))
		n.want("a", "Running Ready; web 0 running")
	})
}
