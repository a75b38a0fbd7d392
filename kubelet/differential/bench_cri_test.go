package kubelet

import (
	"fmt"
	"testing"
	"time"

	"github.com/go-logr/logr"
	cadvisorapi "github.com/google/cadvisor/lib/model"
	"go.opentelemetry.io/otel/trace/noop"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"
	remote "k8s.io/cri-client/pkg"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/kubelet/apis/config"
	"k8s.io/kubernetes/pkg/kubelet/cm"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"
	"k8s.io/kubernetes/pkg/kubelet/kuberuntime"

	"github.com/kubepleg/pleg/kubelet/differential/overcri"
)

// BenchmarkCRIIdleRelist measures an idle relist over CRI. It uses the kubelet's CRI client,
// runtime manager and generator. Package overcri measures the library in a benchmark of the same
// name.
func BenchmarkCRIIdleRelist(b *testing.B) {
	for _, n := range []int{110, 1000, 10000} {
		b.Run(fmt.Sprintf("containers=%d/impl=kubelet", n), func(b *testing.B) {
			runtime, disconnect := newKubeRuntime(b, overcri.StartServer(b, n))
			defer disconnect()
			g := kubeletBench{newKubeletPLEG(runtime, 4*n, kubecontainer.NewCache())}
			g.Relist()
			sent := len(g.Watch())
			if want := n + n/2; sent != want {
				b.Fatalf("%d events of the first relist, want %d", sent, want)
			}
			overcri.Measure(b, g.Relist)
			if len(g.Watch()) != sent {
				b.Fatalf("%d events of idle relists", len(g.Watch())-sent)
			}
			if ok, err := g.Healthy(); !ok {
				b.Fatal(err)
			}
		})
	}
}

// newKubeRuntime returns the kubelet's runtime manager with only the parts that lists and
// inspections need. The function disconnect closes the manager's connection.
func newKubeRuntime(tb testing.TB, endpoint string) (runtime kubecontainer.Runtime, disconnect func()) {
	tb.Helper()
	ctx := klog.NewContext(tb.Context(), logr.Discard())
	service, err := remote.NewRemoteRuntimeServiceBuilder().
		WithEndpoint(endpoint).WithConnectionTimeout(2 * time.Minute).WithTracerProvider(noop.NewTracerProvider()).
		WithUseStreaming(false).Build(ctx)
	if err != nil {
		tb.Fatal(err)
	}
	runtime, _, err = kuberuntime.NewKubeGenericRuntimeManager(
		ctx,
		&record.FakeRecorder{},
		nil, nil, nil, // probe results
		tb.TempDir(), tb.TempDir(), // root and logs
		&cadvisorapi.MachineInfo{},
		nil, 110, // pod states, maximum number of pods
		kubecontainer.RealOS{},
		nil, nil, nil, // runtime helper, HTTP client, image back-off
		false, nil, 0, 0, string(config.NeverVerify), nil, "", "", // images
		nil, false, metav1.Duration{}, nil, // CPU, sysctls
		service, nil, // no image service
		cm.NewFakeContainerManager(logr.Discard()),
		nil, nil, false, "", nil, nil, "", // logs, runtime classes, seccomp, memory
		nil, // image pull times
		noop.NewTracerProvider(),
		nil, nil, nil, // tokens, service accounts, init containers
	)
	if err != nil {
		tb.Fatal(err)
	}
	return runtime, func() { _ = service.Close(ctx) }
}
