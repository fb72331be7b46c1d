#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The style gate: whitespace, licence line, line length, a test for every source file, skips that
# name their reason, no file over 700 lines without saying why. Prints every offence; fails on any.
set -u
cd "$(dirname "$0")/.." || exit 1
bad=0
offence() { echo "$*"; bad=1; }
files() { git ls-files --cached --others --exclude-standard -- "$@" 2>/dev/null || find . -path ./build -prune -o -type f -print; }

code=$(files '*.c' '*.h' '*.inc' '*.py' '*.pyi' '*.js' '*.mjs' '*.ts' '*.sh' '*.cmake' 'CMakeLists.txt' '*/CMakeLists.txt' |
    grep -v node_modules)
for f in $code; do
    [ -f "$f" ] || continue
    grep -nP '\t' "$f" /dev/null | sed 's/$/  <- tab/' | grep . && bad=1
    grep -nE ' +$' "$f" /dev/null | sed 's/$/  <- trailing blank/' | grep . && bad=1
    [ -z "$(tail -c1 "$f")" ] || offence "$f: no newline at its end"
    case $f in
        *.c | *.h)
            head -1 "$f" | grep -q 'SPDX-License-Identifier: Apache-2.0' || offence "$f: first line has no SPDX"
            perl -CSD -ne 'if (length() > 105) { print "$ARGV:$.: longer than 104 columns\n"; $e = 1 } close ARGV if eof; END { exit($e ? 1 : 0) }' "$f" || bad=1
            n=$(wc -l <"$f")
            [ "$n" -le 700 ] || head -30 "$f" | grep -qi 'long because' || offence "$f: $n lines and its header does not say why ('long because')"
            ;;
    esac
done

# Every source of a C layer has a test, by its own name or by the group listed here.
tested_by() {
    case $1 in
        kernels/*_ref.c | kernels/*_avx2.c | kernels/*_avx512.c) return 0 ;; # test_kernels.c counts variants
        *) grep -lqw "$(basename "$1")" tests/*/test_*.c 2>/dev/null || [ -f "tests/$(dirname "$1")/test_$(basename "$1" .c).c" ] ;;
    esac
}
for f in $(files 'kernels/*.c' 'engine/*.c' 'proto/*.c' 'client/*.c' 'daemon/*.c'); do
    tested_by "$f" || offence "$f: no tests/$(dirname "$f")/test_$(basename "$f"), and no test names it"
done

grep -nE '(^|[^_])skip\(\)' $(files 'tests/*.c' | grep -v support/) /dev/null | sed 's/$/  <- use check_skip("reason")/' | grep . && bad=1
[ $bad = 0 ] && echo "style: no offence"
exit $bad
