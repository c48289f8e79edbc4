#!/bin/sh
# Install the real editors that tests drive into .tools/: editor-tools.sh neovim lsp-node. The machine's packages and
# sources stay as they are.
set -eu
cd "$(dirname "$0")/.."
tools="$PWD/.tools"
. requirements/tools.sh

# Neovim 0.12 or later, of which only sid has a package. It runs on any Debian: with the libraries of its own suite, which
# patchelf writes into it: Neovim starts itself again by the path of its file, so a script that names a loader won't do.
install_neovim() {
    root="$tools/neovim/root"
    # With an empty list of installed packages, this downloads all that Neovim needs, libc too.
    unpack_debian "$root" sid --yes --no-install-recommends --download-only install neovim patchelf \
        || { echo "Neovim 0.12 could not be installed" >&2; return 1; }
    libraries="$root/usr/lib/$(uname -m)-linux-gnu"
    loader="$(find "$libraries" -maxdepth 1 -name 'ld-linux-*.so.*' | head -n 1)"
    "$loader" --library-path "$libraries" "$root/usr/bin/patchelf" \
        --set-interpreter "$loader" --set-rpath "$libraries" "$root/usr/bin/nvim"
    cat >"$tools/neovim/nvim" <<END
#!/bin/sh
VIMRUNTIME="$root/usr/share/nvim/runtime" exec "$root/usr/bin/nvim" "\$@"
END
    chmod +x "$tools/neovim/nvim"
    "$tools/neovim/nvim" --version | head -n 1
}

for name in "$@"; do
    case "$name" in
        neovim) [ -x "$tools/neovim/nvim" ] || install_neovim ;;
        lsp-node) install_npm_packages "$name" ;;
        *) echo "unknown editor: $name; known: neovim, lsp-node" >&2; exit 2 ;;
    esac
done
