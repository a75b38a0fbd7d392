#!/usr/bin/env bash
# Fails if a package of the library needs a part of Kubernetes that drags in the rest, or if the
# root package links more than its types and its metrics need.
. "$(dirname "$0")/modules.sh"

packages=$(go list -deps ./...)
if grep -E '^k8s\.io/(kubernetes|client-go|api|apiserver|component-base)(/|$)' <<<"$packages"; then
	echo 'The library must not depend on these packages.'
	exit 1
fi

# MPL-2.0 modules, which licence scanners of other projects report even if only tests use them.
if go list -m all | grep -E '^(pgregory\.net/rapid|github\.com/hashicorp/)'; then
	echo 'The root module must not require these modules.'
	exit 1
fi

# What the root's packages may import. gRPC and protobuf come with cri-api, which has its types in
# one package with its client and its server.
module=$(go list -m)
named='github\.com/prometheus/client_golang/prometheus|k8s\.io/apimachinery/pkg/types'
named+='|k8s\.io/cri-api/pkg/apis/runtime/v1|k8s\.io/klog/v2|k8s\.io/utils/clock'
own=$(go list -deps . | grep "^$module")
# shellcheck disable=SC2086 # one word for each package
if go list -f '{{join .Imports "\n"}}' $own | grep '\.' | sort -u | grep -vE "^($module/.*|$named)\$"; then
	echo 'The root package must not import these packages.'
	exit 1
fi
if go list -deps . | grep -E '(^|/)testing(/|$)|/go-cmp/|/randtest|/goleak|/datadriven|/testify'; then
	echo 'The root package must not link these packages, which are for tests.'
	exit 1
fi
linked=$(go list -deps -f '{{if not .Standard}}{{.ImportPath}}{{end}}' . | grep -vc "^$module")
printf 'The root package links %d packages beside its own and those of Go.\n' "$linked"
if ! grep -qF "it links $linked packages" README.md; then
	echo 'The compatibility table of README.md says another number.'
	exit 1
fi
