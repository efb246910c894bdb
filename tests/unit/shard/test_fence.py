"""The memory fences of the rings work on this machine."""

from millstream.shard import fence


def test_both_fences_work_on_this_machine():
    fence.locked_instruction()
    fence.membarrier()


def test_the_lock_is_free_again_after_a_fence():
    for _ in range(3):
        fence.locked_instruction()
    assert fence._acquire(False)
    fence._release()
