"""The arena against a model: fragments never overlap, bytes stay what their holder wrote, everything comes back."""

from itertools import pairwise

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from millstream.iobuf import Arena, ArenaFull
from millstream.iobuf.sizes import BLOCK_BYTES, SLAB_BYTES, next_allocation_size

SLABS = 18


class ArenaAgainstModel(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.arena = Arena.create(0, SLABS * SLAB_BYTES, poison=True)
        self.held = []  # (fragment, stamp, references)
        self.stamp = 0

    @rule(size=st.one_of(st.integers(0, 3000), st.integers(0, 131072)))
    def allocate_one(self, size):
        self.allocate(size)

    def allocate(self, size):
        try:
            fragment = self.arena.allocate(size)
        except ArenaFull:
            assert self.free_slabs() == 0, "refused although a whole slab was free"
            return
        assert fragment.capacity == next_allocation_size(size)
        self.hold(fragment)

    def hold(self, fragment):
        self.stamp = self.stamp % 200 + 1
        fragment.view[:] = bytes([self.stamp]) * fragment.capacity
        self.held.append([fragment, self.stamp, 1])

    @rule(count=st.sampled_from((1, 1, 2, 64)))
    def allocate_blocks(self, count):
        for _ in range(count):
            fragment = self.arena.allocate_block()
            if fragment is not None:
                assert fragment.capacity == BLOCK_BYTES
                self.hold(fragment)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def share(self, data):
        entry = data.draw(st.sampled_from(self.held))
        entry[0].share()
        entry[2] += 1

    @precondition(lambda self: self.held)
    @rule(data=st.data(), count=st.integers(1, 40))
    def release(self, data, count):
        for _ in range(min(count, len(self.held))):
            entry = self.held[data.draw(st.integers(0, len(self.held) - 1))]
            fragment, stamp, _ = entry
            assert bytes(fragment.view) == bytes([stamp]) * fragment.capacity, "somebody else wrote here"
            fragment.release()
            entry[2] -= 1
            if entry[2] == 0:
                self.held.remove(entry)

    @rule(size=st.sampled_from((512, 768, 29525, 66432, 131072, 131072)), count=st.integers(1, 16))
    def allocate_several(self, size, count):
        for _ in range(count):
            self.allocate(size)

    @rule()
    def release_all(self):
        for fragment, _, references in self.held:
            for _ in range(references):
                fragment.release()
        self.held.clear()

    def free_slabs(self):
        return SLABS - len(
            {
                (fragment.offset + at) // SLAB_BYTES
                for fragment, _, _ in self.held
                for at in range(0, fragment.capacity, SLAB_BYTES)
            }
        )

    @invariant()
    def live_fragments_do_not_overlap(self):
        ranges = sorted((fragment.offset, fragment.offset + fragment.capacity) for fragment, _, _ in self.held)
        for (_, end), (begin, _) in pairwise(ranges):
            assert end <= begin

    @invariant()
    def accounting_is_exact(self):
        assert self.arena.live_fragments == len(self.held)
        assert self.arena.in_use_bytes == sum(fragment.capacity for fragment, _, _ in self.held)

    def teardown(self):
        for fragment, _, references in self.held:
            for _ in range(references):
                fragment.release()
        assert self.arena.live_fragments == 0
        assert len([self.arena.allocate(SLAB_BYTES) for _ in range(SLABS)]) == SLABS, "all memory can be had again"


TestArenaAgainstModel = ArenaAgainstModel.TestCase
TestArenaAgainstModel.settings = settings(max_examples=100, stateful_step_count=50)
