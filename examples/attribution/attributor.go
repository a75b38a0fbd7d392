package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/cri"
)

// missFor is how long podOf waits before it repeats a search that found no container.
const missFor = 10 * time.Second

// attributor finds the pod of a running process. Its methods are safe for concurrent use.
type attributor struct {
	generator *pleg.GenericPLEG
	proc      string // the host's /proc

	mu     sync.Mutex
	misses map[string]time.Time // when a search failed, by container ID; guarded by mu
}

func newAttributor(generator *pleg.GenericPLEG, proc string) *attributor {
	return &attributor{generator: generator, proc: proc, misses: map[string]time.Time{}}
}

// lookUp describes the pod and container of a process.
func (a *attributor) lookUp(ctx context.Context, pid string) string {
	cgroups, err := os.ReadFile(filepath.Join(a.proc, pid, "cgroup"))
	if err != nil {
		return err.Error()
	}
	for line := range strings.Lines(string(cgroups)) {
		if id, ok := cri.ContainerIDFromCgroup(line); ok {
			uid, _ := cri.PodUIDFromCgroup(line)
			return a.describe(ctx, id, uid)
		}
	}
	// If this program runs in its own cgroup namespace, it sees its container's cgroup as the root.
	own, _ := os.ReadFile(filepath.Join(a.proc, "self", "cgroup"))
	outside := strings.Contains(string(cgroups), ":/../")
	if !outside && (atRoot(string(own)) || atRoot(string(cgroups))) {
		return "may be in this program's own container"
	}
	return "is in no pod"
}

// atRoot reports whether every line of a /proc/PID/cgroup names the root cgroup.
func atRoot(cgroups string) bool {
	for line := range strings.Lines(cgroups) {
		if !strings.HasSuffix(line, ":/\n") {
			return false
		}
	}
	return cgroups != ""
}

func (a *attributor) describe(ctx context.Context, id string, uid types.UID) string {
	pod, found := a.podOf(ctx, id, uid)
	if !found {
		return fmt.Sprintf("is in the unknown container %.13s", id)
	}
	name := "its sandbox" // gVisor runs all processes of a pod in its sandbox
	if c := pod.FindContainerStatusByID(id); c != nil {
		name = c.Name
	}
	return fmt.Sprintf("is in %s/%s, %s", pod.Namespace, pod.Name, name)
}

// podOf returns the pod of a container. If the cache does not have it, podOf lists the pod once, or
// all pods if the UID is unknown.
func (a *attributor) podOf(ctx context.Context, id string, uid types.UID) (pod *pleg.PodStatus, found bool) {
	cache, now := a.generator.Cache(), a.generator.Clock().Now()
	if pod, found = cache.ByContainerID(id); found || a.missed(id, now) {
		return pod, found
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if uid != "" { // errors do not matter: the cache is read afterwards
		_, _, _ = cache.LookupNewerThan(ctx, uid, now)
	} else {
		_ = a.generator.Relist(ctx)
	}
	if pod, found = cache.ByContainerID(id); !found {
		a.miss(id, now)
	}
	return pod, found
}

// missed reports whether a search for the container failed less than missFor ago.
func (a *attributor) missed(id string, now time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	at, known := a.misses[id]
	return known && now.Sub(at) < missFor
}

func (a *attributor) miss(id string, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.misses) >= 1000 {
		clear(a.misses)
	}
	a.misses[id] = now
}
