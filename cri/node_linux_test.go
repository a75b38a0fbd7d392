package cri_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/cri"
	"github.com/kubepleg/pleg/internal/serverconfig"
	"github.com/kubepleg/pleg/plegtest/criserver"
)

// bundles are the bundles of a containerd's containers.
type bundles struct{ dir string }

// containerdWithBundles returns a containerd that has bundles, and a Runtime that watches its exits. The
// model sends no exits.
func containerdWithBundles(t *testing.T, opts ...criserver.Option) (bundles, *criserver.Server, *cri.Runtime) {
	t.Helper()
	s, err := criserver.Start(append(opts, criserver.WithConfig(serverconfig.Config{NoTaskExits: true}))...)
	must(t, err)
	t.Cleanup(s.Stop)
	state := filepath.Dir(strings.TrimPrefix(s.Endpoint(), "unix://"))
	dir := filepath.Join(state, "io.containerd.runtime.v2.task", "k8s.io")
	must(t, os.MkdirAll(dir, 0o700))
	return bundles{dir}, s, connect(t, s, quiet)
}

func (b bundles) add(t *testing.T, id string) {
	t.Helper()
	must(t, os.Mkdir(filepath.Join(b.dir, id), 0o700))
}

var exitedAt = time.Unix(1_700_000_000, 123_456_789).UTC()

func exitJSON(code int) string {
	return fmt.Sprintf(`{"Timestamp":%q,"Pid":4711,"Status":%d}`, exitedAt.Format(time.RFC3339Nano), code)
}

// write moves an exit.json into place, as the shim does.
func (b bundles) write(t *testing.T, id, content string) {
	t.Helper()
	path := filepath.Join(b.dir, id, "exit.json")
	writeExit(t, path+".tmp", content)
	must(t, os.Rename(path+".tmp", path))
}

func wantExit(t *testing.T, w *exitWatcher, id string, code int) {
	t.Helper()
	want := pleg.ContainerExit{ContainerID: id, ExitCode: code, FinishedAt: exitedAt}
	if got := w.next(t); got.ContainerID != id || got.ExitCode != code || !got.FinishedAt.Equal(exitedAt) {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// exit.json is read when it is moved into place, also while containerd is down, and when the watch
// begins. containerd's own status does not replace it.
func TestExitJSON(t *testing.T) {
	b, s, r := containerdWithBundles(t)
	sandbox := s.RunPod(criserver.PodConfig{UID: "uid"})
	app, other := runContainer(t, s, sandbox, "app"), runContainer(t, s, sandbox, "other")
	b.add(t, app)
	b.add(t, other)
	b.add(t, "unlisted")
	b.write(t, "unlisted", exitJSON(7))
	getPods(t, r)
	w := watchExits(t, r)
	wantExit(t, w, "unlisted", 7)
	b.write(t, app, exitJSON(0))
	wantExit(t, w, app, 0)

	s.Down()
	b.write(t, other, exitJSON(42))
	wantExit(t, w, other, 42)
	must(t, s.ExitContainer(app, 9, ""))
	must(t, s.ExitContainer(other, 9, ""))
	must(t, s.Up())
	waitFor(t, func() (listed bool) {
		_, err := r.GetPods(t.Context(), true)
		return err == nil
	})
	if got := metric(t, r, "pleg_cri_exits_total", "exit_json"); got != 3 {
		t.Errorf("%v exits are counted", got)
	}
	w.cancel()
	_ = w.ended(t)
	if len(w.exits) > 0 {
		t.Errorf("%+v", <-w.exits)
	}
}

// A containerd that writes no exit.json is not watched for it, also if its version was not known when the watch
// began.
func TestNoExitJSONOfAnOlderContainerd(t *testing.T) {
	s, err := criserver.Start(criserver.WithModel(criserver.Containerd17))
	must(t, err)
	t.Cleanup(s.Stop)
	app := runContainer(t, s, s.RunPod(criserver.PodConfig{UID: "uid"}), "app")
	state := filepath.Dir(strings.TrimPrefix(s.Endpoint(), "unix://"))
	must(t, os.MkdirAll(filepath.Join(state, "io.containerd.runtime.v2.task", "k8s.io", app), 0o700))
	r, err := cri.Dial(s.Endpoint(), quiet) // asks for no version
	must(t, err)
	t.Cleanup(func() { must(t, r.Close()) })
	w := watchExits(t, r)
	select {
	case <-w.connected:
	case err := <-w.done:
		t.Fatal(err)
	}
	getPods(t, r)
	waitFor(t, func() bool { return strings.Contains(r.DescribeRuntime(), "no exit_json: containerd v1.7") })
	if active := metric(t, r, "pleg_cri_exit_witness", "exit_json"); active != 0 {
		t.Error("a file is awaited that nobody writes")
	}
	w.cancel()
	_ = w.ended(t)
}

// An exit that containerd's own events and exit.json both have is reported once.
func TestEachExitOnce(t *testing.T) {
	s, err := criserver.Start()
	must(t, err)
	t.Cleanup(s.Stop)
	b := bundles{filepath.Join(filepath.Dir(strings.TrimPrefix(s.Endpoint(), "unix://")),
		"io.containerd.runtime.v2.task", "k8s.io")}
	must(t, os.MkdirAll(b.dir, 0o700))
	r := connect(t, s, quiet)
	sandbox := s.RunPod(criserver.PodConfig{UID: "uid"})
	first, last := runContainer(t, s, sandbox, "first"), runContainer(t, s, sandbox, "last")
	b.add(t, first)
	b.add(t, last)
	getPods(t, r)
	w := watchExits(t, r)
	subscribed(t, s, w)
	b.write(t, first, exitJSON(3))
	wantExit(t, w, first, 3)
	serverconfig.Of(s).SendTaskExit(serverconfig.TaskExit{ContainerID: first, ExitCode: 3})
	serverconfig.Of(s).SendTaskExit(serverconfig.TaskExit{ContainerID: last, ExitCode: 4})
	if got := w.next(t); got.ContainerID != last || got.ExitCode != 4 {
		t.Errorf("%+v", got)
	}
	b.write(t, last, exitJSON(4))
	waitFor(t, func() bool { _, watches := inotifyWatches(t); return watches == 0 }) // it is read
	if len(w.exits) > 0 {
		t.Errorf("%+v", <-w.exits)
	}
}

// A container that starts later is watched as soon as a list shows it, and no longer than it runs.
func TestExitJSONFollowsTheList(t *testing.T) {
	b, s, r := containerdWithBundles(t)
	must(t, os.RemoveAll(filepath.Dir(b.dir))) // containerd makes it for the first container
	w := watchExits(t, r)
	waitFor(t, func() bool { return cri.WatchesExits(r) })
	must(t, os.MkdirAll(b.dir, 0o700))
	sandbox := s.RunPod(criserver.PodConfig{UID: "uid"})
	first, second := runContainer(t, s, sandbox, "first"), ""
	b.add(t, first)
	getPods(t, r)
	<-w.connected
	for range 20 {
		second = runContainer(t, s, sandbox, "second")
		b.add(t, second)
		getPods(t, r)
		must(t, s.ExitContainer(second, 0, ""))
		getPods(t, r)
	}
	if _, watches := inotifyWatches(t); watches != 1 {
		t.Errorf("%d bundles are watched, want 1", watches)
	}
	third := runContainer(t, s, sandbox, "third")
	b.add(t, third)
	b.write(t, third, exitJSON(5)) // before the list that shows it
	getPods(t, r)
	wantExit(t, w, third, 5)
	b.write(t, first, exitJSON(6))
	wantExit(t, w, first, 6)
	w.cancel()
	_ = w.ended(t)
	if instances, _ := inotifyWatches(t); instances != 0 {
		t.Errorf("%d instances of inotify are left", instances)
	}
}

// inotifyWatches returns how many instances of inotify and watches this process has.
func inotifyWatches(t *testing.T) (instances, watches int) {
	t.Helper()
	infos, err := filepath.Glob("/proc/self/fdinfo/*")
	must(t, err)
	for _, info := range infos {
		target, _ := os.Readlink("/proc/self/fd/" + filepath.Base(info))
		if target != "anon_inode:inotify" {
			continue
		}
		content, err := os.ReadFile(info)
		must(t, err)
		instances++
		watches += strings.Count(string(content), "inotify wd:")
	}
	return instances, watches
}

// What is no exit.json is counted and reports nothing.
func TestBadExitJSON(t *testing.T) {
	b, s, r := containerdWithBundles(t)
	app := runContainer(t, s, s.RunPod(criserver.PodConfig{UID: "uid"}), "app")
	b.add(t, app)
	getPods(t, r)
	w := watchExits(t, r)
	<-w.connected
	bad := []string{"", "{", `"exit"`, "null", "{}", `{"Timestamp":"2024-01-01T00:00:00Z","Status":1}`,
		`{"Pid":1,"Status":1}`, `{"Timestamp":"2024-01-01T00:00:00Z","Pid":1,"Status":-1}`,
		exitJSON(1) + strings.Repeat(" ", 5000)}
	for i, content := range bad {
		b.write(t, app, content)
		waitFor(t, func() bool {
			return metric(t, r, "pleg_cri_bad_items_total", "unreadable_exit") == float64(i+1)
		})
	}
	writeExit(t, filepath.Join(b.dir, app, "exit.json.tmp"), exitJSON(2)) // not yet in place
	b.write(t, app, exitJSON(3))
	wantExit(t, w, app, 3)
	if len(w.exits) > 0 {
		t.Errorf("%+v", <-w.exits)
	}
}

// Without the folder, the watch is that of a runtime without exits.
func TestWithoutBundles(t *testing.T) {
	b, s, r := containerdWithBundles(t)
	must(t, os.RemoveAll(filepath.Dir(b.dir)))
	runContainer(t, s, s.RunPod(criserver.PodConfig{UID: "uid"}), "app")
	getPodStatus(t, r, getPods(t, r)[0])
	if err := watchExits(t, r).ended(t); !errors.Is(err, pleg.ErrEventsUnsupported) {
		t.Error(err)
	}
}

// A containerd before 2.4 writes no exit.json, so its bundles are not watched.
func TestBundlesOfAnOldContainerd(t *testing.T) {
	for _, version := range []string{"1.6.20~ds1", "v1.7.35", "2.0.14", "v2.3.7-k3s1"} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			b, s, r := containerdWithBundles(t, criserver.WithVersion("containerd", version))
			b.add(t, runContainer(t, s, s.RunPod(criserver.PodConfig{UID: "uid"}), "app"))
			getPodStatus(t, r, getPods(t, r)[0])
			w := watchExits(t, r)
			waitFor(t, func() bool {
				return strings.Contains(r.DescribeRuntime(), "no exit_json: containerd "+version+" writes none, 2.4 does")
			})
			if err := w.ended(t); !errors.Is(err, pleg.ErrEventsUnsupported) {
				t.Error(err)
			}
		})
	}
}

// process is a child of the test.
type process struct {
	*exec.Cmd
	t     *testing.T
	stdin io.WriteCloser
}

// end has the process end, and waits for it.
func (p *process) end(code int) {
	p.t.Helper()
	_, err := fmt.Fprintln(p.stdin, code)
	must(p.t, err)
	_ = p.Wait() // which fails, as the process does
}

// processNode is a containerd whose containers' processes are children of the test. It sends no exits.
type processNode struct {
	*criserver.Server
	t       *testing.T
	r       *cri.Runtime
	proc    string // what is read as /proc
	sandbox string
}

func newProcessNode(t *testing.T) *processNode {
	t.Helper()
	s, err := criserver.Start(criserver.WithConfig(serverconfig.Config{NoTaskExits: true}))
	must(t, err)
	t.Cleanup(s.Stop)
	n := &processNode{Server: s, t: t, r: connect(t, s, quiet), proc: t.TempDir()}
	n.sandbox = s.RunPod(criserver.PodConfig{UID: "uid"})
	t.Cleanup(cri.SetProcDir(n.proc))
	return n
}

// run runs a container with a process of its own. %s in the path of its cgroup is the container's ID.
func (n *processNode) run(name, cgroup string) (*process, string) {
	n.t.Helper()
	p := &process{Cmd: exec.Command("sh", "-c", "read code; exit $code"), t: n.t}
	var err error
	p.stdin, err = p.StdinPipe()
	must(n.t, err)
	must(n.t, p.Start())
	n.t.Cleanup(func() {
		if p.ProcessState == nil {
			_ = p.Process.Kill()
			_ = p.Wait()
		}
	})
	id := runProcess(n.t, n.Server, n.sandbox, name, p.Process.Pid)
	dir := filepath.Join(n.proc, fmt.Sprint(p.Process.Pid))
	must(n.t, os.MkdirAll(dir, 0o700))
	writeExit(n.t, filepath.Join(dir, "cgroup"), strings.ReplaceAll(cgroup, "%s", id))
	return p, id
}

// inspect lists and inspects the pod.
func (n *processNode) inspect() *pleg.PodStatus {
	n.t.Helper()
	return getPodStatus(n.t, n.r, getPods(n.t, n.r)[0])
}

// pidfds returns how many pidfds this process has.
func pidfds(t *testing.T) (n int) {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	for _, fd := range fds {
		if target, _ := os.Readlink("/proc/self/fd/" + fd.Name()); strings.HasSuffix(target, "[pidfd]") {
			n++
		}
	}
	return n
}

const cgroupV2 = "0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-%s.scope\n"

// The exit of a container's first process is reported with its code, also while the runtime is down, and
// containerd's own status does not replace it. On Linux before 6.15 the description says why it is not.
func TestPidfd(t *testing.T) {
	n := newProcessNode(t)
	type run struct {
		*process
		id   string
		code int
	}
	var runs []run
	for i, cgroup := range []string{cgroupV2, "0::/../../kubepods/burstable/pod1/%s/init.scope\n",
		"12:cpu:/\n11:memory:/system.slice/docker-%s.scope\n", "0::/machine.slice:cri-containerd:%s"} {
		p, id := n.run(fmt.Sprint("c", i), cgroup)
		runs = append(runs, run{p, id, 40 + i})
	}
	before := pidfds(t) // package os has some of its own
	getPods(t, n.r)
	w := watchExits(t, n.r)
	n.connected(w)
	if err := cri.PidfdsHaveExits(); err != nil {
		if d := n.r.DescribeRuntime(); !strings.Contains(d, "no pidfd: the kernel") {
			t.Error(d)
		}
		return
	}
	if got := pidfds(t) - before; got != len(runs) {
		t.Fatalf("%d pidfds, want %d", got, len(runs))
	}
	if d := n.r.DescribeRuntime(); !strings.Contains(d, "exits by pidfd") {
		t.Error(d)
	}
	for i, run := range runs {
		if i == 2 {
			n.Down()
		}
		begun := time.Now()
		if i == 1 {
			must(t, run.Process.Kill())
			_ = run.Wait()
			runs[i].code = 137
		} else {
			run.end(run.code)
		}
		got := w.next(t)
		if got.ContainerID != run.id || got.ExitCode != runs[i].code || got.FinishedAt.Before(begun) ||
			got.FinishedAt.After(time.Now()) {
			t.Errorf("%+v, want %d of %s", got, runs[i].code, run.id)
		}
		must(t, n.ExitContainer(run.id, 9, ""))
	}
	must(t, n.Up())
	waitFor(t, func() bool {
		_, err := n.r.GetPods(t.Context(), true)
		return err == nil
	})
	w.cancel()
	_ = w.ended(t)
	if got := pidfds(t) - before; got > 0 {
		t.Errorf("%d pidfds are left", got)
	}
}

// Of a runtime without exits of its own, the watch goes on while no container runs: the next one is watched, too.
func TestPidfdAfterAnIdleTime(t *testing.T) {
	if err := cri.PidfdsHaveExits(); err != nil {
		t.Skip("pidfds are refused:", err)
	}
	n := newProcessNode(t)
	first, id := n.run("first", cgroupV2)
	w := watchExits(t, n.r)
	n.connected(w)
	first.end(1)
	w.next(t)
	n.Down()
	if _, err := n.r.GetPods(t.Context(), true); err == nil {
		t.Fatal("a list of a runtime that is down")
	}
	must(t, n.Up())
	must(t, n.RemoveContainer(id))
	waitFor(t, func() bool { // its own exits are asked for again
		_, _ = n.r.GetPods(t.Context(), true)
		return n.Calls("Subscribe") == 2
	})
	second, id := n.run("second", cgroupV2)
	n.inspect()
	second.end(2)
	if got := w.next(t); got.ContainerID != id || got.ExitCode != 2 {
		t.Errorf("%+v", got)
	}
}

// connected inspects the pod, and waits until the watch is connected.
func (n *processNode) connected(w *exitWatcher) {
	n.t.Helper()
	waitFor(n.t, func() bool { return cri.WatchesExits(n.r) })
	n.inspect()
	select {
	case <-w.connected:
	case err := <-w.done:
		n.t.Fatal("the watch has ended:", err)
	}
}

// A process that is not in the container's cgroup is not the container's: its PID was used again, or it is
// a virtual machine's.
func TestPidfdOfAnother(t *testing.T) {
	if err := cri.PidfdsHaveExits(); err != nil {
		t.Skip("pidfds are refused:", err)
	}
	n := newProcessNode(t)
	strangers := []string{"", "0::/\n", "0::/init.scope\n", "0::/kata_overhead/sandbox\n",
		"0::/kubepods/pod1/0%s\n", "0::/kubepods/pod1/%s0\n"}
	var last *process
	for i, cgroup := range strangers {
		last, _ = n.run(fmt.Sprint("c", i), cgroup)
	}
	p, id := n.run("own", cgroupV2)
	before := pidfds(t)
	getPods(t, n.r)
	w := watchExits(t, n.r)
	n.connected(w)
	if got := pidfds(t) - before; got != 1 {
		t.Errorf("%d pidfds, want 1", got)
	}
	if got := metric(t, n.r, "pleg_cri_exit_refusals_total", "pidfd"); got != float64(len(strangers)) {
		t.Errorf("%v refusals, want %d", got, len(strangers))
	}
	last.end(5)
	p.end(6)
	if got := w.next(t); got.ContainerID != id || got.ExitCode != 6 {
		t.Errorf("%+v", got)
	}
	n.inspect()
	// Each was asked for once.
	if got := n.Calls("ContainerStatus"); got > 2*len(strangers)+2 {
		t.Errorf("%d calls", got)
	}
	if got := metric(t, n.r, "pleg_cri_exit_refusals_total", "pidfd"); got != float64(len(strangers)) {
		t.Errorf("%v refusals, want %d: none is tried twice", got, len(strangers))
	}
}

// Half of the files that this process may open are left to others.
func TestPidfdsAreBounded(t *testing.T) {
	if err := cri.PidfdsHaveExits(); err != nil {
		t.Skip("pidfds are refused:", err)
	}
	var limit unix.Rlimit
	must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	t.Cleanup(func() { must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)) })
	few := limit
	few.Cur = 100
	must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &few))
	n := newProcessNode(t)
	w := watchExits(t, n.r)
	// The PIDs of all containers are that of one process.
	p, first := n.run("first", cgroupV2)
	ids := []string{first}
	for i := range 60 {
		ids = append(ids, runProcess(t, n.Server, n.sandbox, fmt.Sprint("c", i), p.Process.Pid))
	}
	writeExit(t, filepath.Join(n.proc, fmt.Sprint(p.Process.Pid), "cgroup"), "0::/"+strings.Join(ids, "/"))
	before := pidfds(t)
	n.connected(w)
	if got := pidfds(t) - before; got != 50 {
		t.Errorf("%d pidfds, want 50", got)
	}
	if d := n.r.DescribeRuntime(); !strings.Contains(d, "exits by pidfd") {
		t.Error(d)
	}
	p.end(1)
	for range 50 {
		w.next(t)
	}
	w.cancel()
	_ = w.ended(t)
}

func TestKernelVersion(t *testing.T) {
	for release, want := range map[string][2]int{"6.15.0-rc1": {6, 15}, "6.18.44-fc-v657": {6, 18}, "5.4": {5, 4},
		"6.1-generic": {6, 1}, "7": {7, 0}, "": {0, 0}, "x.y": {0, 0}} {
		if major, minor := cri.KernelVersion(release); major != want[0] || minor != want[1] {
			t.Errorf("%q: %d.%d", release, major, minor)
		}
	}
}
