#!/usr/bin/env bash
# For each named release of the kubelet: builds it on the library and as released, runs its own
# tests on the library, and makes both run ten pods on a real containerd in turn. "vendored" is the
# first release, in a module that vendors it, as KubeEdge's does. It needs root.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export CGO_ENABLED=0 GOFLAGS="${GOFLAGS:-} -buildvcs=false -trimpath" GOWORK=off
made=$PWD/.cache/kubelet

build() { go run ./kubelet/build "$@"; }
ten_pods() { (cd kubelet/e2e && go test -vet=off -count=1 -v ./tenpods -programs="$1"); }

# vendored makes a module that vendors a kubelet and builds it as its own program, and builds a copy
# of it on the library. Its grpc is KubeEdge's: the kubelet's is too old for the library.
vendored() {
	local edge=$made/vendored/edge said version
	said=$(build -release 1.32 -stock -o "$made/vendored/bin/stock")
	version=$(sed -n 's/^built .* a kubelet \(v[^,]*\),.*/\1/p' <<<"$said")
	rm -rf "$edge"
	mkdir -p "$edge/cmd/kubelet"
	sed 's|^module .*|module example.com/edge|' "$made/1.32/stock-$version/go.mod" >"$edge/go.mod"
	cp "$made/1.32/stock-$version/go.sum" "$edge/go.sum"
	cp "$(go env GOMODCACHE)/k8s.io/kubernetes@$version/cmd/kubelet/kubelet.go" "$edge/cmd/kubelet"
	go -C "$edge" mod edit -require=google.golang.org/grpc@v1.67.1 -require="k8s.io/kubernetes@$version" \
		-replace="k8s.io/kubernetes=k8s.io/kubernetes@$version"
	go -C "$edge" list -mod=mod -deps ./cmd/kubelet >/dev/null # adds what go.mod lacks
	go -C "$edge" mod vendor
	build -source "$edge" -o "$made/vendored/bin" ./cmd/kubelet
	ten_pods "$made/vendored/bin"
}

for r in "$@"; do
	printf '\n=== %s\n' "$r"
	if [[ $r == vendored ]]; then
		vendored
		continue
	fi
	build -release "$r" -o "$made/$r/kubelet"
	build -release "$r" -stock -o "$made/$r/stock"
	build -release "$r" -test
	ten_pods "$made/$r"
done
