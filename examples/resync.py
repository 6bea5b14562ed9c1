#!/usr/bin/env python3
"""Measures a resync: a receiver on an empty database behind a log that has dropped nearly
everything, until it is LIVE, beside a plain copy of that database and one integrity_check.

    cargo build --release --bins && python3 examples/resync.py [ROWS] [--programs DIR] [--rounds N]

Each event adjusts an item of its own, so the database has ROWS rows of stock and ROWS of ledger.
Exit code 1 if in the median a resync takes three times as long as copy and check together.
"""

import argparse
import json
import os
import shutil
import sqlite3
import statistics
import subprocess
import sys
import time

from measure import Services

BOUND = 3


def write_events(path, first, count):
    with open(path, "w") as file:
        for number in range(first, first + count):
            file.write(
                f'{{"key":"r{number:07d}","type":"stock.adjusted",'
                f'"subject":"item-{number:07d}","json":{{"delta":1}}}}\n'
            )


def copy_and_check(source, target):
    """A copy that is on stable storage, and whether it is whole; in seconds."""
    started = time.monotonic()
    shutil.copyfile(source, target)
    with open(target, "rb+") as file:
        os.fsync(file.fileno())
    copied = time.monotonic()
    with sqlite3.connect(f"file:{target}?immutable=1", uri=True) as tables:
        assert tables.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    checked = time.monotonic()
    os.remove(target)
    return copied - started, checked - copied


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("rows", nargs="?", type=int, default=1_000_000)
    arguments.add_argument("--programs", default="target/release", metavar="DIR")
    arguments.add_argument("--rounds", type=int, default=3)
    options = arguments.parse_args()

    with Services(options.programs) as services:
        path, start, stop = services.path, services.start, services.stop

        def tool(*words):
            return subprocess.run([services.program("counterfoil"), *words], capture_output=True, text=True)

        def receives(publisher, name, sequence):
            """Starts a receiver of this name, and says when it is LIVE at a sequence."""
            started = time.monotonic()
            receiver = start("receiver", "--publisher", publisher.url, "--name", name, "--db", path(f"{name}.db"))
            while True:
                answer = tool("status", "--json", "--publisher", publisher.url, "--receiver", receiver.url)
                status = json.loads(answer.stdout)["receiver"].get("status", {})
                if status.get("state") == "LIVE" and status["cursor"]["sequence"] >= sequence:
                    return receiver, time.monotonic() - started
                time.sleep(0.02)

        def publish(publisher, first, count):
            write_events(path("events.jsonl"), first, count)
            answer = tool("publish", "--publisher", publisher.url, path("events.jsonl"))
            assert answer.returncode == 0, answer

        publisher = start("publisher", "--data-dir", path("log"))
        publish(publisher, 0, options.rows)
        maker, caught_up = receives(publisher, "maker", options.rows - 1)
        started = time.monotonic()
        made = tool("snapshot", "--receiver", maker.url)
        assert made.returncode == 0, made
        made = time.monotonic() - started
        # From now on nearly nothing is retained: only the snapshot helps.
        stop(maker)
        stop(publisher)
        with open(path("publisher.toml"), "w") as file:
            file.write("[logs.main]\nmax_events = 1000\n")
        publisher = start("publisher", "--data-dir", path("log"), "--config", path("publisher.toml"))
        publish(publisher, options.rows, 1)

        size = os.path.getsize(path("maker.db"))
        print(f"{options.rows:,} rows of stock, {options.rows:,} of ledger, {size / 2**20:,.0f} MiB, {os.cpu_count()} cores")
        print(f"a receiver from the first event on   {caught_up:7.2f} s")
        print(f"a snapshot, made and uploaded        {made:7.2f} s")
        ratios = []
        for number in range(options.rounds):
            copy, check = copy_and_check(path("maker.db"), path("copy.db"))
            receiver, resynced = receives(publisher, f"receiver-{number}", options.rows)
            peak = receiver.peak_mib()
            stop(receiver)
            ratios.append(resynced / (copy + check))
            print(
                f"copy {copy:.2f} s + integrity_check {check:.2f} s = {copy + check:.2f} s;  "
                f"resync until LIVE {resynced:.2f} s, {ratios[-1]:.2f} times that;  "
                f"peak {peak:.0f} MiB"
            )
        print(f"peak of the publisher                {publisher.peak_mib():7.0f} MiB")
        stop(publisher)
        median = statistics.median(ratios)
        print(f"in the median, so many times that    {median:7.2f}")
        if median >= BOUND:
            sys.exit(f"a resync takes {median:.2f} times as long; under {BOUND} was expected")


if __name__ == "__main__":
    main()
