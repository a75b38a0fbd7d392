#!/usr/bin/env bash
# Finds the Chromium that plegwatch/e2e/browser drives. Without one it installs Debian's, or reports
# what is missing.
set -euo pipefail

for name in chromium chromium-browser google-chrome; do
	if command -v "$name" >/dev/null; then
		"$name" --version
		exit
	fi
done
if ! command -v apt-get >/dev/null || [[ $(id -u) != 0 ]]; then
	echo 'There is no chromium, chromium-browser or google-chrome in PATH. Install one, such as'
	echo 'Debian'"'"'s package chromium with fonts-dejavu-core; here that needs root and apt-get.'
	exit 1
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -q
apt-get install -q -y --no-install-recommends chromium fonts-dejavu-core
chromium --version
