#!/usr/bin/env bash
# Runs pytest with its temporary files in memory if the host has enough: tests sync thousands of small files, and take
# 1.5 times as long on a disk. The files are deleted; those of a run that failed, gigabytes of memory, by the next run.
#
# Environment: STATEFLOW_TEST_FILES, a folder to use instead.
set -uo pipefail

memory=/dev/shm
gigabytes=8

room() { df --output=avail --block-size=1G "$1" 2>/dev/null | tail -n 1 | tr -d ' '; }

for process in "$memory"/stateflow.??????/.process; do
    [ -O "$process" ] && ! kill -0 "$(<"$process")" 2>/dev/null && rm -rf "$(dirname "$process")"
done

mine=""
if [ -n "${STATEFLOW_TEST_FILES:-}" ]; then
    files=$STATEFLOW_TEST_FILES
elif [ -w "$memory" ] && [ "$(room "$memory")" -ge "$gigabytes" ]; then
    files=$(mktemp -d "$memory/stateflow.XXXXXX") && mine=$files
    if [ -n "$mine" ]; then echo $$ >"$mine/.process"; fi
else
    files=""
fi
if [ -n "$files" ]; then export TMPDIR="$files" PYTEST_DEBUG_TEMPROOT="$files"; fi

python -m pytest "$@"
code=$?

if [ -n "$mine" ] && [ "$code" -eq 0 ]; then rm -rf "$mine"; fi
if [ -n "$mine" ] && [ "$code" -ne 0 ]; then echo "files of the tests: $mine"; fi
exit "$code"
