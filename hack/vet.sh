#!/usr/bin/env bash
# Vets every module.
. "$(dirname "$0")/modules.sh"

for m in "${ours[@]}"; do
	go -C "$m" vet ./...
done
