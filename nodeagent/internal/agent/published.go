package agent

import (
	"cmp"
	"encoding/json"
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
)

// Sink stores statuses.
type Sink interface {
	Write(pod *v1.Pod) error
	Remove(pod *v1.Pod) error
}

// published stores the statuses of all pods, and writes changes to a sink. Its methods are safe for
// concurrent use. A slow write blocks all methods, but then the node is in trouble anyway.
type published struct {
	sink     Sink
	logger   klog.Logger
	onChange func(*v1.Pod) // called with every change, with the lock held

	mu   sync.Mutex
	pods map[types.UID]entry // guarded by mu
}

type entry struct {
	pod     *v1.Pod // with its status; replaced, never modified
	written bool
}

// newPublished returns a published that contains the statuses of an earlier agent.
func newPublished(sink Sink, adopted []*v1.Pod, logger klog.Logger, onChange func(*v1.Pod)) *published {
	p := &published{sink: sink, logger: logger, onChange: onChange, pods: map[types.UID]entry{}}
	for _, pod := range adopted {
		p.pods[pod.UID] = entry{pod, true}
	}
	return p
}

// get returns a pod with its status, or a zero pod if the pod is unknown. Callers must not modify
// the pod.
func (p *published) get(uid types.UID) (pod v1.Pod) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if e := p.pods[uid]; e.pod != nil {
		pod = *e.pod
	}
	return pod
}

// interruptedAnnotation is the annotation that contains a pod's interrupted containers, as JSON.
const interruptedAnnotation = "nodeagent.kubepleg.dev/interrupted"

// set sets a pod's status and interrupted containers. If the sink fails to write a pod, the next
// call for the pod repeats the write.
func (p *published) set(pod *v1.Pod, status v1.PodStatus, interrupted map[string]string) {
	next := pod.DeepCopy()
	if len(interrupted) > 0 {
		text, _ := json.Marshal(interrupted) // cannot fail for strings
		metav1.SetMetaDataAnnotation(&next.ObjectMeta, interruptedAnnotation, string(text))
	}
	next.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	next.Status = status
	p.mu.Lock()
	defer p.mu.Unlock()
	e := p.pods[pod.UID]
	if !equality.Semantic.DeepEqual(e.pod, next) {
		e = entry{pod: next}
		p.onChange(next)
	}
	if !e.written {
		err := p.sink.Write(next)
		if e.written = err == nil; err != nil {
			p.logger.Error(err, "A status could not be written", "pod", klog.KObj(pod))
		}
	}
	p.pods[pod.UID] = e
}

// remove removes a pod from p and from the sink.
func (p *published) remove(pod *v1.Pod) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.pods, pod.UID)
	return p.sink.Remove(pod)
}

// list returns the pods with their statuses, sorted by namespace and name.
func (p *published) list() []v1.Pod {
	pods := []v1.Pod{}
	p.mu.Lock()
	for _, e := range p.pods {
		pods = append(pods, *e.pod)
	}
	p.mu.Unlock()
	slices.SortFunc(pods, func(a, b v1.Pod) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
	})
	return pods
}
