package live

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/internal/e2e/testnode"
	"github.com/kubepleg/pleg/internal/test/proctest"
	"github.com/kubepleg/pleg/plegwatch/e2e/deploy"
)

const (
	nodeName = "live"
	image    = "localhost/plegwatch:test"
)

// agent is a running pod of the DaemonSet on a node.
type agent struct {
	*node
	name    string
	address string
}

// startAgent runs the DaemonSet's pod template as a static pod, with these differences:
//
//   - the image has another name and is not pulled;
//   - the host directory and the name of the runtime's socket are those of the test's node. The
//     mount path in the pod stays the same;
//   - the pod uses the host network, because the node has no CNI, and listens on loopback.
//
// If edit is not nil, it makes further changes.
func (n *node) startAgent(name string, edit func(*corev1.PodSpec)) *agent {
	n.t.Helper()
	m, err := deploy.Kustomize()
	n.must(err)
	template := m.DaemonSet.Spec.Template
	pod := &corev1.Pod{ObjectMeta: template.ObjectMeta, Spec: template.Spec}
	pod.Name, pod.Namespace = name, m.DaemonSet.Namespace
	c := &pod.Spec.Containers[0]
	c.Image, c.ImagePullPolicy = image, corev1.PullNever

	dir, socket := filepath.Split(n.daemon.Socket())
	pod.Spec.Volumes[0].HostPath.Path = filepath.Clean(dir)
	n.replace(c, "containerd.sock", socket)

	address := proctest.FreeAddress(n.t)
	_, port, err := net.SplitHostPort(address)
	n.must(err)
	pod.Spec.HostNetwork = true
	n.replace(c, "--listen=0.0.0.0:10271", "--listen="+address)
	number, err := strconv.ParseInt(port, 10, 32)
	n.must(err)
	c.Ports[0].ContainerPort, c.Ports[0].HostPort = int32(number), int32(number)
	if edit != nil {
		edit(&pod.Spec)
	}
	n.run(pod)
	return &agent{node: n, name: name, address: address}
}

// replace replaces old in one of the container's arguments. It fails the test if no argument
// contains old.
func (n *node) replace(c *corev1.Container, old, replacement string) {
	n.t.Helper()
	for i, arg := range c.Args {
		if c.Args[i] = strings.Replace(arg, old, replacement, 1); c.Args[i] != arg {
			return
		}
	}
	n.t.Fatalf("%q is not in %q", old, c.Args)
}

// healthz returns the status code and the report of the agent's /healthz.
func (a *agent) healthz() (code int, r pleg.HealthReport) {
	if err := get("http://"+a.address+"/healthz", &r); err != nil {
		return 0, r
	}
	if !r.Healthy {
		return http.StatusServiceUnavailable, r
	}
	return http.StatusOK, r
}

// well returns a condition for the function eventually: the agent is healthy, its stream is
// connected, and its last list began after the given time.
func (a *agent) well(after time.Time) func() string {
	return func() string {
		code, r := a.healthz()
		if code == http.StatusOK && r.LastRelist.After(after) && r.RelistError == "" &&
			r.Stream.State == pleg.StreamConnected {
			return ""
		}
		return fmt.Sprintf("%d, %s", code, describe(r))
	}
}

// cut is a condition for the function eventually: the agent has noticed that the runtime is gone.
func (a *agent) cut() string {
	if _, r := a.healthz(); r.RelistError == "" || r.Stream.State == pleg.StreamConnected {
		return describe(r)
	}
	return ""
}

// deaths returns how many deaths with the given exit code the agent has recorded. The first call of
// deaths starts the recording.
func (a *agent) deaths(code int) (n int) {
	a.t.Helper()
	var seen struct {
		Events []struct {
			Event    pleg.PodLifeCycleEventType
			ExitCode *int
		}
	}
	a.must(get("http://"+a.address+"/?format=json", &seen))
	for _, e := range seen.Events {
		if e.Event == pleg.ContainerDied && e.ExitCode != nil && *e.ExitCode == code {
			n++
		}
	}
	return n
}

// pid returns the process ID of the agent in the node's PID namespace.
func (a *agent) pid() string {
	a.t.Helper()
	_, id, _ := strings.Cut(a.pod(a.name).Status.ContainerStatuses[0].ContainerID, "://")
	pid, err := a.client.Pid(a.t.Context(), id)
	a.must(err)
	return strconv.Itoa(pid)
}

// A kubelet runs the DaemonSet's pod on a real runtime. When the runtime is killed and restarted,
// the agent continues in the same container. A pod that mounts the socket file instead of the
// socket's directory loses the runtime.
func TestRestartOfRuntime(t *testing.T) {
	n := newNode(t)
	n.runShell("before", "sleep 100000")
	n.eventually("a pod before the agent", n.ready("before"))
	a := n.startAgent("plegwatch", nil)
	blind := n.startAgent("blind", func(spec *corev1.PodSpec) {
		v, mount := spec.Volumes[0].HostPath, &spec.Containers[0].VolumeMounts[0]
		socket := corev1.HostPathSocket
		v.Path, v.Type = n.daemon.Socket(), &socket
		mount.MountPath = filepath.Join(mount.MountPath, filepath.Base(v.Path))
	})
	n.eventually("the agent", n.ready("plegwatch"))
	n.eventually("the blind agent", n.ready("blind"))
	n.eventually("the agent's health", a.well(time.Time{}))
	n.eventually("the blind agent's health", blind.well(time.Time{}))
	if a.deaths(0)+blind.deaths(0) > 0 { // these calls of deaths start the recording
		t.Error("what has run on has ended")
	}
	first := n.pod("plegwatch").Status.ContainerStatuses[0]

	t.Run("confined", func(t *testing.T) { confined(t, a) })
	// CRI-O's socket has its own directory, so this applies to containerd only.
	if filepath.Dir(n.daemon.Socket()) == n.daemon.Dir() {
		t.Run("unmounted", func(t *testing.T) { unmounted(t, a) })
	}
	const code = 7
	n.runShell("first", fmt.Sprint("exit ", code))
	n.eventually("a death", func() string { return missing(a.deaths(code), 1) })

	n.must(n.daemon.Kill())
	n.eventually("the agent notices", a.cut)
	n.eventually("the blind agent notices", blind.cut)
	began := time.Now()
	n.must(n.daemon.Restart(t.Context()))
	n.eventually("the agent's health after the restart", a.well(began))
	t.Logf("the agent was well %v after the runtime was started", time.Since(began).Round(time.Millisecond))

	n.runShell("second", fmt.Sprint("exit ", code))
	n.eventually("a death after the restart", func() string { return missing(a.deaths(code), 2) })
	n.eventually("the agent is ready", n.ready("plegwatch"))
	if now := n.pod("plegwatch").Status.ContainerStatuses[0]; now.ContainerID != first.ContainerID ||
		now.RestartCount != 0 {
		t.Errorf("the agent runs in %s", describe(now))
	}
	if resp, err := http.Get("http://" + a.address + "/"); err != nil || resp.StatusCode != http.StatusOK {
		t.Error("the page:", resp, err)
	} else {
		resp.Body.Close()
	}
	if blind.cut() != "" || blind.deaths(code) > 1 {
		t.Error("the agent with the socket mounted as a file has gone on too: is the test blind?")
	}
}

func missing(got, want int) string {
	if got == want {
		return ""
	}
	return fmt.Sprintf("%d deaths, want %d", got, want)
}

// confined checks that the agent's process is restricted as the manifest demands.
func confined(t *testing.T, a *agent) {
	pid := a.pid()
	text, err := os.ReadFile("/proc/" + pid + "/status")
	if err != nil {
		t.Fatal(err)
	}
	// The agent needs CAP_DAC_OVERRIDE for the sockets of containerd's shims.
	const overrideAlone = "0+2"
	for field, want := range map[string]string{
		"CapInh": "0+", "CapPrm": overrideAlone, "CapEff": overrideAlone, "CapBnd": overrideAlone, "CapAmb": "0+",
		"NoNewPrivs": "1", "Seccomp": "2", "Uid": "0\t0\t0\t0",
	} {
		got := regexp.MustCompile(`(?m)^` + field + `:\t(.*)$`).FindSubmatch(text)
		if got == nil || !regexp.MustCompile(`^`+want+`$`).Match(got[1]) {
			t.Errorf("%q, want %s: %s", got, field, want)
		}
	}
	info, err := os.ReadFile("/proc/" + pid + "/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range []string{"/", "/run/containerd"} {
		if !regexp.MustCompile(`(?m)^\S+ \S+ \S+ \S+ ` + at + ` ro,`).Match(info) {
			t.Errorf("%s is not read-only in\n%s", at, info)
		}
	}
	if strings.Contains(string(info), "serviceaccount") {
		t.Errorf("a token is mounted:\n%s", info)
	}
}

// unmounted checks that the agent's pod does not keep a removed container's root file system
// mounted. The root file system lies below the directory of the socket, which the pod mounts.
func unmounted(t *testing.T, a *agent) {
	_, id, _ := strings.Cut(a.pod("before").Status.ContainerStatuses[0].ContainerID, "://")
	holds := func() bool {
		mounts, err := testnode.MountPoints(a.pid())
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(mounts, func(at string) bool { return strings.Contains(at, id) })
	}
	if !holds() {
		t.Fatalf("the container %s is not among the mounts of the pod", id)
	}
	if err := os.Remove(a.manifest("before")); err != nil {
		t.Fatal(err)
	}
	a.eventually("its root file system is unmounted", func() string {
		if holds() {
			return "it is mounted in the pod"
		}
		return ""
	})
}
