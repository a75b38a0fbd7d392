package e2e_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	osexec "os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/attribution"
	"github.com/kubepleg/pleg/cri"
	"github.com/kubepleg/pleg/internal/e2e/testnode"
)

var attributedContainers = flag.Int("attribution.containers", 40, "containers of TestAttribution, a multiple of four")

// attributedProcesses is how many processes each container of TestAttribution has.
const attributedProcesses = 25

// attributed is a process whose container the test knows.
type attributed struct {
	pid       int
	startTime uint64
	pod       types.UID
	container string
	victim    bool // true if the test kills the process during the look-ups
}

// A thousand processes, or those of -attribution.containers, are looked up at once, with 500 unknown
// containers. Half of the processes are in containers that are younger than the newest list, and some
// are killed meanwhile. Each answer is right or "not known", never wrong, and the lists per second are
// bounded.
func TestAttribution(t *testing.T) {
	n := newBareNode(t)
	runtime, err := cri.Connect(n.ctx, n.daemon.Endpoint(), cri.WithoutExitEvents())
	n.must(err)
	defer runtime.Close()
	n.meters = newMeters()
	n.meters.MustRegister(runtime)
	// Without streams, and with a long period, only requested lists find containers.
	n.pleg = pleg.New(struct {
		pleg.Runtime
		pleg.PodGetter
	}{runtime, runtime}, pleg.WithRelistPeriod(time.Hour), pleg.WithRelistThreshold(2*time.Hour),
		pleg.WithLogger(testLogger(t)))
	n.cache = n.pleg.Cache()
	n.pleg.Start(n.ctx)
	defer n.pleg.Stop()

	pods := n.runAttributedPods("old", *attributedContainers/2)
	processes := n.runAttributed("old", pods)
	n.must(n.pleg.Relist(n.ctx))
	pods = append(pods[:*attributedContainers/4], n.runAttributedPods("young", *attributedContainers/4)...)
	young := n.runAttributed("young", pods)
	for _, p := range young {
		if _, found := n.cache.ByContainerID(p.container); found {
			t.Fatal("a young container was listed already")
		}
	}
	for i := range young {
		// A container ends with its first process, and the first process with its last child.
		young[i].victim = i < 3*attributedProcesses && i%attributedProcesses > 1
	}
	processes = append(processes, young...)
	attributor := attribution.New(n.pleg, "")

	before, began := n.meters.sum(t, "kubelet_runtime_operations_total", "operation_type=list_podsandbox"), time.Now()
	isUnknown := func(err error) bool { // a busy runtime may not answer in time
		return errors.Is(err, attribution.ErrUnknownContainer) || errors.Is(err, attribution.ErrNotSearched)
	}
	var right, unknown, ended atomic.Int64
	var lookUps sync.WaitGroup
	for _, p := range processes {
		lookUps.Go(func() {
			result, err := attributor.Process(n.ctx, p.pid, p.startTime)
			switch {
			case err == nil && p.isRight(result):
				right.Add(1)
			case isUnknown(err):
				unknown.Add(1)
				t.Log(err)
			case errors.Is(err, attribution.ErrNoProcess) && p.victim:
				ended.Add(1)
			default:
				t.Errorf("%+v: %+v, %v", p, result, err)
			}
		})
	}
	for i := range 500 {
		lookUps.Go(func() {
			cgroup := fmt.Sprintf("0::/kubepods/pod%s/%064x", testnode.NewUID(), i)
			if result, err := attributor.Cgroup(n.ctx, cgroup); !isUnknown(err) {
				t.Errorf("%s: %+v, %v", cgroup, result, err)
			}
		})
	}
	for _, p := range processes {
		if p.victim {
			_ = unix.Kill(p.pid, unix.SIGKILL) // it exists until its shell has reaped it
		}
	}
	lookUps.Wait()
	took := time.Since(began)
	lists := n.meters.sum(t, "kubelet_runtime_operations_total", "operation_type=list_podsandbox") - before
	t.Logf("of %d look-ups, %d right, %d of unknown containers, %d of ended processes, in %v and %.0f lists",
		len(processes), right.Load(), unknown.Load(), ended.Load(), took, lists)
	if most := 11 * (int(took/time.Second) + 2); int(lists) > most {
		t.Errorf("%.0f lists in %v, more than %d", lists, took, most)
	}

	// Afterwards, each process that is left is known, and the others are not.
	for _, p := range processes {
		n.eventually(fmt.Sprintf("the right answer for %+v", p), func() string {
			result, err := attributor.Process(n.ctx, p.pid, p.startTime)
			if p.victim && errors.Is(err, attribution.ErrNoProcess) || !p.victim && err == nil && p.isRight(result) {
				return ""
			}
			return fmt.Sprintf("%+v, %v", result, err)
		})
		if p.victim && n.reusePID(p.pid, func() {
			if _, err := attributor.Process(n.ctx, p.pid, p.startTime); !errors.Is(err, attribution.ErrNoProcess) {
				t.Errorf("%+v: another process has its PID: %v", p, err)
			}
			if result, err := attributor.Process(n.ctx, p.pid, 0); err == nil {
				t.Errorf("a process of this test: %+v", result)
			}
		}) {
			return
		}
	}
	t.Log("no PID was reused")
}

func (p attributed) isRight(result attribution.Result) bool {
	return result.Pod.ID == p.pod && result.ContainerID == p.container &&
		result.Container != nil && result.Container.ID.ID == p.container
}

// runAttributedPods runs pods.
func (n *node) runAttributedPods(name string, count int) []*testnode.Pod {
	n.t.Helper()
	pods := make([]*testnode.Pod, count)
	var running errgroup.Group
	running.SetLimit(4)
	for i := range pods {
		running.Go(func() (err error) {
			pods[i], err = n.client.RunPod(n.ctx, "e2e", fmt.Sprint(name, i))
			return err
		})
	}
	n.must(running.Wait())
	return pods
}

// runAttributed runs a container in each pod, and returns the containers' processes.
func (n *node) runAttributed(name string, pods []*testnode.Pod) []attributed {
	n.t.Helper()
	perPod := make([][]attributed, len(pods))
	var running errgroup.Group
	running.SetLimit(4)
	script := testnode.Script("trap 'exit 137' TERM", // the shell has no children but these
		fmt.Sprintf("for i in%s; do sleep 1000000 & done; wait", strings.Repeat(" x", attributedProcesses-1)))
	for i, pod := range pods {
		running.Go(func() error {
			id, err := n.client.Run(n.ctx, pod, testnode.Container{Name: name, Command: script})
			if err != nil {
				return err
			}
			first, err := n.client.Pid(n.ctx, id)
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(n.ctx, patience)
			defer cancel()
			for ctx.Err() == nil && len(perPod[i]) != attributedProcesses {
				perPod[i] = nil
				for pid, startTime := range family(first) {
					p := attributed{pid: pid, startTime: startTime, pod: pod.UID, container: id}
					if pid == first {
						perPod[i] = append([]attributed{p}, perPod[i]...)
					} else {
						perPod[i] = append(perPod[i], p)
					}
				}
				time.Sleep(10 * time.Millisecond)
			}
			return context.Cause(ctx)
		})
	}
	n.must(running.Wait())
	var all []attributed
	for _, of := range perPod {
		all = append(all, of...)
	}
	return all
}

// family returns a process and its children, each with its start time.
func family(first int) map[int]uint64 {
	found := make(map[int]uint64)
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		stat, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		if parent, _ := strconv.Atoi(fields[1]); pid == first || parent == first {
			found[pid], _ = strconv.ParseUint(fields[19], 10, 64)
		}
	}
	return found
}

// reusePID calls the function meanwhile while another process has the PID, and reports whether it did.
func (n *node) reusePID(pid int, meanwhile func()) bool {
	for range 100 {
		if os.WriteFile("/proc/sys/kernel/ns_last_pid", []byte(strconv.Itoa(pid-1)), 0) != nil {
			return false
		}
		cmd := osexec.CommandContext(n.ctx, "sleep", "1000")
		n.must(cmd.Start())
		reused := cmd.Process.Pid == pid
		if reused {
			meanwhile()
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
		if reused {
			return true
		}
	}
	return false
}
