#!/usr/bin/env bash
# Builds the files of a release in .cache/dist: archives, the list of their modules with licences
# (CycloneDX), and checksums. It builds them twice, and fails if the hashes differ. Where Docker
# runs, it builds the image too. It publishes and signs nothing.
. "$(dirname "$0")/modules.sh"

. hack/release-tools.sh
dist=.cache/dist
# goreleaser would take the newest tag, and ends/ has tags of its own.
if tag=$(git describe --tags --abbrev=0 --match='v*' 2>/dev/null); then
	export GORELEASER_CURRENT_TAG=$tag
fi
goreleaser release --snapshot --clean
first=$(mktemp)
trap 'rm -f "$first"' EXIT
cp "$dist/checksums.txt" "$first"
goreleaser release --snapshot --clean
diff "$first" "$dist/checksums.txt"
echo 'Two builds gave the same files:'
(cd "$dist" && sha256sum --check --quiet checksums.txt && wc -c *.tar.gz *.json && cat checksums.txt)

if docker info >/dev/null 2>&1; then
	docker buildx build --file=plegwatch/deploy/Dockerfile --build-arg=REVISION="$(git rev-parse HEAD)" \
		--build-arg=VERSION="$(git describe --tags --always --match='v*')" .
else
	echo '*** THE IMAGE IS NOT BUILT: no Docker daemon runs here. The workflow "release" builds it.'
fi
