package nodeagent

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	v1 "k8s.io/api/core/v1"
)

// logOf returns the log of the first instance of a pod's container main.
func (n *node) logOf(pod string) string {
	n.t.Helper()
	paths, err := filepath.Glob(filepath.Join(n.dir, "state", "logs", "live_"+pod+"_*", "main", "0.log"))
	if err != nil || len(paths) != 1 {
		n.t.Fatalf("the logs of %s are %q, %v", pod, paths, err)
	}
	log, err := os.ReadFile(paths[0])
	n.must(err)
	var text strings.Builder
	for line := range strings.Lines(string(log)) {
		if fields := strings.SplitN(line, " ", 4); len(fields) == 4 { // time, stream, P (partial) or F (full), text
			text.WriteString(fields[3])
		}
	}
	return text.String()
}

// The agent supports features that published manifests use. These are pod fields in environment
// variables, host aliases, in-memory volumes, and mounts that the host adds after the container's
// start.
func TestPublishedFeatures(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	shared := filepath.Join(n.dir, "shared")
	n.must(os.Mkdir(shared, 0o755))
	n.must(syscall.Mount(shared, shared, "", syscall.MS_BIND, ""))
	n.must(syscall.Mount("", shared, "", syscall.MS_SHARED, ""))
	t.Cleanup(func() {
		_ = syscall.Unmount(filepath.Join(shared, "late"), syscall.MNT_DETACH)
		n.must(syscall.Unmount(shared, syscall.MNT_DETACH))
	})
	n.must(os.Mkdir(filepath.Join(shared, "late"), 0o755))
	n.write("features", manifest("features", `  terminationGracePeriodSeconds: 1
  restartPolicy: Never
  hostAliases: [{ip: 192.0.2.9, hostnames: [kubernetes, other]}]
  volumes: [{name: memory, emptyDir: {medium: Memory}}, {name: shared, hostPath: {path: `+shared+`}}]
`+shell("echo $NAME $NODE $IP $UID_; grep -c Kubernetes-managed /etc/hosts; grep kubernetes /etc/hosts; "+
		"grep ' /memory ' /proc/mounts | cut -d ' ' -f 1-3; echo x > /memory/x; until test -e /shared/late/x; "+
		"do sleep 0.1; done; echo late; sleep 1000000",
		`    env:
    - {name: NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
    - {name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
    - {name: IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
    - {name: UID_, valueFrom: {fieldRef: {fieldPath: metadata.uid}}}
    volumeMounts:
    - {name: memory, mountPath: /memory}
    - {name: shared, mountPath: /shared, mountPropagation: HostToContainer}
`)))
	a := n.startAgent()
	n.eventually("running", a.is("features", v1.PodRunning))
	a.end(syscall.SIGKILL)
	a = n.startAgent() // the new agent must not mount anything again
	n.must(syscall.Mount("tmpfs", filepath.Join(shared, "late"), "tmpfs", 0, ""))
	n.must(os.WriteFile(filepath.Join(shared, "late", "x"), nil, 0o600))
	n.eventually("seeing the mount", func() string {
		if text := n.logOf("features"); !strings.HasSuffix(text, "late\n") {
			return text
		}
		return ""
	})
	n.eventually("running, of the new agent", a.is("features", v1.PodRunning))
	pod := a.pods()["features"]
	want := "features live 127.0.0.1 " + string(pod.UID) + "\n1\n192.0.2.9\tkubernetes\tother\ntmpfs /memory tmpfs\nlate\n"
	if got := n.logOf("features"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	n.remove("features")
	n.eventually("nothing that is left", func() string {
		left, err := filepath.Glob(filepath.Join(n.dir, "state", "pods", "*"))
		mounts, failed := os.ReadFile("/proc/mounts")
		if err := errors.Join(err, failed); err != nil || len(left) > 0 ||
			strings.Contains(string(mounts), filepath.Join(n.dir, "state")) {
			return strings.Join(left, " ") + " and mounts"
		}
		return ""
	})
}

// If a container's root leaves a setuid program in a volume, an unprivileged user of the host
// cannot run the program. The user cannot read the agent's logs or take its locks either.
func TestUnprivilegedUser(t *testing.T) {
	n := newNode(t)
	n.must(os.Chmod(filepath.Dir(n.dir), 0o755)) //nolint:gosec // every user may reach the state directory
	n.write("leaves", manifest("leaves", "  terminationGracePeriodSeconds: 1\n  volumes: [{name: v, emptyDir: {}}]\n"+
		shell("cp /bin/busybox /v/busybox && chmod 4755 /v/busybox && echo done; sleep 1000000",
			"    env: [{name: PASSWORD, value: s3cret}]\n    volumeMounts: [{name: v, mountPath: /v}]\n")))
	a := n.startAgent()
	n.eventually("running", a.is("leaves", v1.PodRunning))
	n.eventually("leaving it", func() string {
		if text := n.logOf("leaves"); text != "done\n" {
			return text
		}
		return ""
	})
	paths, err := filepath.Glob(filepath.Join(n.dir, "state", "pods", "*", "volumes", "v", "busybox"))
	if err != nil || len(paths) != 1 {
		t.Fatal(paths, err)
	}
	for _, script := range []string{
		paths[0] + " id -u", "cat " + n.dir + "/state/logs/*/*/*", "ls " + n.dir + "/state",
		"flock -n " + n.dir + "/state/lock echo locked",
		"flock -n " + strings.TrimPrefix(n.daemon.Endpoint(), "unix://") + ".nodeagent.lock echo locked",
	} {
		cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c", script)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "ermission denied") {
			t.Errorf("%s: %v\n%s", script, err, out)
		}
	}
	if env := a.pods()["leaves"].Spec.Containers[0].Env; len(env) != 1 || env[0].Name != "PASSWORD" || env[0].Value != "" {
		t.Errorf("/pods shows %v", env)
	}
}

// If the agent stops a job because its liveness probe failed, the agent runs the job again. This
// holds even if the stopped job exits with code 0.
func TestInterruptedJob(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.write("job", manifest("job", "  terminationGracePeriodSeconds: 5\n  restartPolicy: OnFailure\n"+
		shell("trap 'exit 0' TERM; while true; do sleep 0.1; done", `    livenessProbe:
      exec: {command: ["false"]}
      periodSeconds: 1
      failureThreshold: 2
`)))
	a := n.startAgent()
	n.eventually("the second instance", func() string {
		pod := a.pods()["job"]
		if pod == nil || len(pod.Status.ContainerStatuses) != 1 {
			return "there is none"
		}
		if pod.Status.ContainerStatuses[0].RestartCount < 1 {
			return brief(pod)
		}
		return ""
	})
	if s := a.pods()["job"].Status.ContainerStatuses[0].LastTerminationState.Terminated; s == nil || s.ExitCode != 0 {
		t.Errorf("it has ended as %v", s)
	}
}
