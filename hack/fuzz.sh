#!/usr/bin/env bash
# Runs every fuzz test of the repository for a while, 10 s or $1. Failing inputs are kept below the
# package's testdata/fuzz, where "go test" uses them from then on.
. "$(dirname "$0")/modules.sh"

time=${1:-10s}
found=0
log=$(mktemp)
trap 'rm -f "$log"' EXIT
while IFS=: read -r file name; do
	found=$((found + 1))
	echo "$name in $(dirname "$file"), $time"
	tries=1
	until go -C "$(dirname "$file")" test -run='^$' -fuzz="^$name\$" -fuzztime="$time" . | tee "$log"; do
		# Before Go 1.27, the end of the time can count as a failure (golang/go#75804). Such a run is
		# repeated, twice at most. For a real failure, go test names the input.
		if ((tries++ == 3)) || grep -q 'Failing input' "$log" || ! grep -qx '    context deadline exceeded' "$log"; then
			exit 1
		fi
	done
done < <(find . -name '.?*' -prune -o -name '*_test.go' -print0 | sort -z |
	xargs -0 sed -nsE '/^func Fuzz[A-Z0-9_]/{F;s/^func (Fuzz[A-Za-z0-9_]+).*/\1/p}' | paste -d: - -)
if [[ $found == 0 ]]; then
	echo 'There is no fuzz test: the search for them is broken.'
	exit 1
fi
