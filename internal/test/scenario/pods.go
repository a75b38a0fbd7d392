package scenario

import (
	"strings"

	"github.com/cockroachdb/datadriven"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// setPod sets a pod: "pod web:name app=running sandbox:box=exited". The name, the containers and
// the sandboxes are optional.
func setPod(s *scenario, c command) string {
	uid, name, named := strings.Cut(c.first(), ":")
	pod := &pleg.Pod{ID: types.UID(uid), Name: uid, Namespace: "default"}
	if named {
		pod.Name = name
	}
	addContainers(c, pod, c.args[1:])
	s.runtime.SetPod(pod)
	return ""
}

// addContainers adds the containers and sandboxes in the arguments, in order. "nil" is a nil
// container; the ID "" is an empty ID.
func addContainers(c command, pod *pleg.Pod, args []datadriven.CmdArg) {
	for _, a := range args {
		id, sandbox := strings.CutPrefix(a.Key, "sandbox:")
		var container *pleg.Container
		switch {
		case a.Key == "nil":
		case len(a.Vals) != 1:
			c.fatalf("%s needs one state", id)
		case sandbox:
			container = plegtest.NewSandbox(id, pleg.State(a.Vals[0]))
		default:
			container = plegtest.NewContainer(strings.Trim(id, `"`), pleg.State(a.Vals[0]))
		}
		if sandbox {
			pod.Sandboxes = append(pod.Sandboxes, container)
		} else {
			pod.Containers = append(pod.Containers, container)
		}
	}
	for _, container := range pod.Containers {
		if container != nil && len(pod.Sandboxes) > 0 {
			container.PodSandboxID = pod.Sandboxes[0].ID.ID
		}
	}
}

// setContainers sets the states of containers of a pod: "set pod=web app=exited".
func setContainers(s *scenario, c command) string {
	for _, a := range c.args {
		if a.Key != "pod" {
			s.runtime.SetContainer(c.uid(), a.Key, pleg.State(a.Vals[0]))
		}
	}
	return ""
}

// setSandboxes sets the states of sandboxes of a pod. A new sandbox becomes the newest.
func setSandboxes(s *scenario, c command) string {
	for _, a := range c.args {
		if a.Key != "pod" {
			s.runtime.SetSandbox(c.uid(), a.Key, pleg.State(a.Vals[0]))
		}
	}
	return ""
}

func exitContainer(s *scenario, c command) string {
	s.runtime.ExitContainer(c.uid(), c.str("id"), c.number("code", 0), c.str("reason"))
	return ""
}

// remove removes a pod, or one container or sandbox of a pod.
func remove(s *scenario, c command) string {
	switch {
	case c.has("id"):
		s.runtime.RemoveContainer(c.uid(), c.str("id"))
	case c.has("sandbox"):
		s.runtime.RemoveSandbox(c.uid(), c.str("sandbox"))
	default:
		s.runtime.RemovePod(c.uid())
	}
	return ""
}

// setIPs sets the addresses of the newest sandbox.
func setIPs(s *scenario, c command) string {
	var ips []string
	for _, a := range c.args {
		if a.Key != "pod" {
			ips = append(ips, a.Key)
		}
	}
	s.runtime.SetIPs(c.uid(), ips...)
	return ""
}
