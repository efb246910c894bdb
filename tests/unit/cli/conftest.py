"""The command line as a person meets it, with its clients faked at their edge."""

import socket
from dataclasses import dataclass

import pytest
from cli_fakes import FakeAdmin, FakeCluster, FakeConsumer, FakeProducer, FakeReader

from millstream.cli import confluent, greeting, share_group, streams_group
from millstream.cli.__main__ import main
from millstream.client import record_reader, share_groups, transactional


@dataclass
class Outcome:
    """What a command left behind."""

    code: int
    out: str
    err: str


@pytest.fixture
def millstream(capsys, monkeypatch):
    """Runs one command in this process: ``millstream("topic", "list") -> Outcome``."""
    monkeypatch.delenv("MILLSTREAM_TRACEBACK", raising=False)

    def run(*words):
        capsys.readouterr()
        code = main([str(word) for word in words])
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return Outcome(code, captured.out, captured.err)

    return run


@pytest.fixture
def cluster(monkeypatch):
    """A broker that is a dictionary, at the address in MILLSTREAM_BOOTSTRAP, which takes real connections."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        monkeypatch.setenv("MILLSTREAM_BOOTSTRAP", f"127.0.0.1:{listener.getsockname()[1]}")
        fake = FakeCluster()
        monkeypatch.setattr(greeting, "greet", lambda _endpoint, _security: None)
        monkeypatch.setattr(confluent, "AdminClient", lambda configuration, logger: FakeAdmin(fake, configuration))
        monkeypatch.setattr(confluent, "Producer", lambda configuration, logger: FakeProducer(fake, configuration))
        monkeypatch.setattr(confluent, "Consumer", lambda configuration, logger: FakeConsumer(fake, configuration))
        monkeypatch.setattr(record_reader, "RecordReader", lambda *given, **named: FakeReader(fake, *given, **named))
        monkeypatch.setattr(transactional, "committed_offsets", fake.committed_offsets)
        monkeypatch.setattr(share_groups, "share_group", lambda _cluster, _name: None)
        monkeypatch.setattr(share_group, "list_groups_of", lambda _cluster, _kind, _api, _states: [])
        monkeypatch.setattr(streams_group, "streams_group", lambda _cluster, _name: None)
        yield fake
