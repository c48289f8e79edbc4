# How tools are installed into $tools. To be sourced.

# unpack_debian FOLDER SUITE apt-get's words...: run apt-get, whose words download packages, and unpack them into FOLDER.
# It has a source list of its own: the machine's packages and sources stay as they are. apt checks the signature of the
# suite with Debian's keys, and the hash of each package with the suite's list.
unpack_debian() {
    folder="$1" suite="$2" work="$1.apt" keyring=/usr/share/keyrings/debian-archive-keyring.gpg
    shift 2
    [ -e "$keyring" ] || { echo "no $keyring" >&2; return 1; }
    # The mirror that this machine uses anyway.
    mirror="$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep -E '/debian/?$' | sort -u | head -n 1)"
    [ -n "$mirror" ] || { echo "apt has no source of Debian" >&2; return 1; }
    rm -rf "$work" "$folder"
    mkdir -p "$work/state/lists/partial" "$work/cache/archives/partial" "$folder"
    : >"$work/status"
    echo "deb [signed-by=$keyring] $mirror $suite main" >"$work/sources.list"
    cat >"$work/apt.conf" <<END
Dir::Etc::SourceList "$work/sources.list";
Dir::Etc::SourceParts "/dev/null";
Dir::Etc::Preferences "/dev/null";
Dir::Etc::PreferencesParts "/dev/null";
Dir::State "$work/state";
Dir::State::Status "$work/status";
Dir::Cache "$work/cache";
APT::Sandbox::User "";
END
    (
        cd "$work/cache/archives"
        export APT_CONFIG="$work/apt.conf"
        apt-get -qq update && apt-get -qq "$@" >/dev/null || exit 1
        for package in *.deb; do dpkg-deb --extract "$package" "$folder" || exit 1; done
    ) || return 1
    rm -rf "$work"
}

# install_npm_packages NAME: those of requirements/NAME into $tools/NAME, if they are not there.
install_npm_packages() {
    cmp -s "requirements/$1/package-lock.json" "$tools/$1/package-lock.json" && [ -e "$tools/$1/installed" ] && return
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
