#!/usr/bin/env bash
# Compiles and vets the library with its tests, and compiles plegwatch, for systems and processors on which
# nothing runs here. Go's build cache keeps the results: the first time takes minutes, later runs seconds.
. "$(dirname "$0")/modules.sh"

for platform in windows/amd64 darwin/arm64 linux/arm64; do
	echo "$platform"
	CGO_ENABLED=0 GOOS=${platform%/*} GOARCH=${platform#*/} go vet ./...
	CGO_ENABLED=0 GOOS=${platform%/*} GOARCH=${platform#*/} go -C plegwatch build -o /dev/null .
done
