#!/usr/bin/env python3
"""Measures the pair: events of 100 B through `counterfoil publish`, applied by the receiver.

    cargo build --release --bins && python3 examples/measure.py [EVENTS] [--programs DIR]

Prints events per second published and applied, the peak memory of each process, and how long
a publisher that holds them all takes to start. Uses a temporary directory and free ports.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

PAYLOAD_BYTES = 100
ITEMS = 500


def write_events(path, count):
    """`stock.adjusted` on 500 items; the payload is 100 bytes of JSON."""
    filler = "x" * (PAYLOAD_BYTES - len(json.dumps({"delta": 1, "note": ""}, separators=(",", ":"))))
    payload = json.dumps({"delta": 1, "note": filler}, separators=(",", ":"))
    assert len(payload) == PAYLOAD_BYTES
    text = json.dumps(payload)
    with open(path, "w") as file:
        for number in range(count):
            file.write(
                f'{{"key":"m{number:07d}","type":"stock.adjusted",'
                f'"subject":"item-{number % ITEMS}","jsonText":{text}}}\n'
            )


class Service:
    """A child process that says `listening on ADDR` once it is ready."""

    def __init__(self, program, arguments, log):
        started = time.monotonic()
        self.child = subprocess.Popen(
            [program, "--listen", "127.0.0.1:0", *arguments],
            stdout=subprocess.PIPE, stderr=log, text=True,
        )
        line = self.child.stdout.readline()
        self.start_seconds = time.monotonic() - started
        assert line.startswith("listening on "), f"{program} did not start"
        self.url = "http://" + line.split()[-1]

    def peak_mib(self):
        with open(f"/proc/{self.child.pid}/status") as file:
            return next(int(l.split()[1]) / 1024 for l in file if l.startswith("VmHWM"))

    def stop(self):
        self.child.send_signal(signal.SIGTERM)
        assert self.child.wait(10) == 0


class Services:
    """The processes of one measurement, and a directory for them. Both go with it; where a
    process still runs then, something went wrong, and the end of what was logged is shown."""

    def __init__(self, programs):
        self.programs = programs
        self.running = []

    def __enter__(self):
        self.directory = tempfile.TemporaryDirectory()
        self.log = open(self.path("logging"), "w")
        return self

    def __exit__(self, *_):
        for service in self.running:
            service.child.kill()
        if self.running:
            self.log.flush()
            sys.stderr.write(open(self.log.name).read()[-2000:])
        self.log.close()
        self.directory.cleanup()

    def path(self, name):
        return os.path.join(self.directory.name, name)

    def program(self, name):
        return os.path.join(self.programs, name)

    def start(self, name, *flags):
        service = Service(self.program(name), flags, self.log)
        self.running.append(service)
        return service

    def stop(self, service):
        service.stop()
        self.running.remove(service)


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("events", nargs="?", type=int, default=1_000_000)
    arguments.add_argument("--programs", default="target/release", metavar="DIR")
    options = arguments.parse_args()

    with Services(options.programs) as services:
        path, start, stop = services.path, services.start, services.stop
        write_events(path("events.jsonl"), options.events)
        publisher = start("publisher", "--data-dir", path("log"))
        receiver = start("receiver", "--publisher", publisher.url, "--db", path("receiver.db"))
        tool = services.program("counterfoil")

        started = time.monotonic()
        client = subprocess.Popen([tool, "publish", "--publisher", publisher.url, path("events.jsonl")],
                                  stdout=subprocess.PIPE, text=True)
        summary = client.stdout.read().strip()
        _, code, usage = os.wait4(client.pid, 0)
        published = time.monotonic() - started
        assert code == 0, summary

        while True:
            answer = subprocess.run(
                [tool, "status", "--json", "--publisher", publisher.url, "--receiver", receiver.url],
                capture_output=True, text=True, check=True,
            )
            status = json.loads(answer.stdout)["receiver"]["status"]
            if status["cursor"]["sequence"] == status["acked"]["sequence"] == options.events - 1:
                break
            time.sleep(0.05)
        applied = time.monotonic() - started

        peaks = publisher.peak_mib(), receiver.peak_mib(), usage.ru_maxrss / 1024
        stop(receiver)
        stop(publisher)
        again = start("publisher", "--data-dir", path("log"))

        print(f"{options.events:,} events of {PAYLOAD_BYTES} B, {os.cpu_count()} cores")
        print(f"counterfoil publish    {summary}")
        print(f"published              {options.events / published:>10,.0f} events/s  ({published:.1f} s)")
        print(f"applied and acked      {options.events / applied:>10,.0f} events/s  ({applied:.1f} s, both at once)")
        for name, peak in zip(("publisher", "receiver", "counterfoil"), peaks):
            print(f"peak memory            {peak:>10.1f} MiB  {name}")
        print(f"restart of publisher   {again.start_seconds:>10.2f} s")
        stop(again)


if __name__ == "__main__":
    main()
