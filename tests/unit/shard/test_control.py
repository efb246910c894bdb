"""Questions between the supervisor and a shard are answered, refused, or end with an unknown outcome."""

from millstream.errors import MillstreamError, OutcomeUnknown, Rejected, Unavailable
from millstream.shard.control import ControlPair
from millstream.shard.process import spawn
from millstream.shard.reactor import Reactor
from millstream.telemetry.metrics import StatsSlab


def talk(shard_main, supervisor_main):
    """Run `shard_main(reactor, control)` in a forked process and `supervisor_main` here, until the latter stops its
    reactor."""
    pair = ControlPair()

    def other():
        reactor = Reactor(0, StatsSlab(0, "shard"))
        control = pair.shard_end(reactor)
        control.on_gone = lambda: reactor.stop(0)
        shard_main(reactor, control)
        return reactor.run()

    child = spawn("shard 0", other)
    reactor = Reactor(-1, StatsSlab())
    control = pair.supervisor_end(reactor)
    reactor.call_later(120_000_000, lambda: reactor.stop(99, "the test took too long"))
    try:
        supervisor_main(reactor, control)
        assert reactor.run() == 0
        control.closed or control._socket.close()
        return child.wait(60)
    finally:
        child.kill()
        child.wait()


def test_a_question_is_answered_by_the_other_process_whatever_its_size():
    answers = []

    def shard(reactor, control):
        control.serve("double", lambda arguments, answer: reactor.call_later(500, lambda: answer(arguments * 2)))

    def supervisor(reactor, control):
        def take(value):
            answers.append(value)
            if len(answers) == 3:
                reactor.stop(0)

        for value in ("ab", b"x" * 1_500_000, [{"topic": "t"}]):
            control.ask("double", value, take, 10_000_000)

    assert talk(shard, supervisor).code == 0
    assert answers == ["abab", b"x" * 3_000_000, [{"topic": "t"}] * 2]


def test_both_ends_may_ask():
    got = []

    def shard(reactor, control):
        control.ask("name", None, lambda value: control.ask("report", value, lambda _: None, 5_000_000), 5_000_000)

    def supervisor(reactor, control):
        control.serve("name", lambda _, answer: answer("supervisor"))

        def report(value, answer):
            got.append(value)
            answer(None)
            reactor.call_soon(reactor.stop)

        control.serve("report", report)

    talk(shard, supervisor)
    assert got == ["supervisor"]


def test_refusals_arrive_as_rejected():
    got = []

    def shard(reactor, control):
        def refuse(arguments, answer):
            raise MillstreamError("no such topic")

        control.serve("refuse", refuse)
        control.serve("refuse later", lambda _, answer: reactor.call_soon(answer, MillstreamError("still none")))

    def supervisor(reactor, control):
        def take(value):
            got.append(value)
            if len(got) == 3:
                reactor.stop(0)

        for name in ("refuse", "unheard of", "refuse later"):
            control.ask(name, None, take, 10_000_000)

    talk(shard, supervisor)
    assert [type(value) for value in got] == [Rejected] * 3
    assert sorted(value.message for value in got) == [
        "no such topic",
        "nobody answers 'unheard of' here",
        "still none",
    ]


def test_silence_ends_in_an_unknown_outcome_and_a_late_answer_is_dropped():
    got = []

    def shard(reactor, control):
        slow = []

        def at_last(_, answer):
            slow.pop()("late")
            answer("behind it")

        control.serve("slow", lambda _, answer: slow.append(answer))
        control.serve("at last", at_last)

    def supervisor(reactor, control):
        def unknown(error):
            got.append(type(error))
            control.ask("at last", None, behind, 10_000_000)

        def behind(answer):
            got.append(answer)
            reactor.stop(0)

        control.ask("slow", None, unknown, 5_000)

    talk(shard, supervisor)
    assert got == [OutcomeUnknown, "behind it"]


def test_the_end_of_the_other_side_ends_all_questions():
    got = []

    def shard(reactor, control):
        control.serve("die", lambda *_: reactor.stop(0))

    def supervisor(reactor, control):
        def gone():
            control.ask("more", None, got.append, 10_000_000)
            reactor.call_later(1000, lambda: reactor.stop(0))

        control.on_gone = gone
        control.ask("die", None, got.append, 10_000_000)

    talk(shard, supervisor)
    assert [type(value) for value in got] == [Unavailable, Unavailable]
