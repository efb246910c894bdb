"""The wire between brokers: frames, their messages, and the identity of the sender.

Without sockets, bytes in and messages out: ``frames`` (bounds and checksums), ``hello`` (who speaks), ``items`` (what a
turn says), ``beats`` (heartbeats in a few bytes), ``formation`` (how a cluster starts). On the reactor: ``receiving``,
``link`` (one connection), ``dial`` (keeps one), ``accepting`` (first frames), ``calls`` (requests), ``network`` (all of
a shard).

The room promises: bytes are used only after their bounds and their checksum were checked; record batches are sent
without a copy; an idle pair of brokers exchanges a few bytes, however many groups it shares; a slow or dead peer costs
a bounded queue. Absent: decisions about what to send (``core.raft``, ``cluster``), and Kafka's protocol.
"""

from millstream.peers.accepting import PeerListener
from millstream.peers.beats import BeatsIn, BeatsOut
from millstream.peers.formation import Formation
from millstream.peers.frames import check_body, check_head, decode_header
from millstream.peers.hello import decode_hello, decode_probe, decode_refusal
from millstream.peers.items import decode_items, encode_item
from millstream.peers.network import Inbound, Network

__all__ = [
    "BeatsIn",
    "BeatsOut",
    "Formation",
    "Inbound",
    "Network",
    "PeerListener",
    "check_body",
    "check_head",
    "decode_header",
    "decode_hello",
    "decode_items",
    "decode_probe",
    "decode_refusal",
    "encode_item",
]
