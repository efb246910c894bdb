"""A chain of fragments against plain bytes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.iobuf import Arena, EndOfBuffer, IoBuf

ARENA = Arena.create(0, 4 << 20, poison=True)

pieces = st.lists(st.binary(max_size=40), max_size=12)


def chain_of(contents):
    buf = IoBuf()
    for at, piece in enumerate(contents):
        fragment = ARENA.allocate(len(piece) + at)
        fragment.view[at : at + len(piece)] = piece
        buf.append(fragment, at, at + len(piece))
    return buf, b"".join(contents)


@settings(max_examples=300)
@given(pieces, st.lists(st.tuples(st.sampled_from("sctv"), st.integers(0, 200), st.integers(0, 200)), max_size=25))
def test_a_chain_behaves_like_bytes(contents, steps):
    buf, model = chain_of(contents)
    shared = []
    for what, a, b in steps:
        if what == "s":
            if a + b <= len(model):
                shared.append((buf.share(a, b), model[a : a + b]))
            else:
                with pytest.raises(EndOfBuffer):
                    buf.share(a, b)
        elif what == "c":
            if a + b <= len(model):
                assert buf.copy(a, b) == model[a : a + b]
            else:
                with pytest.raises(EndOfBuffer):
                    buf.copy(a, b)
        elif what == "t" and a <= len(model):
            buf.trim_front(a)
            model = model[a:]
        elif what == "v":
            assert b"".join(buf.views()) == model
        assert len(buf) == len(model)
    buf.release()
    for chain, expected in shared:
        assert bytes(chain) == expected, "a shared chain lives on when the first one is gone"
        chain.release()
    assert ARENA.live_fragments == 0, ARENA.leaks()
