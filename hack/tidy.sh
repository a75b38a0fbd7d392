#!/usr/bin/env bash
# Tidies every module, and the library's newest versions; with -diff, changes nothing and fails if
# one is not tidy.
. "$(dirname "$0")/modules.sh"

for m in "${modules[@]}"; do
	go -C "$m" mod tidy "$@"
done
newest=internal/compat/newest.mod
GOTOOLCHAIN=$(sed -n 's/^toolchain //p' "$newest") go mod tidy -modfile="$newest" "$@"
