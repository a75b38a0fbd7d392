#!/usr/bin/env bash
# Fails when a package of the library needs something of Kubernetes that drags the
# rest of it along.
. "$(dirname "$0")/modules.sh"

packages=$(go list -deps ./...)
if grep -E '^k8s\.io/(kubernetes|client-go|api|apiserver|component-base)(/|$)' <<<"$packages"; then
	echo 'The library must not depend on these packages.'
	exit 1
fi
