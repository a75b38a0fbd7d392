package plegz

import (
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg"
)

// report is the answer of Healthz: the health in words, and the health report. Its calls and pods
// have the names that find them on the node.
type report struct {
	Condition
	pleg.HealthReport
	CallsInFlight []call       `json:"callsInFlight,omitempty"`
	FailingPods   []failingPod `json:"failingPods,omitempty"`
	StuckRelist   *stuckRelist `json:"stuckRelist,omitempty"`
}

type call struct {
	pleg.RuntimeCall
	Namespace string `json:"namespace,omitempty"` // of the pod, like Name
	Name      string `json:"name,omitempty"`
	whereabouts
}

type failingPod struct {
	pleg.FailingPod
	whereabouts
}

type stuckRelist struct {
	pleg.StuckRelist
	Suspects []failingPod `json:"suspects,omitempty"`
}

// whereabouts are the names by which crictl knows an object. The command line of its shim has one
// of the IDs.
type whereabouts struct {
	Container   string `json:"container,omitempty"`
	ContainerID string `json:"containerID,omitempty"`
	SandboxID   string `json:"sandboxID,omitempty"`
}

// newReport returns the clipped report, and adds what pods know of its calls and failing pods.
func newReport(c *condition, pods []*pleg.Pod) *report {
	r := &report{Condition: c.Condition, HealthReport: clipLists(c.report)}
	byUID := make(map[types.UID]*pleg.Pod, len(pods))
	for _, p := range pods {
		byUID[types.UID(clip(string(p.ID)))] = p
	}
	// waitsFor has each pod's oldest call that names a container, else another call of the pod.
	waitsFor := make(map[types.UID]whereabouts, len(r.HealthReport.CallsInFlight))
	for _, open := range r.HealthReport.CallsInFlight {
		v := call{RuntimeCall: open}
		if pod := byUID[open.PodUID]; pod != nil {
			v.Namespace, v.Name, v.whereabouts = clip(pod.Namespace), clip(pod.Name), find(pod, open.ObjectID)
			if w, known := waitsFor[open.PodUID]; !known || w.ContainerID == "" { // a list names no container
				waitsFor[open.PodUID] = v.whereabouts
			}
		}
		r.CallsInFlight = append(r.CallsInFlight, v)
	}
	view := func(failing []pleg.FailingPod) (all []failingPod) {
		for _, f := range failing {
			at, known := waitsFor[f.PodUID]
			if pod := byUID[f.PodUID]; pod != nil && !known {
				at = find(pod, "")
			}
			all = append(all, failingPod{f, at})
		}
		return all
	}
	r.FailingPods = view(r.HealthReport.FailingPods)
	if h := r.HealthReport.StuckRelist; h != nil {
		r.StuckRelist = &stuckRelist{StuckRelist: *h, Suspects: view(h.Suspects)}
	}
	return r
}

// find looks up a container or sandbox of a pod by ID. SandboxID is the pod's newest sandbox,
// unless id is another.
func find(pod *pleg.Pod, id string) (at whereabouts) {
	if len(pod.Sandboxes) > 0 {
		at.SandboxID = clip(pod.Sandboxes[0].ID.ID)
	}
	is := func(c *pleg.Container) bool { return c.ID.ID == id }
	if i := slices.IndexFunc(pod.Containers, is); i >= 0 {
		at.Container, at.ContainerID = clip(pod.Containers[i].Name), clip(id)
	} else if slices.ContainsFunc(pod.Sandboxes, is) {
		at.SandboxID = clip(id)
	}
	return at
}
