package nodeagent

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/kubepleg/pleg/internal/e2e/testnode"
)

// users maps the USER of an image to the name of the image. The test runs each security context
// with each image.
var users = map[string]string{
	"root": testnode.BusyboxImage, "1234": "localhost/user:number", "1234:42": "localhost/user:both",
	"app": "localhost/user:name",
}

// securityContexts maps a name to the security contexts of a pod and of its container.
var securityContexts = map[string]struct{ pod, container string }{
	"none":               {},
	"group":              {"", "runAsGroup: 42"},
	"pod-group":          {"runAsGroup: 42", ""},
	"user":               {"", "runAsUser: 7"},
	"pod-user-group":     {"runAsUser: 7, runAsGroup: 42", ""},
	"both-users":         {"runAsUser: 7", "runAsUser: 8"},
	"user-root":          {"runAsUser: 7", "runAsUser: 0"},
	"groups":             {"supplementalGroups: [5, 6]", ""},
	"fs-group":           {"fsGroup: 9, fsGroupChangePolicy: OnRootMismatch, supplementalGroups: [5]", ""},
	"non-root":           {"runAsNonRoot: true", ""},
	"own-non-root":       {"", "runAsNonRoot: true"},
	"non-root-user":      {"runAsNonRoot: true, runAsUser: 7", ""},
	"non-root-but-root":  {"runAsNonRoot: true", "runAsUser: 0"},
	"non-root-taken":     {"runAsNonRoot: true", "runAsNonRoot: false"},
	"no-escalation":      {"", "allowPrivilegeEscalation: false"},
	"capabilities":       {"", "capabilities: {add: [NET_ADMIN], drop: [ALL]}"},
	"capability-more":    {"", "capabilities: {add: [SYS_TIME], drop: [CHOWN, NET_RAW]}"},
	"capabilities-none":  {"", "capabilities: {drop: [ALL]}"},
	"privileged":         {"", "privileged: true"},
	"read-only":          {"", "readOnlyRootFilesystem: true"},
	"seccomp":            {"seccompProfile: {type: RuntimeDefault}", ""},
	"seccomp-own":        {"seccompProfile: {type: Unconfined}", "seccompProfile: {type: RuntimeDefault}"},
	"seccomp-unconfined": {"seccompProfile: {type: RuntimeDefault}", "seccompProfile: {type: Unconfined}"},
	"restricted":         {restrictedPod, restrictedContainer},
	"restricted-user":    {restrictedPod + ", runAsUser: 1000, runAsGroup: 3000, fsGroup: 2000", restrictedContainer},
}

// The profile "restricted" of Pod Security requires these fields of pods and containers.
const (
	restrictedPod       = "runAsNonRoot: true, seccompProfile: {type: RuntimeDefault}"
	restrictedContainer = "allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}"
)

// inside is a script that prints the user, groups and rights of its container.
const inside = "exec 2>&1; cat /proc/self/status; echo oom $(cat /proc/self/oom_score_adj) $(busybox id); " +
	"(: > /written) && echo root is written; (: > /work/x) && busybox stat -c 'work %a %u %g' /work /work/x"

// secured returns one pod for each pair of an image and a security context. Each pod runs the
// script in the constant inside.
func secured() map[string]string {
	specs := map[string]string{}
	for user, image := range users {
		for name, c := range securityContexts {
			name = strings.ReplaceAll("as-"+user+"-"+name, ":", "-")
			specs[name] = fmt.Sprintf(`  restartPolicy: Never
  securityContext: {%s}
  volumes: [{name: work, emptyDir: {}}]
  containers:
  - {name: main, image: %q, imagePullPolicy: Never, command: [sh, -c, %q], securityContext: {%s},
      volumeMounts: [{name: work, mountPath: /work}]}
`, c.pod, image, inside, c.container)
		}
	}
	return specs
}

// lives returns pods for every restart policy. They use hooks, init containers, sidecars or probes,
// or cannot start.
func lives() map[string]string {
	const init = "  - {name: %s, image: " + image + ", imagePullPolicy: Never, command: [sh, -c, %q]%s}\n"
	specs := map[string]string{}
	for _, policy := range []string{"Always", "OnFailure", "Never"} {
		head := "  terminationGracePeriodSeconds: 2\n  restartPolicy: " + policy + "\n"
		add := func(name, text string) { specs[strings.ToLower(policy)+"-"+name] = head + text }
		for end, script := range map[string]string{"runs": "sleep 100000", "ends": "sleep 4", "fails": "sleep 4; exit 3"} {
			for hook, command := range map[string]string{"ok": "true", "slow": "sleep 2", "bad": "false"} {
				add("hook-"+hook+"-"+end, shell(script, fmt.Sprintf(
					"    lifecycle: {postStart: {exec: {command: [sh, -c, %q]}}}\n", command)))
			}
			for which, list := range map[string]string{
				"init":       fmt.Sprintf(init, "first", "exit 0", ""),
				"init-fails": fmt.Sprintf(init, "first", "exit 5", ""),
				"side":       fmt.Sprintf(init, "side", "sleep 100000", ", restartPolicy: Always"),
				// The sidecar is in back-off when the main container ends.
				"side-fails": fmt.Sprintf(init, "side", "sleep 1; exit 5", ", restartPolicy: Always"),
				"side-init": fmt.Sprintf(init, "side", "sleep 100000", ", restartPolicy: Always") +
					fmt.Sprintf(init, "first", "sleep 1", ""),
			} {
				add(which+"-"+end, "  initContainers:\n"+list+shell(script, ""))
			}
		}
		for _, kind := range []string{"startup", "readiness", "liveness"} {
			for _, command := range []string{"true", "false"} {
				add(kind+"-"+command, shell("sleep 100000", fmt.Sprintf(
					"    %sProbe: {exec: {command: [%q]}, periodSeconds: 5}\n", kind, command)))
			}
		}
		add("is-killed", shell("kill -9 $$", ""))
		add("no-command", strings.ReplaceAll(shell("exit 0", ""), `["sh"`, `["nothing"`))
		add("no-directory", shell("pwd; ls", "    workingDir: /nowhere\n"))
	}
	return specs
}

// ordinary returns pods like those in manuals. Their security contexts meet the profile
// "restricted" of Pod Security.
func ordinary(base int) map[string]string {
	container := func(name string, command string, more string) string {
		return fmt.Sprintf("  - {name: %s, image: %s, imagePullPolicy: Never, command: %s,\n"+
			"      resources: {requests: {cpu: 10m, memory: 16Mi}, limits: {memory: 64Mi}},\n"+
			"      securityContext: {%s, readOnlyRootFilesystem: true}%s}\n", name, image, command, restrictedContainer, more)
	}
	const (
		head = "  terminationGracePeriodSeconds: 2\n  priority: 1000\n  tolerations: [{operator: Exists}]\n" +
			"  securityContext: {" + restrictedPod + ", runAsUser: 1000, runAsGroup: 3000, fsGroup: 2000}\n"
		volumes = "  volumes: [{name: app, hostPath: {path: APP, type: File}}, {name: tmp, emptyDir: {}}]\n"
		mounts  = ",\n      volumeMounts: [{name: app, mountPath: /app, readOnly: true}, {name: tmp, mountPath: /tmp}]"
	)
	web := func(port int, probes string) string {
		return head + volumes + "  containers:\n" + container("web", fmt.Sprintf("[/app, %q]", fmt.Sprint(base+port)),
			fmt.Sprintf("%s,\n      ports: [{name: http, containerPort: %d}]%s", mounts, base+port, probes))
	}
	return map[string]string{
		"restricted-web": web(50, ",\n      readinessProbe: {httpGet: {port: http, path: /}}, "+
			"livenessProbe: {tcpSocket: {port: http}}, startupProbe: {httpGet: {port: http}, failureThreshold: 30}"),
		"restricted-job": head + "  restartPolicy: OnFailure\n" + volumes + "  containers:\n" +
			container("job", "[sh, -c, 'echo x > /tmp/x && cat /tmp/x']", mounts),
		"restricted-init": head + volumes + "  initContainers:\n" + container("make", "[sh, -c, 'echo x > /tmp/x']", mounts) +
			"  containers:\n" + container("read", "[sh, -c, 'cat /tmp/x && sleep 100000']", mounts),
		"restricted-sidecar": head + "  restartPolicy: Never\n" + volumes + "  initContainers:\n" +
			container("side", "[sleep, '100000']", mounts+", restartPolicy: Always") +
			"  containers:\n" + container("job", "[sleep, '3']", mounts),
		"shared-processes": head + "  shareProcessNamespace: true\n  restartPolicy: Never\n  containers:\n" +
			container("one", "[sh, -c, 'sleep 2; exit 3']", "") + container("two", "[sleep, '100000']", ""),
		"files": head + "  restartPolicy: Never\n" + `  volumes:
  - {name: dir, hostPath: {path: NODE/files/dir, type: DirectoryOrCreate}}
  - {name: file, hostPath: {path: NODE/file, type: FileOrCreate}}
  - {name: device, hostPath: {path: /dev/null, type: CharDevice}}
  containers:
` + container("main", "[sh, -c, 'busybox test -d /a && busybox test -f /b && busybox test -c /c']", `,
      volumeMounts: [{name: dir, mountPath: /a}, {name: file, mountPath: /b}, {name: device, mountPath: /c}]`),
	}
}

// few contains the names of the pods from the function tables that the short run includes. These
// are pods that once differed from the kubelet's, and one pod of each kind.
var few = []string{
	"as-1234-group", "as-app-group", "as-app-non-root", "as-root-restricted", "as-1234-restricted", "as-root-read-only",
	"as-root-seccomp", "as-1234-42-fs-group", "as-root-capabilities", "as-app-restricted-user", "as-root-pod-group",
	"never-hook-ok-ends", "always-hook-bad-runs", "onfailure-hook-slow-fails", "never-side-fails-ends",
	"onfailure-init-fails-runs", "always-no-command", "restricted-web", "restricted-init", "files", "shared-processes",
}

// batches returns lists of the names of pods that run together. The first list contains one pod of
// each kind. If all is true, more lists contain the other pods. The lists are short, because one
// machine runs each list twice at the same time.
func batches(all bool) [][]string {
	var first, others []string
	for name := range manifests(0, "", "") {
		if _, other := tables(0)[name]; other && !slices.Contains(few, name) {
			others = append(others, name)
		} else {
			first = append(first, name)
		}
	}
	parts := [][]string{first}
	if all {
		slices.Sort(others)
		parts = slices.AppendSeq(parts, slices.Chunk(others, 50))
	}
	return parts
}

func tables(base int) map[string]string {
	specs := secured()
	maps.Copy(specs, lives())
	maps.Copy(specs, ordinary(base))
	return specs
}

// manifests returns the manifests for the agent or the kubelet, by pod name. The pods' ports begin
// at base, and their files are below dir. kubeadm's pods serve at address, which must be an address
// of this machine.
func manifests(base int, dir, address string) map[string]string {
	specs := scenario(base)
	maps.Copy(specs, tables(base))
	texts := kubeadm(address)
	for name, spec := range specs {
		texts[name] = manifest(name, spec)
	}
	for name, text := range texts {
		texts[name] = strings.NewReplacer("APP", bin+"/app", "NODE", dir).Replace(text)
	}
	return texts
}
