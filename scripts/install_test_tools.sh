#!/usr/bin/env bash
# Fetch the foreign Kafka clients that tests/interop runs: kcat by apt-get, the Java client and
# Apache Kafka's own tools by Maven (tests/interop/java, once for each version in
# ODRADEK_KAFKA_VERSIONS; the one in its pom.xml, if that is not set).
# What cannot be had is reported and its tests are skipped; with ODRADEK_REQUIRE_ALL=1 it is an error.
set -euo pipefail
cd "$(dirname "$0")/.."
java=tests/interop/java
missing=()

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; elif sudo -n true 2>/dev/null; then sudo -n "$@"; else return 1; fi
}

# Run a command quietly; show what it said only when it failed.
quietly() {
    local said
    said=$("$@" 2>&1) || { printf '%s\n' "$said" | tail -n 20 >&2; return 1; }
}

if ! command -v kcat >/dev/null && command -v apt-get >/dev/null; then
    { quietly as_root apt-get update -qq && quietly as_root apt-get install -y -qq kcat; } || true
fi
command -v kcat >/dev/null || missing+=("kcat (apt-get install kcat)")

default=$(sed -n 's|.*<kafka.version>\(.*\)</kafka.version>.*|\1|p' "$java/pom.xml")
for version in ${ODRADEK_KAFKA_VERSIONS:-$default}; do
    built=$java/target/$version
    # Maven skips what is up to date only after it has started for some seconds
    if [ ! -d "$built" ] || [ -n "$(find "$java/pom.xml" "$java/src" -newer "$built" -print -quit)" ]; then
        if command -v javac >/dev/null && command -v mvn >/dev/null; then
            quietly mvn -q -B -f "$java/pom.xml" "-Dkafka.version=$version" package && touch "$built" || true
        fi
    fi
    [ -d "$built" ] || missing+=("the Java client $version (a JDK, mvn, a way to Maven Central)")
done

if [ ${#missing[@]} -gt 0 ]; then
    printf 'not available: %s\n' "${missing[@]}" >&2
    [ "${ODRADEK_REQUIRE_ALL:-}" != 1 ] || exit 1
fi
