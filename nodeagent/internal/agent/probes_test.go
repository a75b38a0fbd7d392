package agent

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	v1 "k8s.io/api/core/v1"
)

// probed returns the specification of a container with probes.
func probed(image string, probes ...string) string {
	return "  containers:\n  - name: web\n    imagePullPolicy: Never\n    image: " + image + "\n    " +
		strings.Join(probes, "\n    ") + "\n"
}

const strictLiveness = "livenessProbe: {exec: {command: [check]}, periodSeconds: 1, failureThreshold: 1}"

// A container becomes ready when successThreshold readiness probes in a row have succeeded. It
// becomes unready when failureThreshold probes in a row have failed.
func TestReadiness(t *testing.T) {
	inBubble(t, func(_ *testing.T, n *node) {
		n.setExec("web", 1)
		n.run(3*time.Second, n.pod("a", probed("sleep",
			"readinessProbe: {exec: {command: [check]}, periodSeconds: 2, successThreshold: 2, failureThreshold: 3}")))
		n.want("a", "Running; web 0 running")
		n.setExec("web", 0)
		n.wait(5 * time.Second)
		n.want("a", "Running Ready; web 0 running")
		n.setExec("web", 1)
		n.wait(3 * time.Second)
		n.want("a", "Running Ready; web 0 running")
		n.wait(4 * time.Second)
		n.want("a", "Running; web 0 running")
	})
}

// The first readiness probe runs as soon as its container runs, even if the period is long.
func TestReadinessAtOnce(t *testing.T) {
	inBubble(t, func(_ *testing.T, n *node) {
		n.run(5*time.Second, n.pod("a", probed("sleep", "readinessProbe: {exec: {command: [check]}, periodSeconds: 60}")))
		n.want("a", "Running Ready; web 0 running")
	})
}

// If a liveness probe fails, the agent kills the container after the probe's grace period and
// restarts the container. The agent does not probe the container while it is being killed.
func TestLiveness(t *testing.T) {
	inBubble(t, func(t *testing.T, n *node) {
		n.run(30*time.Second, n.pod("a", probed("deaf", "livenessProbe: {exec: {command: [check]}, periodSeconds: 1, "+
			"initialDelaySeconds: 3, failureThreshold: 2, terminationGracePeriodSeconds: 7}")))
		n.want("a", "Running Ready; web 0 running")
		n.setExec("web", 1)
		calls := n.server.Calls("ExecSync")
		n.wait(5 * time.Second)
		if more := n.server.Calls("ExecSync") - calls; more != 2 {
			t.Errorf("%d probes of a container that is being killed", more)
		}
		n.want("a", "Running Ready; web 0 running")
		n.setExec("web", 0)
		n.wait(5 * time.Second)
		n.want("a", "Running Ready; web 1 running after Error(137)")
	})
}

// If a liveness probe never succeeds, the agent kills and restarts the container again and again,
// with back-off. With the restart policy Never, the container runs only once.
func TestLivenessNeverSucceeds(t *testing.T) {
	inBubble(t, func(_ *testing.T, n *node) {
		spec := "\n" + probed("sleep", strictLiveness)
		n.setExec("web", 1)
		n.run(5*time.Second, n.pod("a", "  restartPolicy: Always"+spec), n.pod("b", "  restartPolicy: Never"+spec))
		// As in the kubelet, all earlier instances of a container count for its back-off. The
		// newest instance does not count if the agent killed it.
		n.want("a", "Running; web 2 CrashLoopBackOff after Completed(0)")
		n.want("b", "Succeeded; web 0 Completed(0)") // web exits with 0 when it is asked to end
	})
}

// Other probes wait until the startup probe has succeeded once. If the startup probe fails, the
// agent kills the container.
func TestStartup(t *testing.T) {
	inBubble(t, func(t *testing.T, n *node) {
		n.setExec("web", 1)
		n.run(5*time.Second, n.pod("a", probed("sleep",
			"startupProbe: {exec: {command: [check]}, periodSeconds: 1, failureThreshold: 10}", strictLiveness)))
		n.want("a", "Running; web 0 running")
		if started := n.status("a").ContainerStatuses[0].Started; started == nil || *started {
			t.Error("it has started")
		}
		n.wait(7 * time.Second)
		n.want("a", "Running; web 1 running after Completed(0)")
		n.setExec("web", 0)
		n.wait(3 * time.Second)
		n.want("a", "Running Ready; web 1 running after Completed(0)")
	})
}

// A probe fails if its command runs longer than the timeout. If the call to the runtime fails, the
// probe gives no result.
func TestProbeTimeout(t *testing.T) {
	inBubble(t, func(t *testing.T, n *node) {
		n.run(10*time.Second, n.pod("a", probed("sleep",
			"livenessProbe: {exec: {command: [hang]}, periodSeconds: 1, timeoutSeconds: 2, failureThreshold: 2}")))
		if s := n.status("a").ContainerStatuses[0]; s.RestartCount != 1 {
			t.Errorf("%d restarts", s.RestartCount)
		}
		n.server.Fail("ExecSync", "", errOnPurpose)
		n.run(time.Minute, n.pod("b", probed("sleep", strictLiveness)))
		n.want("b", "Running Ready; web 0 running")
	})
}

// The metric prober_probe_total has the kubelet's labels. A probe that could not be made counts as
// unknown. When the pod is gone, so is the metric.
func TestProberProbeTotal(t *testing.T) {
	for _, kind := range []string{"Liveness", "Readiness", "Startup"} {
		inBubble(t, func(t *testing.T, n *node) {
			pod := n.pod("a", probed("sleep", strings.ToLower(kind)+
				"Probe: {exec: {command: [check]}, periodSeconds: 1, failureThreshold: 100}"))
			want, made := "", 0
			take := func(result string) {
				n.wait(3 * time.Second)
				calls := n.server.Calls("ExecSync")
				want += fmt.Sprintf("prober_probe_total{container=\"web\",namespace=\"default\",pod=\"a\",pod_uid=%q,"+
					"probe_type=%q,result=%q} %d\n", pod.UID, kind, result, calls-made)
				made = calls
			}
			compare := func(want string) {
				t.Helper()
				if err := testutil.GatherAndCompare(n.registry, strings.NewReader(want), "prober_probe_total"); err != nil {
					t.Error(err)
				}
			}
			n.setExec("web", 1)
			n.run(500*time.Millisecond, pod)
			take("failed")
			heal := n.server.Fail("ExecSync", "", errOnPurpose)
			take("unknown")
			heal()
			n.setExec("web", 0)
			take("successful")
			compare("# HELP prober_probe_total How many probes a container had, by type and result.\n" +
				"# TYPE prober_probe_total counter\n" + want)
			n.run(10 * time.Second)
			compare("")
		})
	}
}

// A probe of a closed port fails, and the agent restarts the container.
func TestProbeOfDeadPort(t *testing.T) {
	inBubble(t, func(t *testing.T, n *node) {
		n.run(5*time.Second, n.pod("a", probed("sleep",
			"livenessProbe: {tcpSocket: {port: 1}, periodSeconds: 1, failureThreshold: 2}")))
		if s := n.status("a"); s.ContainerStatuses[0].RestartCount == 0 || s.Phase != v1.PodRunning {
			t.Errorf("%s", n.brief("a"))
		}
	})
}

// While a pod ends, readiness probes continue and liveness probes do not.
func TestProbesDuringTermination(t *testing.T) {
	inBubble(t, func(t *testing.T, n *node) {
		pod := n.pod("a", "  terminationGracePeriodSeconds: 20\n"+probed("deaf",
			"readinessProbe: {exec: {command: [check]}, periodSeconds: 1, failureThreshold: 1}", strictLiveness))
		n.run(3*time.Second, pod)
		n.want("a", "Running Ready; web 0 running")
		n.agent.SetPods(nil)
		n.wait(time.Second)
		calls := n.server.Calls("ExecSync")
		n.wait(3 * time.Second)
		if more := n.server.Calls("ExecSync") - calls; more != 3 {
			t.Errorf("%d probes in three seconds, want those for readiness", more)
		}
		n.setExec("web", 1)
		n.wait(2 * time.Second)
		n.want("a", "Running; web 0 running")
	})
}

// If the agent stops a job because of a failed probe or a change of the sandbox, the job starts
// again, even if it exits with code 0. The job also starts again if the agent is killed while it
// stops the job.
func TestInterruptedJob(t *testing.T) {
	const spec = `  restartPolicy: OnFailure
  containers:
  - {name: job, image: lazy, imagePullPolicy: Never,
      KINDProbe: {exec: {command: [check]}, periodSeconds: 1, failureThreshold: 1}}
`
	for _, kind := range []string{"liveness", "startup"} {
		for _, killed := range []bool{false, true} {
			t.Run(fmt.Sprint(kind, " killed ", killed), func(t *testing.T) {
				inBubble(t, func(_ *testing.T, n *node) {
					n.setExec("job", 1)
					pod := n.pod("a", strings.ReplaceAll(spec, "KIND", kind))
					n.run(3*time.Second, pod)
					n.setExec("job", 0)
					n.want("a", "Running"+map[string]string{"liveness": " Ready", "startup": ""}[kind]+"; job 0 running")
					if killed { // restart the agent once in the grace period, and once after the job's exit
						n.stop()
						n.start()
						n.run(time.Second, pod)
						n.stop()
						n.wait(10 * time.Second)
						n.start()
					}
					n.run(15*time.Second, pod)
					n.want("a", "Running Ready; job 1 running after Completed(0)")
				})
			})
		}
	}
	inBubble(t, func(_ *testing.T, n *node) {
		const job = "  restartPolicy: OnFailure\n  containers: [{name: job, image: lazy, imagePullPolicy: Never}]\n"
		n.run(3*time.Second, n.pod("a", job))
		n.run(15*time.Second, n.pod("a", "  hostname: other\n"+job))
		n.want("a", "Running Ready; job 1 running after Completed(0)")
	})
}

// If a failed probe ends a job with the restart policy Never, the job's exit code decides the
// result, as in the kubelet.
func TestInterruptedOnce(t *testing.T) {
	inBubble(t, func(_ *testing.T, n *node) {
		n.setExec("job", 1)
		n.run(20*time.Second, n.pod("a", `  restartPolicy: Never
  containers:
  - {name: job, image: lazy, imagePullPolicy: Never, livenessProbe: {exec: {command: [check]}, periodSeconds: 1}}
`))
		n.want("a", "Succeeded; job 0 Completed(0)")
	})
}
