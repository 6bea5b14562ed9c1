#!/usr/bin/env python3
"""Works out what a receiver must hold after vending.jsonl, without any of this
project's code: the rules of the projection `inventory`, told once more.

    python3 examples/vending_totals.py < examples/vending.jsonl > examples/vending.totals.json
"""

import hashlib
import json
import sys
from collections import Counter
from dataclasses import dataclass


@dataclass
class Stock:
    available: int = 0
    version: int = 0


def judge(shelf, event):
    """Changes the shelf and returns (outcome, reason, change of the total)."""
    item, payload = event["subject"], event["json"]
    if event["type"] == "stock.adjusted":
        stock = shelf.setdefault(item, Stock())
        stock.available += payload["delta"]
        stock.version += 1
        return "APPLIED", None, payload["delta"]
    if event["type"] == "stock.reserved":
        stock = shelf.get(item)
        if stock is None:
            return "REJECTED", "unknown_item", 0
        if stock.version != payload["expected_version"]:
            return "REJECTED", "stale_version", 0
        if stock.available < payload["quantity"]:
            return "REJECTED", "insufficient_stock", 0
        stock.available -= payload["quantity"]
        stock.version += 1
        return "APPLIED", None, 0
    return "IGNORED", None, 0


def main():
    shelf, outcomes, reasons = {}, Counter(), Counter()
    published = total = 0
    for line in sys.stdin:
        outcome, reason, change = judge(shelf, json.loads(line))
        published += 1
        total += change
        outcomes[outcome] += 1
        if reason:
            reasons[reason] += 1
    rows = "".join(f"{item}\t{s.available}\t{s.version}\n" for item, s in sorted(shelf.items()))
    result = {
        "published": published,
        "total": total,
        "outcomes": dict(sorted(outcomes.items())),
        "rejections": dict(sorted(reasons.items())),
        "items": len(shelf),
        # Over one line for each item, sorted: item, tab, available, tab, version, newline.
        "stock_sha256": hashlib.sha256(rows.encode()).hexdigest(),
    }
    json.dump(result, sys.stdout, indent=2)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
