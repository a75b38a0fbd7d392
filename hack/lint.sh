#!/usr/bin/env bash
# Lints every module, or the named ones, with the golangci-lint that internal/tools pins. Go builds
# it the first time, in some minutes, and keeps it in its build cache.
. "$(dirname "$0")/modules.sh"

root=$PWD
status=0
if [[ $# == 0 ]]; then
	set -- "${ours[@]}"
fi
for m in "$@"; do
	(cd "$m" && go tool -modfile="$root/internal/tools/go.mod" golangci-lint run --config="$root/.golangci.yml" ./...) || status=1
done
exit "$status"
