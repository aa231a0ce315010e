#!/usr/bin/env bash
# Killed or interrupted at any moment: the final name never carries a half file.
. "$(dirname "${BASH_SOURCE[0]}")/cli_common.sh"

expect_code 0 "$SNUG" sample model.safetensors --size 48MiB
before=$(sha256sum <model.safetensors)

# kill -9 after ever longer times, so that it strikes in every phase.
killed=0
for ms in 2 5 10 20 30 50 80 120 180 250; do
  rm -rf out.snug.safetensors*
  "$SNUG" compress model.safetensors out.snug.safetensors --threads 1 >/dev/null 2>&1 &
  pid=$!
  sleep "0.$(printf %03d "$ms")"
  kill -9 $pid 2>/dev/null && killed=$((killed + 1))
  wait $pid 2>/dev/null
  if [ -e out.snug.safetensors ]; then
    "$SNUG" verify out.snug.safetensors >/dev/null 2>err || fail "a half file carries the final name (after $ms ms)"
  fi
done
[ $killed -gt 0 ] || fail "no run was killed; the test is too slow"
[ "$(sha256sum <model.safetensors)" = "$before" ] || fail "the input changed"

# SIGINT removes the temporary file and exits with 130. Background jobs of a
# script ignore SIGINT, so the tool gets it from a shell with job control.
rm -rf out.snug.safetensors*
for ms in 20 40 80; do
  set -m
  "$SNUG" compress model.safetensors out.snug.safetensors --threads 1 >/dev/null 2>err &
  pid=$!
  set +m
  sleep "0.$(printf %03d "$ms")"
  kill -INT $pid 2>/dev/null
  wait $pid
  code=$?
  [ -z "$(ls | grep 'tmp-')" ] || fail "a temporary file is left: $(ls)"
  if [ $code -eq 0 ]; then
    "$SNUG" verify out.snug.safetensors >/dev/null || fail "output of a finished run is broken"
  else
    [ $code -eq 130 ] || fail "interrupted run exits with $code, expected 130"
    expect_absent out.snug.safetensors
    # A signal before main ends the process without a word.
    [ ! -s err ] || expect_in err "snug: interrupted"
  fi
  rm -f out.snug.safetensors
done

# What the caller ignores stays ignored, as under nohup.
trap '' HUP
"$SNUG" compress model.safetensors out.snug.safetensors --threads 1 >/dev/null 2>err &
pid=$!
trap - HUP
sleep 0.03
kill -HUP $pid 2>/dev/null
wait $pid || fail "an ignored SIGHUP stops the work: $(cat err)"
rm -f out.snug.safetensors

# An input that changes meanwhile is an error, not a mixture.
cp model.safetensors moving.safetensors
"$SNUG" compress moving.safetensors moved.safetensors --threads 1 >/dev/null 2>err &
pid=$!
sleep 0.005
printf x | dd of=moving.safetensors bs=1 seek=40000000 conv=notrunc status=none
wait $pid
code=$?
if [ $code -eq 0 ]; then
  # The change came too late or too early: the result must be one of the two.
  "$SNUG" decompress moved.safetensors back.safetensors >/dev/null 2>&1
  cmp -s back.safetensors moving.safetensors || cmp -s back.safetensors model.safetensors || fail "a mixture was compressed"
else
  [ $code -eq 7 ] || fail "a changed input exits with $code, expected 7"
  expect_absent moved.safetensors
fi
rm -f moving.safetensors moved.safetensors back.safetensors

# A folder: the same.
mkdir dir
cp model.safetensors dir/
for ms in 10 40 100; do
  "$SNUG" compress dir dir.snug --threads 1 >/dev/null 2>&1 &
  pid=$!
  sleep "0.$(printf %03d "$ms")"
  kill -9 $pid 2>/dev/null
  wait $pid 2>/dev/null
  if [ -e dir.snug ]; then "$SNUG" verify dir.snug >/dev/null || fail "a half folder carries the final name"; fi
  rm -rf dir.snug*
done
echo passed
