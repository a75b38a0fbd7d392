#!/usr/bin/env bash
# Compares the exported API with the API of the last release tag, or of $1. Fails on an incompatible
# change that is not in hack/apidiff.accepted, word for word, and on a line there that matches no
# change. docs/REFERENCE.md says what the API is, and when a change may be accepted.
. "$(dirname "$0")/modules.sh"

# A clone may belong to another user.
git=(git -c safe.directory=*)
accepted=hack/apidiff.accepted
module=$(go list -m)

tag=${1:-}
if [[ -z $tag ]]; then
	tag=$("${git[@]}" tag --list 'v[0-9]*' --sort=-v:refname --merged HEAD | head -n 1)
fi
if [[ -z $tag ]]; then
	echo '*** THE API IS COMPARED WITH NOTHING: no tag v* is an ancestor of this commit. Before the first'
	echo '*** release that is right; in a shallow clone, fetch the tags and their history.'
	exit 0
fi

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
go build -modfile=internal/tools/go.mod -o "$tmp/apidiff" golang.org/x/exp/cmd/apidiff
mkdir "$tmp/old"
"${git[@]}" archive "$tag" | tar -x -C "$tmp/old"
(cd "$tmp/old" && "$tmp/apidiff" -m -w "$tmp/old.export" "$module")
if ! "$tmp/apidiff" -m "$tmp/old.export" "$module" >"$tmp/all" 2>"$tmp/errors" ||
	! "$tmp/apidiff" -m -incompatible "$tmp/old.export" "$module" >"$tmp/incompatible" 2>>"$tmp/errors"; then
	cat "$tmp/errors"
	exit 1
fi
# Examples and the program that builds kubelets are not part of the API.
others='(\./|pleg/)(examples|kubelet)/'
echo "Against $tag:"
sed -E "\\#$others#d" "$tmp/all"

sed -nE "\\#$others#d; s/^- //p" "$tmp/incompatible" | sort >"$tmp/found"
grep -v '^#' "$accepted" | sort >"$tmp/accepted" || true # the file may have none
status=0
if new=$(comm -23 "$tmp/found" "$tmp/accepted") && [[ -n $new ]]; then
	printf 'Incompatible changes that %s does not have:\n%s\n' "$accepted" "$new"
	status=1
fi
if stale=$(comm -13 "$tmp/found" "$tmp/accepted") && [[ -n $stale ]]; then
	printf 'Lines of %s that are no changes since %s:\n%s\n' "$accepted" "$tag" "$stale"
	status=1
fi
exit "$status"
