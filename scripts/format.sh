#!/usr/bin/env bash
# format.sh fix|check: formats the sources in place, or fails if some are not formatted.
# Versions of clang-format differ in detail; version 14 decides.
set -euo pipefail
cd "$(dirname "$0")/.."
tool=
for candidate in clang-format-14 clang-format; do
  if "$candidate" --version 2>/dev/null | grep -q 'version 14\.'; then tool=$candidate && break; fi
done
if [[ -z $tool ]]; then
  echo "format: skipped, no clang-format 14 (package clang-format or clang-format-14)"
  [[ $1 == check ]]
  exit
fi

arguments=(-i)
if [[ $1 == check ]]; then arguments=(--dry-run -Werror); fi
find include src tests bench -name '*.h' -o -name '*.c' -o -name '*.cpp' -o -name '*.cu' \
  -o -name '*.cuh' | xargs "$tool" "${arguments[@]}"
