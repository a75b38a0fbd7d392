package plegz

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/internal/healthreport"
)

// report is the answer of Healthz: the Condition and the health.
type report struct {
	Condition
	health
}

// health is the health report, also in the page's JSON. The calls and the failing pods also contain
// the names and IDs with which a user can find them on the node.
type health struct {
	pleg.HealthReport
	CallsInFlight []call       `json:"callsInFlight,omitempty"`
	FailingPods   []failingPod `json:"failingPods,omitempty"`
	StuckRelist   *stuckRelist `json:"stuckRelist,omitempty"`
}

type call struct {
	pleg.RuntimeCall
	Namespace string `json:"namespace,omitempty"` // the pod's namespace
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

// whereabouts contains the name and IDs by which crictl finds an object. The command line of the
// object's shim contains one of the IDs.
type whereabouts struct {
	Container   string `json:"container,omitempty"`
	ContainerID string `json:"containerID,omitempty"`
	SandboxID   string `json:"sandboxID,omitempty"`
}

// newHealth cuts the lists of a clipped report. It adds names and IDs from the listed pods to the
// report's calls and failing pods.
func newHealth(whole *pleg.HealthReport, pods []*pleg.Pod) health {
	r := health{HealthReport: clipLists(*whole)}
	byUID := make(map[types.UID]*pleg.Pod, len(pods))
	for _, p := range pods {
		byUID[types.UID(clip(string(p.ID)))] = p
	}
	for _, open := range r.HealthReport.CallsInFlight {
		v := call{RuntimeCall: open}
		if pod := byUID[open.PodUID]; pod != nil {
			v.Namespace, v.Name, v.whereabouts = clip(pod.Namespace), clip(pod.Name), find(pod, open.ObjectID)
		} else if strings.HasPrefix(open.Object, "container ") { // no list has shown its pod
			v.ContainerID = open.ObjectID
			v.Namespace, v.Name, v.Container, _ = healthreport.Unlisted(open.Object)
		}
		r.CallsInFlight = append(r.CallsInFlight, v)
	}
	view := func(failing []pleg.FailingPod) (all []failingPod) {
		for _, f := range failing {
			v := failingPod{FailingPod: f}
			if pod := byUID[f.PodUID]; pod != nil {
				v.whereabouts = find(pod, callOf(whole, f).ObjectID)
			}
			all = append(all, v)
		}
		return all
	}
	r.FailingPods = view(r.HealthReport.FailingPods)
	if h := r.HealthReport.StuckRelist; h != nil {
		r.StuckRelist = &stuckRelist{StuckRelist: *h, Suspects: view(h.Suspects)}
	}
	return r
}

// find looks up a container or sandbox of a pod by its ID. If the ID is not that of a sandbox, the
// field SandboxID is the ID of the pod's newest sandbox.
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
