#!/usr/bin/env bash
# Builds and tests the library with other versions of Go and of its dependencies: the lowest that
# go.mod names, the newest, and those that other projects pin. Without an argument it does all.
. "$(dirname "$0")/modules.sh"

library=$(go list -m)
# The packages that are tested, because they use what differs between versions; the others are compiled.
differing=(. ./cri ./plegtest/...)

# lowest uses the Go of go.mod. Other steps of the gate test its modules with a newer one.
lowest() {
	GOTOOLCHAIN=go$(go list -m -f '{{.GoVersion}}')
	export GOTOOLCHAIN
	go version
	go vet ./...
	go test -vet=off "${differing[@]}"
}

# newest uses the newest Go and the newest modules, alphas included.
newest() {
	GOTOOLCHAIN=$(sed -n 's/^toolchain //p' internal/compat/newest.mod)
	export GOTOOLCHAIN
	go version
	go vet -modfile=internal/compat/newest.mod ./...
	go test -vet=off -modfile=internal/compat/newest.mod "${differing[@]}"
}

# sets adds the library to an empty module for each file in internal/compat/sets, which pins the
# versions of another project's go.mod. No version may change. It builds an agent with client-go,
# and runs a unit test in it.
sets() {
	local file
	tmp=$(mktemp -d)
	trap 'rm -rf "$tmp"' EXIT
	for file in internal/compat/sets/*.mod; do
		add "$file" "$tmp/$(basename "$file" .mod)"
	done
}

# add makes one such module in a folder.
add() {
	local pinned="$PWD/$1" root=$PWD changed
	mkdir "$2"
	cp "$pinned" "$2/go.mod"
	cp internal/compat/testdata/agent.go "$2"
	readmeTest >"$2/readme_test.go"
	cd "$2"
	head -n 1 "$pinned"
	go mod edit -replace="$library@v0.1.0=$root"
	go get "$library@v0.1.0" 2>errors || { cat errors && exit 1; }
	go mod tidy 2>errors || { cat errors && exit 1; }
	changed=$(awk '$2 ~ /^v[0-9]/ { if (NR == FNR) pin[$1] = $2; else if ($1 in pin && pin[$1] != $2) print $1, pin[$1], $2 }' \
		"$pinned" go.mod)
	if [[ -n $changed ]]; then
		printf 'These versions have changed:\n%s\n' "$changed"
		exit 1
	fi
	go build ./...
	go test -vet=off ./...
	cd "$root"
}

# readmeTest prints the unit test.
readmeTest() {
	cat <<-'END'
		package compat

		import (
			"testing"
			"testing/synctest"

			"github.com/kubepleg/pleg"
			"github.com/kubepleg/pleg/plegtest"
		)

	END
	sed -n '/^func TestWebStarts(/,/^}/p' example_readme_test.go
}

if [[ $# != 0 ]]; then
	"$@"
	exit
fi
for part in lowest newest sets; do
	printf '%s:\n' "$part"
	hack/compat.sh "$part"
done
