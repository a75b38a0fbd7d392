package nodeagent

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
)

// difference is one of the agent from the kubelet that is intended.
type difference struct {
	why string
	// pods are those that differ without level; level makes the two statuses comparable.
	pods  []string
	level func(*v1.ContainerStatus)
	seen  bool
}

// differences are all that there are. Beside them, the kubelet appends the node's name to
// those of its pods, and gives a pod whose manifest has no UID another with every change.
var differences = []*difference{{
	why: "The kubelet sets a pod's status before it syncs the pod, so that a container which waits for its back-off " +
		"is shown as terminated until the sync after. The agent sets it after the sync as well.",
	pods: []string{"always-exit-0", "always-exit-3", "onfailure-exit-3", "init-fails"},
	level: func(s *v1.ContainerStatus) {
		if s.State.Waiting != nil && s.State.Waiting.Reason == "CrashLoopBackOff" {
			s.State = s.LastTerminationState
		}
	},
}}

// levelled returns a pod without the differences that are intended, and notes those.
func levelled(name string, pod *v1.Pod) *v1.Pod {
	for _, d := range differences {
		if pod == nil || !slices.Contains(d.pods, name) {
			continue
		}
		before := compared(pod)
		pod = pod.DeepCopy()
		for _, list := range [][]v1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
			for i := range list {
				d.level(&list[i])
			}
		}
		d.seen = d.seen || compared(pod) != before
	}
	return pod
}

// scenario returns the manifests that both run, by name. Their ports begin at base.
func scenario(base int) map[string]string {
	app := func(port int, args string) string {
		return fmt.Sprintf(`  containers:
  - name: main
    image: %s
    imagePullPolicy: Never
    command: ["/app", "%d"%s]
    volumeMounts:
    - {name: app, mountPath: /app, readOnly: true}
`, image, base+port, args)
	}
	const volume = "  volumes:\n  - name: app\n    hostPath: {path: APP, type: File}\n"
	probe := func(kind, handler string, more string) string {
		return fmt.Sprintf("    %sProbe:\n      %s\n      periodSeconds: 1\n%s", kind, handler, more)
	}
	at := func(format string, port int) string { return fmt.Sprintf(format, base+port) }
	const (
		quick = "  terminationGracePeriodSeconds: 2\n"
		never = "  restartPolicy: Never\n" + quick
		init  = `  initContainers:
  - {name: first, image: ` + image + `, imagePullPolicy: Never, command: [sh, -c, "FIRST"]}
  - {name: second, image: ` + image + `, imagePullPolicy: Never, command: [sh, -c, "exit 0"]}
`
	)
	sidecar := func(startup string) string {
		return `  initContainers:
  - name: side
    image: ` + image + `
    imagePullPolicy: Never
    restartPolicy: Always
    command: [sleep, "100000"]
` + startup
	}
	specs := map[string]string{
		"always-runs":      quick + shell("sleep 100000", ""),
		"always-exit-0":    quick + shell("exit 0", ""),
		"always-exit-3":    quick + shell("exit 3", ""),
		"onfailure-exit-0": quick + "  restartPolicy: OnFailure\n" + shell("exit 0", ""),
		"onfailure-exit-3": quick + "  restartPolicy: OnFailure\n" + shell("exit 3", ""),
		"never-exit-0":     never + shell("exit 0", ""),
		"never-exit-3":     never + shell("exit 3", ""),
		"never-killed":     never + shell("kill -9 $$", ""),
		"two-containers": never + shell("exit 0", `  - {name: other, image: `+image+`, imagePullPolicy: Never, command: [sh,
		    -c, "sleep 2; exit 4"]}
`),
		"init-ok":         quick + strings.Replace(init, "FIRST", "sleep 1", 1) + shell("sleep 100000", ""),
		"init-fails":      quick + strings.Replace(init, "FIRST", "exit 5", 1) + shell("sleep 100000", ""),
		"init-fails-ever": never + strings.Replace(init, "FIRST", "exit 5", 1) + shell("sleep 100000", ""),
		"sidecar":         quick + sidecar("") + shell("sleep 100000", ""),
		"sidecar-startup": quick + sidecar(probe("startup", "exec: {command: ['true']}", "")) + shell("sleep 100000", ""),
		"sidecar-job":     never + sidecar("") + shell("sleep 2", ""),
		"ready-http":      quick + app(1, "") + probe("readiness", at("httpGet: {port: %d, path: /}", 1), "") + volume,
		"unready-http": quick + app(2, `, "for=1ms"`) + probe("readiness", at("httpGet: {port: %d, path: /}", 2), "") +
			volume,
		"ready-tcp":    quick + app(3, "") + probe("readiness", at("tcpSocket: {port: %d}", 3), "") + volume,
		"unready-tcp":  quick + app(4, "") + probe("readiness", at("tcpSocket: {port: %d}", 99), "") + volume,
		"ready-grpc":   quick + app(5, `, "grpc"`) + probe("readiness", at("grpc: {port: %d}", 5), "") + volume,
		"unready-grpc": quick + app(6, `, "grpc", "for=1ms"`) + probe("readiness", at("grpc: {port: %d}", 6), "") + volume,
		"ready-exec":   quick + shell("sleep 100000", probe("readiness", "exec: {command: ['true']}", "")),
		"unready-exec": quick + shell("sleep 100000", probe("readiness", "exec: {command: ['false']}", "")),
		"exec-timeout": quick + shell("sleep 100000", probe("readiness", "exec: {command: [sleep, '5']}", "")),
		"ready-flaps": quick + app(7, `, "flap=4s"`) + probe("readiness", at("httpGet: {port: %d, path: /}", 7),
			"      failureThreshold: 1\n") + volume,
		"live-http": quick + app(8, "") + probe("liveness", at("httpGet: {port: %d, path: /}", 8), "") + volume,
		"dead-http": never + app(9, `, "for=3s"`) + probe("liveness", at("httpGet: {port: %d, path: /}", 9), "") +
			volume,
		"dead-tcp":  never + app(10, "") + probe("liveness", at("tcpSocket: {port: %d}", 99), "") + volume,
		"dead-grpc": never + app(11, `, "grpc", "for=3s"`) + probe("liveness", at("grpc: {port: %d}", 11), "") + volume,
		"dead-exec": never + shell("sleep 100000", probe("liveness", "exec: {command: ['false']}", "")),
		"starts-slowly": quick + app(12, `, "after=4s"`) + probe("startup", at("tcpSocket: {port: %d}", 12),
			"      failureThreshold: 30\n") + volume,
		"starts-never": never + shell("sleep 100000", probe("startup", "exec: {command: ['false']}",
			"      failureThreshold: 3\n")),
		"no-image": quick + strings.ReplaceAll(shell("exit 0", ""), image, "localhost/missing:test"),
		"empty-dir": never + `  volumes:
  - {name: work, emptyDir: {}}
  initContainers:
  - {name: write, image: ` + image + `, imagePullPolicy: Never, command: [sh, -c, "echo x > /work/x"],
      volumeMounts: [{name: work, mountPath: /work}]}
  containers:
  - {name: main, image: ` + image + `, imagePullPolicy: Never, command: [sh, -c, "cat /work/x"],
      volumeMounts: [{name: work, mountPath: /work}]}
`,
		"post-start": quick + shell("sleep 100000", "    lifecycle: {postStart: {exec: {command: ['true']}}}\n"),
		"env":        never + shell("exit $CODE", "    env: [{name: A, value: '7'}, {name: CODE, value: $(A)}]\n"),
		"changed":    quick + shell("sleep 100000", ""),
		"removed":    quick + shell("sleep 100000", ""),
		"removed-deaf": "  terminationGracePeriodSeconds: 4\n" + shell("trap '' TERM; while true; do sleep 1; done",
			"    lifecycle: {preStop: {exec: {command: [sleep, '1']}}}\n"),
	}
	manifests := map[string]string{}
	for name, spec := range specs {
		manifests[name] = strings.ReplaceAll(manifest(name, spec), "APP", bin+"/app")
	}
	return manifests
}

// compared returns what of a status is compared.
func compared(pod *v1.Pod) string {
	if pod == nil {
		return "gone"
	}
	var text strings.Builder
	fmt.Fprintf(&text, "%s", pod.Status.Phase)
	conditions := map[string]string{}
	for _, c := range pod.Status.Conditions {
		conditions[string(c.Type)] = fmt.Sprintf("%s(%s)", c.Status, c.Reason)
	}
	for _, name := range slices.Sorted(maps.Keys(conditions)) {
		fmt.Fprintf(&text, " %s=%s", name, conditions[name])
	}
	for _, list := range [][]v1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for _, c := range list {
			fmt.Fprintf(&text, "\n  %s restarts %d ready %v %s", c.Name, c.RestartCount, c.Ready, describe(c.State))
		}
	}
	return text.String()
}

func describe(s v1.ContainerState) string {
	switch {
	case s.Running != nil:
		return "running"
	case s.Terminated != nil:
		return fmt.Sprintf("terminated %d %s", s.Terminated.ExitCode, s.Terminated.Reason)
	case s.Waiting != nil:
		return "waiting " + s.Waiting.Reason
	}
	return "?"
}

// The same manifests, run by a stock kubelet and by the agent, end with the same statuses.
func TestBesideKubelet(t *testing.T) {
	t.Parallel()
	buildKubelet(t)
	ours, theirs := newNode(t), newNode(t)
	mine, stock := scenario(20000), scenario(21000)
	for name := range mine {
		ours.write(name, mine[name])
		theirs.write(name, stock[name])
	}
	a, k := ours.startAgent(), theirs.startKubelet()
	ours.awaitPods(a, len(mine))
	theirs.awaitPods(k, len(stock))
	began := time.Now()

	for _, n := range []*node{ours, theirs} {
		r := runner(a)
		if n == theirs {
			r = k
		}
		n.eventually("running", func() string {
			for _, name := range []string{"changed", "removed", "removed-deaf"} {
				if pod := r.pods()[name]; pod == nil || !ready(pod) {
					return name + " is not ready"
				}
			}
			return ""
		})
		n.write("changed", strings.ReplaceAll(mine["changed"], image, otherImage))
		n.remove("removed")
		n.remove("removed-deaf")
	}

	// What flaps and what crashes is equal now and then; the crash loops are compared while
	// they wait for 40 s.
	left := slices.Sorted(maps.Keys(mine))
	var last map[string]string
	for time.Since(began) < 35*time.Second {
		time.Sleep(time.Second)
	}
	for deadline := time.Now().Add(patience); len(left) > 0 &&
		time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		got, want := a.pods(), k.pods()
		last = map[string]string{}
		left = slices.DeleteFunc(left, func(name string) bool {
			x, y := compared(levelled(name, got[name])), compared(levelled(name, want[name]))
			last[name] = fmt.Sprintf("%s\nthe agent: %s\nthe kubelet: %s", name, x, y)
			return x == y
		})
	}
	for _, name := range left {
		t.Error(last[name])
	}
	for _, d := range differences {
		if !d.seen {
			t.Errorf("does not differ any more: %s", d.why)
		}
	}
	t.Logf("%d pods compared", len(mine))
}
