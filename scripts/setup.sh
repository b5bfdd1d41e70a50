#!/usr/bin/env bash
# Sets the project up in .venv: Python packages at their pins, the project itself (editable), a Java for Spark and the
# JARs for Delta tables. Safe to run again: when nothing it depends on has changed it returns at once.
#
# Taken from the environment, all optional:
#   STATEFLOW_PYTHON   the Python to use, instead of the first fitting one on PATH
#   JAVA_HOME          the Java to use, when it is one that Spark supports
#   STATEFLOW_JVM_DIR  where else to look for Java (default /usr/lib/jvm)
#
# tests/setup sources this file and calls its functions one by one; it only acts when it is run.
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
VENV="$ROOT/.venv"
STAMP="$VENV/.setup-stamp"
# Read by the Makefile, and by scripts that start Spark without it.
JAVA_HOME_FILE="$VENV/java_home"

# Progress goes to stderr, because some functions below answer on stdout.
say() { printf 'setup: %s\n' "$*" >&2; }
fail() {
    say "$*"
    exit 1
}

# --- Python ----------------------------------------------------------------------------------------------------------

# The version ("3.11") and path of a Python; nothing when it does not run, as a pyenv shim for another version does not.
# The base executable: with .venv activated, "python3" would be the very environment that may have to be replaced.
python_facts() {
    "$1" -c 'import sys
print("%d.%d" % sys.version_info[:2], getattr(sys, "_base_executable", "") or sys.executable)' 2>/dev/null
}

is_supported_python() {
    case $1 in 3.11 | 3.12 | 3.13) ;; *) return 1 ;; esac
}

# Prints version and path of the Python to use. 3.11 comes first because most testing happens there, and because the
# Docker image has it.
find_python() {
    local candidate version path others=""
    local -a candidates=(python3.11 python3.12 python3.13 python3 python)
    if [ -n "${STATEFLOW_PYTHON:-}" ]; then candidates=("$STATEFLOW_PYTHON"); fi
    for candidate in "${candidates[@]}"; do
        read -r version path < <(python_facts "$candidate") || continue
        if is_supported_python "$version"; then
            printf '%s %s\n' "$version" "$path"
            return
        fi
        others="${others:+$others, }Python $version as $candidate"
    done
    fail "stateflow needs Python 3.11, 3.12 or 3.13; found: ${others:-none}." \
        "Install one of them, or name one: STATEFLOW_PYTHON=/path/to/python3.11 make setup"
}

# --- Debian packages -------------------------------------------------------------------------------------------------

# Installs packages when that needs no password; fails quietly otherwise, and the caller says what to do.
apt_install() {
    local -a as_root=(env DEBIAN_FRONTEND=noninteractive)
    command -v apt-get >/dev/null || return 1
    if [ "$(id -u)" != 0 ]; then
        sudo -n true 2>/dev/null || return 1
        as_root=(sudo -n "${as_root[@]}")
    fi
    say "installing $* with apt-get"
    # A repository that does not answer fails the update, but need not be the one that has the package.
    "${as_root[@]}" apt-get update -qq >/dev/null 2>&1 || true
    "${as_root[@]}" apt-get install -y -qq --no-install-recommends "$@" >/dev/null 2>&1
}

# --- Java ------------------------------------------------------------------------------------------------------------

# The major version and the home of a java command. Asking the JVM itself sees through links, shims and wrappers.
java_facts() {
    local line version="" home=""
    while IFS= read -r line; do
        case $line in
            *"java.specification.version = "*) version=${line##* = } ;;
            *"java.home = "*) home=${line#* = } ;;
        esac
    done < <("$1" -XshowSettings:properties -version 2>&1)
    [ -n "$version" ] && [ -n "$home" ] && printf '%s %s\n' "$version" "$home"
}

# What Spark 4.2 supports; newer ones may start, but Spark does not promise that they work.
is_supported_java() {
    case $1 in 17 | 21) ;; *) return 1 ;; esac
}

# Prints version and home of the first Java that Spark supports, or "none" and what was found instead.
look_for_java() {
    local java version home others=""
    local -a candidates=("${JAVA_HOME:-/nonexistent}/bin/java")
    if java=$(command -v java); then candidates+=("$java"); fi
    candidates+=("${STATEFLOW_JVM_DIR:-/usr/lib/jvm}"/*/bin/java)
    for java in "${candidates[@]}"; do
        [ -x "$java" ] || continue
        read -r version home < <(java_facts "$java") || continue
        if is_supported_java "$version"; then
            printf '%s %s\n' "$version" "$home"
            return
        fi
        case $others in *"$home"*) ;; *) others="${others:+$others, }Java $version in $home" ;; esac
    done
    printf 'none %s\n' "${others:-none}"
}

find_java() {
    local found
    found=$(look_for_java)
    if [ "${found%% *}" = none ]; then
        if apt_install openjdk-17-jre-headless || apt_install openjdk-21-jre-headless; then
            found=$(look_for_java)
        fi
    fi
    if [ "${found%% *}" = none ]; then
        fail "Spark needs Java 17 or 21; found: ${found#none }." \
            "Install it, on Debian or Ubuntu with 'sudo apt-get install openjdk-17-jre-headless'," \
            "or set JAVA_HOME to one; then run this again."
    fi
    printf '%s\n' "$found"
}

# --- The virtual environment -----------------------------------------------------------------------------------------

# Changes whenever the set-up has to be done again.
fingerprint() {
    {
        printf '%s\n' "$ROOT" "${JAVA_HOME:-}" "$(python_facts "$VENV/bin/python" || true)"
        cat "$ROOT/requirements.txt" "$ROOT/requirements-dev.txt" "$ROOT/pyproject.toml" "${BASH_SOURCE[0]}"
    } | sha256sum
}

is_up_to_date() {
    [ -f "$STAMP" ] && [ -f "$JAVA_HOME_FILE" ] && [ -x "$(cat "$JAVA_HOME_FILE")/bin/java" ] &&
        [ "$(cat "$STAMP")" = "$(fingerprint)" ]
}

# An environment that was interrupted half-way is completed; one that was moved, or whose Python is gone, is replaced.
can_reuse_venv() {
    local version path
    read -r version path < <(python_facts "$VENV/bin/python") || return 1
    is_supported_python "$version" && [ "$("$VENV/bin/python" -c 'import sys; print(sys.prefix)')" = "$VENV" ] &&
        { [ ! -f "$VENV/.location" ] || [ "$(cat "$VENV/.location")" = "$VENV" ]; }
}

make_venv() {
    local version python
    if can_reuse_venv; then
        printf '%s\n' "$VENV" >"$VENV/.location"
        return
    fi
    read -r version python < <(find_python) || exit 1
    say "making .venv with Python $version ($python)"
    rm -rf "$VENV"
    if command -v uv >/dev/null && uv venv --quiet --python "$python" "$VENV"; then
        :
    elif "$python" -c 'import ensurepip, venv' 2>/dev/null || apt_install "python$version-venv"; then
        "$python" -m venv "$VENV"
    else
        fail "this Python cannot make virtual environments: $python." \
            "Run 'sudo apt-get install python$version-venv', or install uv; then run this again."
    fi
    printf '%s\n' "$VENV" >"$VENV/.location"
}

# The uv to install with: the one on PATH, or one inside .venv; nothing when neither can be had.
find_uv() {
    if command -v uv; then return; fi
    if [ ! -x "$VENV/bin/uv" ]; then
        "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check \
            "$(grep '^uv==' "$ROOT/requirements-dev.txt")" >&2 || return 1
    fi
    printf '%s\n' "$VENV/bin/uv"
}

# Installs with uv, which is ten times faster, and with pip where uv does not get through: pip has its own settings for
# mirrors and proxies (pip.conf), which uv does not read.
install() {
    if [ -n "$UV" ]; then
        # The machine's certificates include those of a company's own network.
        UV_SYSTEM_CERTS=${UV_SYSTEM_CERTS-1} UV_HTTP_TIMEOUT=${UV_HTTP_TIMEOUT:-180} \
            "$UV" pip install --quiet --python "$VENV/bin/python" "$@" && return
        say "uv could not install; trying pip"
    fi
    "$VENV/bin/python" -m pip --version >/dev/null 2>&1 || "$VENV/bin/python" -m ensurepip >/dev/null
    "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check "$@"
}

install_packages() {
    UV=$(find_uv) || UV=""
    say "installing the pinned packages (1.3 GB; a few minutes the first time)"
    install -r "$ROOT/requirements.txt" -r "$ROOT/requirements-dev.txt" ||
        fail "the packages could not be installed; the lines above say why"
    "$VENV/bin/python" "$ROOT/scripts/compile_pyspark.py" >&2 ||
        say "going on with a PySpark that is not compiled: its workers start more slowly"
    say "installing stateflow itself, editable"
    install --no-deps --no-build-isolation --editable "$ROOT" ||
        fail "the project could not be installed; the lines above say why"
}

# The JARs are for reading and writing Delta tables through Spark; everything else works without them, so a machine that
# does not reach Maven Central is told, and goes on.
fetch_jars() {
    JAVA_HOME=$(cat "$JAVA_HOME_FILE") "$VENV/bin/python" "$ROOT/scripts/fetch_jars.py" ||
        say "going on without the Delta JARs: tests that read Delta tables through Spark will fail until 'make setup'" \
            "has fetched them"
}

# Tests start many JVMs, which are there sooner with it; without it everything works.
make_class_archive() {
    JAVA_HOME=$(cat "$JAVA_HOME_FILE") "$VENV/bin/python" "$ROOT/scripts/class_archive.py" ||
        say "going on without an archive of Spark's classes: tests on Spark take longer"
}

# Storage servers for tests come from Maven Central, PyPI and npm. Everything else works without them, so a machine that
# does not reach one, or has no Node, is told, and goes on.
fetch_servers() {
    fetch_hdfs
    fetch_moto
    fetch_node_servers
}

fetch_hdfs() {
    JAVA_HOME=$(cat "$JAVA_HOME_FILE") "$VENV/bin/python" "$ROOT/scripts/fetch_jars.py" --package hdfs ||
        say "going on without an HDFS: tests against it will be skipped until 'make setup' has fetched it"
}

# In a folder beside the packages: what it needs does not go with what Airflow needs.
fetch_moto() {
    local folder="$VENV/moto" wanted="$ROOT/tests/servers/moto.txt"
    cmp -s "$wanted" "$folder/.installed" && return
    say "fetching a storage server for tests from PyPI"
    UV=$(find_uv) || UV=""
    rm -rf "$folder"
    install --target "$folder" -r "$wanted" && cp "$wanted" "$folder/.installed" && return
    say "going on without moto: the test that it is refused will be skipped until 'make setup' has fetched it"
}

fetch_node_servers() {
    local folder="$VENV/node"
    cmp -s "$ROOT/tests/servers/package.json" "$folder/.installed" && return
    if command -v npm >/dev/null || apt_install nodejs npm; then
        say "fetching storage servers for tests from npm"
        mkdir -p "$folder"
        cp "$ROOT/tests/servers/package.json" "$folder/"
        # Nothing of it is run at this moment.
        (cd "$folder" && npm install --silent --ignore-scripts --no-audit --no-fund --no-package-lock >&2) &&
            cp "$folder/package.json" "$folder/.installed" && return
    fi
    say "going on without the storage servers of npm: tests against Azure's protocol, and against a server that is" \
        "refused, will be skipped until 'make setup' has fetched them"
}

# For the tests of Airflow's web interface. Everything else works without it.
install_browser() {
    command -v chromium >/dev/null && return
    apt_install chromium && return
    say "going on without Chromium: tests of Airflow's web interface will be skipped until it is installed, on Debian" \
        "with 'sudo apt-get install chromium'"
}

main() {
    local version home
    if is_up_to_date; then
        fetch_jars
        fetch_servers
        install_browser
        make_class_archive
        return
    fi
    # Before the long installation: a missing Java should be known at once.
    read -r version home < <(find_java) || exit 1
    say "Java $version ($home)"
    make_venv
    rm -f "$STAMP"
    printf '%s\n' "$home" >"$JAVA_HOME_FILE"
    install_packages
    fetch_jars
    fetch_servers
    install_browser
    make_class_archive
    fingerprint >"$STAMP"
    say "done in $SECONDS s; see 'make help'"
}

if [ "${BASH_SOURCE[0]}" = "$0" ]; then
    main "$@"
fi
