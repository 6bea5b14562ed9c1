#!/usr/bin/env python3
"""What syncs cost: `counterfoil bench` as it is, and with those of one of the two services left
out, which keeps no promise and is for measuring alone (docs/performance.md).

    cargo build --release --bins
    python3 benches/unsynced.py publisher [ROUNDS] [BENCH_ARGUMENTS]
    python3 benches/unsynced.py receiver [ROUNDS] [BENCH_ARGUMENTS]

A library that is loaded before the system's answers the service's fsync and fdatasync at once;
it is compiled with `cc`. ROUNDS (5) in turns; prints the medians of both, and of their ratios
and of the ratios that the benchmark has worked out within one round. Needs a machine with
nothing else to do."""

import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
SHIM = r"""
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
static int left_out(void) { return !strcmp(program_invocation_short_name, "SERVICE"); }
int fsync(int file) { return left_out() ? 0 : syscall(SYS_fsync, file); }
int fdatasync(int file) { return left_out() ? 0 : syscall(SYS_fdatasync, file); }
"""


def run(shim, arguments):
    """One round: events/s and the benchmark's own ratio, by stage."""
    command = [ROOT / "target/release/counterfoil", "bench", "--rounds", "1", "--json", *arguments]
    environment = {**os.environ, "LD_PRELOAD": str(shim)} if shim else None
    printed = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    found = {}
    for stage in json.loads(printed.stdout)["stages"]:
        name, payload = f"{stage['group']}: {stage['stage'].removeprefix(stage['group'] + ': ')}", stage["payloadBytes"]
        name += f", {payload} B" if payload else ""
        ratio = (stage["ratio"] or {}).get("median")
        found[name] = stage["eventsPerSecond"]["median"], ratio
    return found


def main():
    if sys.argv[1:2] not in (["publisher"], ["receiver"]):
        sys.exit(__doc__)
    service, rounds = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 5
    with tempfile.TemporaryDirectory() as directory:
        source, shim = pathlib.Path(directory, "shim.c"), pathlib.Path(directory, "shim.so")
        source.write_text(SHIM.replace("SERVICE", service))
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", shim, source], check=True)
        pairs = [(run(None, sys.argv[3:]), run(shim, sys.argv[3:])) for _ in range(rounds)]
    median = statistics.median
    print(f"| stage | as it is | no sync in the {service} | times | ratio as it is | without |")
    print("|---|---:|---:|---:|---:|---:|")
    for name in pairs[0][0]:
        as_it_is, without = zip(*((before[name], after[name]) for before, after in pairs))
        cells = [f"{median(rate for rate, _ in side):,.0f}" for side in (as_it_is, without)]
        cells.append(f"{median(after / before for (before, _), (after, _) in zip(as_it_is, without)):.2f}")
        for side in (as_it_is, without):
            ratios = [ratio for _, ratio in side if ratio is not None]
            cells.append(f"{median(ratios):.2f}" if ratios else "")
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
