// Package compat is an agent that uses the library and client-go in one program: a
// generator on the node's runtime beside an informer of the API server's pods. It is only
// built, with the oldest client-go that README names (hack/compat.sh).
package compat

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/cri"
)

// Run hands each event to handle, with the pod of the API server if that knows it, until
// ctx ends.
func Run(ctx context.Context, config *rest.Config, endpoint string,
	handle func(*pleg.PodLifecycleEvent, *corev1.Pod)) error {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	pods := factory.Core().V1().Pods()
	synced := pods.Informer().HasSynced
	factory.Start(ctx.Done())
	defer factory.Shutdown()
	if !cache.WaitForCacheSync(ctx.Done(), synced) {
		return context.Cause(ctx)
	}

	runtime, err := cri.Dial(endpoint)
	if err != nil {
		return err
	}
	defer runtime.Close()
	generator := pleg.NewGenericPLEG(runtime, pleg.DefaultChannelCapacity, pleg.DefaultRelistPeriod,
		pleg.NewCache(), clock.RealClock{})
	generator.Start(ctx)
	defer generator.Stop()
	for e := range generator.Subscribe(ctx) {
		pod, err := pods.Lister().Pods(e.Pod.Namespace).Get(e.Pod.Name)
		if err != nil {
			pod = nil // not known there, or not yet
		}
		handle(e, pod)
	}
	return context.Cause(ctx)
}
