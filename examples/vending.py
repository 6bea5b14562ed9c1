#!/usr/bin/env python3
"""Writes vending.jsonl: a year of stock movements of 48 vending machines.

One NewEvent as JSON a line, as `counterfoil publish` reads it. The same seed
gives the same file, byte for byte: only random.random() is drawn from, whose
sequence Python keeps from version to version. Needs nothing but Python 3.

    python3 examples/vending.py > examples/vending.jsonl
"""

import json
import random
import sys

EVENTS = 120_000
MACHINES = 48
PRODUCTS = ["cola", "water", "juice", "crisps", "nuts", "gum", "soup", "tea"]

rng = random.Random(20_250_711)


def pick(options):
    return options[int(rng.random() * len(options))]


def between(low, high):
    return low + int(rng.random() * (high - low + 1))


def movements():
    """Yields (type, item, payload). Keeps stock of its own only so that most
    reservations are sensible; what becomes of them is not decided here."""
    available, version = {}, {}
    task = 0

    def adjusted(item, delta):
        available[item] = available.get(item, 0) + delta
        version[item] = version.get(item, 0) + 1
        return "stock.adjusted", item, {"delta": delta}

    while True:
        machine = f"m{between(1, MACHINES):02d}"
        item = f"{machine}-{pick(PRODUCTS)}"
        chance = rng.random()
        if chance < 0.004:
            # Nothing handles this type: the receiver goes past it.
            yield "machine.serviced", machine, {"minutes": between(5, 90)}
        elif chance < 0.008:
            task += 1
            yield "stock.reserved", f"{machine}-ice", reservation(task, 1, 0)  # never stocked
        elif item not in available or available[item] < 3:
            if item in available and rng.random() < 0.3:
                # Sold out, and somebody still asks.
                task += 1
                quantity = max(available[item], 0) + between(1, 4)
                yield "stock.reserved", item, reservation(task, quantity, version[item])
            else:
                yield adjusted(item, between(20, 60))
        elif chance < 0.06:
            yield adjusted(item, -between(1, 2))  # broken, or past its date
        elif chance < 0.35:
            yield adjusted(item, between(1, 6))
        else:
            task += 1
            quantity = between(1, 3)
            if chance < 0.37:
                # Decided on what the stock was a while ago.
                stale = max(version[item] - between(1, 3), 0)
                yield "stock.reserved", item, reservation(task, quantity, stale)
                continue
            yield "stock.reserved", item, reservation(task, quantity, version[item])
            if quantity <= available[item]:
                available[item] -= quantity
                version[item] += 1


def reservation(task, quantity, expected_version):
    return {"task": f"t{task:06d}", "quantity": quantity, "expected_version": expected_version}


def main():
    for number, (kind, subject, payload) in zip(range(EVENTS), movements()):
        line = {"key": f"vend-{number:06d}", "type": kind, "subject": subject, "json": payload}
        sys.stdout.write(json.dumps(line, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
