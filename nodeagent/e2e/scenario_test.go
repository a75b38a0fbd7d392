package nodeagent

import (
	"fmt"
	"strings"
)

// scenario returns the specification of one pod of each kind, by pod name. The pods' ports begin at
// base.
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
	return map[string]string{
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
		"live-http": quick + app(8, "") + probe("liveness", at("httpGet: {port: %d, path: /}", 8),
			"      failureThreshold: 30\n") + volume, // servers on a busy machine are slow
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
		// These pods are like kube-vip's static pod and the DaemonSets of node-exporter and cilium,
		// but without service accounts and config maps.
		"like-kube-vip": quick + "  hostAliases: [{ip: 127.0.0.1, hostnames: [kubernetes]}]\n" +
			shell("grep -q kubernetes /etc/hosts && sleep 100000",
				"    securityContext: {capabilities: {add: [NET_ADMIN, NET_RAW]}}\n"),
		"like-node-exporter": never + `  hostPID: true
  securityContext: {runAsNonRoot: true, runAsUser: 65534}
  volumes: [{name: root, hostPath: {path: /}}]
` + shell("test -d /host/proc && case $(IP) in *.*.*.*) exit 3; esac", `    env:
    - {name: IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
    securityContext: {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true,
      capabilities: {drop: [ALL], add: [SYS_TIME]}}
    volumeMounts: [{name: root, mountPath: /host, mountPropagation: HostToContainer, readOnly: true}]
`),
		"like-cilium": "  terminationGracePeriodSeconds: 1\n" + `  volumes: [{name: run, emptyDir: {medium: Memory}}]
  initContainers:
  - {name: clean, image: ` + image + `, imagePullPolicy: Never, command: [sh, -c, "test $NAME && echo x > /run/x/x"],
      securityContext: {privileged: true}, env: [{name: NAME, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}],
      volumeMounts: [{name: run, mountPath: /run/x}]}
` + shell("test -e /run/x/x && sleep 100000", `    securityContext: {privileged: true}
    lifecycle: {postStart: {exec: {command: ['true']}}, preStop: {exec: {command: ['true']}}}
    livenessProbe: {exec: {command: ['true']}, initialDelaySeconds: 1, periodSeconds: 1, failureThreshold: 10}
    volumeMounts: [{name: run, mountPath: /run/x, mountPropagation: Bidirectional}]
`),
		"changed": quick + shell("sleep 100000", ""),
		"removed": quick + shell("sleep 100000", ""),
		"removed-deaf": "  terminationGracePeriodSeconds: 4\n" + shell("trap '' TERM; while true; do sleep 1; done",
			"    lifecycle: {preStop: {exec: {command: [sleep, '1']}}}\n"),
	}
}
