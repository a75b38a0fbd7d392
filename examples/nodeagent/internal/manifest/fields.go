package manifest

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// What the agent does not do is refused, not ignored: a manifest may only have the fields below. A path stands for
// everything under it, and [] for any element of a list.
var (
	podFields = []string{
		"apiVersion", "kind",
		"metadata.name", "metadata.namespace", "metadata.uid", "metadata.labels", "metadata.annotations",
		"spec.hostIPC", "spec.hostNetwork", "spec.hostPID", "spec.hostname",
		"spec.restartPolicy", "spec.terminationGracePeriodSeconds",
		"spec.securityContext.runAsUser", "spec.securityContext.runAsGroup",
		"spec.securityContext.supplementalGroups",
		"spec.volumes[].name", "spec.volumes[].emptyDir.medium",
		"spec.volumes[].hostPath.path", "spec.volumes[].hostPath.type",
	}
	containerFields = []string{
		"name", "image", "imagePullPolicy", "command", "args", "workingDir",
		"env[].name", "env[].value",
		"ports[].name", "ports[].containerPort", "ports[].hostPort", "ports[].protocol",
		"resources.limits.cpu", "resources.limits.memory", "resources.requests.cpu", "resources.requests.memory",
		"securityContext.privileged", "securityContext.runAsUser", "securityContext.runAsGroup",
		"securityContext.readOnlyRootFilesystem", "securityContext.allowPrivilegeEscalation",
		"securityContext.capabilities.add", "securityContext.capabilities.drop",
		"volumeMounts[].name", "volumeMounts[].mountPath", "volumeMounts[].readOnly",
		"lifecycle.postStart.sleep.seconds", "lifecycle.preStop.sleep.seconds",
	}
	probeFields = []string{
		"initialDelaySeconds", "periodSeconds", "timeoutSeconds", "successThreshold", "failureThreshold",
		"terminationGracePeriodSeconds", "tcpSocket.host", "tcpSocket.port", "grpc.port", "grpc.service",
	}
	// handlerFields are those of a probe and of a hook.
	handlerFields = []string{
		"exec.command", "httpGet.host", "httpGet.path", "httpGet.port", "httpGet.scheme", "httpGet.httpHeaders",
	}

	// onlyAs are fields that are supported with these values alone, which ask for nothing.
	onlyAs = map[string][]any{
		"spec.automountServiceAccountToken": {false},
		"spec.enableServiceLinks":           {false},
		"spec.shareProcessNamespace":        {false},
		"spec.dnsPolicy":                    {"Default", "ClusterFirst"},
		"spec.volumes[].emptyDir.medium":    {""},
	}

	supported = supportedFields()
)

func supportedFields() map[string]bool {
	fields := slices.Clone(podFields)
	fields = append(fields, "spec.initContainers[].restartPolicy")
	for _, list := range []string{"spec.containers[].", "spec.initContainers[]."} {
		for _, f := range containerFields {
			fields = append(fields, list+f)
		}
		for _, f := range handlerFields {
			fields = append(fields, list+"lifecycle.postStart."+f, list+"lifecycle.preStop."+f)
		}
		for _, probe := range []string{"livenessProbe.", "readinessProbe.", "startupProbe."} {
			for _, f := range slices.Concat(probeFields, handlerFields) {
				fields = append(fields, list+probe+f)
			}
		}
	}
	set := make(map[string]bool, len(fields))
	for _, f := range fields {
		set[f] = true
	}
	return set
}

// unsupported returns an error for every field of a decoded manifest that the agent does not support, in order.
func unsupported(value any) field.ErrorList {
	return walk(value, "", nil)
}

// walk goes through a value. general is its path with [] for every index, path the real one.
func walk(value any, general string, path *field.Path) field.ErrorList {
	if allowed, ok := onlyAs[general]; ok {
		if value == nil || slices.Contains(allowed, value) {
			return nil
		}
		return field.ErrorList{field.NotSupported(path, value, texts(allowed))}
	}
	if value == nil || supported[general] {
		return nil
	}
	var errs field.ErrorList
	switch v := value.(type) {
	case map[string]any:
		if !leadsTo(general + ".") {
			break
		}
		for _, key := range slices.Sorted(maps.Keys(v)) {
			child := path.Child(key)
			if path == nil {
				child = field.NewPath(key)
			}
			errs = append(errs, walk(v[key], strings.TrimPrefix(general+"."+key, "."), child)...)
		}
		return errs
	case []any:
		if !leadsTo(general + "[]") {
			break
		}
		for i, element := range v {
			errs = append(errs, walk(element, general+"[]", path.Index(i))...)
		}
		return errs
	}
	return field.ErrorList{field.Forbidden(path, "this agent does not support it")}
}

// leadsTo reports whether a supported field lies below a path.
func leadsTo(prefix string) bool {
	prefix = strings.TrimPrefix(prefix, ".")
	for f := range supported {
		if strings.HasPrefix(f, prefix) {
			return true
		}
	}
	return false
}

func texts(values []any) []string {
	out := make([]string, len(values))
	for i, v := range values {
		out[i] = fmt.Sprint(v)
	}
	return out
}
