#!/bin/sh
# Install what tests need beside Python into .tools/: kustomize from Debian, by apt with a source list of its own, and from
# npm the types of custom resources, a gRPC client and Tabby's client. The machine's packages and sources stay as they are.
set -eu
cd "$(dirname "$0")/.."
tools="$PWD/.tools"
. requirements/tools.sh

# A rebuild by Debian (+b2, +b3) is the same kustomize.
kustomize_version=5.6.0+ds-1
kustomize_suite=trixie

install_kustomize() {
    unpack_debian "$tools/kustomize" "$kustomize_suite" download "kustomize=$kustomize_version*" \
        || { echo "install kustomize 5.6 or later on PATH instead" >&2; return 1; }
    "$tools/kustomize/usr/bin/kustomize" version
}

[ -x "$tools/kustomize/usr/bin/kustomize" ] || install_kustomize
for name in crd-schemas contract-node tabby-agent; do
    install_npm_packages "$name"
done
