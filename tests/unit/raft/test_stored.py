"""The bytes of control entries in a log, and of what they fold into."""

import pytest

from millstream.core.raft.messages import Configuration, LogStart, Opaque, TermStart
from millstream.errors import Corruption
from millstream.model.replication import ReplicaId
from millstream.raft.stored import Folded, decode_control, decode_folded, encode_control, encode_folded

MEMBERS = Configuration((ReplicaId(1), ReplicaId(2)), (ReplicaId(3),), (ReplicaId(4),))

GOLDEN = {
    "": TermStart(),
    "84a47479706501a6766f74657273920102a86f7574676f696e679103a86c6561726e6572739104": MEMBERS,
    "82a47479706502a66f66667365742a": LogStart(42),
    "83a47479706503a46b696e6407a77061796c6f6164c4026869": Opaque(7, b"hi"),
}


@pytest.mark.parametrize("golden", GOLDEN)
def test_control_entries_have_these_bytes(golden: str) -> None:
    assert encode_control(GOLDEN[golden]).hex() == golden
    assert decode_control(bytes.fromhex(golden)) == GOLDEN[golden]


def test_what_they_fold_into_has_these_bytes() -> None:
    golden = (
        "81ad636f6e66696775726174696f6e84a47479706501a6766f74657273920102a86f7574676f696e679103a86c6561726e6572739104"
    )
    assert encode_folded(Folded(MEMBERS)).hex() == golden
    assert decode_folded(bytes.fromhex(golden)) == Folded(MEMBERS)


@pytest.mark.parametrize("data", [b"\x00", b"\x81\xa4type\x63", b"\x81\xa4type\x02", b"hello"])
def test_other_bytes_are_corruption(data: bytes) -> None:
    with pytest.raises(Corruption):
        decode_control(data)
    with pytest.raises(Corruption):
        decode_folded(data)
