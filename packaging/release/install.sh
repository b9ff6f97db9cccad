#!/bin/sh
# Installs millrace from a release, without root:
#
#     sh install.sh FROM [--prefix DIRECTORY]
#
# FROM is the directory, or the https:// or file:// URL, of the release's files. The program is installed in
# DIRECTORY/bin, its manual pages, shell completions and licences in DIRECTORY/share. Without --prefix, DIRECTORY is
# /usr/local for root and ~/.local for other users. Nothing is installed unless the archive has the checksum that
# SHA256SUMS of the release states. docs/guide/install.md describes what the Debian package has in addition.
set -eu

die() {
    printf 'install.sh: %s\n' "$*" >&2
    exit 1
}

# Copies the file $1 of the release to $2.
fetch() {
    case $from in
    https://* | http://127.0.0.1:* | http://localhost:*)
        if command -v curl >/dev/null; then
            curl --fail --silent --show-error --location --proto-redir =https --output "$2" "$from/$1"
        elif command -v wget >/dev/null; then
            wget --quiet --output-document="$2" "$from/$1"
        else
            die "needs curl or wget: install one, or download the release and give its directory"
        fi || die "cannot download $from/$1"
        ;;
    *)
        [ -f "$from/$1" ] || die "$from has no $1: give the directory or the URL of a release's files"
        cp "$from/$1" "$2"
        ;;
    esac
}

# The machine, as in the names of archives.
machine() {
    [ "$(uname -s)" = Linux ] || die "millrace is for Linux, and this is $(uname -s)"
    case $(uname -m) in
    x86_64 | amd64) echo x86_64 ;;
    aarch64 | arm64) echo aarch64 ;;
    *) die "a release has no program for $(uname -m): build it (docs/guide/install.md)" ;;
    esac
}

# Everything is in a function, so that a script that arrives in part does nothing.
main() {
    umask 022
    usage='sh install.sh FROM [--prefix DIRECTORY]' from='' prefix=''
    while [ $# -gt 0 ]; do
        case $1 in
        --prefix)
            [ $# -ge 2 ] || die "--prefix has no directory: $usage"
            prefix=$2
            shift
            ;;
        --prefix=*) prefix=${1#*=} ;;
        -*) die "unknown option $1: $usage" ;;
        *)
            [ -z "$from" ] || die "$1 is a second source: $usage"
            from=${1%/}
            ;;
        esac
        shift
    done
    [ -n "$from" ] || die "give the directory or the URL of a release's files: $usage"
    from=${from#file://}
    case $from in
    https://* | http://127.0.0.1:* | http://localhost:*) ;;
    *://*) die "$from is not an https:// or file:// URL: the checksums would come over an open network too" ;;
    esac
    if [ -z "$prefix" ]; then
        if [ "$(id -u)" = 0 ]; then prefix=/usr/local; else prefix=$HOME/.local; fi
    fi
    for tool in sha256sum tar xz; do
        command -v $tool >/dev/null || die "needs $tool (Debian packages coreutils, tar and xz-utils)"
    done
    machine=$(machine)

    scratch=$(mktemp -d)
    trap 'rm -rf "$scratch"' EXIT
    fetch SHA256SUMS "$scratch/SHA256SUMS"
    sums=$(grep "  millrace-[^ /]*-$machine-linux\.tar\.xz\$" "$scratch/SHA256SUMS") ||
        die "SHA256SUMS lists no archive for $machine"
    [ "$(printf '%s\n' "$sums" | wc -l)" -eq 1 ] || die "SHA256SUMS lists several archives for $machine"
    archive=${sums#*  }
    fetch "$archive" "$scratch/$archive"
    (cd "$scratch" && printf '%s\n' "$sums" | sha256sum -c >/dev/null 2>&1) ||
        die "$archive has another checksum than SHA256SUMS states: nothing was installed"
    tar -xJf "$scratch/$archive" -C "$scratch"
    tree=$scratch/${archive%.tar.xz}
    version=$("$tree/usr/bin/millrace" --version) ||
        die "the program does not run here: it needs the GNU C library 2.28 or newer"

    mkdir -p "$prefix/bin" "$prefix/share/doc/millrace" || die "cannot write to $prefix: give another --prefix"
    for kind in man bash-completion fish; do
        cp -R "$tree/usr/share/$kind" "$prefix/share/"
    done
    mkdir -p "$prefix/share/zsh/site-functions"
    cp "$tree/usr/share/zsh/vendor-completions/_millrace" "$prefix/share/zsh/site-functions/"
    cp "$tree"/LICENSE-* "$tree/usr/share/doc/millrace/third-party-licences.txt" "$prefix/share/doc/millrace/"
    # The rename replaces a program that runs, and leaves no half of one.
    cp "$tree/usr/bin/millrace" "$prefix/bin/.millrace.new"
    mv -f "$prefix/bin/.millrace.new" "$prefix/bin/millrace"
    echo "$version is installed in $prefix/bin"
    case :$PATH: in
    *:"$prefix/bin":*) ;;
    *) echo "$prefix/bin is not in PATH: export PATH=\"$prefix/bin:\$PATH\"" ;;
    esac
}

main "$@"
