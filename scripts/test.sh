#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Installs what the tests need, builds, and runs every test: C (ctest), sanitizers, Python (pytest),
# Node (node --test). Fails on any failure, and on any skip outside scripts/allowed-skips.txt.
set -euo pipefail

usage() {
    cat <<'TXT'
usage: scripts/test.sh [--only PART]… [--long]

  --only PART   c, sanitizers, python, node (repeatable; default: all)
  --long        also: the C tests at each lower instruction set, and 20 rounds of those with threads,
                processes and faults (about 25 minutes more)

With CI=true warnings are errors, and tests fail instead of skipping when ../shared is missing.
TXT
}

parts=() long=no
while [ $# -gt 0 ]; do
    case $1 in
        --only)
            [ $# -ge 2 ] || { echo "test.sh: --only needs a value" >&2; exit 2; }
            case $2 in c | sanitizers | python | node) parts+=("$2") ;;
                *) echo "test.sh: unknown part '$2' (see --help)" >&2; exit 2 ;; esac
            shift 2 ;;
        --long) long=yes; shift ;;
        -h | --help) usage; exit 0 ;;
        *) echo "test.sh: unknown option '$1' (see --help)" >&2; exit 2 ;;
    esac
done
[ ${#parts[@]} -gt 0 ] || parts=(c sanitizers python node)
has() { case " ${parts[*]} " in *" $1 "*) return 0 ;; *) return 1 ;; esac; }

. "$(dirname "$0")/setup.sh"
logs=build/test-logs
failed=() done_parts=0
began=$SECONDS

# part NAME COMMAND…: run with its output in a log, shown when it fails.
part() {
    local name=$1 at=$SECONDS
    shift
    say "$name …"
    if "$@" >"$logs/$name.log" 2>&1; then
        done_parts=$((done_parts + 1))
        tail -n 4 "$logs/$name.log"
    else
        failed+=("$name")
        tail -n 150 "$logs/$name.log"
    fi
    say "$name took $((SECONDS - at)) s"
}

install_packages "${build_packages[@]}" libcmocka-dev binutils
mkdir -p "$logs"
werror=$([ "${CI:-}" = true ] && echo ON || echo OFF)
build build -DKWK_TESTS=ON -DKWK_WERROR="$werror"

if has c; then
    part style bash tests/style.sh
    part c ctest --test-dir build --output-on-failure --verbose
    if [ $long = yes ]; then
        for isa in avx2 ref; do
            part "c-$isa" env KWKER_ISA=$isa ctest --test-dir build --output-on-failure --verbose
        done
        part c-rounds ctest --test-dir build --output-on-failure --repeat until-fail:20 \
            -R '^(e2e|client|daemon)/|engine/executor|proto/ring'
    fi
fi
if has sanitizers; then
    build build-sanitize -DKWK_TESTS=ON -DKWK_WERROR="$werror" -DCMAKE_BUILD_TYPE=RelWithDebInfo \
        -DKWK_SANITIZE=address,undefined
    part sanitizers ctest --test-dir build-sanitize --output-on-failure --verbose -LE no_sanitize
fi
if has python; then
    venv
    say "installing what the Python tests need (torch, transformers: the first time takes minutes)"
    .venv/bin/pip install -q --disable-pip-version-check -r tests/python/requirements.txt >&2 ||
        die "could not install tests/python/requirements.txt"
    install_kwker text
    part python env KWK_BIN_DIR="$root/build/bin" KWK_MODEL="$(quickstart_model)" OMP_NUM_THREADS=2 \
        .venv/bin/python -m pytest -q -rs -p no:cacheprovider tests/python
fi
if has node; then
    command -v node >/dev/null || install_packages nodejs
    command -v npm >/dev/null || install_packages npm
    (cd bindings/node && [ -d node_modules/node-api-headers ] || npm ci --silent --no-audit --no-fund) ||
        die "npm ci did not succeed in bindings/node"
    build build-node -DKWK_TESTS=OFF -DKWK_NODE=ON
    part node env KWK_BIN_DIR="$root/build/bin" node --test tests/node/
fi

# Skips: each must match a line (an extended regular expression) of the list. C tests print
# "SKIP: reason" (check_skip), pytest "SKIPPED [n] … reason", node "# SKIP reason".
grep -hE '^[0-9]*: SKIP: |^SKIPPED \[|# SKIP|\*\*\*(Skipped|Not Run)' "$logs"/*.log 2>/dev/null |
    grep -vE "$(grep -vE '^(#|$)' scripts/allowed-skips.txt | paste -sd'|')" >"$logs/skips" || true
if [ -s "$logs/skips" ]; then
    failed+=("skips")
    say "skipped for a reason outside scripts/allowed-skips.txt:"
    cat "$logs/skips"
fi

say "took $((SECONDS - began)) s; logs in $logs"
if [ ${#failed[@]} -gt 0 ]; then
    echo "0 passed, ${#failed[@]} failed"
    die "failed: ${failed[*]}"
fi
echo "$done_parts passed, 0 failed"
