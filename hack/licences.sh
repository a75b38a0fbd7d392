#!/usr/bin/env bash
# Lists the licences of the modules that the library's packages are built from, and fails on one
# that is not allowed or not known. With -all it lists those of every module, in some minutes, and
# does not judge modules that only tests and tools use. "-save MODULE FOLDER" writes the texts of the
# licences of what a module is built from.
. "$(dirname "$0")/modules.sh"

module=$(go list -m)
allowed=Apache-2.0,BSD-2-Clause,BSD-3-Clause,ISC,MIT

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
go -C internal/tools/licences build -o "$tmp/go-licenses" github.com/google/go-licenses
# The tool recognizes the standard library by this folder.
GOROOT=$(go env GOROOT)
export GOROOT

# list lists the licences of the modules that the module in a folder is built from, without this
# repository's. The tool's other output is about links, for which it asks the internet.
list() {
	local report
	if ! report=$(cd "$1" && "$tmp/go-licenses" report --ignore="$module" ./... 2>"$tmp/errors"); then
		cat "$tmp/errors" >&2
		return 1
	fi
	awk -F, '{ printf "%-14s %s\n", $3, $1 }' <<<"$report" | sort
}

if [[ ${1:-} == -save ]]; then
	rm -rf "${3:?}"
	folder=$PWD/$3
	(cd "$2" && "$tmp/go-licenses" save --ignore="$module" --save_path="$folder" ./... 2>"$tmp/errors") || {
		cat "$tmp/errors"
		exit 1
	}
	chmod -R u+w "$folder"
	install -D -m 644 "$GOROOT/LICENSE" "$folder/go/LICENSE" # of the standard library
	exit
fi
if [[ ${1:-} == -all ]]; then
	for m in "${ours[@]}"; do
		printf '\n%s\n' "$m"
		list "$m"
	done
	exit
fi
list .
if ! "$tmp/go-licenses" check --ignore="$module" --allowed_licenses="$allowed" ./... 2>"$tmp/errors"; then
	cat "$tmp/errors"
	echo "Only these licences are allowed: $allowed."
	exit 1
fi
