"""The tables of share sessions of several shards, whose mailboxes deliver when the test says so."""

from collections import deque
from types import SimpleNamespace

from millstream.errors import OutcomeUnknown
from millstream.share.moves import Moves
from millstream.share.seats import Seats
from millstream.share.sessions import ShareSessions
from millstream.telemetry.metrics import StatsSlab


class Connection:
    closed = False


class Home:
    """What the share partitions are told."""

    def __init__(self):
        self.ends = []
        self.replacements = []

    def end_session(self, group_id, token):
        self.ends.append((group_id, token))

    def replace_session(self, group_id, member, token):
        self.replacements.append((group_id, member, token))


class Mailbox:
    """Messages between two shards keep their order; a lost answer is told at once."""

    def __init__(self, shards, shard):
        self._shards = shards
        self._shard = shard
        self.handlers = {}
        self.loses_answers = False

    def serve(self, method, handler):
        self.handlers[method] = handler

    def tell(self, to, method, payload):
        self._shards.post(lambda: self._shards.mailboxes[to].handlers[method](self._shard, payload, None))

    def call(self, to, method, payload, on_reply, timeout_us):
        _ = timeout_us

        def send(answer):
            answer = OutcomeUnknown("late") if self.loses_answers else answer
            self._shards.post(lambda: on_reply(answer))

        reply = SimpleNamespace(send=send)
        self._shards.post(lambda: self._shards.mailboxes[to].handlers[method](self._shard, payload, reply))


class Shards:
    """The shards of one broker."""

    def __init__(self, count, seats):
        self._posted = deque()
        self.mailboxes = [Mailbox(self, shard) for shard in range(count)]
        self.homes = [Home() for _ in range(count)]
        places = [
            SimpleNamespace(id=shard, count=count, mailbox=self.mailboxes[shard], stats=StatsSlab(shard))
            for shard in range(count)
        ]
        self.stats = [place.stats for place in places]
        self.tables = [self._table(place, seats) for place in places]

    def _table(self, place, seats_max):
        seats = Seats(place, seats_max)
        return ShareSessions(place, self.homes[place.id], seats, Moves(place, seats))

    def post(self, message):
        self._posted.append(message)

    def step(self):
        """Deliver one message."""
        self._posted.popleft()()

    def deliver(self):
        while self._posted:
            self.step()


def opened(table, group="g", member="m", connection=None):
    """What a request with epoch 0 gets, on the shard that keeps the seats."""
    (answer,) = asked(table, group, member, connection)
    return answer


def asked(table, group="g", member="m", connection=None):
    """A list that gets the answer of a request with epoch 0."""
    answers = []
    table.open(group, member, connection or Connection(), answers.append)
    return answers
