#!/usr/bin/env bash
# Fails when a Go file is not formatted, and shows how it should be.
. "$(dirname "$0")/modules.sh"

# gofmt -d fails on a difference and must not end this before it is shown.
difference=$(find . -name '.?*' -prune -o -name '*.go' -print0 | xargs -0 gofmt -d) && status=0 || status=$?
if [[ $status != 0 || -n $difference ]]; then
	printf '%s\n' "$difference"
	exit 1
fi
