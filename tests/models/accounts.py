"""What projections/accounts has to make of a history."""

from history import Fault, Model, Rejected, live, within_64_bits


class Accounts(Model):
    def __init__(self):
        self.state = {"balances": {}, "transfers": [], "deposited": 0}
        self.handlers = {
            "account.opened": self.opened,
            "money.deposited": self.deposited,
            "money.transferred": self.transferred,
        }

    def opened(self, event):
        if event.subject in self.state["balances"]:
            raise Rejected("account_exists")
        if event.subject == "":
            raise Fault("subject")
        self.state["balances"][event.subject] = 0

    def deposited(self, event):
        cents = event.integer("cents", 1)
        balances = self.state["balances"]
        if event.subject not in balances:
            raise Rejected("unknown_account")
        balances[event.subject] += cents
        self.state["deposited"] = within_64_bits(self.state["deposited"] + cents)
        return {"balance": balances[event.subject]}

    def transferred(self, event):
        giver, taker, cents = event.text("from"), event.text("to"), event.integer("cents", 1)
        balances = self.state["balances"]
        if giver == taker:
            raise Rejected("same_account")
        if giver not in balances or taker not in balances:
            raise Rejected("unknown_account")
        if balances[giver] < cents:
            raise Rejected("insufficient_funds", {"balance": balances[giver]})
        balances[giver] -= cents
        balances[taker] += cents
        self.state["transfers"].append([event.key, giver, taker, cents])
        return {"from_balance": balances[giver], "to_balance": balances[taker]}

    def tables(self):
        assert sum(self.state["balances"].values()) == self.state["deposited"]
        return {
            "account": [list(account) for account in self.state["balances"].items()],
            "transfer": self.state["transfers"],
            "deposited": [[self.state["deposited"]]],
        }


live(Accounts())
