"""What a user's module draws: dropout from the hashes that all of Graft draws from, anything else from a seeded
generator."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor
from torch.nn import functional

from graft.tensors.randomness import GOLDEN, MULTIPLIER_1, MULTIPLIER_2, Stream

Draw = Callable[[Tensor, float], Tensor]
DRAW: ContextVar[Draw | None] = ContextVar("draw", default=None)  # how a module that is running draws its dropout
WORD = 2**64 - 1

torch_dropout = functional.dropout


def draw_dropout(values: Tensor, rate: float) -> Tensor:
    """Returns values of any shape with dropout, as the module that is running draws it."""
    draw = DRAW.get()
    assert draw is not None
    return draw(values, rate)


def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Stands for `torch.nn.functional.dropout` while a module runs; elsewhere, as in another thread, it is that."""
    if not training or not 0 < p < 1 or DRAW.get() is None:
        return torch_dropout(input, p, training, inplace)
    dropped = draw_dropout(input, p)
    return input.copy_(dropped) if inplace else dropped


def stream_dropout(random: Stream, *, stacked: bool = False) -> Draw:
    """Returns dropout for tensors of one client, of any shape, or of all clients of a fleet."""

    def draw(values: Tensor, rate: float) -> Tensor:
        width = values.shape[-1] if values.dim() > 1 + stacked else 1
        return random.dropout(values.reshape(len(random.keys), -1, width), rate).view(values.shape)

    return draw


@contextmanager
def drawing(draw: Draw | None) -> Iterator[None]:
    """Draws the dropout of `nn.Dropout` and `functional.dropout` in this way; with None there is none to be drawn."""
    if draw is None:
        yield
        return
    token, before = DRAW.set(draw), functional.dropout
    functional.dropout = dropout
    try:
        yield
    finally:
        functional.dropout = before
        DRAW.reset(token)


def host_bits(random: Stream) -> int:
    """Draws what `random.bits(1)` draws for the first owner, in Python: on a CPU twenty times as fast."""
    random.draws += 1
    start = scramble_word(int(random.keys[0]) + random.draws)
    bits = scramble_word(start + GOLDEN)
    return bits - 2**64 if bits >> 63 else bits


def scramble_word(bits: int) -> int:
    """Returns what `scramble` makes of one number, as a plain integer of 64 bits."""
    bits &= WORD
    bits = ((bits ^ (bits >> 30)) * MULTIPLIER_1) & WORD
    bits = ((bits ^ (bits >> 27)) * MULTIPLIER_2) & WORD
    return bits ^ (bits >> 31)


def generators(device: torch.device) -> list[torch.Generator]:
    """Returns the generators of PyTorch that a module on a device may draw from."""
    on_gpu = [torch.cuda.default_generators[device.index or 0]] if device.type == "cuda" else []
    return [torch.default_generator, *on_gpu]


def generator_states(device: torch.device) -> list[Tensor]:
    """Returns where these generators are, to compare."""
    return [generator.get_state() for generator in generators(device)]


def have_moved(device: torch.device, before: list[Tensor]) -> bool:
    """Returns whether something was drawn from these generators since they were there."""
    return not all(map(torch.equal, before, generator_states(device)))


@contextmanager
def lent_generators(device: torch.device, seed: int) -> Iterator[None]:
    """Seeds PyTorch's generators for a module, and puts them back afterwards."""
    with kept_generators(device):
        for generator in generators(device):
            generator.manual_seed(seed)
        yield


@contextmanager
def kept_generators(device: torch.device) -> Iterator[None]:
    """Puts PyTorch's generators back to where they are now, whatever is drawn meanwhile."""
    before = generator_states(device)
    try:
        yield
    finally:
        for generator, state in zip(generators(device), before, strict=True):
            generator.set_state(state)
