# Sourced by hack/snapshot.sh and the workflow "release": installs what builds a release in
# .cache/release-tools, and puts it first in PATH.
# shellcheck shell=bash
tools=$PWD/.cache/release-tools
GOWORK=off GOBIN=$tools go install github.com/goreleaser/goreleaser/v2@v2.13.3
GOWORK=off GOBIN=$tools go install github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod@v1.10.0
export PATH=$tools:$PATH
