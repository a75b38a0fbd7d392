#!/usr/bin/env bash
# Tidies every module; with -diff, changes nothing and fails when one is not tidy.
. "$(dirname "$0")/modules.sh"

for m in "${modules[@]}"; do
	go -C "$m" mod tidy "$@"
done
