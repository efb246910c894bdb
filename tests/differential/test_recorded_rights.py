"""Rights of Millstream against what StandardAuthorizer of Apache Kafka answered (``recorded/rights``), without it."""

import json

import pytest

from differential.rights import RECORDED, about_rights, ours, scenarios

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]


@pytest.mark.slow
def test_each_missing_right_is_answered_as_by_apache_kafka():
    recorded = json.loads(RECORDED.read_text())
    assert len(recorded) > 900
    with ours() as broker:
        played = {one.id: broker.play(one) for one in scenarios(broker.versions) if one.id in recorded}
    different = {
        name: (recorded[name], found)
        for name, found in played.items()
        if about_rights(recorded[name]) != about_rights(found)
    }
    assert not different
    assert len(played) > 0.9 * len(recorded)
