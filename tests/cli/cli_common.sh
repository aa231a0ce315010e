# Sourced by the tests of this folder: a scratch folder and checks that say what failed.
set -u
SNUG=${SNUG_CLI:?SNUG_CLI must name the tool}
DATA=${SNUG_TEST_DATA:?SNUG_TEST_DATA must name tests/data}
WORK=$(mktemp -d)
clean_up() { rm -rf "$WORK"; }  # tests with more to clean up replace it
# A child that a signal ends before it has become its command runs the trap, too. `[` fails there,
# whatever it compares.
trap '[ "$BASHPID" = $$ ] && clean_up' EXIT
cd "$WORK" || exit 1

fail() {
  echo "FAILED: $*" >&2
  [ -f err ] && sed 's/^/  stderr: /' err >&2
  exit 1
}

# expect_code CODE command...: the exit code, and one line on stderr if it is not 0.
expect_code() {
  local want=$1
  shift
  "$@" >out 2>err
  local got=$?
  [ "$got" -eq "$want" ] || fail "$* exits with $got, expected $want"
  [ "$want" -eq 0 ] || [ "$(wc -l <err)" -eq 1 ] || fail "$* does not print exactly one line on stderr"
  [ "$want" -eq 0 ] || grep -q '^snug: ' err || fail "$*: the message does not start with 'snug: '"
}

expect_in() { grep -qF -- "$2" "$1" || fail "'$2' is not in $1: $(cat "$1")"; }
expect_same() { cmp -s "$1" "$2" || fail "$1 and $2 differ"; }
expect_absent() { [ ! -e "$1" ] || fail "$1 should not be there"; }
