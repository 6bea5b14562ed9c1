"""What projections/daily has to make of a history."""

from datetime import date, timedelta

from history import Ignored, Model, live, within_64_bits


class Daily(Model):
    def __init__(self):
        self.state = {}
        self.handlers = {"visit.counted": self.counted}

    def other(self, event):
        if not event.type.startswith("visit."):
            raise Ignored
        self.count(event, event.type, 1)

    def counted(self, event):
        kind, visits = event.text("type", 1, 128), event.integer("visits", 1, 1_000_000_000)
        return self.count(event, kind, visits)

    def count(self, event, kind, visits):
        day = event.moment[:10]
        visits += self.state.get((day, kind), 0)
        self.state[day, kind] = within_64_bits(visits)
        return {"day": day, "visits": visits}

    def tables(self):
        return {"counter": [[day, kind, monday(day), n] for (day, kind), n in self.state.items()]}


def monday(day):
    day = date.fromisoformat(day)
    return (day - timedelta(days=day.weekday())).isoformat()


live(Daily())
