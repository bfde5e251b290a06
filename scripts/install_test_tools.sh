#!/usr/bin/env bash
# Fetch the foreign Kafka clients that tests/interop runs: kcat by apt-get, the Java client by Maven.
# What cannot be had is reported and its tests are skipped; with ODRADEK_REQUIRE_ALL=1 it is an error.
set -euo pipefail
cd "$(dirname "$0")/.."
jars=.cache/kafka-clients
kafka_version=4.1.0
missing=()

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; elif sudo -n true 2>/dev/null; then sudo -n "$@"; else return 1; fi
}

if ! command -v kcat >/dev/null; then
    if command -v apt-get >/dev/null; then
        { as_root apt-get update -qq && as_root apt-get install -y -qq kcat; } >/dev/null 2>&1 || true
    fi
    command -v kcat >/dev/null || missing+=("kcat (apt-get install kcat)")
fi

if [ ! -e "$jars/kafka-clients-$kafka_version.jar" ]; then
    if command -v java >/dev/null && command -v mvn >/dev/null; then
        mkdir -p "$jars"
        mvn -q -B -f scripts/kafka-clients.pom.xml "-Dkafka.version=$kafka_version" \
            dependency:copy-dependencies "-DoutputDirectory=$PWD/$jars" >/dev/null 2>&1 || true
    fi
    [ -e "$jars/kafka-clients-$kafka_version.jar" ] ||
        missing+=("the Java client (a JDK, mvn and a way to Maven Central)")
fi

if [ ${#missing[@]} -gt 0 ]; then
    printf 'not available: %s\n' "${missing[@]}" >&2
    [ "${ODRADEK_REQUIRE_ALL:-}" != 1 ] || exit 1
fi
