#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# From nothing to a streamed answer: installs what is missing, builds, gets the default model, starts
# a private kwkerd, asks it, stops it.
set -euo pipefail

usage() {
    cat <<'TXT'
usage: scripts/quickstart.sh [--prompt TEXT] [--precision P] [--max-new-tokens N] [--setup-only]

  --prompt TEXT         what to ask (default: What is the capital of France?)
  --precision P         float32, f16, bf16, int8, int4 (default: int8)
  --max-new-tokens N    longest answer (default: 200)
  --setup-only          install and build, do not run

Needs Debian 12 or 13, and root or sudo for missing packages. Python parts go to .venv/, the model to
.cache/models/. A second run starts in seconds.
TXT
}

prompt="What is the capital of France?" precision=int8 tokens=200 setup_only=no
while [ $# -gt 0 ]; do
    case $1 in
        --prompt | --precision | --max-new-tokens)
            [ $# -ge 2 ] || { echo "quickstart.sh: $1 needs a value" >&2; exit 2; }
            case $1 in
                --prompt) prompt=$2 ;;
                --precision) precision=$2 ;;
                *) tokens=$2 ;;
            esac
            shift 2 ;;
        --setup-only) setup_only=yes; shift ;;
        -h | --help) usage; exit 0 ;;
        *) echo "quickstart.sh: unknown option '$1' (see --help)" >&2; exit 2 ;;
    esac
done

case $precision in float32 | f16 | bf16 | int8 | balanced | int4) ;;
    *) echo "quickstart.sh: --precision '$precision' is not float32, f16, bf16, int8 or int4" >&2; exit 2 ;;
esac
case $tokens in '' | *[!0-9]* | 0* | ????????*)
    echo "quickstart.sh: --max-new-tokens '$tokens' is not a number from 1 to 9999999" >&2; exit 2 ;;
esac

. "$(dirname "$0")/setup.sh"
install_packages "${build_packages[@]}"
build build -DKWK_TESTS=OFF
venv
install_kwker text
model=$(quickstart_model)
[ $setup_only = no ] || { say "ready: build/bin/kwkerd, build/bin/kwkctl, .venv, $model"; exit 0; }

run=$(mktemp -d "${TMPDIR:-/tmp}/kwker.XXXXXX")
daemon=
stop() {
    [ -z "$daemon" ] || { kill "$daemon" 2>/dev/null && wait "$daemon" 2>/dev/null; } || true
    rm -rf "$run"
}
trap stop EXIT
trap 'exit 130' INT TERM

build/bin/kwkerd --runtime-dir "$run" --model "smollm2=$model,precision=$precision" 2>"$run/log" &
daemon=$!
for _ in $(seq 100); do
    [ -S "$run/door.sock" ] && break
    kill -0 "$daemon" 2>/dev/null || { cat "$run/log" >&2; die "kwkerd did not start"; }
    sleep 0.05
done
.venv/bin/python -m kwker.chat --address "$run" --model smollm2 --source "$model" \
    --max-new-tokens "$tokens" --prompt "$prompt" || { cat "$run/log" >&2; exit 1; }
