"""`python -m bench [WORKLOAD ...] [--against [NAME=]HOST:PORT[@PID]] [--rounds N]`."""

from __future__ import annotations

import argparse
from contextlib import ExitStack

from bench import codec, compaction, compaction_broker, groups, native, single, upkeep
from bench.embedding import embedding
from bench.report import table
from bench.target import Other, Target, started
from bench.workloads import WORKLOADS

SINGLE = {
    "startup": single.startup,
    "in-process": single.in_process,
    "partitions": single.partitions,
    "backlog": single.backlog,
    "embedding": embedding,
    "group-heartbeats": groups.heartbeats,
    "group-joins": groups.joins,
    "group-commits": groups.commits,
    "group-loading": groups.loading,
    "offsets-load": upkeep.offsets_load,
    "retention": upkeep.retention,
}

LOGS = {
    "compaction": compaction_broker.compaction,
    "compaction-latency": compaction_broker.compaction_latency,
    "compaction-latency-small": compaction_broker.compaction_latency_small,
}

NATIVE = "native"
CODECS = {"codec": codec.report, "codec-compaction": compaction.report}


def main() -> None:
    """Run what was asked for and print Markdown tables."""
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument(
        "workload",
        nargs="*",
        help=f"which (default: all): {', '.join([*WORKLOADS, *SINGLE, *LOGS, NATIVE, *CODECS])}",
    )
    parser.add_argument(
        "--against",
        metavar="[NAME=]HOST:PORT[@PID]",
        help="another broker, measured in alternation with this one; with its process id, its "
        "CPU time and memory are measured too",
    )
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each workload")
    parser.add_argument(
        "--megabytes", type=float, default=1000, help="size of the log that is compacted"
    )
    parser.add_argument("--durability", default="ack", choices=("ack", "interval", "none"))
    options = parser.parse_args()
    known = [*WORKLOADS, *SINGLE, *LOGS, NATIVE, *CODECS]
    wanted = options.workload or known
    unknown = [name for name in wanted if name not in known]
    if unknown:
        parser.error(f"no such workload: {', '.join(unknown)}")
    with ExitStack() as stack:
        targets: list[Target] = []
        if any(name in WORKLOADS for name in wanted):
            targets.append(stack.enter_context(started(durability=options.durability)))
            if options.against:
                targets.append(Other.parse(options.against))
        for name in wanted:
            if name in CODECS:
                print(f"\n{CODECS[name](options.rounds)}", flush=True)
                continue
            if name == NATIVE:
                rows = native.report(rounds=options.rounds, durability=options.durability)
                print(f"\n{rows}", flush=True)
                continue
            if name in SINGLE:
                rounds = {"odradek": [SINGLE[name]() for _ in range(options.rounds)]}
                print(f"\n{table(name, rounds)}", flush=True)
                continue
            if name in LOGS:
                measured_logs = [LOGS[name](options.megabytes) for _ in range(options.rounds)]
                print(f"\n{table(name, {'odradek': measured_logs})}", flush=True)
                continue
            load = WORKLOADS[name]
            measured: dict[str, list[dict[str, float]]] = {t.name: [] for t in targets}
            for _ in range(options.rounds):
                for target in targets:
                    measured[target.name].append(load.run(target, load))
            print(f"\n{load.what}\n\n{table(name, measured)}", flush=True)


if __name__ == "__main__":
    main()
