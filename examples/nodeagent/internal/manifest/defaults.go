package manifest

import (
	"cmp"
	"maps"
	"strings"

	"github.com/google/uuid"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/kubepleg/pleg/examples/nodeagent/internal/plan"
)

// setDefaults sets what Kubernetes' API server sets in a new pod, of the fields that the agent uses.
func setDefaults(pod *v1.Pod, nodeName string) {
	pod.Namespace = cmp.Or(pod.Namespace, v1.NamespaceDefault)
	if pod.UID == "" {
		// It depends on the node and the pod's name only, so that a changed manifest changes the pod instead of replacing
		// it, and so that an agent that starts again knows its pods.
		pod.UID = types.UID(uuid.NewSHA1(uuid.Nil, []byte(nodeName+"/"+pod.Namespace+"/"+pod.Name)).String())
	}
	spec := &pod.Spec
	spec.NodeName = nodeName
	spec.RestartPolicy = cmp.Or(spec.RestartPolicy, v1.RestartPolicyAlways)
	spec.TerminationGracePeriodSeconds = cmp.Or(spec.TerminationGracePeriodSeconds,
		ptr.To[int64](v1.DefaultTerminationGracePeriodSeconds))
	spec.SecurityContext = cmp.Or(spec.SecurityContext, &v1.PodSecurityContext{})
	for _, c := range plan.Containers(pod) {
		setContainerDefaults(c)
	}
}

func setContainerDefaults(c *v1.Container) {
	if c.ImagePullPolicy == "" {
		c.ImagePullPolicy = v1.PullIfNotPresent
		name := c.Image[strings.LastIndex(c.Image, "/")+1:]
		if _, tag, tagged := strings.Cut(name, ":"); (!tagged || tag == "latest") && !strings.Contains(name, "@") {
			c.ImagePullPolicy = v1.PullAlways
		}
	}
	requests := v1.ResourceList{}
	maps.Copy(requests, c.Resources.Limits)
	maps.Copy(requests, c.Resources.Requests)
	c.Resources.Requests = requests
	for _, kind := range plan.ProbeKinds {
		if p := plan.Probe(c, kind); p != nil {
			p.TimeoutSeconds = cmp.Or(p.TimeoutSeconds, 1)
			p.PeriodSeconds = cmp.Or(p.PeriodSeconds, 10)
			p.SuccessThreshold = cmp.Or(p.SuccessThreshold, 1)
			p.FailureThreshold = cmp.Or(p.FailureThreshold, 3)
		}
	}
	for _, h := range handlers(c) {
		if h.HTTPGet != nil {
			h.HTTPGet.Path = cmp.Or(h.HTTPGet.Path, "/")
			h.HTTPGet.Scheme = cmp.Or(h.HTTPGet.Scheme, v1.URISchemeHTTP)
		}
	}
}
