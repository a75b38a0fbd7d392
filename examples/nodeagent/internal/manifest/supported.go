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
	"spec": "hostname hostNetwork hostPID hostIPC shareProcessNamespace restartPolicy terminationGracePeriodSeconds " +
		"priorityClassName securityContext volumes initContainers containers " +
		"dnsPolicy automountServiceAccountToken hostUsers os", // as far as they ask for nothing
	"spec.securityContext": "runAsUser runAsGroup runAsNonRoot supplementalGroups fsGroup seccompProfile " +
		"appArmorProfile",
	"spec.securityContext.seccompProfile":  "type",
	"spec.securityContext.appArmorProfile": "type",

	"spec.volumes":          "name hostPath emptyDir",
	"spec.volumes.emptyDir": "",
	"spec.initContainers":   "restartPolicy",
	"spec.containers": "name image imagePullPolicy command args workingDir env ports resources securityContext " +
		"volumeMounts lifecycle livenessProbe readinessProbe startupProbe stdin stdinOnce tty",
	"spec.containers.env":                "name value",
	"spec.containers.ports":              "name containerPort hostPort protocol",
	"spec.containers.resources":          "limits requests",
	"spec.containers.resources.limits":   "cpu memory",
	"spec.containers.resources.requests": "cpu memory",
	"spec.containers.securityContext": "privileged runAsUser runAsGroup runAsNonRoot readOnlyRootFilesystem " +
		"allowPrivilegeEscalation capabilities seccompProfile appArmorProfile",
	"spec.containers.securityContext.seccompProfile":  "type",
	"spec.containers.securityContext.appArmorProfile": "type",

	"spec.containers.volumeMounts":        "name mountPath readOnly",
	"spec.containers.lifecycle":           "postStart preStop",
	"spec.containers.lifecycle.postStart": "exec httpGet sleep",
	"spec.containers.lifecycle.preStop":   "exec httpGet sleep",
}

// ignored are the fields, by the same names, that mean nothing on a node alone: they are for the API server, the
// scheduler or who reads messages. Without them no pod is weaker.
var ignored = map[string]string{
	"metadata": "creationTimestamp finalizers generateName generation managedFields ownerReferences resourceVersion " +
		"selfLink",
	"spec": "affinity enableServiceLinks nodeSelector preemptionPolicy priority schedulerName " +
		"tolerations topologySpreadConstraints",
	"spec.securityContext":               "fsGroupChangePolicy",
	"spec.containers":                    "resizePolicy terminationMessagePath terminationMessagePolicy",
	"spec.containers.resources.requests": "ephemeral-storage",
}

// check returns the fields in a value that are ignored, and an error for every one that the agent does not support, in
// order. in is the path of the value without indexes, at the real one.
func check(value any, in string, at *field.Path) (without []string, errs field.ErrorList) {
	descend := func(value any, in string, at *field.Path) {
		w, e := check(value, in, at)
		without, errs = append(without, w...), append(errs, e...)
	}
	switch v := value.(type) {
	case []any:
		for i, element := range v {
			descend(element, in, at.Index(i))
		}
	case map[string]any:
		general := strings.Replace(in, "initContainers", "containers", 1)
		names := strings.Fields(supported[in] + " " + supported[general])
		_, limited := supported[general]
		for _, key := range slices.Sorted(maps.Keys(v)) {
			switch child := at.Child(key); {
			case slices.Contains(strings.Fields(ignored[general]), key):
				without = append(without, child.String())
			case limited && !slices.Contains(names, key):
				errs = append(errs, field.Forbidden(child, "this agent does not support it"))
			default:
				descend(v[key], strings.TrimPrefix(in+"."+key, "."), child)
			}
		}
	}
	return without, errs
}
