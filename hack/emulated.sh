#!/usr/bin/env bash
# Runs the library's tests under an emulated arm64. Those of cri, which decodes messages and the
# kernel's events by hand, also run under an emulated s390x, which is big-endian. Arguments go to go
# test: hack/emulated.sh -run=ExitFile is a short run. Emulation is ten to twenty times slower.
. "$(dirname "$0")/modules.sh"

if ! command -v qemu-aarch64-static >/dev/null || ! command -v qemu-s390x-static >/dev/null; then
	apt-get update -q
	DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends qemu-user-static
fi
export CGO_ENABLED=0

# The test of allocations starts its own program, which this machine cannot run.
skip='^TestIdleRelistAllocations$'

# emulated ARCH QEMU PACKAGE... runs tests.
emulated() {
	echo "$1"
	GOARCH=$1 go test -count=1 -timeout=1h -exec="$2" -skip="$skip" "${flags[@]}" "${@:3}"
}
flags=("$@")
emulated arm64 qemu-aarch64-static . ./internal/... ./cri/... ./plegtest/...
emulated s390x qemu-s390x-static ./cri/...
