"""The last offset of each key, in a buffer of fixed size, for compaction.

::

    slot   │ hash of the key 16 │ offset + 1  8 │      open addressing, the next slot when one is taken

A key is its 16-byte BLAKE2b, so a slot has 24 bytes for every length of key. The hash is keyed with random bytes
of each pass: no client can construct two keys that collide, and by accident they never do (2⁻⁶⁴ for four thousand
million keys). ``put`` returns False at the maximum load, beyond which probing gets long; the caller then ends its pass.

Source: Apache Kafka's ``SkimpyOffsetMap`` has the same slots; the keyed hash is ours.
"""

import struct
from hashlib import blake2b
from typing import Final

SLOT_BYTES: Final = 24
HASH_BYTES: Final = 16

_unpack_hash = struct.Struct("<QQ").unpack


class KeyMap:
    """Last offsets of keys. ``buffer`` must be zeros; the map owns it, and its size decides the capacity."""

    __slots__ = ("_hasher", "_most", "_slots", "_words", "count")

    def __init__(self, buffer: bytearray | memoryview, load_factor: float, salt: bytes) -> None:
        self._slots = len(buffer) // SLOT_BYTES
        if self._slots < 2:  # one slot stays empty, otherwise the search for a missing key would not end
            raise ValueError(f"a buffer of {len(buffer)} bytes holds no key")
        self._words = memoryview(buffer)[: self._slots * SLOT_BYTES].cast("Q")
        self._most = max(1, min(self._slots - 1, int(self._slots * load_factor)))
        self._hasher = blake2b(digest_size=HASH_BYTES, key=salt)
        self.count = 0
        """Number of keys in the map."""

    @property
    def most(self) -> int:
        """Maximum number of keys."""
        return self._most

    def put(self, key: bytes | memoryview, offset: int) -> bool:
        """Store the offset of a key. Offsets must increase. False if there is no room for a new key."""
        hasher = self._hasher.copy()
        hasher.update(key)
        high, low = _unpack_hash(hasher.digest())
        words = self._words
        slots = self._slots
        slot = low % slots
        while True:
            at = 3 * slot
            if not words[at + 2]:
                if self.count >= self._most:
                    return False
                words[at] = high
                words[at + 1] = low
                self.count += 1
                break
            if words[at] == high and words[at + 1] == low:
                break
            slot = slot + 1 if slot + 1 < slots else 0
        words[at + 2] = offset + 1
        return True

    def get(self, key: bytes | memoryview) -> int:
        """The last offset of a key; -1 if it is missing."""
        hasher = self._hasher.copy()
        hasher.update(key)
        high, low = _unpack_hash(hasher.digest())
        words = self._words
        slots = self._slots
        slot = low % slots
        while True:
            at = 3 * slot
            found = words[at + 2]
            if not found or (words[at] == high and words[at + 1] == low):
                return found - 1
            slot = slot + 1 if slot + 1 < slots else 0

    def release(self) -> None:
        """Release the buffer."""
        self._words.release()
