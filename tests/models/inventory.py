"""What projections/inventory has to make of a history."""

from history import Fault, Model, Rejected, live, within_64_bits


class Inventory(Model):
    def __init__(self):
        self.state = {"stock": {}, "reservations": [], "total": 0}
        self.handlers = {"stock.adjusted": self.adjusted, "stock.reserved": self.reserved}

    def adjusted(self, event):
        delta = event.integer("delta", -1000, 1000)
        if event.subject == "":
            raise Fault("subject")
        available, version = self.state["stock"].get(event.subject, (0, 0))
        self.state["stock"][event.subject] = (available + delta, version + 1)
        self.state["total"] = within_64_bits(self.state["total"] + delta)

    def reserved(self, event):
        task, quantity = event.text("task", 1, 256), event.integer("quantity", 1, 1000)
        expected = event.integer("expected_version", 0)
        if event.subject not in self.state["stock"]:
            raise Rejected("unknown_item")
        available, version = self.state["stock"][event.subject]
        now = {"available": available, "version": version}
        if version != expected:
            raise Rejected("stale_version", now)
        if available < quantity:
            raise Rejected("insufficient_stock", now)
        available, version = available - quantity, version + 1
        self.state["stock"][event.subject] = (available, version)
        self.state["reservations"].append([event.key, task, event.subject, quantity])
        return {"available": available, "version": version}

    def tables(self):
        return {
            "stock": [[item, *numbers] for item, numbers in self.state["stock"].items()],
            "reservation": self.state["reservations"],
            "total": [[self.state["total"]]],
        }


live(Inventory())
