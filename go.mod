module github.com/kubepleg/pleg

go 1.25.0

require (
	github.com/cockroachdb/datadriven v1.0.2
	github.com/go-logr/logr v1.4.2
	github.com/google/go-cmp v0.6.0
	github.com/prometheus/client_golang v1.15.0 // earlier ones bring MPL-2.0 modules
	go.uber.org/goleak v1.2.1
	golang.org/x/sync v0.8.0
	golang.org/x/sys v0.26.0
	google.golang.org/grpc v1.66.3 // earlier ones link package testing
	google.golang.org/protobuf v1.35.1
	k8s.io/apimachinery v0.32.0
	k8s.io/cri-api v0.32.0
	k8s.io/klog/v2 v2.130.1
	k8s.io/utils v0.0.0-20241104100929-3ea5e8cea738
)

require (
	github.com/beorn7/perks v1.0.1 // indirect
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/davecgh/go-spew v1.1.2-0.20180830191138-d8f796af33cc // indirect
	github.com/gogo/protobuf v1.3.2 // indirect
	github.com/golang/protobuf v1.5.4 // indirect
	github.com/matttproud/golang_protobuf_extensions v1.0.4 // indirect
	github.com/pmezard/go-difflib v1.0.1-0.20181226105442-5d4384ee4fb2 // indirect
	github.com/prometheus/client_model v0.3.0 // indirect
	github.com/prometheus/common v0.42.0 // indirect
	github.com/prometheus/procfs v0.9.0 // indirect
	golang.org/x/net v0.30.0 // indirect
	golang.org/x/text v0.19.0 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20240826202546-f6391c0de4c7 // indirect
)
