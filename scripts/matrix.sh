#!/usr/bin/env bash
# Runs the tests with the mark `matrix` for combinations of versions: scripts/matrix.sh spark-4.0 python-3.13, or `all`.
# Each combination has its own environment beside .venv, .venv-NAME, which is kept and checked by the next run. Its
# packages and JARs have recorded hashes, as in .venv. The tests use the servers of .venv.
#
# `make test MATRIX=NAME` calls this after the set-up of .venv. The results are printed, one line for each combination.
#
# Environment: RECORD=1 writes the hashes of new JARs into tests/matrix/jars.lock.json, for a review of the difference.
set -euo pipefail

# shellcheck source=scripts/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

MAIN=$VENV
PYTHON_TO_ASK="$MAIN/bin/python"
SHARED=(hdfs kafka-broker jdbc moto node)
UNTESTED=77

# Ends a combination that this machine lacks a Java or a Python for.
untested() {
    say "$*"
    exit "$UNTESTED"
}

values_of() { "$PYTHON_TO_ASK" "$ROOT/scripts/matrix.py" show "$1"; }

# Prints the home of a Java of this major version.
java_home_of() {
    local java version home
    for java in "${STATEFLOW_JVM_DIR:-/usr/lib/jvm}"/*/bin/java; do
        read -r version home < <(java_facts "$java") || continue
        if [ "$version" = "$1" ]; then
            printf '%s\n' "$home"
            return
        fi
    done
    return 1
}

# Prints the command of a Python of this minor version; without one, the Python of .venv.
python_of() {
    local version path
    if [ -z "$1" ]; then
        python_facts "$MAIN/bin/python" | cut -d " " -f 2-
        return
    fi
    # A shim of pyenv runs only the version that pyenv has selected.
    for path in "python$1" "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"$1".*/bin/python \
        "$("$MAIN/bin/uv" python find --no-python-downloads "$1" 2>/dev/null || true)"; do
        if read -r version _ < <(python_facts "$path") && [ "$version" = "$1" ]; then
            printf '%s\n' "$path"
            return
        fi
    done
    return 1
}

# The packages of a combination; nothing if they are installed already.
install_combination() {
    local name=$1 pins="$VENV/.pins"
    make_venv
    UV=$(PATH="$MAIN/bin:$PATH" find_uv) || UV=""
    "$PYTHON_TO_ASK" "$ROOT/scripts/matrix.py" requirements "$name" >"$pins.new"
    if ! cmp -s "$pins.new" "$pins"; then
        say "installing the packages of $name"
        install_locked -r "$ROOT/requirements-build.txt"
        # Two of them may not fit each other's declared ranges: they are the ones that are to be tried.
        install_locked --no-deps -r "$pins.new"
        install --no-deps --no-build-isolation --editable "$ROOT"
        "$VENV/bin/python" "$ROOT/scripts/compile_pyspark.py" >&2 || true
        mv "$pins.new" "$pins"
    fi
    local server
    for server in "${SHARED[@]}"; do
        if [ -d "$MAIN/$server" ]; then ln -sfn "$MAIN/$server" "$VENV/$server"; fi
    done
}

# The JARs for Delta and Kafka that belong to the installed Spark. Where there are none, their tests are skipped.
fetch_combination() {
    local package
    for package in delta kafka; do
        "$VENV/bin/python" "$ROOT/scripts/fetch_jars.py" --package "$package" --combination "$1" ${RECORD:+--record} ||
            say "$1 has no JARs for $package: its tests are skipped"
    done
}

# Reads paths of test files, and prints the paths of one kind of tests.
select_files() {
    case $1 in
        airflow) grep '^tests/airflow/' ;;
        spark) grep -v '^tests/airflow/' ;;
        *) cat ;;
    esac
}

# Sets up one combination and runs its tests; the exit code is pytest's.
run_combination() {
    local name=$1 WANTED_PYTHON WANTED_JAVA TESTS files
    eval "$(values_of "$name")"
    VENV="$ROOT/.venv-$name"
    JAVA_HOME=$(cat "$MAIN/java_home")
    if [ -n "$WANTED_JAVA" ]; then
        JAVA_HOME=$(java_home_of "$WANTED_JAVA") || untested "$name needs Java $WANTED_JAVA: install it in /usr/lib/jvm"
    fi
    STATEFLOW_PYTHON=$(python_of "$WANTED_PYTHON") || untested "$name needs Python $WANTED_PYTHON: on the PATH, or installed by pyenv or uv"
    export JAVA_HOME STATEFLOW_PYTHON
    install_combination "$name"
    fetch_combination "$name"
    printf '%s\n' "$JAVA_HOME" >"$VENV/java_home"
    # Other files may import what this combination does not have.
    mapfile -t files < <(cd "$ROOT" && grep -rlE --include='test_*.py' 'mark\.matrix\b' tests | sort | select_files "$TESTS")
    [ "${#files[@]}" != 0 ] || fail "no test has the mark matrix"
    cd "$ROOT"
    say "running the tests of $name"
    # The PySpark of 4.0 and 4.1 leaves the socket of a result to the garbage collector, which warns.
    PATH="$VENV/bin:$PATH" JAVA_TOOL_OPTIONS="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC" \
        bash scripts/run_tests.sh -q -n "${WORKERS:-2}" --dist loadfile -m matrix \
        -W ignore::pytest.PytestUnraisableExceptionWarning "${files[@]}"
}

run_all() {
    local name code failed=0
    local -a lines=()
    for name in "$@"; do
        # Not with ||, which would let a combination continue after a command that has failed.
        set +e
        (
            set -e
            run_combination "$name"
        )
        code=$?
        set -e
        case $code in
            0) lines+=("$name: passed") ;;
            "$UNTESTED") lines+=("$name: untested, this machine lacks its Java or Python") ;;
            *) lines+=("$name: failed, exit code $code") && failed=1 ;;
        esac
    done
    printf 'matrix: %s\n' "${lines[@]}"
    return "$failed"
}

main() {
    local name
    local -a names=("$@")
    if [ "${names[*]}" = all ]; then mapfile -t names < <("$PYTHON_TO_ASK" "$ROOT/scripts/matrix.py" names); fi
    for name in "${names[@]}"; do values_of "$name" >/dev/null || exit 2; done
    run_all "${names[@]}"
}

if [ "${BASH_SOURCE[0]}" = "$0" ]; then
    main "$@"
fi
