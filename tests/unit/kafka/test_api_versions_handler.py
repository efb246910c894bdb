"""ApiVersions: what is remembered of the client that asks."""

from types import SimpleNamespace
from typing import Any, cast

from millstream.kafka.handlers import api_versions
from millstream.kafka.handlers.api_versions import SOFTWARE_KEPT
from millstream.wire.messages.api_versions import ApiVersionsRequest


def test_of_a_long_name_of_its_library_the_beginning_is_kept_with_a_connection() -> None:
    node = SimpleNamespace(settings=SimpleNamespace(client_telemetry_topic=""), metadata=SimpleNamespace(revision=1))
    context = SimpleNamespace(api_version=3, connection=SimpleNamespace(software=("", "")))
    answers: list[Any] = []
    request = ApiVersionsRequest("n" * 30_000, "1" * 30_000)
    api_versions.handle(cast(Any, node), cast(Any, context), request, answers.append)
    assert answers[0].error_code == 0
    assert context.connection.software == ("n" * SOFTWARE_KEPT, "1" * SOFTWARE_KEPT)
