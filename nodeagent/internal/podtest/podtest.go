// Package podtest creates pods and statuses for tests from short texts.
package podtest

import (
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/kubepleg/pleg"
)

// Pod returns a pod with the named containers. "name" is a regular container, "init:name" an init
// container, and "side:name" a sidecar.
func Pod(policy v1.RestartPolicy, names ...string) *v1.Pod {
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "n", UID: "u"},
		Spec:       v1.PodSpec{RestartPolicy: policy, SecurityContext: &v1.PodSecurityContext{}},
	}
	for _, name := range names {
		kind, base, found := strings.Cut(name, ":")
		switch {
		case !found:
			p.Spec.Containers = append(p.Spec.Containers, v1.Container{Name: name})
		case kind == "side":
			p.Spec.InitContainers = append(p.Spec.InitContainers,
				v1.Container{Name: base, RestartPolicy: ptr.To(v1.ContainerRestartPolicyAlways)})
		default:
			p.Spec.InitContainers = append(p.Spec.InitContainers, v1.Container{Name: base})
		}
	}
	return p
}

// Status returns the status of a container from a text, such as "name running", "name created", or
// "name 3" for exit code 3. The container's ID is its name.
func Status(text string) *pleg.Status {
	name, state, _ := strings.Cut(text, " ")
	s := &pleg.Status{Name: name, ID: pleg.ContainerID{Type: "t", ID: name}, State: pleg.State(state)}
	if _, err := fmt.Sscan(state, &s.ExitCode); err == nil {
		s.State = pleg.ContainerStateExited
	}
	return s
}
