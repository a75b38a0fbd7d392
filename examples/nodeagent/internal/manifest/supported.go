package manifest

import (
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// supported are the fields that a manifest may have, by the field that they are in. What the agent does not do is
// refused by name, not ignored. A field without an entry of its own is supported with everything in it; init
// containers have the fields of containers too.
var supported = map[string]string{
	"":         "apiVersion kind metadata spec status",
	"metadata": "name namespace uid labels annotations",
	"spec": "hostname hostNetwork hostPID hostIPC restartPolicy terminationGracePeriodSeconds securityContext volumes " +
		"initContainers containers " +
		"dnsPolicy enableServiceLinks automountServiceAccountToken shareProcessNamespace", // as far as they ask for nothing
	"spec.securityContext":  "runAsUser runAsGroup supplementalGroups",
	"spec.volumes":          "name hostPath emptyDir",
	"spec.volumes.emptyDir": "",
	"spec.initContainers":   "restartPolicy",
	"spec.containers": "name image imagePullPolicy command args workingDir env ports resources securityContext " +
		"volumeMounts lifecycle livenessProbe readinessProbe startupProbe",
	"spec.containers.env":                "name value",
	"spec.containers.ports":              "name containerPort hostPort protocol",
	"spec.containers.resources":          "limits requests",
	"spec.containers.resources.limits":   "cpu memory",
	"spec.containers.resources.requests": "cpu memory",
	"spec.containers.securityContext": "privileged runAsUser runAsGroup readOnlyRootFilesystem " +
		"allowPrivilegeEscalation capabilities",
	"spec.containers.volumeMounts":        "name mountPath readOnly",
	"spec.containers.lifecycle":           "postStart preStop",
	"spec.containers.lifecycle.postStart": "exec httpGet sleep",
	"spec.containers.lifecycle.preStop":   "exec httpGet sleep",
}

// unsupported returns an error for every field in a value that the agent does not support, in order. in is the path of
// the value without indexes, at the real one.
func unsupported(value any, in string, at *field.Path) (errs field.ErrorList) {
	switch v := value.(type) {
	case []any:
		for i, element := range v {
			errs = append(errs, unsupported(element, in, at.Index(i))...)
		}
	case map[string]any:
		general := strings.Replace(in, "initContainers", "containers", 1)
		names := strings.Fields(supported[in] + " " + supported[general])
		_, limited := supported[general]
		for _, key := range slices.Sorted(maps.Keys(v)) {
			if limited && !slices.Contains(names, key) {
				errs = append(errs, field.Forbidden(at.Child(key), "this agent does not support it"))
				continue
			}
			errs = append(errs, unsupported(v[key], strings.TrimPrefix(in+"."+key, "."), at.Child(key))...)
		}
	}
	return errs
}
