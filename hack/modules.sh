# Sourced by the other scripts: goes to the root of the repository, sets modules to the folders of
# all its modules, and ours to those that have Go code, not only pins of other projects.
# shellcheck shell=bash
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export GOWORK=off

modules=()
ours=()
while IFS= read -r file; do
	dir=$(dirname "$file")
	modules+=("$dir")
	if ! packages=$(go -C "$dir" list ./... 2>&1); then
		printf 'listing the packages of %s: %s\n' "$dir" "$packages" >&2
		exit 1
	fi
	if [[ $packages != *'matched no packages'* ]]; then
		ours+=("$dir")
	fi
done < <(find . -name .cache -prune -o -name go.mod -print | sort)
