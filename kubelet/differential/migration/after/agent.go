// Package after is a small agent that uses this library. Package before is the same agent with the
// kubelet's packages. They differ only in imports, the constructor and a few calls of helpers.
package after

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg"               //nolint:staticcheck // two packages have become one
	kubecontainer "github.com/kubepleg/pleg" //nolint:staticcheck // the same
)

// New returns an agent on a runtime.
func New(runtime kubecontainer.Runtime) *Agent {
	cache := kubecontainer.NewCache()
	return &Agent{
		generator: pleg.New(runtime, pleg.WithCache(cache), pleg.WithLogger(logr.Discard())),
		cache:     cache, synced: make(map[types.UID]time.Time),
	}
}

// Agent follows the pods of a node. It keeps a journal of the actions that a real agent would take.
type Agent struct {
	generator *pleg.GenericPLEG
	cache     *kubecontainer.PodCache

	mu      sync.Mutex
	journal []string
	synced  map[types.UID]time.Time
}

// Run works until ctx ends.
func (a *Agent) Run(ctx context.Context) {
	events := a.generator.Watch()
	a.generator.Start(ctx)
	defer a.generator.Stop()
	housekeeping := time.NewTicker(10 * time.Second)
	defer housekeeping.Stop()
	for {
		select {
		case e := <-events:
			a.handle(e)
		case <-housekeeping.C:
			a.checkHealth()
		case <-ctx.Done():
			return
		}
	}
}

// Journal returns the journal so far.
func (a *Agent) Journal() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return append([]string(nil), a.journal...)
}

func (a *Agent) note(format string, args ...any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.journal = append(a.journal, fmt.Sprintf(format, args...))
}

func (a *Agent) checkHealth() {
	if ok, err := a.generator.Healthy(); !ok {
		a.note("skipping pod synchronization: %v", err != nil)
	}
}

func (a *Agent) handle(e *pleg.PodLifecycleEvent) {
	switch e.Type {
	case pleg.ContainerDied:
		id, isContainer := e.Data.(string)
		a.report(e.ID, id, isContainer)
	case pleg.ContainerRemoved:
		return // nothing to sync
	default: // ContainerStarted and PodSync
	}
	a.sync(e.ID)
}

// report records in the journal how a container ended.
func (a *Agent) report(uid types.UID, id string, isContainer bool) {
	status, err := a.cache.Get(uid)
	if err != nil || !isContainer {
		a.note("%s: something died: %v", uid, err)
		return
	}
	for _, s := range status.ContainerStatuses {
		if s.ID.ID == id && s.State == kubecontainer.ContainerStateExited {
			a.note("%s: %s died with %d", uid, s.ID.String(), s.ExitCode)
		}
	}
}

// sync reads a status that is newer than the start of the last sync. It records in the journal what
// a real agent would do with the status.
func (a *Agent) sync(uid types.UID) {
	began := time.Now()
	status, err := a.cache.GetNewerThan(uid, a.synced[uid])
	if err != nil {
		a.note("%s: cannot sync: %v", uid, err)
		return
	}
	a.synced[uid] = began
	running := slices.DeleteFunc(slices.Clone(status.ContainerStatuses), func(s *kubecontainer.Status) bool {
		return s.State != kubecontainer.ContainerStateRunning
	})
	slices.SortFunc(running, func(a, b *kubecontainer.Status) int { return a.CreatedAt.Compare(b.CreatedAt) })
	if main := status.FindContainerStatusByName("main"); main != nil {
		a.note("%s: main is %s", uid, main.State)
	}
	a.note("%s: %d containers run, in %d sandboxes", uid, len(running), len(status.SandboxStatuses))
	a.generator.RequestRelist(uid)
}
