package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	released "github.com/kubepleg/pleg/internal/e2e/kubelet"
)

// variant is a kubelet that is measured.
type variant struct {
	name    string
	program string   // below .cache/kubelet
	gates   []string // feature gates, as name=value
	// withoutEvents has the runtime refuse its event streams.
	withoutEvents bool
	// optional: only measured when it is named, or where exits are told.
	optional bool
}

// hintsOnly is the library without exit events.
const hintsOnly = "ours, hints only"

var variants = []variant{
	{name: "stock", program: "stock"},
	{name: "stock, EventedPLEG", program: "stock", gates: []string{"EventedPLEG=true"}},
	{name: hintsOnly, program: "kubelet", gates: []string{"PLEGExitEvents=false"}, optional: true},
	{name: "ours", program: "kubelet"},
	{name: "ours, no events", program: "kubelet", withoutEvents: true},
}

// variantOf returns the variant of that name.
func variantOf(name string) (variant, error) {
	var names []string
	for _, v := range variants {
		if v.name == name {
			return v, nil
		}
		names = append(names, v.name)
	}
	return variant{}, fmt.Errorf("there is no kubelet %q; there are %s", name, strings.Join(names, "; "))
}

// versionsOf returns the versions that the programs say they are.
func versionsOf(chosen []variant, programs string) (string, error) {
	var versions []string
	for _, v := range chosen {
		said, err := exec.Command(filepath.Join(programs, v.program), "--version").Output()
		if err != nil {
			return "", fmt.Errorf("asking %s for its version: %w", v.program, err)
		}
		_, version, _ := strings.Cut(strings.TrimSpace(string(said)), " ")
		if !slices.Contains(versions, version) {
			versions = append(versions, version)
		}
	}
	return strings.Join(versions, " and "), nil
}

// toldOfExits reports whether the kubelet knows of an exit before CRI tells it.
func (v variant) toldOfExits() bool {
	return v.program == "kubelet" && v.name != hintsOnly && !v.withoutEvents
}

// evented reports whether the gate EventedPLEG is on.
func (v variant) evented() bool { return slices.Contains(v.gates, "EventedPLEG=true") }

// kubelet is a kubelet process without an API server: it runs the pods of a folder.
type kubelet struct {
	variant  variant
	cmd      *exec.Cmd
	done     chan struct{} // closed when it has ended
	readOnly string        // host:port
	log      string
	started  time.Time
}

// config is the configuration of the kubelet.
func config(v variant, dir, endpoint string, ports [3]int, timeout time.Duration) map[string]any {
	featureGates := map[string]bool{}
	for _, g := range v.gates {
		name, value, _ := strings.Cut(g, "=")
		featureGates[name] = value == "true"
	}
	c := released.Config(filepath.Join(dir, "manifests"), endpoint, dir, ports[0], ports[1])
	maps.Copy(c, map[string]any{
		"runtimeRequestTimeout": timeout.String(), "healthzPort": ports[2], "maxPods": 500, "oomScoreAdj": 0,
		"featureGates": featureGates,
	})
	return c
}

// startKubelet starts a kubelet in a folder that the kubelets before it have used too.
func startKubelet(v variant, programs, dir, endpoint string, timeout time.Duration) (*kubelet, error) {
	var ports [3]int
	for i := range ports {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, fmt.Errorf("looking for a free port: %w", err)
		}
		defer l.Close()
		ports[i] = l.Addr().(*net.TCPAddr).Port
	}
	content, err := json.Marshal(config(v, dir, endpoint, ports, timeout))
	if err != nil {
		return nil, fmt.Errorf("writing the kubelet's configuration: %w", err)
	}
	path := filepath.Join(dir, "kubelet.json")
	if err := os.WriteFile(path, content, 0o644); err != nil {
		return nil, fmt.Errorf("writing the kubelet's configuration: %w", err)
	}
	logPath := filepath.Join(dir, "kubelet.log")
	log, err := os.Create(logPath)
	if err != nil {
		return nil, fmt.Errorf("opening the kubelet's log: %w", err)
	}
	defer log.Close()
	cmd := exec.Command(filepath.Join(programs, v.program), "--config="+path, "--root-dir="+filepath.Join(dir, "root"),
		"--cert-dir="+filepath.Join(dir, "pki"), "--hostname-override=node", "--v=2")
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: unix.SIGKILL}
	k := &kubelet{
		variant: v, cmd: cmd, done: make(chan struct{}), log: logPath,
		readOnly: fmt.Sprintf("127.0.0.1:%d", ports[1]), started: time.Now(),
	}
	failed := make(chan error)
	go func() {
		// The death signal comes when the thread ends that started the process.
		runtime.LockOSThread()
		defer close(k.done)
		err := cmd.Start()
		failed <- err
		if err == nil {
			_ = cmd.Wait() // signals are how kubelets end here
		}
	}()
	if err := <-failed; err != nil {
		return nil, fmt.Errorf("starting the kubelet: %w", err)
	}
	return k, nil
}

// kill ends the kubelet as a crash would. Its pods run on.
func (k *kubelet) kill() {
	_ = k.cmd.Process.Kill() // it may have ended by itself
	<-k.done
}

// terminate ends the kubelet as an upgrade would. Its pods run on.
func (k *kubelet) terminate() error {
	if err := k.cmd.Process.Signal(unix.SIGTERM); err != nil {
		return fmt.Errorf("ending the kubelet: %w", err)
	}
	select {
	case <-k.done:
		return nil
	case <-time.After(30 * time.Second):
		return fmt.Errorf("the kubelet (%s) does not end; its log ends:\n%s", k.variant.name, k.tail())
	}
}

// ended reports whether the kubelet has ended.
func (k *kubelet) ended() bool {
	select {
	case <-k.done:
		return true
	default:
		return false
	}
}

// tail returns the end of the kubelet's log.
func (k *kubelet) tail() string {
	content, err := os.ReadFile(k.log)
	if err != nil {
		return err.Error()
	}
	const length = 3000
	return string(content[max(0, len(content)-length):])
}

// said returns what follows some words in the last line of the kubelet's log that has them.
func (k *kubelet) said(words string) string {
	content, _ := os.ReadFile(k.log)
	var last string
	for line := range strings.Lines(string(content)) {
		if _, rest, found := strings.Cut(line, words); found {
			last = strings.TrimSpace(rest)
		}
	}
	return last
}

// saidAt returns the time of the first line of the kubelet's log that has all of some words.
func (k *kubelet) saidAt(words ...string) (at time.Time, found bool) {
	content, _ := os.ReadFile(k.log)
	for line := range strings.Lines(string(content)) {
		if slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(line, w) }) {
			continue
		}
		// Lines begin with level and day, and the local time.
		if fields := strings.Fields(line); len(fields) > 1 && len(fields[0]) == len("I0102") {
			stamp := fmt.Sprint(k.started.Year(), fields[0][1:], " ", fields[1])
			if at, err := time.ParseInLocation("20060102 15:04:05.000000", stamp, time.Local); err == nil {
				return at, true
			}
		}
	}
	return time.Time{}, false
}

// saidTaken returns when the kubelet's sync loop has taken the death of a container.
func (k *kubelet) saidTaken(id string) (at time.Time, found bool) {
	return k.saidAt("SyncLoop (PLEG)", "ContainerDied", id)
}

// unhealthy returns the last reason that the kubelet has given for not synchronizing pods,
// if its generator was among them. It is what a kubelet with an API server reports as the
// reason for NotReady: both are its runtimeErrors. What it says before the first list is no
// reason.
func (k *kubelet) unhealthy() string {
	reason, _ := strconv.Unquote(strings.TrimPrefix(k.said(`"Skipping pod synchronization" err=`), "err="))
	if !strings.Contains(reason, "PLEG is not healthy") || strings.Contains(reason, "yet to be") {
		return ""
	}
	return reason
}

// backedOff returns an error when the kubelet has had a container in back-off. How soon its
// successor was created is then the back-off's time, and nothing that is measured here.
func (k *kubelet) backedOff() error {
	if back := k.said("CrashLoopBackOff: "); back != "" {
		return fmt.Errorf("the kubelet (%s) has had a container in back-off, which was not to crash twice: %s",
			k.variant.name, back)
	}
	return nil
}

var client = &http.Client{Timeout: 5 * time.Second}

func (k *kubelet) get(ctx context.Context, path string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+k.readOnly+path, nil)
	if err != nil {
		return nil, err
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	return io.ReadAll(response.Body)
}

// healthz returns what the kubelet answers there, without its checks.
func (k *kubelet) healthz(ctx context.Context) string {
	answer, err := k.get(ctx, "/healthz")
	if err != nil {
		return err.Error()
	}
	first, _, _ := strings.Cut(string(answer), "\n")
	return first
}

// podList is what is read of the kubelet's answer.
type podList struct {
	Items []struct {
		Metadata struct{ Name string }
		Status   struct {
			Phase                                    string
			InitContainerStatuses, ContainerStatuses []containerStatus
		}
	}
}

type containerStatus struct {
	ContainerID  string
	RestartCount int
	State        struct {
		Running    *struct{}
		Terminated *struct{ ExitCode int }
	}
}

// running returns, of the pods in the kubelet's own answer, the names of those that run
// and are ready, with how often their container was restarted.
func (k *kubelet) running(ctx context.Context) (map[string]int, error) {
	answer, err := k.get(ctx, "/pods")
	if err != nil {
		return nil, err
	}
	var pods podList
	if err := json.Unmarshal(answer, &pods); err != nil {
		return nil, fmt.Errorf("reading the kubelet's pods: %w", err)
	}
	running := make(map[string]int)
	for _, p := range pods.Items {
		if s := p.Status.ContainerStatuses; p.Status.Phase == "Running" && len(s) == 1 && s[0].State.Running != nil {
			running[strings.TrimSuffix(p.Metadata.Name, suffix)] = s[0].RestartCount
		}
	}
	return running, nil
}

// metricNames are those that dashboards of a kubelet's generator rely on, under every
// kubelet that is measured.
var metricNames = []string{
	"kubelet_pleg_relist_duration_seconds_count", "kubelet_pleg_relist_interval_seconds_count",
	"kubelet_pleg_pod_relist_duration_seconds_count", "kubelet_pleg_discard_events", "kubelet_pleg_last_seen_seconds",
	"kubelet_running_pods", `kubelet_running_containers{container_state="running"}`,
}

// checkMetrics returns an error that names the metrics that the kubelet has not, or not
// exactly once.
func (k *kubelet) checkMetrics(ctx context.Context) error {
	answer, err := k.get(ctx, "/metrics")
	if err != nil {
		return fmt.Errorf("asking the kubelet for its metrics: %w", err)
	}
	var errs []error
	for _, name := range metricNames {
		if n := strings.Count("\n"+string(answer), "\n"+name+" "); n != 1 {
			errs = append(errs, fmt.Errorf("the kubelet (%s) has the metric %s %d times", k.variant.name, name, n))
		}
	}
	return errors.Join(errs...)
}

var errEnded = errors.New("the kubelet has ended")

// await asks the kubelet until its running pods are as wanted.
func (k *kubelet) await(ctx context.Context, what string, wanted func(running map[string]int) bool) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	var last error
	for {
		running, err := k.running(ctx)
		if err == nil && wanted(running) {
			return nil
		}
		last = err
		select {
		case <-k.done:
			last = errEnded
		case <-ctx.Done():
			last = errors.Join(ctx.Err(), last)
		case <-time.After(10 * time.Millisecond):
			continue
		}
		return fmt.Errorf("waiting until the kubelet (%s) %s, with %d pods running: %w; its log ends:\n%s",
			k.variant.name, what, len(running), last, k.tail())
	}
}
