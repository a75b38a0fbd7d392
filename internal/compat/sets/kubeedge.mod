// KubeEdge, 2026-08-06, on the release that its fork of Kubernetes is of. The library raises its go line, 1.23.12.
module compat

go 1.25.0

require (
	github.com/go-logr/logr v1.4.2
	github.com/prometheus/client_golang v1.19.1
	github.com/prometheus/client_model v0.6.1
	github.com/prometheus/common v0.55.0
	github.com/prometheus/procfs v0.15.1
	golang.org/x/net v0.37.0
	golang.org/x/sync v0.12.0
	golang.org/x/sys v0.31.0
	golang.org/x/text v0.23.0
	google.golang.org/genproto/googleapis/rpc v0.0.0-20241007155032-5fefd90f89a9
	google.golang.org/grpc v1.67.1
	google.golang.org/protobuf v1.35.2
	k8s.io/api v0.32.10
	k8s.io/apimachinery v0.32.10
	k8s.io/client-go v0.32.10
	k8s.io/cri-api v0.32.10
	k8s.io/klog/v2 v2.140.0
	k8s.io/kube-openapi v0.0.0-20241105132330-32ad38e42d3f
	k8s.io/utils v0.0.0-20241104100929-3ea5e8cea738
	sigs.k8s.io/structured-merge-diff/v4 v4.4.2
)

replace (
	k8s.io/api => k8s.io/api v0.32.10
	k8s.io/apimachinery => k8s.io/apimachinery v0.32.10
	k8s.io/client-go => k8s.io/client-go v0.32.10
	k8s.io/cri-api => k8s.io/cri-api v0.32.10
)
