#!/usr/bin/env bash
# wheel_test.sh BUILD: installs BUILD/wheel/snug_llm-*.whl into fresh environments (alone, with
# numpy, with torch) and uses it there, with nothing but the environment on PATH. What pip cannot
# install is skipped. WHEEL_TEST_TORCH names a folder with torch to use instead of installing it.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
wheels=("$1"/wheel/snug_llm-*.whl)
[[ ${#wheels[@]} == 1 && -e ${wheels[0]} ]] || { echo "no wheel in $1/wheel: run make wheel" >&2; exit 1; }
wheel=$(readlink -f "${wheels[0]}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"  # away from the checkout, whose Python files would be found first
passed=0 failed=0 skipped=0

stage() {  # stage NAME PACKAGE...
  local name=$1 venv=$work/$1
  shift
  echo "=== $name"
  python3 -m venv "$venv"
  if [[ $# != 0 ]] && ! "$venv/bin/pip" install -q "$@" >"$work/log" 2>&1; then
    echo "skipped: pip cannot install $*: $(tail -n 1 "$work/log")"
    skipped=$((skipped + 1))
    return
  fi
  use "$name" "$venv"
}

use() {  # use NAME VENV
  if "$2/bin/pip" install -q --no-index --no-deps "$wheel" &&
     env -i HOME="$work" PATH="$2/bin" PYTHONPATH="${extra_path:-}" \
       "$2/bin/python" "$here/wheel_use.py" "$1"; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
  fi
}

stage alone
stage numpy numpy ml_dtypes
if [[ -n ${WHEEL_TEST_TORCH:-} ]]; then
  python3 -m venv "$work/torch"
  echo "=== torch"
  extra_path=$WHEEL_TEST_TORCH use torch "$work/torch"
else
  stage torch numpy torch
fi
echo "$passed passed, $failed failed, $skipped skipped"
[[ $failed == 0 ]]
