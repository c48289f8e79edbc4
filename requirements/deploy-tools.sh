#!/bin/sh
# Install what tests need beside Python into .tools/: kustomize from Debian, by apt with a source list of its own, and from
# npm the types of custom resources, a gRPC client and Tabby's client. The machine's packages and sources stay as they are.
set -eu
cd "$(dirname "$0")/.."
tools="$PWD/.tools"

# A rebuild by Debian (+b2, +b3) is the same kustomize.
kustomize_version=5.6.0+ds-1
kustomize_suite=trixie

# apt checks the signature of the suite with Debian's keys, and the package's hash with the suite's list.
install_kustomize() {
    work="$tools/apt" keyring=/usr/share/keyrings/debian-archive-keyring.gpg
    [ -e "$keyring" ] || { echo "no $keyring; install kustomize 5.6 or later on PATH instead" >&2; return 1; }
    # The mirror that this machine uses anyway.
    mirror="$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep -E '/debian/?$' | sort -u | head -n 1)"
    [ -n "$mirror" ] || { echo "apt has no source of Debian; install kustomize 5.6 or later on PATH instead" >&2; return 1; }
    rm -rf "$work" "$tools/kustomize"
    mkdir -p "$work/state/lists/partial" "$work/cache/archives/partial" "$tools/kustomize"
    echo "deb [signed-by=$keyring] $mirror $kustomize_suite main" >"$work/sources.list"
    cat >"$work/apt.conf" <<EOF
Dir::Etc::SourceList "$work/sources.list";
Dir::Etc::SourceParts "/dev/null";
Dir::Etc::Preferences "/dev/null";
Dir::Etc::PreferencesParts "/dev/null";
Dir::State "$work/state";
Dir::State::Status "/dev/null";
Dir::Cache "$work/cache";
APT::Sandbox::User "";
EOF
    (
        cd "$work"
        export APT_CONFIG="$work/apt.conf"
        apt-get -qq update
        apt-get -qq download "kustomize=$kustomize_version*"
        dpkg-deb --extract kustomize_*.deb "$tools/kustomize"
    )
    rm -rf "$work"
    "$tools/kustomize/usr/bin/kustomize" version
}

# install_npm_packages NAME: those of requirements/NAME.
install_npm_packages() {
    for tool in node npm; do
        command -v "$tool" >/dev/null || { echo "$tool not found; on Debian: apt-get install nodejs npm" >&2; return 1; }
    done
    rm -rf "$tools/$1"
    mkdir -p "$tools/$1"
    cp "requirements/$1/package.json" "requirements/$1/package-lock.json" "$tools/$1"
    # Some packages ask for a newer Node, and work with 20; none has a script to run.
    npm ci --prefix "$tools/$1" --ignore-scripts --no-audit --no-fund --loglevel error
    date >"$tools/$1/installed"
}

[ -x "$tools/kustomize/usr/bin/kustomize" ] || install_kustomize
for name in crd-schemas contract-node tabby-agent; do
    cmp -s "requirements/$name/package-lock.json" "$tools/$name/package-lock.json" \
        && [ -e "$tools/$name/installed" ] || install_npm_packages "$name"
done
