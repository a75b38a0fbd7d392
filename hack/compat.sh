#!/usr/bin/env bash
# Builds the library beside the oldest client-go that README's compatibility table names.
. "$(dirname "$0")/modules.sh"

version=$(go -C internal/compat list -m -f '{{.Version}}' k8s.io/client-go)
if ! grep -qF "| client-go in the same program | $version or newer" README.md; then
	echo "internal/compat has client-go $version, and README's compatibility table does not say so."
	exit 1
fi
echo "client-go $version"
go -C internal/compat build ./...
