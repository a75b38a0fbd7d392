// This module runs kubelets beside each other on a real containerd and measures them. It
// is a module of its own, as internal/e2e is, whose containerd it uses.
module github.com/kubepleg/pleg/examples/kubelet/compare

go 1.26.0

require (
	github.com/kubepleg/pleg/internal/e2e v0.0.0-00010101000000-000000000000
	golang.org/x/sys v0.48.0
	google.golang.org/grpc v1.85.0
	k8s.io/cri-api v0.37.2
)

require (
	github.com/kubepleg/pleg v0.0.0-00010101000000-000000000000 // indirect
	golang.org/x/net v0.60.0 // indirect
	golang.org/x/text v0.42.0 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260817212433-ac3dfec99bb1 // indirect
	google.golang.org/protobuf v1.36.12 // indirect
	k8s.io/apimachinery v0.37.2 // indirect
)

replace (
	github.com/kubepleg/pleg => ../../..
	github.com/kubepleg/pleg/internal/e2e => ../../../internal/e2e
)
