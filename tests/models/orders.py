"""What projections/orders has to make of a history."""

from history import Fault, Model, Rejected, is_integer, live, within_64_bits


class Orders(Model):
    def __init__(self):
        self.state = {"customers": {}, "orders": {}}
        self.handlers = {
            "order.placed": self.placed,
            "order.line_changed": self.line_changed,
            "order.cancelled": self.cancelled,
            "customer.forgotten": self.forgotten,
        }

    def order(self, event, open_only=True):
        order = self.state["orders"].get(event.subject)
        if order is None:
            raise Rejected("unknown_order")
        if open_only and order["status"] != "open":
            raise Rejected("already_cancelled")
        return order

    def placed(self, event):
        customer = event.text("customer", 1, 256)
        lines = event.field("lines")
        if not isinstance(lines, list) or not 1 <= len(lines) <= 100:
            raise Fault("lines")
        if event.subject in self.state["orders"]:
            raise Rejected("order_exists")
        for line in lines:
            if not isinstance(line, dict):
                raise Rejected("bad_line")
            numbers = is_integer(line.get("quantity")) and is_integer(line.get("price_cents"))
            if not isinstance(line.get("item"), str) or not numbers:
                raise Rejected("bad_line")
        for line in lines:
            if line["item"] == "" or not 1 <= line["quantity"] <= 1000 or line["price_cents"] < 0:
                raise Fault("line")
            within_64_bits(line["price_cents"])
        if event.subject == "":
            raise Fault("subject")
        known = self.state["customers"].setdefault(customer, {"placed": 0, "open": 0})
        known["placed"] += 1
        known["open"] += 1
        order = {"customer": customer, "status": "open", "key": event.key}
        order["lines"] = [[line["item"], line["quantity"], line["price_cents"]] for line in lines]
        self.state["orders"][event.subject] = order
        return {"total_cents": total(order), "lines": len(lines)}

    def line_changed(self, event):
        number, quantity = event.integer("line", 0, 99), event.integer("quantity", 1, 1000)
        order = self.order(event)
        if number >= len(order["lines"]):
            raise Rejected("unknown_line", {"lines": len(order["lines"])})
        order["lines"][number][1] = quantity
        return {"total_cents": total(order)}

    def cancelled(self, event):
        order = self.order(event)
        order["status"] = "cancelled"
        self.state["customers"][order["customer"]]["open"] -= 1

    def forgotten(self, event):
        if self.state["customers"].pop(event.subject, None) is None:
            raise Rejected("unknown_customer")
        orders = self.state["orders"].items()
        self.state["orders"] = {id: o for id, o in orders if o["customer"] != event.subject}

    def tables(self):
        customers, orders = self.state["customers"].items(), self.state["orders"].items()
        return {
            "customer": [[name, c["placed"], c["open"]] for name, c in customers],
            "orders": [[id, o["customer"], o["status"], total(o), o["key"]] for id, o in orders],
            "order_line": [
                [id, number, *line] for id, o in orders for number, line in enumerate(o["lines"])
            ],
        }


def total(order):
    return within_64_bits(sum(quantity * price for _, quantity, price in order["lines"]))


live(Orders())
