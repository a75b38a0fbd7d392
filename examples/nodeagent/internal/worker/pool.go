// Package worker makes pods what they should be: one goroutine per pod, which begins every sync with a status newer
// than the end of the last one, so that it sees its own deeds.
//
// A pod is syncing until it has ended by itself or is no longer wanted, then terminating until nothing of it runs,
// then terminated. A pod that is no longer wanted is removed then, and its worker ends.
package worker

import (
	"context"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/examples/nodeagent/internal/prober"
	"github.com/kubepleg/pleg/examples/nodeagent/internal/runtime"
	"github.com/kubepleg/pleg/examples/nodeagent/internal/status"
)

// Config is what a Pool needs.
type Config struct {
	Generator *pleg.GenericPLEG
	Cache     *pleg.PodCache
	Runtime   *runtime.Client
	Probes    *prober.Manager
	Status    *status.Manager
	NodeIP    string
	// SyncAt asks for Wake at a time, Finished says that a worker has ended. Both are called by workers, and must not
	// block.
	SyncAt   func(uid types.UID, at time.Time)
	Finished func()
	Logger   klog.Logger
}

// Pool has the workers of all pods. Its methods never block, but for Wait.
type Pool struct {
	Config

	mu      sync.Mutex
	workers map[types.UID]*worker // guarded by mu
	joined  sync.WaitGroup
}

// NewPool returns a pool without workers.
func NewPool(config Config) *Pool {
	return &Pool{Config: config, workers: map[types.UID]*worker{}}
}

// Run has a pod run as it is specified, until ctx ends; what runs of it then stays. A pod that is being removed is
// not affected: it begins anew once it is gone.
func (p *Pool) Run(ctx context.Context, pod *v1.Pod) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := p.workers[pod.UID]
	if w == nil {
		p.beginLocked(ctx, pod, false)
	} else if w.wanted.Err() == nil && w.pod.Swap(pod) != pod {
		w.signal()
	}
}

// Remove ends a pod and removes it. A pod without a worker, of which the runtime has something left, is given as pod;
// for others only its UID matters.
func (p *Pool) Remove(ctx context.Context, pod *v1.Pod) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := p.workers[pod.UID]
	if w == nil {
		w = p.beginLocked(ctx, pod, true)
	}
	w.unwant()
	w.signal()
}

// Wake has a pod synced.
func (p *Pool) Wake(uid types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if w := p.workers[uid]; w != nil {
		w.signal()
	}
}

// Pods returns the pods that have workers, by UID.
func (p *Pool) Pods() map[types.UID]*v1.Pod {
	p.mu.Lock()
	defer p.mu.Unlock()
	pods := make(map[types.UID]*v1.Pod, len(p.workers))
	for uid, w := range p.workers {
		pods[uid] = w.pod.Load()
	}
	return pods
}

// Wait returns when every worker has ended. The contexts of Run must have ended.
func (p *Pool) Wait() { p.joined.Wait() }

func (p *Pool) finished(w *worker) {
	p.mu.Lock()
	delete(p.workers, w.uid)
	p.mu.Unlock()
	p.Finished()
}
