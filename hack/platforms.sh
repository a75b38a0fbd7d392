#!/usr/bin/env bash
# Compiles and vets the library, with its tests, and compiles plegwatch, for the systems and processors that nothing
# here runs on. What it compiles stays in Go's build cache: the first time takes minutes,
# after that seconds.
. "$(dirname "$0")/modules.sh"

for platform in windows/amd64 darwin/arm64 linux/arm64; do
	echo "$platform"
	CGO_ENABLED=0 GOOS=${platform%/*} GOARCH=${platform#*/} go vet ./...
	CGO_ENABLED=0 GOOS=${platform%/*} GOARCH=${platform#*/} go -C plegwatch build -o /dev/null .
done
