#!/usr/bin/env bash
# run_tests.sh BUILD PYTHON: all tests of the Python package, with the packages that PYTHON has.
set -uo pipefail
cd "$(dirname "$0")/../.."
build=$(realpath "$1")
export SNUG_LIBRARY=$build/libsnug_c.so SNUG_CLI=$build/snug SNUG_TEST_DATA=$PWD/tests/data
export PYTHONPATH=python PYTHONDONTWRITEBYTECODE=1
# The secret of the tests' user is not the secret of the user who runs them.
export XDG_CONFIG_HOME=$build/tests/config
passed=0 failed=0 skipped=0
for test in tests/python/*_test.py; do
  echo "--- $test"
  output=$("$2" "$test" 2>&1)
  case $? in
    0) passed=$((passed + 1)) && tail -n 1 <<<"$output" ;;
    77) skipped=$((skipped + 1)) && tail -n 1 <<<"$output" ;;
    *) failed=$((failed + 1)) && echo "$output" ;;
  esac
done
echo "$passed passed, $failed failed, $skipped skipped"
[[ $failed == 0 ]]
