package manifest

import (
	"cmp"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/kubepleg/pleg/examples/nodeagent/internal/plan"
)

// setDefaults sets what Kubernetes' API server sets in a new pod, of the fields that the agent supports.
func setDefaults(pod *v1.Pod, nodeName string) {
	pod.Namespace = cmp.Or(pod.Namespace, v1.NamespaceDefault)
	if pod.UID == "" {
		pod.UID = uidOf(nodeName, pod.Namespace, pod.Name)
	}
	spec := &pod.Spec
	spec.NodeName = nodeName
	spec.RestartPolicy = cmp.Or(spec.RestartPolicy, v1.RestartPolicyAlways)
	spec.DNSPolicy = cmp.Or(spec.DNSPolicy, v1.DNSDefault)
	spec.TerminationGracePeriodSeconds = cmp.Or(spec.TerminationGracePeriodSeconds,
		ptr.To[int64](v1.DefaultTerminationGracePeriodSeconds))
	spec.SecurityContext = cmp.Or(spec.SecurityContext, &v1.PodSecurityContext{})
	for _, c := range plan.Containers(pod) {
		setContainerDefaults(c, spec.HostNetwork)
	}
}

func setContainerDefaults(c *v1.Container, hostNetwork bool) {
	if c.ImagePullPolicy == "" {
		c.ImagePullPolicy = v1.PullIfNotPresent
		name := c.Image[strings.LastIndex(c.Image, "/")+1:]
		if _, tag, tagged := strings.Cut(name, ":"); (!tagged || tag == "latest") && !strings.Contains(name, "@") {
			c.ImagePullPolicy = v1.PullAlways
		}
	}
	for name, limit := range c.Resources.Limits {
		if _, set := c.Resources.Requests[name]; !set {
			if c.Resources.Requests == nil {
				c.Resources.Requests = v1.ResourceList{}
			}
			c.Resources.Requests[name] = limit
		}
	}
	for i := range c.Ports {
		p := &c.Ports[i]
		p.Protocol = cmp.Or(p.Protocol, v1.ProtocolTCP)
		if hostNetwork && p.HostPort == 0 {
			p.HostPort = p.ContainerPort
		}
	}
	for _, kind := range plan.ProbeKinds {
		if p := plan.Probe(c, kind); p != nil {
			p.TimeoutSeconds = cmp.Or(p.TimeoutSeconds, 1)
			p.PeriodSeconds = cmp.Or(p.PeriodSeconds, 10)
			p.SuccessThreshold = cmp.Or(p.SuccessThreshold, 1)
			p.FailureThreshold = cmp.Or(p.FailureThreshold, 3)
			setHTTPDefaults(p.HTTPGet)
		}
	}
	if c.Lifecycle != nil {
		for _, h := range []*v1.LifecycleHandler{c.Lifecycle.PostStart, c.Lifecycle.PreStop} {
			if h != nil {
				setHTTPDefaults(h.HTTPGet)
			}
		}
	}
}

func setHTTPDefaults(get *v1.HTTPGetAction) {
	if get != nil {
		get.Path = cmp.Or(get.Path, "/")
		get.Scheme = cmp.Or(get.Scheme, v1.URISchemeHTTP)
	}
}
