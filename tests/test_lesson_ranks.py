"""The ranks that lessons start: all of them take part, and what fails in one is told."""

import pytest
import torch

from grader.frontends.ranks import Ranks


def total(me, start):
    import torch.distributed as dist

    numbers = torch.full((2,), float(start + me.rank), device=me.device)
    dist.all_reduce(numbers)
    print("what is printed is no answer")
    return numbers.tolist()


def fails(me):
    if me.rank == 1:
        raise ValueError("no such thing")
    return 0


@pytest.mark.slow
def test_ranks_take_part_and_say_what_failed():
    ranks = Ranks(2, cuda=False)
    try:
        assert ranks(total, start=3) == [[7, 7], [7, 7]]
        with pytest.raises(RuntimeError, match="no such thing"):
            ranks(fails)
        assert all(process.poll() is not None for process in ranks.processes), "none is left"
        with pytest.raises(RuntimeError, match="a rank ended"):
            ranks(total, start=3)
    finally:
        ranks.end()
