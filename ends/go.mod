// This module is package ends. It is a module of its own so that the library does not require a
// database. Like the library, it requires the lowest versions that work.
module github.com/kubepleg/pleg/ends

go 1.25.0

require (
	github.com/go-logr/logr v1.4.2
	github.com/kubepleg/pleg v0.0.0-00010101000000-000000000000
	go.etcd.io/bbolt v1.4.3
	k8s.io/apimachinery v0.32.0
	k8s.io/klog/v2 v2.130.1
	k8s.io/utils v0.0.0-20241104100929-3ea5e8cea738
)

require (
	github.com/beorn7/perks v1.0.1 // indirect
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/gogo/protobuf v1.3.2 // indirect
	github.com/prometheus/client_golang v1.19.1 // indirect
	github.com/prometheus/client_model v0.5.0 // indirect
	github.com/prometheus/common v0.48.0 // indirect
	github.com/prometheus/procfs v0.12.0 // indirect
	golang.org/x/net v0.30.0 // indirect
	golang.org/x/sync v0.10.0 // indirect
	golang.org/x/sys v0.29.0 // indirect
	golang.org/x/text v0.19.0 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20240826202546-f6391c0de4c7 // indirect
	google.golang.org/grpc v1.66.3 // indirect
	google.golang.org/protobuf v1.35.1 // indirect
	k8s.io/cri-api v0.32.0 // indirect
)

replace github.com/kubepleg/pleg => ..
