#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Installs libkwkclient into a new directory and builds a program against it: by pkg-config (shared and
# static), by find_package, as C++. Checks what the library needs and exports.
# usage: test_install.sh BUILD_DIR SOURCE_DIR
set -euo pipefail
build=$1 source=$2
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
fail() { echo "FAILED: $*" >&2; exit 1; }

cmake --install "$build" --prefix "$tmp/usr" --component client >/dev/null
lib=$(dirname "$(find "$tmp/usr" -name libkwkclient.so)")

# What it needs, what it is called, what it gives.
needed=$(readelf -d "$lib/libkwkclient.so" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
for n in $needed; do
    case $n in
        libc.so.* | libmsgpackc.so.* | libmsgpack-c.so.* | libpthread.so.* | ld-linux*) ;;
        *) fail "libkwkclient needs $n" ;;
    esac
done
readelf -d "$lib/libkwkclient.so" | grep -q 'SONAME.*libkwkclient\.so\.1\]' || fail "soname"
nm -D --defined-only "$lib/libkwkclient.so" | awk '{print $3}' | sed 's/@.*//' | grep -v '^KWK_1$' | sort >"$tmp/exported"
grep -oE '\bkwk_(client|stream|error|fail)[a-z_]*\(' "$source/client/kwkclient.h" "$source/proto/error.h" -h |
    tr -d '(' | sort -u >"$tmp/declared"
diff "$tmp/exported" <(grep -xFf "$tmp/exported" "$tmp/declared") || fail "exported, but in no header"
grep -A1 '^KWK_API' "$source/client/kwkclient.h" "$source/proto/error.h" -h |
    grep -oE '\*?kwk_[a-z_]+\(' | tr -d '*(' | sort -u >"$tmp/api"
diff "$tmp/api" "$tmp/exported" || fail "headers and library differ"

# A user's program.
export PKG_CONFIG_PATH=$lib/pkgconfig LD_LIBRARY_PATH=$lib
cc=${CC:-cc} cxx=${CXX:-c++}
flags=$(sed -n 's/^includedir=//p' "$lib/pkgconfig/kwkclient.pc")
[ "$flags" = "$tmp/usr/include" ] || echo "note: the .pc file names the configured prefix ($flags)"
inc=-I$tmp/usr/include/kwker
$cc -std=c11 -Wall -Wextra -Wpedantic -Werror $inc "$source/tests/client/consumer.c" -o "$tmp/shared" -L"$lib" -lkwkclient
"$tmp/shared" || fail "shared"
private=$(sed -n 's/^Libs.private: //p' "$lib/pkgconfig/kwkclient.pc")
$cc $inc "$source/tests/client/consumer.c" -o "$tmp/static" "$lib/libkwkclient.a" $private
"$tmp/static" || fail "static"
if command -v pkg-config >/dev/null; then
    pc="pkg-config --define-variable=prefix=$tmp/usr --define-variable=libdir=$lib --define-variable=includedir=$tmp/usr/include"
    $cc "$source/tests/client/consumer.c" -o "$tmp/pc" $($pc --cflags --libs kwkclient)
    "$tmp/pc" || fail "pkg-config"
fi
if command -v "$cxx" >/dev/null; then
    $cxx -x c++ -std=c++17 -Wall -Wextra -Werror $inc "$source/tests/client/consumer.c" -o "$tmp/cxx" -L"$lib" -lkwkclient
    "$tmp/cxx" || fail "C++"
fi
mkdir "$tmp/project"
cat >"$tmp/project/CMakeLists.txt" <<TXT
cmake_minimum_required(VERSION 3.25)
project(consumer C)
find_package(kwkclient 0.1 REQUIRED)
add_executable(consumer "$source/tests/client/consumer.c")
target_link_libraries(consumer PRIVATE kwkclient::kwkclient)
TXT
cmake -S "$tmp/project" -B "$tmp/project/build" -DCMAKE_PREFIX_PATH="$tmp/usr" >/dev/null
cmake --build "$tmp/project/build" >/dev/null
"$tmp/project/build/consumer" || fail "find_package"
"$tmp/usr/bin/kwkctl" --version >/dev/null || fail "kwkctl"
echo "installed and used: shared, static, pkg-config, C++, find_package"
