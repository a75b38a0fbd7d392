package manifest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	v1 "k8s.io/api/core/v1"
)

const head = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n"

const inJSON = `{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": {"containers": [{"name": "c", ` +
	`"image": "i"}]}}`

const containers = "  containers: [{name: c, image: i}]\n"

// Decode sets the API server's defaults. If a manifest contains no UID, Decode derives the same UID
// for the same pod and node each time.
func TestDecode(t *testing.T) {
	a, err := Decode([]byte(head+`  containers:
  - name: c
    image: registry:5000/i
    livenessProbe: {httpGet: {port: 80}}
`), "node")
	if err != nil {
		t.Fatal(err)
	}
	b, err := Decode([]byte(`---
apiVersion: v1
kind: Pod
metadata: {name: b, namespace: ns, uid: 0-1, labels: {x: z}}
spec: {hostNetwork: true, containers: [{name: c, image: "i:1", ports: [{containerPort: 80}]}]}
status: {phase: Running}
---
`), "node")
	if err != nil {
		t.Fatal(err)
	}
	p := a.Spec.Containers[0].LivenessProbe
	if a.Namespace != "default" || a.Spec.RestartPolicy != v1.RestartPolicyAlways ||
		*a.Spec.TerminationGracePeriodSeconds != 30 ||
		a.Spec.Containers[0].ImagePullPolicy != v1.PullAlways || p.PeriodSeconds != 10 || p.TimeoutSeconds != 1 ||
		p.FailureThreshold != 3 || p.SuccessThreshold != 1 {
		t.Errorf("%v", a)
	}
	if b.UID != "0-1" || b.Spec.Containers[0].ImagePullPolicy != v1.PullIfNotPresent ||
		b.Status.Phase != "" {
		t.Errorf("%v", b)
	}
	again, err := Decode([]byte(head+containers), "node")
	other, _ := Decode([]byte(head+containers), "other")
	if err != nil || again.UID != a.UID || other.UID == a.UID || len(a.UID) != 36 {
		t.Errorf("UIDs %s, %s, %s, %v", a.UID, again.UID, other.UID, err)
	}
}

// Empty documents may follow the pod. JSON may contain escapes that YAML does not have. A string
// that looks like a number is one if it has quotes. A volume without a source is an emptyDir, as in
// the API server.
func TestDecodeAccepts(t *testing.T) {
	for _, text := range []string{
		head + containers + "---\n", head + containers + "---\n\n", head + containers + "---\n# end\n---\n---  \n",
		head + containers + "...\n", "# a\n---\n" + head + containers, "%YAML 1.1\n---\n" + head + containers, inJSON + "\n",
		strings.Replace(inJSON, `"spec"`, `"spe\u0063"`, 1),
		strings.Replace(inJSON, `"image": "i"`, `"image": "i", "args": ["\ud83d\ude00\/"]`, 1),
		head + "  containers: [{name: c, image: i, args: ['0644'], env: [{name: A, value: 'yes'}, {name: B, value: }]}]\n",
		head + containers + "  volumes: [{name: v}]\n",
		head + "  containers: [{name: c, image: i, resources: {requests: {cpu: 1}, limits: {cpu: 1.0, memory: 1e3}}}]\n",
		head + "  containers: [{name: c, image: i, ports: [{containerPort: 53}, {containerPort: 53, protocol: UDP}]}]\n",
	} {
		pod, err := Decode([]byte(text), "node")
		if err != nil || pod.Name != "a" {
			t.Errorf("%q: %v, %v", text, pod, err)
		}
		for _, vol := range pod.Spec.Volumes {
			if vol.EmptyDir == nil {
				t.Errorf("%q: %v", text, vol)
			}
		}
	}
}

// Decode accepts the fields that the published manifests of kube-vip, cilium and node-exporter use.
func TestDecodeWhatIsPublished(t *testing.T) {
	_, err := Decode([]byte(head+`  hostAliases: [{ip: 127.0.0.1, hostnames: [kubernetes]}, {ip: "::1", hostnames: [a]}]
  volumes: [{name: v, emptyDir: {medium: Memory}}]
  containers:
  - name: c
    image: i
    securityContext: {privileged: true}
    env:
    - {name: A, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
    - {name: B, valueFrom: {fieldRef: {apiVersion: v1, fieldPath: "metadata.labels['app.kubernetes.io/name']"}}}
    - {name: C, valueFrom: {fieldRef: {fieldPath: status.podIPs}}}
    volumeMounts:
    - {name: v, mountPath: /a, mountPropagation: Bidirectional}
    - {name: v, mountPath: /b, mountPropagation: HostToContainer}
`), "node")
	if err != nil {
		t.Error(err)
	}
}

// Decode refuses content that is not exactly one valid pod. If a field is unsupported, invalid or
// missing, the error names the field.
func TestDecodeRefuses(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"", `kind "": only Pods`},
		{"a: [", "is no object in YAML"},
		{"7", "is no Pod: json: cannot unmarshal number"},
		{"apiVersion: v1\nkind: Service", `kind "Service": only Pods`},
		{"apiVersion: v1\nkind: Pod\nspek: {}", `unknown field "spek"`},
		{head + containers + "  hostNetwork: 7\n", "is no Pod"},
		{head + containers + "  containers: []\n", `key "containers" already set`},
		{"apiVersion: v1\nkind: Pod\nmetadata: {name: A}\nspec:\n" + containers, "metadata.name: Invalid value"},
		{inJSON + " x", "there is something after the pod"},
		{inJSON + "\n" + inJSON, "there is something after the pod"},
		{head + containers + "---\n" + head + containers, "there is something after the pod"},
		{head, "spec.containers: Required value"},
		{head + "  containers: [{name: c}]\n", "spec.containers[0].image: Required value"},
		{head + "  containers: [{name: c, image: i}, {name: c, image: i}]\n",
			`spec.containers[1].name: Duplicate value: "c"`},
		{head + containers + "  runtimeClassName: strict\n",
			"spec.runtimeClassName: Forbidden: this agent does not support it"},
		{head + containers + "  hostUsers: false\n", "spec.hostUsers: Unsupported value: false"},
		{head + containers + "  os: {name: windows}\n", `spec.os.name: Unsupported value: "windows"`},
		{head + containers + "  securityContext: {seccompProfile: {type: Localhost, localhostProfile: p}}\n",
			"spec.securityContext.seccompProfile.localhostProfile: Forbidden"},
		{head + containers + "  securityContext: {seccompProfile: {type: Localhost}}\n",
			"spec.securityContext.seccompProfile.type: Unsupported"},
		{head + "  containers: [{name: c, image: i, securityContext: {appArmorProfile: {type: Localhost}}}]\n",
			"spec.containers[0].securityContext.appArmorProfile.type: Unsupported"},
		{"apiVersion: v1\nkind: Pod\n" +
			"metadata: {name: a, annotations: {container.apparmor.security.beta.kubernetes.io/c: x}}\n" +
			"spec:\n" + containers, "metadata.annotations[container.apparmor.security.beta.kubernetes.io/c]: Forbidden"},
		{head + "  containers: [{name: c, image: i, securityContext: {procMount: Unmasked}}]\n",
			"securityContext.procMount: Forbidden"},
		{head + containers + "  serviceAccountName: x\n", "spec.serviceAccountName: Forbidden"},
		{head + containers + "  automountServiceAccountToken: true\n",
			"spec.automountServiceAccountToken: Unsupported value"},
		{head + containers + "  dnsPolicy: None\n", "spec.dnsPolicy: Unsupported value"},
		{head + containers + "  volumes: [{name: v, secret: {secretName: s}}]\n", "spec.volumes[0].secret: Forbidden"},
		{head + containers + "  volumes: [{name: v, emptyDir: {medium: HugePages}}]\n",
			"spec.volumes[0].emptyDir.medium: Unsupported value"},
		{head + containers + "  volumes: [{name: v, emptyDir: {sizeLimit: 1Mi}}]\n",
			"spec.volumes[0].emptyDir.sizeLimit: Forbidden"},
		{head + containers + "  hostAliases: [{ip: 1.2.3, hostnames: [a]}]\n", "spec.hostAliases[0].ip: Invalid"},
		{head + containers + "  hostAliases: [{ip: 192.0.2.1, hostnames: [a, \"b\\n127.0.0.1 c\"]}]\n",
			"spec.hostAliases[0].hostnames[1]: Invalid"},
		{head + containers + "  volumes: [{name: v, emptyDir: {}, hostPath: {path: /}}]\n",
			"spec.volumes[0].hostPath: Forbidden: may not specify more than 1 volume type"},
		{head + containers + "  volumes: [{name: v, emptyDir: {}}, {name: v, emptyDir: {}}]\n",
			"spec.volumes[1].name: Duplicate"},
		{head + containers + "  volumes: [{name: v, hostPath: {path: /a/../b}}]\n", "spec.volumes[0].hostPath.path: Invalid"},
		{head + containers + "  volumes: [{name: v, hostPath: {path: /a, type: Pipe}}]\n",
			"spec.volumes[0].hostPath.type: Unsupported"},
		{head + containers + "  restartPolicy: Sometimes\n", "spec.restartPolicy: Unsupported value"},
		{head + "  containers: [{name: c, image: i, ports: [{containerPort: 80, hostPort: 80}]}]\n",
			"ports[0].hostPort: Forbidden"},
		{head + "  hostNetwork: true\n  containers: [{name: c, image: i, ports: [{containerPort: 80, hostPort: 81}]}]\n",
			"ports[0].hostPort: Invalid value: 81: must match `containerPort`"},
		{head + "  containers: [{name: c, image: i, ports: [{containerPort: 0}]}]\n", "ports[0].containerPort: Invalid"},
		{head + "  containers: [{name: c, image: i, env: [{name: A, valueFrom: {fieldRef: {fieldPath: x}}}]}]\n",
			"env[0].valueFrom.fieldRef.fieldPath: Invalid"},
		{head + "  containers: [{name: c, image: i, env: [{name: A, valueFrom: {secretKeyRef: {name: s, key: k}}}]}]\n",
			"env[0].valueFrom.secretKeyRef: Forbidden"},
		{head + "  containers: [{name: c, image: i, env: [{name: A, value: x, valueFrom: {fieldRef: " +
			"{fieldPath: metadata.name}}}]}]\n", "env[0].valueFrom: Invalid"},
		{head + "  volumes: [{name: v, emptyDir: {}}]\n  containers: [{name: c, image: i, " +
			"volumeMounts: [{name: v, mountPath: /x, mountPropagation: Bidirectional}]}]\n",
			"volumeMounts[0].mountPropagation: Forbidden"},
		{head + "  volumes: [{name: v, emptyDir: {}}]\n  containers: [{name: c, image: i, " +
			"volumeMounts: [{name: v, mountPath: /x, subPath: z}]}]\n", "volumeMounts[0].subPath: Forbidden"},
		{head + "  containers: [{name: c, image: i, env: [{name: '=', value: x}]}]\n", "env[0].name: Invalid"},
		{head + "  containers: [{name: c, image: i, volumeMounts: [{name: v, mountPath: /x}]}]\n",
			"volumeMounts[0].name: Not found"},
		{head + "  containers: [{name: c, image: i, livenessProbe: {periodSeconds: 1}}]\n",
			"livenessProbe: Required value: must specify a handler type"},
		{head + "  containers: [{name: c, image: i, livenessProbe: {exec: {command: []}}}]\n",
			"livenessProbe.exec.command: Required value"},
		{head + "  containers: [{name: c, image: i, livenessProbe: {exec: {command: [x]}, successThreshold: 2}}]\n",
			"livenessProbe.successThreshold: Invalid value: 2: must be 1"},
		{head + "  containers: [{name: c, image: i, readinessProbe: {tcpSocket: {port: a_b}}}]\n",
			"readinessProbe.tcpSocket.port: Invalid"},
		{head +
			"  containers: [{name: c, image: i, readinessProbe: {exec: {command: [x]}, terminationGracePeriodSeconds: 3}}]\n",
			"terminationGracePeriodSeconds: Forbidden"},
		{head + "  containers: [{name: c, image: i, lifecycle: {preStop: {tcpSocket: {port: 1}}}}]\n",
			"lifecycle.preStop.tcpSocket: Forbidden"},
		{head + "  containers: [{name: c, image: i, resources: {limits: {gpu: 1}}}]\n", "resources.limits[gpu]: Forbidden"},
		{head + "  initContainers: [{name: i, image: i, restartPolicy: Never}]\n" + containers,
			"initContainers[0].restartPolicy: Unsupported"},
		{head + "  initContainers: [{name: i, image: i, livenessProbe: {exec: {command: [x]}}}]\n" + containers,
			"initContainers[0].livenessProbe: Forbidden: may not be set for init"},
		{head + containers + "  terminationGracePeriodSeconds: 9223372036854775807\n",
			"spec.terminationGracePeriodSeconds: Invalid value: 9223372036854775807: must be between 0 and 2147483647"},
		{head + "  containers: [{name: c, image: i, lifecycle: {preStop: {sleep: {seconds: 9223372036854775807}}}}]\n",
			"preStop.sleep: Invalid"},
		{head + "  containers: [{name: c, image: i, ports: [{containerPort: 80, protocol: FOO}]}]\n",
			"ports[0].protocol: Unsupported"},
		{head + "  containers: [{name: c, image: i, resources: {limits: {memory: -1}}}]\n",
			"resources.limits[memory]: Invalid"},
		{head + "  containers: [{name: c, image: i, restartPolicy: Always}]\n", "containers[0].restartPolicy: Forbidden"},
		// The type of a scalar without quotes is not a string.
		{head + "  containers: [{name: c, image: i, args: [chown, 0750, f]}]\n",
			"cannot unmarshal number into Go struct field Container.spec.containers.args of type string"},
		{head + "  containers: [{name: c, image: i, env: [{name: A, value: 0077}]}]\n", "EnvVar.spec.containers.env.value"},
		{head + "  containers: [{name: c, image: i, env: [{name: A, value: 2.50}]}]\n", "cannot unmarshal number into"},
		{head + "  containers: [{name: c, image: i, env: [{name: A, value: off}]}]\n", "cannot unmarshal bool into"},
		{"apiVersion: v1\nkind: Pod\nmetadata: {name: 0020}\nspec:\n" + containers, "ObjectMeta.metadata.name of type"},
		{"apiVersion: v1\nkind: Pod\nmetadata: {name: a, labels: {version: 2}}\nspec:\n" + containers,
			"metadata.labels of type string"},
		{head + containers + "  hostname: 1_0\n", "cannot unmarshal number into"},
		{head + containers + "  hostNetwork: \"true\"\n", "cannot unmarshal string into"},
		{head + "  containers: [{name: c, image: i, ports: [{containerPort: \"80\"}]}]\n", "cannot unmarshal string into"},
		{head + "  containers: [{name: c, image: i, env: [{nam: A}]}]\n", `unknown field "spec.containers[0].env[0].nam"`},
		{head + containers + "  hostnetwork: true\n", `unknown field "spec.hostnetwork"`},
		{strings.Replace(inJSON, `"image": "i"`, `"image": "i", "image": "j"`, 1),
			`duplicate field "spec.containers[0].image"`},
		{inJSON + "\n---\nx", "there is something after the pod"},
		{head + containers + "---\n---\nx", "there is something after the pod"},
		// The API server refuses what follows.
		{head + "  containers: [{name: c, image: i, securityContext: {privileged: true, allowPrivilegeEscalation: false}}]\n",
			"containers[0].securityContext.allowPrivilegeEscalation: Invalid"},
		{head + "  containers: [{name: c, image: i, securityContext: {capabilities: {add: [CAP_SYS_ADMIN]}, " +
			"allowPrivilegeEscalation: false}}]\n", "securityContext.allowPrivilegeEscalation: Invalid"},
		{head + containers + "  hostPID: true\n  shareProcessNamespace: true\n", "spec.shareProcessNamespace: Invalid"},
		{head + "  containers: [{name: c, image: i, resources: {requests: {cpu: 2}, limits: {cpu: 500m}}}]\n",
			`containers[0].resources.requests: Invalid value: "2": must be less than or equal to cpu limit of 500m`},
		{head + "  hostNetwork: true\n  containers: [{name: c, image: i, ports: [{containerPort: 53}, " +
			"{containerPort: 53, protocol: UDP}]}, {name: d, image: i, ports: [{hostPort: 53, containerPort: 53}]}]\n",
			`spec.containers[1].ports[0].hostPort: Duplicate value: "TCP//53"`},
		{head + containers + "  securityContext: {supplementalGroups: [7, -1]}\n",
			"spec.securityContext.supplementalGroups[1]: Invalid value: -1"},
		{head + containers + "  securityContext: {fsGroup: -1}\n", "spec.securityContext.fsGroup: Invalid"},
		{head + "  containers: [{name: c, image: i, securityContext: {runAsUser: 3000000000}}]\n",
			"containers[0].securityContext.runAsUser: Invalid"},
		{head + "  containers: [{name: c, image: 'i '}]\n",
			`containers[0].image: Invalid value: "i ": must not have leading or trailing whitespace`},
		{head + "  terminationGracePeriodSeconds: 4\n  containers: [{name: c, image: i, lifecycle: {preStop: " +
			"{sleep: {seconds: 5}}}}]\n", "containers[0].lifecycle.preStop.sleep: Invalid value: 5"},
		{head + "  initContainers: [{name: c, image: i}]\n" + containers,
			`spec.initContainers[0].name: Duplicate value: "c"`},
		{head + "  containers: [{name: c, image: i, ports: [{name: a, containerPort: 1}, {name: a, containerPort: 2}]}]\n",
			`spec.containers[0].ports[1].name: Duplicate value: "a"`},
		{head + "  containers: [{name: c, image: i, ports: [{name: A_b, containerPort: 1}]}]\n", "ports[0].name: Invalid"},
		{head + "  containers: [{name: c, image: i, livenessProbe: {httpGet: {port: 80, httpHeaders: " +
			"[{name: 'A:', value: b}]}}}]\n", `livenessProbe.httpGet.httpHeaders: Invalid value: "A:"`},
		{head + "  containers: [{name: c, image: i, livenessProbe: {tcpSocket: {port: \"80\"}}}]\n",
			`livenessProbe.tcpSocket.port: Invalid value: "80"`},
		{head + "  containers: [{name: c, image: i, livenessProbe: {exec: {command: [x]}, tcpSocket: {port: 80}}}]\n",
			"livenessProbe.tcpSocket: Forbidden: may not specify more than 1 handler type"},
		{head + "  containers: [{name: c, image: i, readinessProbe: {grpc: {port: 80}, periodSeconds: -1}}]\n",
			"readinessProbe.periodSeconds: Invalid value: -1"},
		{head + "  volumes: [{name: v}]\n  containers: [{name: c, image: i, volumeMounts: " +
			"[{name: v, mountPath: /x}, {name: v, mountPath: /x}]}]\n", "volumeMounts[1].mountPath: Invalid"},
		{head + "  containers: [{name: c, image: i, env: [{name: A, valueFrom: {fieldRef: " +
			"{fieldPath: \"metadata.labels['a b']\"}}}]}]\n", "env[0].valueFrom.fieldRef: Invalid"},
		{head + "  containers: [{name: c, image: i, env: [{name: A, valueFrom: {}}]}]\n",
			"env[0].valueFrom.fieldRef: Required"},
		{head + containers + "  priorityClassName: a_b\n", "spec.priorityClassName: Invalid"},
		{head + "  containers: [{name: c, image: i, terminationMessagePolicy: Log}]\n",
			"terminationMessagePolicy: Unsupported"},
		{"apiVersion: v1\nkind: Pod\nmetadata: {name: a, annotations: {seccomp.security.alpha.kubernetes.io/pod: x}}\n" +
			"spec:\n" + containers, "metadata.annotations[seccomp.security.alpha.kubernetes.io/pod]: Forbidden"},
		{"apiVersion: v1\nkind: Pod\nmetadata: {name: a, finalizers: [orphan, x]}\nspec:\n" + containers,
			`metadata.finalizers[1]: Invalid value: "x"`},
		{"apiVersion: v1\nkind: Pod\nmetadata: {name: a, annotations: {controller.kubernetes.io/pod-deletion-cost: \"05\"}}" +
			"\nspec:\n" + containers, "metadata.annotations[controller.kubernetes.io/pod-deletion-cost]: Invalid"},
		{"apiVersion: v1\nkind: Pod\nmetadata: {name: a, annotations: {scheduler.alpha.kubernetes.io/tolerations: '[{}]'}}" +
			"\nspec:\n" + containers, "metadata.annotations[scheduler.alpha.kubernetes.io/tolerations][0].operator: Invalid"},
	} {
		pod, err := Decode([]byte(c.text), "node")
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v, %v; want %q", c.text, pod, err, c.want)
		}
	}
}

// Decode accepts fields that have no meaning on a single node. IgnoredAnnotation lists these
// fields.
func TestDecodeIgnores(t *testing.T) {
	pod, err := Decode([]byte(`apiVersion: v1
kind: Pod
metadata: {name: a, creationTimestamp: "2026-01-02T03:04:05Z", resourceVersion: "7", annotations: {x: z}}
spec:
  priority: 2000001000
  priorityClassName: system-node-critical
  tolerations: [{operator: Exists}]
  initContainers: [{name: i, image: i, terminationMessagePolicy: File}]
  containers: [{name: c, image: i, resources: {requests: {cpu: 1, ephemeral-storage: 1Gi}}}]
`), "node")
	if err != nil {
		t.Fatal(err)
	}
	const want = "metadata.creationTimestamp metadata.resourceVersion " +
		"spec.containers[0].resources.requests[ephemeral-storage] spec.initContainers[0].terminationMessagePolicy " +
		"spec.priority spec.tolerations"
	if got := pod.Annotations; got[IgnoredAnnotation] != want || got["x"] != "z" {
		t.Errorf("annotations %q, want %q", got, want)
	}
	if pod, err = Decode([]byte(head+containers), "node"); err != nil || len(pod.Annotations) > 0 {
		t.Errorf("no field is ignored, but the annotations are %q, %v", pod.Annotations, err)
	}
}

// Decode never panics. If it accepts a pod, the pod contains the fields that the rest of the agent
// needs.
func FuzzDecode(f *testing.F) {
	files, err := filepath.Glob("../../manifests/*.yaml")
	if err != nil || len(files) == 0 {
		f.Fatal(files, err)
	}
	for _, path := range files {
		content, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(content)
	}
	f.Add([]byte(head + containers + "  volumes: [{name: v, emptyDir: null}]\n  affinity: null"))
	f.Fuzz(func(t *testing.T, content []byte) {
		pod, err := Decode(content, "node")
		if err == nil && (pod.UID == "" || len(pod.Spec.Containers) == 0 || pod.Spec.TerminationGracePeriodSeconds == nil) {
			t.Errorf("%v", pod)
		}
	})
}

// source returns a Source with its own directory, a function that writes a file there, and the
// lines of the log. If the text is empty, the function removes the file.
func source(t *testing.T) (*Source, func(name, text string), *[]string) {
	t.Helper()
	dir, logged := t.TempDir(), &[]string{}
	log := funcr.New(func(_, text string) { *logged = append(*logged, text) }, funcr.Options{})
	return NewSource(dir, "node", nil, log), func(name, text string) {
		t.Helper()
		path := filepath.Join(dir, name)
		if text == "" {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			return
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}, logged
}

func named(name string) string {
	return "apiVersion: v1\nkind: Pod\nmetadata: {name: " + name + "}\nspec:\n" + containers
}

// If a manifest is broken, Read returns the pod of its last valid version. Other manifests are not
// affected. Each error is logged once.
func TestRead(t *testing.T) {
	s, write, logged := source(t)
	check := func(want string, wantChanged bool) {
		t.Helper()
		pods, changed, err := s.Read()
		names := []string{}
		for _, pod := range pods {
			names = append(names, fmt.Sprint(pod.Name, len(pod.Spec.Containers)))
		}
		if got := strings.Join(names, " "); got != want || changed != wantChanged || err != nil {
			t.Errorf("%q, changed %v, %v; want %q, %v", got, changed, err, want, wantChanged)
		}
	}
	check("", true) // the first read is a change, even of an empty directory
	write("a.yaml", named("a"))
	write("b.json", `{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "b"}, "spec": {"containers": [{"name": "c",
	    "image": "i"}]}}`)
	write(".hidden.yaml", named("hidden"))
	write("notes.txt", "no manifest")
	check("a1 b1", true)
	check("a1 b1", false)
	write("a.yaml", named("a")+"  broken: true\n")
	check("a1 b1", true)
	check("a1 b1", false)
	if len(*logged) != 1 {
		t.Errorf("logged: %q", *logged)
	}
	write("a.yaml", named("a")) // the original content
	check("a1 b1", true)
	write("a.yaml", strings.Replace(named("a"), "[", "[{name: d, image: i}, ", 1))
	check("a2 b1", true)
	write("c.yaml", named("a")) // uses the name of another pod
	check("a2 b1", true)
	write("a.yaml", "")
	check("b1 a1", true)
	if err := os.Mkdir(filepath.Join(s.dir, "d.yaml"), 0o755); err != nil {
		t.Fatal(err)
	}
	check("b1 a1", true)
	if err := syscall.Mkfifo(filepath.Join(s.dir, "e.yaml"), 0o600); err != nil {
		t.Fatal(err)
	}
	check("b1 a1", true) // Read does not block on the FIFO
	write("large.yaml", named("large"))
	if err := os.Truncate(filepath.Join(s.dir, "large.yaml"), 512<<10+1); err != nil {
		t.Fatal(err)
	}
	check("b1 a1", true)
	if last := (*logged)[len(*logged)-1]; !strings.Contains(last, "it has more than 524288 bytes") {
		t.Error(last)
	}
	*logged = nil
	check("b1 a1", false)
	if len(*logged) != 0 {
		t.Errorf("logged again: %q", *logged)
	}
	if err := os.RemoveAll(s.dir); err != nil {
		t.Fatal(err)
	}
	if pods, _, err := s.Read(); err == nil {
		t.Errorf("a removed directory has %v", pods)
	}
}

// Refused returns a pod for each refused file until the file is corrected. If the pod's name is
// unknown, the name of the file replaces it.
func TestRefused(t *testing.T) {
	s, write, _ := source(t)
	write("a.yaml", named("a"))
	write("b.yaml", strings.Replace(named("b"), "name: b", "name: b, namespace: ns", 1)+"  runtimeClassName: x\n")
	write("c.yaml", "spec: [")
	write("d.yaml", named("a"))
	write("e.yaml", "apiVersion: v1\nkind: Service\nmetadata: {name: e}\n")
	check := func(want ...string) {
		t.Helper()
		if _, _, err := s.Read(); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, pod := range s.Refused() {
			if pod.Status.Phase != v1.PodFailed || pod.Status.Reason != "ManifestRefused" {
				t.Errorf("%v", pod.Status)
			}
			got = append(got, pod.Namespace+"/"+pod.Name+" "+pod.Status.Message)
		}
		if len(got) != len(want) {
			t.Fatalf("refused: %q, want %q", got, want)
		}
		for i := range want {
			if !regexp.MustCompile(want[i]).MatchString(got[i]) {
				t.Errorf("refused: %q, want %q", got[i], want[i])
			}
		}
	}
	check("^ns/b b.yaml: spec.runtimeClassName: Forbidden",
		"^default/c.yaml c.yaml: is no object in YAML",
		"^default/e e.yaml: .*only Pods of v1", "^default/a d.yaml: its name or its UID is taken by the pod of a.yaml$")
	check("b.yaml", "c.yaml", "e.yaml", "d.yaml")
	write("b.yaml", named("b"))
	write("c.yaml", "")
	write("a.yaml", "")
	check("e.yaml")
	write("b.yaml", named("b")+"  hostNetwork: 7\n")
	check("^default/b b.yaml: is no Pod", "e.yaml")
}

// If a file is broken when an agent starts, Read returns the previous agent's pod of this file
// until the file is corrected or removed.
func TestBrokenAtStart(t *testing.T) {
	s, write, _ := source(t)
	write("a.yaml", named("a"))
	write("c.yaml", named("c"))
	before, _, err := s.Read()
	if err != nil || len(before) != 2 {
		t.Fatal(before, err)
	}
	before[0].Status.Phase = v1.PodRunning
	write("a.yaml", named("a")+"  broken: true\n")
	for _, restart := range []string{"with an error", "unreadable"} {
		s = NewSource(s.dir, "node", before, logr.Discard())
		pods, changed, err := s.Read()
		if err != nil || !changed || len(pods) != 2 || pods[0].Name != "a" || pods[0].UID != before[0].UID ||
			pods[0].Status.Phase != "" {
			t.Fatalf("%s: %v, %v, %v", restart, pods, changed, err)
		}
		write("a.yaml", "\x00")
	}
	write("a.yaml", named("d"))
	if pods, _, _ := s.Read(); len(pods) != 2 || pods[1].Name != "d" {
		t.Errorf("mended: %v", pods)
	}
	s = NewSource(s.dir, "node", before, logr.Discard())
	write("a.yaml", "")
	if pods, _, _ := s.Read(); len(pods) != 1 || pods[0].Name != "c" {
		t.Errorf("gone: %v", pods)
	}
	write("a.yaml", named("a")+"  broken: true\n")
	if pods, _, _ := s.Read(); len(pods) != 1 || pods[0].Name != "c" {
		t.Errorf("back, and broken: %v", pods)
	}
}

// If two files contain the same pod, the running pod stays, whatever the files' names are, and even
// after a restart. The other file is refused, and the reason names both files.
func TestCopiedFile(t *testing.T) {
	s, write, logged := source(t)
	check := func(file, refused string) {
		t.Helper()
		pods, _, err := s.Read()
		if err != nil || len(pods) != 1 || pods[0].Annotations[fileAnnotation] != file {
			t.Fatalf("%v, %v; want the pod of %s", pods, err, file)
		}
		got := ""
		for _, pod := range s.Refused() {
			got += pod.Status.Message
		}
		if got != refused {
			t.Errorf("refused: %q, want %q", got, refused)
		}
	}
	write("web.yaml", named("web"))
	check("web.yaml", "")
	older := strings.Replace(named("web"), "image: i", "image: old", 1)
	write("web-backup.yaml", older)
	const why = "web-backup.yaml: its name or its UID is taken by the pod of web.yaml"
	check("web.yaml", why)
	if last := (*logged)[len(*logged)-1]; !strings.Contains(last, `"file"="web-backup.yaml"`) ||
		!strings.Contains(last, `"other"="web.yaml"`) {
		t.Error(last)
	}
	write("web.yaml", named("web")+"  hostNetwork: true\n") // a change of the running pod
	check("web.yaml", why)
	before, _, _ := s.Read()
	s = NewSource(s.dir, "node", before, s.logger)
	check("web.yaml", why)
	write("web.yaml", named("web")+"  broken: true\n")
	check("web.yaml", `web.yaml: is no Pod: unknown field "spec.broken"`+why)
	write("web.yaml", named("other")) // the file leaves its pod to the copy
	if pods, _, _ := s.Read(); len(pods) != 2 || len(s.Refused()) != 0 {
		t.Errorf("%v, refused %v", pods, s.Refused())
	}
	write("web.yaml", named("web"))
	check("web-backup.yaml", "web.yaml: its name or its UID is taken by the pod of web-backup.yaml")
	write("web-backup.yaml", "")
	check("web.yaml", "")
}

// A pod that the node cannot run fails with the kubelet's reason. If it is a new version of a
// running pod, the running pod stays.
func TestNodeCannotRun(t *testing.T) {
	s, write, _ := source(t)
	large := strings.Replace(named("a"), "image: i", "image: i, resources: {requests: {memory: 1Ei}}", 1)
	for _, running := range []int{0, 1} {
		write("a.yaml", large)
		pods, _, err := s.Read()
		refused := s.Refused()
		if err != nil || len(pods) != running || len(refused) != 1 || refused[0].Status.Phase != v1.PodFailed ||
			refused[0].Status.Reason != "OutOfmemory" || !strings.HasPrefix(refused[0].Status.Message, "Pod was rejected: ") {
			t.Fatalf("%v, %v, refused %v", pods, err, refused)
		}
		write("a.yaml", named("a"))
		if pods, _, _ := s.Read(); len(pods) != 1 || len(s.Refused()) != 0 {
			t.Errorf("mended: %v", pods)
		}
	}
}

// Fields that have no meaning on a single node are logged once for each version of the manifest.
func TestReadIgnored(t *testing.T) {
	s, write, logged := source(t)
	for i, text := range []string{"  priority: 1\n", "  priority: 1\n", "  priority: 2\n"} {
		write("a.yaml", named("a")+text)
		if _, _, err := s.Read(); err != nil {
			t.Fatal(err)
		}
		if n := 1 + i/2; len(*logged) != n || !strings.Contains((*logged)[n-1], `"fields"="spec.priority"`) {
			t.Errorf("logged after %d: %q", i, *logged)
		}
	}
}

// Run reads the directory after notifications from the kernel, and does not report unfinished
// files. While the directory is missing, Run reports no change. When the directory is back, Run
// reads it again.
func TestRun(t *testing.T) {
	s, write, _ := source(t)
	s.logger = logr.Discard()
	updates := make(chan []*v1.Pod)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.Run(ctx, func(pods []*v1.Pod) { updates <- pods })
	}()
	await := func(want ...string) {
		t.Helper()
		for deadline := time.After(10 * time.Second); ; {
			select {
			case pods := <-updates:
				names := []string{}
				for _, pod := range pods {
					names = append(names, pod.Name)
				}
				if slices.Equal(names, want) {
					return
				}
			case <-deadline:
				t.Fatalf("%q did not come", want)
			}
		}
	}
	await()
	write("a.yaml", named("a"))
	await("a")
	// The file is written in several steps. Before the last step, its content is not a valid pod.
	path := filepath.Join(s.dir, "b.yaml")
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range strings.SplitAfter(named("b"), "\n") {
		if _, err := file.WriteString(part); err != nil {
			t.Fatal(err)
		}
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	await("a", "b")
	write("a.yaml", "")
	await("b")
	if err := os.Rename(s.dir, s.dir+".away"); err != nil {
		t.Fatal(err)
	}
	select {
	case pods := <-updates:
		t.Errorf("without a directory there are %v", pods)
	case <-time.After(3 * retryPeriod / 2):
	}
	if err := os.Rename(s.dir+".away", s.dir); err != nil {
		t.Fatal(err)
	}
	write("c.yaml", named("c"))
	await("b", "c")
	// Run also watches a new directory at the same path.
	if err := os.CopyFS(s.dir+".next", os.DirFS(s.dir)); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Rename(s.dir, s.dir+".last"), os.Rename(s.dir+".next", s.dir)); err != nil {
		t.Fatal(err)
	}
	write("d.yaml", named("d"))
	await("b", "c", "d")
	write("e.yaml", named("e"))
	await("b", "c", "d", "e")
	cancel()
	<-done
}
