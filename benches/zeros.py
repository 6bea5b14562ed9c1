#!/usr/bin/env python3
"""What a write and its sync take at a file's end: where they lengthen the file, where its blocks
were allocated before, and where zeros stood there (docs/adr/0021-zeros-ahead.md).

    python3 benches/zeros.py [DIR]

DIR, the working directory if none is named, has to be on the disk that is meant. Prints the
least and the most of five rounds in turns, each 0.5 s, in microseconds of the clock, and in
brackets of processor time. Needs a machine with nothing else to do."""

import os
import sys
import tempfile
import time

SIZES = (1_500, 4_096, 16_384, 65_536)
WAYS = ("lengthens the file", "allocated before", "zeros before")
ROUNDS, SECONDS, ROOM = 5, 0.5, 64 << 20


def measure(directory, way, size):
    """Microseconds for one write and sync: of the clock, and of this process's processor time."""
    with tempfile.TemporaryFile(dir=directory) as file:
        at = file.fileno()
        if way == "allocated before":
            os.posix_fallocate(at, 0, ROOM)
        if way == "zeros before":
            for offset in range(0, ROOM, 1 << 20):
                os.pwrite(at, bytes(1 << 20), offset)
        os.fsync(at)
        content, offset, count = b"\x07" * size, 0, 0
        started, spent = time.monotonic(), time.process_time()
        while time.monotonic() - started < SECONDS and offset + size <= ROOM:
            os.pwrite(at, content, offset)
            os.fdatasync(at)
            offset, count = offset + size, count + 1
        took, spent = time.monotonic() - started, time.process_time() - spent
        return took / count * 1e6, spent / count * 1e6


def main():
    directory = sys.argv[1] if len(sys.argv) > 1 else "."
    figures = {(size, way): [] for size in SIZES for way in WAYS}
    for _ in range(ROUNDS):
        for size, way in figures:
            figures[size, way].append(measure(directory, way, size))
    print(f"| bytes | {' | '.join(WAYS)} |\n|---|---:|---:|---:|")
    for size in SIZES:
        cells = []
        for way in WAYS:
            clock, spent = zip(*figures[size, way])
            cells.append(f"{min(clock):.0f} to {max(clock):.0f} ({min(spent):.0f} to {max(spent):.0f})")
        print(f"| {size:,} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
