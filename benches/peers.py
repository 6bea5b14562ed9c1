#!/usr/bin/env python3
"""Runs a harness of other systems alternately with `counterfoil bench`, and
prints how they compare.

    cargo build --release --bins
    python3 benches/peers.py PEERS_DIR

PEERS_DIR holds that harness: a writable directory with a `run.sh` that builds it
if need be, takes `--reps 1 --secs S --only SUITES --dir DIR --out FILE`, and
writes a JSON object a line: suite, name, params, value. One time is one run of
each; a ratio is that of one time, so that a slow minute of the machine does not
distort it. Printed are their median, least and most, and whether the bound that
is wished for is met. Needs a machine with nothing else to do."""

import argparse
import json
import os
import pathlib
import stat
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent

CATCH_UP = ("catch-up", "receiver with an empty database")
LIVE_STREAM = ("live", "live: PublishStream, 1024 in flight")
LIVE_CALLERS = ("live", "live: client module, 128 callers")
STREAM = ("publish", "PublishStream, 1024 in flight")
CALLERS = ("publish", "client module, 128 callers")
UNARY = ("publish", "Publish, 128 callers")
UNARY_ONE = ("publish", "Publish, 1 caller")
EIGHT = ("replay", "Replay, 8 readers together")
STALLED = ("replay", "Replay, 8 readers beside a stalled one")


def paced(rate):
    return ("paced", f"paced, {rate} a second")


# (what, stage of ours, its field, peer's suite, name, params, bound at 100 B, at 1 KiB)
# A bound is ">= x", "<= x" or none: a figure that is only told. Without a suite the
# value is the ratio that `counterfoil bench` has worked out itself.
RATE, P50, OWN = "eventsPerSecond", "p50Micros", "ratio"
LINES = [
    ("catch-up / SQLite with the same statements", CATCH_UP, OWN, None, None, None, ">= 0.85", ">= 0.6"),
    ("catch-up / bare", CATCH_UP, RATE, "bare", "catch_up", "per_msg=128 tx_max=1024", None, None),
    ("catch-up / JetStream synced, explicit acks", CATCH_UP, RATE, "js-always", "catch_up", "explicit tx_max=1024", ">= 2", ">= 2"),
    ("catch-up / JetStream unsynced, explicit acks", CATCH_UP, RATE, "js-default", "catch_up", "explicit tx_max=1024", ">= 2", ">= 2"),
    ("catch-up / Redis always", CATCH_UP, RATE, "redis-always", "catch_up", "group tx_max=1024", None, None),
    ("live, one stream / bare", LIVE_STREAM, RATE, "bare", "live", "stream1024 linger=0us", ">= 0.5", ">= 0.5"),
    ("live, one stream / JetStream synced", LIVE_STREAM, RATE, "js-always", "live", "in_flight=1024 ackall", ">= 12", ">= 12"),
    ("live, one stream / JetStream unsynced", LIVE_STREAM, RATE, "js-default", "live", "in_flight=1024 ackall", ">= 2", ">= 2"),
    ("live, one stream / Redis always", LIVE_STREAM, RATE, "redis-always", "live", "in_flight=1024 plain", ">= 2", ">= 2"),
    ("live, 128 callers / bare coalesced", LIVE_CALLERS, RATE, "bare", "live", "coalesced128 linger=0us", ">= 0.6", ">= 0.6"),
    ("live, 128 callers / JetStream synced", LIVE_CALLERS, RATE, "js-always", "live", "in_flight=128 explicit", ">= 6", ">= 6"),
    ("live, 128 callers / JetStream unsynced", LIVE_CALLERS, RATE, "js-default", "live", "in_flight=128 explicit", None, None),
    ("live, 128 callers / Redis always", LIVE_CALLERS, RATE, "redis-always", "live", "in_flight=128 plain", None, None),
    ("live, 128 callers / Redis always, idempotent", LIVE_CALLERS, RATE, "redis-always", "live", "in_flight=128 idempotent", None, None),
    ("PublishStream / bare", STREAM, RATE, "bare", "publish_stream", "window=1024", ">= 0.5", ">= 0.5"),
    ("client module, 128 / bare coalesced", CALLERS, RATE, "bare", "publish_coalesced", "in_flight=128", None, None),
    ("client module, 128 / JetStream synced", CALLERS, RATE, "js-always", "publish", "in_flight=128", None, None),
    ("client module, 128 / JetStream unsynced", CALLERS, RATE, "js-default", "publish", "in_flight=128", None, None),
    ("client module, 128 / Redis always", CALLERS, RATE, "redis-always", "publish", "in_flight=128", None, None),
    ("client module, 128 / Redis always, idempotent", CALLERS, RATE, "redis-always", "publish_idempotent", "in_flight=128", None, None),
    ("unary, 128 / tonic's empty call", UNARY, OWN, None, None, None, ">= 0.75", ">= 0.75"),
    ("unary, 128 / bare", UNARY, RATE, "bare", "publish", "in_flight=128", None, None),
    ("unary, 128 / JetStream synced", UNARY, RATE, "js-always", "publish", "in_flight=128", None, None),
    ("unary, 128 / Redis always", UNARY, RATE, "redis-always", "publish", "in_flight=128", None, None),
    ("unary, 1 / JetStream synced", UNARY_ONE, RATE, "js-always", "publish", "in_flight=1", None, None),
    ("unary, 1 / Redis always", UNARY_ONE, RATE, "redis-always", "publish", "in_flight=1", None, None),
    ("p50 at 5,000/s / JetStream synced", paced(5000), P50, "js-always", "paced_p50", "rate=5000", "<= 0.75", "<= 0.75"),
    ("p50 at 2,000/s / Redis always", paced(2000), P50, "redis-always", "paced_p50", "rate=2000", "<= 1.25", "<= 1.25"),
    ("p50 at 5,000/s / bare", paced(5000), P50, "bare", "paced_p50", "rate=5000", None, None),
    ("8 readers together / 1 reader (or the cores are full)", EIGHT, OWN, None, None, None, ">= 4", ">= 4"),
    ("8 readers beside a stalled one / 8 readers", STALLED, OWN, None, None, None, ">= 0.95", ">= 0.95"),
]
# Of the processors, from here on all are at work.
FULL = 0.9


def run(command, name):
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"{name} ended with exit code {done.returncode}: see its words above")
    return done.stdout


def of_peers(options, scratch):
    """{(suite, name, params): value} of one run of the harness."""
    out = scratch / "peers.jsonl"
    out.unlink(missing_ok=True)
    harness = options.peers / "run.sh"
    run([str(harness), "--reps", "1", "--secs", str(options.secs), "--only", options.only,
         "--dir", str(scratch / "peers-data"), "--out", str(out)], str(harness))
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    return {(line["suite"], line["name"], line["params"]): line["value"] for line in lines}


def of_product(options, scratch):
    """{(group, stage, payload): figures} of one round."""
    command = [str(options.tool), "bench", "--json", "--rounds", "1", "--dir", str(scratch)]
    table = json.loads(run(command + (["--quick"] if options.quick else []), str(options.tool)))
    return {(s["group"], s["stage"], s["payloadBytes"]): s for s in table["stages"]}


def value(line, payload, peers, product):
    """The ratio of one time; none where one side has no figure."""
    _, stage, field, suite, name, params, *_ = line
    own = product.get((*stage, payload))
    if own is None or own[field] is None:
        return None
    own = own[field]["median"]
    if suite is None:
        return own
    peer = peers.get((suite, name, f"{params} payload={payload}"))
    return own / peer if peer else None


def met(bound, ratio):
    sign, wanted = bound.split()
    return ratio >= float(wanted) if sign == ">=" else ratio <= float(wanted)


def full(stage, payload, times):
    """Whether all processors were at work in a stage."""
    busy = [product[(*stage, payload)]["processors"] for _, product in times
            if (*stage, payload) in product]
    return bool(busy) and statistics.median(busy) >= FULL * os.cpu_count()


def report(times):
    missed = 0
    for payload in (100, 1024):
        print(f"\n## payloads of {payload} bytes, {len(times)} times\n")
        print("| ratio | median | least | most | bound | |\n|---|---:|---:|---:|---:|---|")
        for line in LINES:
            ratios = [value(line, payload, *time) for time in times]
            ratios = [ratio for ratio in ratios if ratio is not None]
            bound, verdict = line[-2 if payload == 100 else -1], ""
            if len(ratios) < len(times) and bound:
                missed += 1
                print(f"| {line[0]} | {len(ratios)} of {len(times)} figures | | | {bound} | MISSED |")
                continue
            if not ratios:
                continue
            median = statistics.median(ratios)
            if bound:
                verdict = "met" if met(bound, median) else "MISSED"
                if verdict == "MISSED" and line[1] == EIGHT and full(EIGHT, payload, times):
                    verdict = "met: the cores are full"
            missed += verdict == "MISSED"
            print(f"| {line[0]} | {median:.2f} | {min(ratios):.2f} | {max(ratios):.2f} "
                  f"| {bound or ''} | {verdict} |")
    print(f"\n{missed} missed" if missed else "\nall bounds are met")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("peers", type=pathlib.Path, metavar="PEERS_DIR", help="the other harness")
    parser.add_argument("--times", type=int, default=5, help="runs of each [5]")
    parser.add_argument("--secs", type=float, default=0.8, help="seconds of a peer's turn, as long as ours [0.8]")
    parser.add_argument("--only", default="bare,jetstream,redis", help="suites of the harness")
    parser.add_argument("--quick", action="store_true", help="counterfoil bench --quick")
    parser.add_argument("--tool", type=pathlib.Path, default=ROOT / "target/release/counterfoil")
    parser.add_argument("--dir", type=pathlib.Path, help="where data goes; has to be on a disk")
    parser.add_argument("--raw", type=pathlib.Path, help="keep all figures here, a time a line")
    options = parser.parse_args()
    options.peers = options.peers.resolve()
    if not (options.peers / "run.sh").is_file():
        sys.exit(f"{options.peers}: has no run.sh; name the directory of the harness")
    # By its mode: root may write anywhere, and still must not.
    if not (options.peers.stat().st_mode & stat.S_IWUSR and os.access(options.peers, os.W_OK)):
        sys.exit(f"{options.peers}: cannot be written to; copy it, it builds beside its sources")
    if not options.tool.is_file():
        sys.exit(f"{options.tool}: is missing; cargo build --release --bins")
    times = []
    with tempfile.TemporaryDirectory(dir=options.dir) as scratch:
        scratch = pathlib.Path(scratch)
        for number in range(1, options.times + 1):
            print(f"time {number} of {options.times}", file=sys.stderr)
            times.append((of_peers(options, scratch), of_product(options, scratch)))
            if options.raw:
                peers, product = times[-1]
                with options.raw.open("a") as raw:
                    figures = [[*key, figure] for key, figure in peers.items()]
                    raw.write(json.dumps({"peers": figures, "product": list(product.values())}) + "\n")
    report(times)


if __name__ == "__main__":
    main()
