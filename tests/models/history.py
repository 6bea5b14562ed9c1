"""What the models have in common: events come in as `counterfoil tail` prints them, one JSON
object a line; what a receiver's ledger and tables have to say goes out as one JSON object.

Nothing here knows of SQLite or of projection files, and nothing may: a model that shared
their mistakes would find none.
"""

import copy
import json
import sys

MOST = 2**63 - 1


class Fault(Exception):
    """The event cannot be applied at all, and an operator sets it aside."""


class Rejected(Exception):
    """A business rule says no."""

    def __init__(self, reason, result=None):
        super().__init__(reason)
        self.reason, self.result = reason, result


class Ignored(Exception):
    """Nobody has a use for this type."""


class Event:
    """One line. `data` is the parsed payload; None where it is no JSON."""

    def __init__(self, line):
        self.sequence, self.key, self.type = line["sequence"], line["key"], line["type"]
        self.subject = line.get("subject", "")
        self.moment = line.get("time") or line["acceptTime"]
        self.data = line.get("json")
        self.says_twice = False
        if "jsonText" in line:
            self.data = json.loads(line["jsonText"], object_pairs_hook=self.pairs)

    def pairs(self, pairs):
        """Which of two fields of one name counts is a matter of taste, so neither does."""
        fields = dict(pairs)
        self.says_twice |= len(fields) < len(pairs)
        return fields

    def field(self, name):
        """A field that has to be there."""
        if self.says_twice or not isinstance(self.data, dict) or name not in self.data:
            raise Fault(name)
        return self.data[name]

    def integer(self, name, least=-MOST - 1, most=MOST):
        """An integer within bounds; no fraction, no exponent, no truth value."""
        value = self.field(name)
        if not is_integer(value) or not least <= value <= most:
            raise Fault(name)
        return value

    def text(self, name, least=0, most=MOST):
        """Text of so many bytes."""
        value = self.field(name)
        if not isinstance(value, str) or not least <= len(value.encode()) <= most:
            raise Fault(name)
        return value


def is_integer(value):
    return isinstance(value, int) and not isinstance(value, bool)


def within_64_bits(value):
    """The value, unless a column of integers could not hold it."""
    if not -MOST - 1 <= value <= MOST:
        raise Fault("overflow")
    return value


def live(model):
    """Lets a model live the history on standard input and prints what has come of it.

    A model has `handlers`, by type, and `other`, for all types that are not among them;
    `state`, which is put back where a handler raises; and `tables()`.
    """
    ledger = []
    for line in sys.stdin:
        event = Event(json.loads(line))
        before = copy.deepcopy(model.state)
        row = {"sequence": event.sequence, "outcome": "APPLIED", "reason": None, "result": None}
        try:
            row["result"] = model.handlers.get(event.type, model.other)(event)
        except (Fault, Rejected, Ignored) as why:
            model.state = before
            row["outcome"] = {Fault: "SKIPPED", Rejected: "REJECTED", Ignored: "IGNORED"}[type(why)]
            if isinstance(why, Rejected):
                row["reason"], row["result"] = why.reason, why.result
        ledger.append(row)
    tables = {name: sorted(rows, key=json.dumps) for name, rows in model.tables().items()}
    json.dump({"ledger": ledger, "tables": tables}, sys.stdout, sort_keys=True)
    print()


class Model:
    """A model of a projection that ignores all types that it does not know."""

    def other(self, event):
        raise Ignored
