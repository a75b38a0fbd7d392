// Package compat is an agent that uses the library and client-go in one program: a generator on the
// node's runtime and an informer of the API server's pods. hack/compat.sh builds it in several
// modules, but does not run it.
package compat

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/cri"
)

// Run calls handle with each event until ctx ends. The second argument of handle is the API
// server's pod, or nil if the informer does not have this pod.
func Run(ctx context.Context, config *rest.Config, endpoint string,
	handle func(*pleg.PodLifecycleEvent, *corev1.Pod)) error {
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		return err
	}
	config = rest.CopyConfig(config)
	config.APIPath, config.GroupVersion = "/api", &corev1.SchemeGroupVersion
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	client, err := rest.RESTClientFor(config)
	if err != nil {
		return err
	}
	pods := cache.NewSharedIndexInformer(
		cache.NewListWatchFromClient(client, "pods", corev1.NamespaceAll, fields.Everything()),
		&corev1.Pod{}, 0, cache.Indexers{})
	go pods.Run(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), pods.HasSynced) {
		return context.Cause(ctx)
	}

	node, err := cri.Dial(endpoint)
	if err != nil {
		return err
	}
	defer node.Close()
	generator := pleg.New(node)
	generator.Start(ctx)
	defer generator.Stop()
	for e := range generator.Subscribe(ctx) {
		pod, _, err := pods.GetStore().GetByKey(e.Pod.Namespace + "/" + e.Pod.Name)
		if err != nil {
			return err
		}
		known, _ := pod.(*corev1.Pod) // nil if the informer does not have this pod
		handle(e, known)
	}
	return context.Cause(ctx)
}
