#!/bin/sh
# Install what tests of editors drive into .tools/, by name: editor-tools.sh neovim helix lsp-node. The machine's packages
# and sources stay as they are.
set -eu
cd "$(dirname "$0")/.."
tools="$PWD/.tools"
. requirements/tools.sh

# install_editor NAME PACKAGE BINARY VARIABLE RUNTIME: an editor of Debian sid, started by .tools/NAME/NAME. It runs on any
# Debian with the libraries of its own suite. patchelf writes them into the binary, since Neovim starts itself again by the
# path of its file.
install_editor() {
    root="$tools/$1/root"
    # With an empty list of installed packages, this downloads all that the editor needs, libc too.
    unpack_debian "$root" sid --yes --no-install-recommends --download-only install "$2" patchelf \
        || { echo "$1 could not be installed" >&2; return 1; }
    libraries="$root/usr/lib/$(uname -m)-linux-gnu"
    loader="$(find "$libraries" -maxdepth 1 -name 'ld-linux-*.so.*' | head -n 1)"
    "$loader" --library-path "$libraries" "$root/usr/bin/patchelf" \
        --set-interpreter "$loader" --set-rpath "$libraries" "$root/$3"
    cat >"$tools/$1/$1" <<END
#!/bin/sh
$4="$root/$5" exec "$root/$3" "\$@"
END
    chmod +x "$tools/$1/$1"
    "$tools/$1/$1" --version | head -n 1
}

for name in "$@"; do
    case "$name" in
        # Inline completions came with 0.12.
        neovim) [ -x "$tools/neovim/neovim" ] || install_editor neovim neovim usr/bin/nvim VIMRUNTIME usr/share/nvim/runtime ;;
        helix) [ -x "$tools/helix/helix" ] || install_editor helix hx usr/lib/hx/hx HELIX_RUNTIME usr/lib/hx/runtime ;;
        lsp-node) install_npm_packages "$name" ;;
        *) echo "unknown: $name; known: neovim, helix, lsp-node" >&2; exit 2 ;;
    esac
done
