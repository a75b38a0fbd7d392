#!/usr/bin/env bash
# Fails when a Go file is not formatted, and shows how it should be.
. "$(dirname "$0")/modules.sh"

difference=$(find . -name '.?*' -prune -o -name '*.go' -print0 | xargs -0 gofmt -d)
if [[ -n $difference ]]; then
	printf '%s\n' "$difference"
	exit 1
fi
