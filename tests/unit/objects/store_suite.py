"""The behaviour that every object store has: a class of tests that each store's test file inherits with its fixture."""

from __future__ import annotations

import threading

import pytest

from millstream.errors import Rejected
from millstream.model.quantities import FilePosition
from millstream.objects.errors import Conflict, NotFound, ShortRead
from millstream.objects.store import ABSENT, ObjectKey, ObjectStore, Version

KEY = ObjectKey("topics/a/0/00000000000000000000.log")
ZERO = FilePosition(0)


def read(store: ObjectStore, key: ObjectKey) -> bytes:
    info = store.head(key)
    assert info is not None
    return bytes(store.get(key, ZERO, FilePosition(info.size_bytes)))


def keys(store: ObjectStore, folder: str = "", after: str = "") -> list[str]:
    return [info.key for info in store.list(folder, after)]


def race(store: ObjectStore, version: Version, turn: int) -> tuple[list[tuple[bytes, Version]], int]:
    """Eight writers expect the same version. Returns what the winners wrote, and the number of losers."""
    won: list[tuple[bytes, Version]] = []
    lost: list[Conflict] = []
    start = threading.Barrier(8)

    def write(number: int) -> None:
        data = f"writer {number} in turn {turn}".encode()
        start.wait(60)
        try:
            won.append((data, store.put(KEY, [data], version)))
        except Conflict as error:
            lost.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    return won, len(lost)


class StoreSuite:
    """A subclass has a fixture ``store``: an empty store."""

    def test_what_was_put_is_read_back_whole_and_in_ranges(self, store: ObjectStore) -> None:
        data = bytes(range(256)) * 300
        store.put(KEY, [memoryview(data)[:1000], data[1000:], b""])
        assert read(store, KEY) == data
        for start, end in ((0, 1), (255, 257), (999, 1001), (len(data) - 1, len(data))):
            assert store.get(KEY, FilePosition(start), FilePosition(end)) == data[start:end]

    def test_head_says_size_and_version_and_time(self, store: ObjectStore) -> None:
        version = store.put(KEY, [b"12345"])
        info = store.head(KEY)
        assert info is not None
        assert (info.key, info.size_bytes, info.version) == (KEY, 5, version)
        assert version != ABSENT
        assert [listed.size_bytes for listed in store.list("topics/")] == [5]

    def test_a_put_replaces_the_whole_object(self, store: ObjectStore) -> None:
        first = store.put(KEY, [b"a longer content"])
        second = store.put(KEY, [b"short"])
        assert first != second
        assert read(store, KEY) == b"short"

    def test_an_object_may_be_empty(self, store: ObjectStore) -> None:
        store.put(KEY, [])
        info = store.head(KEY)
        assert info is not None
        assert info.size_bytes == 0

    def test_a_missing_object(self, store: ObjectStore) -> None:
        assert store.head(KEY) is None
        assert keys(store) == []
        with pytest.raises(NotFound, match="topics/a/0"):
            store.get(KEY, ZERO, FilePosition(1))

    @pytest.mark.parametrize("start,end", [(0, 6), (5, 6), (7, 9)])
    def test_a_range_beyond_the_end_is_a_short_read(self, store: ObjectStore, start: int, end: int) -> None:
        store.put(KEY, [b"12345"])
        with pytest.raises(ShortRead):
            store.get(KEY, FilePosition(start), FilePosition(end))

    @pytest.mark.parametrize("start,end", [(-1, 1), (2, 2), (3, 2)])
    def test_an_empty_or_negative_range_is_refused(self, store: ObjectStore, start: int, end: int) -> None:
        store.put(KEY, [b"12345"])
        with pytest.raises(Rejected, match="range"):
            store.get(KEY, FilePosition(start), FilePosition(end))

    def test_a_put_that_expects_no_object(self, store: ObjectStore) -> None:
        store.put(KEY, [b"first"], ABSENT)
        with pytest.raises(Conflict):
            store.put(KEY, [b"second"], ABSENT)
        assert read(store, KEY) == b"first"
        store.delete([KEY])
        store.put(KEY, [b"third"], ABSENT)
        assert read(store, KEY) == b"third"

    def test_a_put_that_expects_a_version(self, store: ObjectStore) -> None:
        first = store.put(KEY, [b"first"])
        second = store.put(KEY, [b"second"], first)
        with pytest.raises(Conflict):
            store.put(KEY, [b"late"], first)
        assert read(store, KEY) == b"second"
        store.delete([KEY])
        with pytest.raises(Conflict):
            store.put(KEY, [b"gone"], second)
        assert store.head(KEY) is None

    def test_one_of_many_writers_wins(self, store: ObjectStore) -> None:
        """The race that fences: the same expectation from eight threads, twice over."""
        version = ABSENT
        for turn in range(2):
            won, lost_count = race(store, version, turn)
            assert (len(won), lost_count) == (1, 7)
            data, version = won[0]
            assert read(store, KEY) == data

    def test_listing_is_by_folder_and_in_key_order(self, store: ObjectStore) -> None:
        names = ["b/2", "b/10", "b/c/1", "b-/1", "a/1", "bb/1", "b.d/1", "c"]
        for name in names:
            store.put(ObjectKey(name), [name.encode()])
        assert keys(store) == sorted(names)
        assert keys(store, "b/") == ["b/10", "b/2", "b/c/1"]
        assert keys(store, "b/c/") == ["b/c/1"]
        assert keys(store, "d/") == []
        assert keys(store, "", "b/10") == [name for name in sorted(names) if name > "b/10"]
        assert keys(store, "b/", "b/2") == ["b/c/1"]
        with pytest.raises(Rejected, match="slash"):
            keys(store, "b")

    def test_removal_is_repeatable(self, store: ObjectStore) -> None:
        for name in ("x/1", "x/2", "y/z/1"):
            store.put(ObjectKey(name), [b"."])
        store.delete([ObjectKey("x/1"), ObjectKey("y/z/1"), ObjectKey("never/was")])
        store.delete([ObjectKey("x/1")])
        store.delete([])
        assert keys(store) == ["x/2"]

    def test_a_stream_becomes_one_object(self, store: ObjectStore) -> None:
        parts = [bytes([number]) * (3 << 20) for number in range(6)]
        version = store.put_stream(KEY, iter(parts))
        info = store.head(KEY)
        assert info is not None
        assert (info.size_bytes, info.version) == (18 << 20, version)
        edge = 3 << 20
        assert store.get(KEY, FilePosition(edge - 1), FilePosition(edge + 1)) == b"\x00\x01"

    def test_a_stream_that_fails_changes_nothing(self, store: ObjectStore) -> None:
        store.put(KEY, [b"before"])

        def parts():
            yield b"x" * (9 << 20)
            raise RuntimeError("the source broke")

        with pytest.raises(RuntimeError, match="the source broke"):
            store.put_stream(KEY, parts())
        assert read(store, KEY) == b"before"
        assert keys(store) == [KEY]

    @pytest.mark.parametrize(
        "key",
        ["", "/a", "a/", "a//b", "../a", "a/../b", ".hidden", "a/.b", "a\0b", "a\nb", "a\\b", "x" * 201, "k/" * 460],
    )
    def test_a_key_against_the_rules_is_refused(self, store: ObjectStore, key: str) -> None:
        for call in (
            lambda: store.put(ObjectKey(key), [b""]),
            lambda: store.put_stream(ObjectKey(key), [b""]),
            lambda: store.get(ObjectKey(key), ZERO, FilePosition(1)),
            lambda: store.head(ObjectKey(key)),
            lambda: store.delete([ObjectKey(key)]),
        ):
            with pytest.raises(Rejected, match="object key"):
                call()

    @pytest.mark.parametrize("key", ["größe/ключ", "a b/c=d+e%20f", "p/00000000000000000000.log", "x" * 200])
    def test_unusual_keys_are_kept_as_they_are(self, store: ObjectStore, key: str) -> None:
        store.put(ObjectKey(key), [b"data"])
        assert keys(store) == [key]
        assert read(store, ObjectKey(key)) == b"data"
        store.delete([ObjectKey(key)])
        assert keys(store) == []
