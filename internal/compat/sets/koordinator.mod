// koordinator, 2026-07-24.
module compat

go 1.25.0

require (
	github.com/go-logr/logr v1.4.3
	github.com/prometheus/client_golang v1.23.2
	github.com/prometheus/client_model v0.6.2
	github.com/prometheus/common v0.67.5
	github.com/prometheus/procfs v0.16.1
	golang.org/x/net v0.51.0
	golang.org/x/sync v0.19.0
	golang.org/x/sys v0.41.0
	golang.org/x/text v0.34.0
	google.golang.org/grpc v1.79.1
	google.golang.org/protobuf v1.36.11
	k8s.io/api v0.35.6
	k8s.io/apimachinery v0.35.6
	k8s.io/client-go v0.35.6
	k8s.io/cri-api v0.35.6
	k8s.io/klog/v2 v2.130.1
	k8s.io/utils v0.0.0-20260108192941-914a6e750570
)

replace (
	github.com/go-logr/logr => github.com/go-logr/logr v1.4.3
	google.golang.org/genproto/googleapis/rpc => google.golang.org/genproto/googleapis/rpc v0.0.0-20250528174236-200df99c418a
	google.golang.org/grpc => google.golang.org/grpc v1.79.1
	google.golang.org/protobuf => google.golang.org/protobuf v1.36.11
	k8s.io/api => k8s.io/api v0.35.6
	k8s.io/apimachinery => k8s.io/apimachinery v0.35.6
	k8s.io/client-go => k8s.io/client-go v0.35.6
	k8s.io/cri-api => k8s.io/cri-api v0.35.6
	k8s.io/klog/v2 => k8s.io/klog/v2 v2.130.1
	k8s.io/kube-openapi => k8s.io/kube-openapi v0.0.0-20250910181357-589584f1c912
)
