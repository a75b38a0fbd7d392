#!/usr/bin/env bash
# Fails if a Go file is not formatted, and shows the difference.
. "$(dirname "$0")/modules.sh"

# gofmt -d fails on a difference, which must be shown before this script ends.
difference=$(find . -name '.?*' -prune -o -name '*.go' -print0 | xargs -0 gofmt -d) && status=0 || status=$?
if [[ $status != 0 || -n $difference ]]; then
	printf '%s\n' "$difference"
	exit 1
fi
