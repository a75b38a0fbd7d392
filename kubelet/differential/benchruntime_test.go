package kubelet

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"

	"github.com/kubepleg/pleg"
)

// workload contains the answers of a benchmark's runtime. The answers are made before the
// measurement, so that the benchmark measures only the generator.
type workload struct {
	// lists are the pods of each list. The runtime returns the lists in turn. No two lists share
	// objects.
	lists [][]*modelPod
	// listTakes and inspectionTakes are the durations of the runtime's calls.
	listTakes, inspectionTakes time.Duration
	// If hangs is not nil, one pod's inspections block until hangs is closed. The field stuck is
	// the UID of this pod.
	hangs chan struct{}
	stuck types.UID
	// turn is the index of the list. Each list increases turn, unless held is true.
	turn atomic.Int64
	held bool
}

// benchPods returns n pods, each with a running sandbox and two containers in the given state. If
// step is above 0, one of every step pods has its containers in the second state, other.
func benchPods(n int, state string, step int, other string) []*modelPod {
	pods := make([]*modelPod, n)
	for i := range pods {
		uid := fmt.Sprintf("%08x-7e57-4000-8000-%012x", i, i)
		s := state
		if step > 0 && i%step == 0 {
			s = other
		}
		pods[i] = &modelPod{
			uid: types.UID(uid),
			containers: []modelContainer{
				{fmt.Sprintf("%064x", 2*i), s},
				{fmt.Sprintf("%064x", 2*i+1), s},
			},
			sandboxes: []modelContainer{{fmt.Sprintf("%063xf", i), running}},
			ips:       []string{"10.0.0.1"},
		}
	}
	return pods
}

func (w *workload) list() int {
	if w.listTakes > 0 {
		time.Sleep(w.listTakes)
	}
	if w.held {
		return int(w.turn.Load()) % len(w.lists)
	}
	return int(w.turn.Add(1)) % len(w.lists)
}

func (w *workload) inspect(uid types.UID) {
	if w.inspectionTakes > 0 {
		time.Sleep(w.inspectionTakes)
	}
	if w.hangs != nil && uid == w.stuck {
		<-w.hangs
	}
}

// generator contains the methods that a benchmark calls on the kubelet's or the library's
// generator.
type generator interface {
	Start()
	Relist()
	Stop()
	// take reads the events that are in the channel, and returns their number. If the function seen
	// is not nil, it is called with the pod of each event.
	take(seen func(types.UID)) int
}

// impl makes the kubelet's or the library's generator.
type impl struct {
	name string
	make func(w *workload, capacity int) generator
}

// impls are the two generators, with the names that benchstat shows.
var impls = []impl{{"kubelet", newKubeletBench}, {"pleg", newPLEGBench}}

// onBothSides runs a benchmark for each generator.
func onBothSides(b *testing.B, run func(b *testing.B, side impl)) {
	for _, side := range impls {
		b.Run("impl="+side.name, func(b *testing.B) {
			b.ReportAllocs()
			run(b, side)
		})
	}
}

type kubeletBench struct{ kubeletPLEG }

func newKubeletBench(w *workload, capacity int) generator {
	r := &kubeletBenchRuntime{w: w, statuses: make(map[*kubecontainer.Pod]*kubecontainer.PodStatus)}
	for _, pods := range w.lists {
		var list []*kubecontainer.Pod
		for _, p := range pods {
			pod := p.forKubelet(time.Now())
			list = append(list, pod)
			r.statuses[pod] = p.statusForKubelet()
		}
		r.lists = append(r.lists, list)
	}
	return kubeletBench{newKubeletPLEG(r, capacity, kubecontainer.NewCache())}
}

// quiet discards the logs of the kubelet's generator. The library does not log here either.
var quiet = klog.NewContext(context.Background(), logr.Discard())

func (g kubeletBench) Start() { g.kubeletPLEG.Start(quiet) }

func (g kubeletBench) Relist() { g.kubeletPLEG.Relist(quiet) }

func (g kubeletBench) take(seen func(types.UID)) int {
	for n := 0; ; n++ {
		select {
		case e := <-g.Watch():
			if seen != nil {
				seen(e.ID)
			}
		default:
			return n
		}
	}
}

type kubeletBenchRuntime struct {
	kubecontainer.Runtime
	w        *workload
	lists    [][]*kubecontainer.Pod
	statuses map[*kubecontainer.Pod]*kubecontainer.PodStatus // by listed pod
}

func (r *kubeletBenchRuntime) GetPods(context.Context, bool) ([]*kubecontainer.Pod, error) {
	return r.lists[r.w.list()], nil
}

func (r *kubeletBenchRuntime) GetPodStatus(
	_ context.Context, pod *kubecontainer.Pod,
) (*kubecontainer.PodStatus, error) {
	r.w.inspect(pod.ID)
	return r.statuses[pod], nil
}

type plegBench struct{ *pleg.GenericPLEG }

func newPLEGBench(w *workload, capacity int) generator {
	r := &plegBenchRuntime{w: w, statuses: make(map[*pleg.Pod]*pleg.PodStatus)}
	for _, pods := range w.lists {
		var list []*pleg.Pod
		for _, p := range pods {
			pod := p.forPLEG()
			list = append(list, pod)
			r.statuses[pod] = p.statusForPLEG()
		}
		r.lists = append(r.lists, list)
	}
	g := newPLEG(r, capacity, pleg.NewCache())
	g.Watch()
	return plegBench{g}
}

func (g plegBench) Start() { g.GenericPLEG.Start(context.Background()) }

func (g plegBench) Relist() { _ = g.GenericPLEG.Relist(context.Background()) }

func (g plegBench) take(seen func(types.UID)) int {
	for n := 0; ; n++ {
		select {
		case e := <-g.Watch():
			if seen != nil {
				seen(e.ID)
			}
		default:
			return n
		}
	}
}

type plegBenchRuntime struct {
	w        *workload
	lists    [][]*pleg.Pod
	statuses map[*pleg.Pod]*pleg.PodStatus // by listed pod
}

func (r *plegBenchRuntime) GetPods(context.Context, bool) ([]*pleg.Pod, error) {
	return r.lists[r.w.list()], nil
}

func (r *plegBenchRuntime) GetPodStatus(_ context.Context, pod *pleg.Pod) (*pleg.PodStatus, error) {
	r.w.inspect(pod.ID)
	return r.statuses[pod], nil
}
