#!/usr/bin/env bash
# Fetch the foreign Kafka clients that tests/interop runs (kcat by apt-get, the Java client and Apache
# Kafka's own tools by Maven, tests/interop/java, once for each version below), and the tools with
# which tests/faults breaks things.
# What cannot be had is reported and its tests are skipped; with ODRADEK_REQUIRE_ALL=1 it is an error.
set -euo pipefail
cd "$(dirname "$0")/.."
java=tests/interop/java
kafka_versions=(3.9.2 4.3.1) # those that tests/interop/conftest.py asks for
broker_version=4.3.1 # tests/interop/kafka.py runs a broker of it, from the same jars
logging=org.slf4j:slf4j-simple:1.7.36
missing=()

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; elif sudo -n true 2>/dev/null; then sudo -n "$@"; else return 1; fi
}

# Run a command quietly; show what it said only when it failed.
quietly() {
    local said
    said=$("$@" 2>&1) || { printf '%s\n' "$said" | tail -n 20 >&2; return 1; }
}

# package:command; mkfs.ext4 is in sbin, which is not on everybody's PATH
PATH=$PATH:/usr/sbin:/sbin
tools=(kcat:kcat strace:strace faketime:faketime e2fsprogs:mkfs.ext4 util-linux:prlimit mount:mount)
packages=()
for tool in "${tools[@]}"; do
    command -v "${tool#*:}" >/dev/null || packages+=("${tool%:*}")
done
if [ ${#packages[@]} -gt 0 ] && command -v apt-get >/dev/null; then
    { quietly as_root apt-get update -qq && quietly as_root apt-get install -y -qq "${packages[@]}"; } || true
fi
for tool in "${tools[@]}"; do
    command -v "${tool#*:}" >/dev/null || missing+=("${tool#*:} (apt-get install ${tool%:*})")
done

# Plain copies of the jars with the driver's classes beside them: a directory that is a classpath,
# and nothing of Maven's left to start when the tests run.
build() { # version, directory
    mkdir -p "$2"
    [ -e "$2/kafka-tools-$1.jar" ] ||
        quietly mvn -q -B -f "$java/pom.xml" "-Dkafka.version=$1" \
            dependency:copy-dependencies "-DoutputDirectory=$PWD/$2" || return 1
    quietly javac --release 17 -cp "$2/*" -d "$2" "$java/Driver.java" "$java/Member.java"
}

for version in "${kafka_versions[@]}"; do
    built=.cache/kafka-$version
    if [ ! -e "$built/Member.class" ] || [ "$java/Driver.java" -nt "$built/Member.class" ] ||
        [ "$java/Member.java" -nt "$built/Member.class" ]; then
        if command -v javac >/dev/null && command -v mvn >/dev/null; then
            build "$version" "$built" || rm -f "$built/Member.class"
        fi
    fi
    [ -e "$built/Member.class" ] ||
        missing+=("the Java client $version (a JDK from 17, mvn, a way to Maven Central)")
done

# Where a broker says why it does not start. In a folder of its own: the clients stay quiet.
built=.cache/kafka-$broker_version/logging
if ! ls "$built"/slf4j-simple-*.jar >/dev/null 2>&1 && command -v mvn >/dev/null; then
    quietly mvn -q -B -f "$java/pom.xml" dependency:copy "-Dartifact=$logging" \
        "-DoutputDirectory=$PWD/$built" || true
fi
ls "$built"/slf4j-simple-*.jar >/dev/null 2>&1 ||
    missing+=("the broker of Apache Kafka $broker_version (mvn, a way to Maven Central)")

if [ ${#missing[@]} -gt 0 ]; then
    printf 'not available: %s\n' "${missing[@]}" >&2
    [ "${ODRADEK_REQUIRE_ALL:-}" != 1 ] || exit 1
fi
