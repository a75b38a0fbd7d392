package manifest

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// supported are the fields that a manifest may have, by the field that they are in. What the agent does not do is
// refused by name, not ignored. After "=" are the values that a field may have, after ">" the least. A field without an
// entry of its own is supported with everything in it; init containers have the fields of containers too.
var supported = map[string]string{
	"":         "apiVersion kind metadata spec status",
	"metadata": "name namespace uid labels annotations",
	"spec": "hostname hostNetwork hostPID hostIPC shareProcessNamespace restartPolicy=Always|OnFailure|Never " +
		"terminationGracePeriodSeconds>0 priorityClassName securityContext volumes initContainers containers os " +
		"dnsPolicy=Default|ClusterFirst|ClusterFirstWithHostNet automountServiceAccountToken=false hostUsers=true",
	"spec.os": "name=linux",
	"spec.securityContext": "runAsUser>0 runAsGroup>0 runAsNonRoot supplementalGroups fsGroup>0 seccompProfile " +
		"appArmorProfile",
	"spec.securityContext.seccompProfile":  profiles,
	"spec.securityContext.appArmorProfile": profiles,

	"spec.volumes":          "name hostPath emptyDir",
	"spec.volumes.hostPath": "path type=|Directory|DirectoryOrCreate|File|FileOrCreate|Socket|CharDevice|BlockDevice",
	"spec.volumes.emptyDir": "",
	"spec.initContainers":   "restartPolicy=Always",
	"spec.containers": "name image imagePullPolicy=Always|IfNotPresent|Never command args workingDir env ports " +
		"resources securityContext volumeMounts lifecycle livenessProbe readinessProbe startupProbe stdin stdinOnce tty",
	"spec.containers.env":                "name value",
	"spec.containers.ports":              "name containerPort>1 hostPort protocol=TCP|UDP|SCTP",
	"spec.containers.resources":          "limits requests",
	"spec.containers.resources.limits":   "cpu memory",
	"spec.containers.resources.requests": "cpu memory",
	"spec.containers.securityContext": "privileged runAsUser>0 runAsGroup>0 runAsNonRoot readOnlyRootFilesystem " +
		"allowPrivilegeEscalation capabilities seccompProfile appArmorProfile",
	"spec.containers.securityContext.seccompProfile":  profiles,
	"spec.containers.securityContext.appArmorProfile": profiles,

	"spec.containers.volumeMounts":        "name mountPath readOnly",
	"spec.containers.lifecycle":           "postStart preStop",
	"spec.containers.lifecycle.postStart": hooks,
	"spec.containers.lifecycle.preStop":   hooks,
	"spec.containers.livenessProbe":       probes + " successThreshold=1 terminationGracePeriodSeconds>1",
	"spec.containers.startupProbe":        probes + " successThreshold=1 terminationGracePeriodSeconds>1",
	"spec.containers.readinessProbe":      probes + " successThreshold>1",

	"spec.containers.lifecycle.preStop.sleep":   "seconds>0",
	"spec.containers.lifecycle.postStart.sleep": "seconds>0",
}

const (
	profiles = "type=RuntimeDefault|Unconfined" // those of one's own would be files on the node
	hooks    = "exec httpGet sleep"
	probes   = "exec httpGet tcpSocket grpc initialDelaySeconds>0 periodSeconds>1 timeoutSeconds>1 failureThreshold>1"
)

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
		fields := map[string]string{} // and their rules
		for f := range strings.FieldsSeq(supported[in] + " " + supported[general]) {
			name := f[:strings.IndexAny(f+"=", "=>")]
			fields[name] = f[len(name):]
		}
		_, limited := supported[general]
		for _, key := range slices.Sorted(maps.Keys(v)) {
			child := at.Child(key)
			switch rule, ok := fields[key]; {
			case slices.Contains(strings.Fields(ignored[general]), key):
				without = append(without, child.String())
			case limited && !ok:
				errs = append(errs, field.Forbidden(child, "this agent does not support it"))
			case rule != "":
				errs = append(errs, checkValue(v[key], rule, child)...)
			default:
				descend(v[key], strings.TrimPrefix(in+"."+key, "."), child)
			}
		}
	}
	return without, errs
}

func checkValue(value any, rule string, at *field.Path) field.ErrorList {
	if n, ok := value.(int64); ok && rule[0] == '>' {
		least, _ := strconv.ParseInt(rule[1:], 10, 64)
		if n < least || n > math.MaxInt32 { // seconds: the largest would overflow
			return field.ErrorList{field.Invalid(at, n, fmt.Sprintf("must be from %d to %d", least, math.MaxInt32))}
		}
	} else if values := strings.Split(rule[1:], "|"); !slices.Contains(values, fmt.Sprint(value)) {
		return field.ErrorList{field.NotSupported(at, value, values)}
	}
	return nil
}
