"""Random numbers that depend on who draws them and when, never on who else is drawing.

Every draw is a hash of (run, round, client, step, number of the draw, position), so a client gets the same
numbers alone, in a fleet, in another process or after a restart; and there is no generator state to save.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from functools import cache
from typing import Any, Protocol

import torch
from torch import Tensor

from graft.tensors import kernels
from graft.tensors.autograd import apply_function

# The constants of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014), as signed 64-bit numbers.
GOLDEN = 0x9E3779B97F4A7C15 - 2**64
MULTIPLIER_1 = 0xBF58476D1CE4E5B9 - 2**64
MULTIPLIER_2 = 0x94D049BB133111EB - 2**64


MASKS_AHEAD = 4  # dropout masks that are drawn in one call, before they are needed
SMALL_MASK = 2**18  # elements; drawing up to so many costs calls, not arithmetic


class RowSelection(Protocol):
    """Some rows out of the nodes of every client."""

    nodes: Tensor  # int64 [clients, some]

    @property
    def total(self) -> int:
        """Returns how many rows each client has in all."""
        ...

    def gather(self, values: Tensor) -> Tensor:
        """Returns the values [clients, some, ...] of these rows."""
        ...


def seed_for(*parts: int | str) -> int:
    """Returns a 63-bit seed of its own for every combination of run, round, client, step or purpose."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def scramble(bits: Tensor) -> Tensor:
    """Returns 64-bit numbers scrambled so that neighbouring ones have nothing in common (SplitMix64's finaliser)."""
    # A shift copies the sign into the free bits, so the mask is what makes it a shift of plain bits.
    bits = (bits ^ (bits >> 30).bitwise_and_(2**34 - 1)).mul_(MULTIPLIER_1)
    bits.bitwise_xor_((bits >> 27).bitwise_and_(2**37 - 1)).mul_(MULTIPLIER_2)
    return bits.bitwise_xor_((bits >> 31).bitwise_and_(2**33 - 1))


def counters(count: int, device: torch.device) -> Tensor:
    """Returns the multiples 1 to `count` of the golden ratio, which positions are hashed from."""
    return counter_block(max(count - 1, 0).bit_length(), device)[:count]


@cache  # captured steps read them where they are, so they must never be freed
def counter_block(power: int, device: torch.device) -> Tensor:
    return torch.arange(1, 2**power + 1, device=device) * GOLDEN


class Stream:
    """Random draws for the clients of a fleet, one key a client."""

    def __init__(self, keys: Tensor) -> None:
        self.keys = keys
        self.draws = 0
        self._part_of: tuple[Stream, range] | None = None
        self._masks: dict[tuple[Any, ...], Tensor] = {}  # drawn ahead, or shared by the parts of a fleet
        self._ahead = 2  # how many are drawn at a time: most models have two layers
        self._most = MASKS_AHEAD  # how many may be

    def bits(self, count: int, positions: Tensor | None = None) -> Tensor:
        """Draws 64-bit numbers [clients, count], or only those at some positions [clients, some] of them."""
        self.draws += 1
        if positions is None and self.keys.is_cuda:
            drawn = kernels.draw_bits(self.keys, self.draws, count)
            if drawn is not None:
                return drawn
        start = scramble(self.keys + self.draws)
        counted = counters(count, self.keys.device) if positions is None else (positions + 1) * GOLDEN
        return scramble(counted + start[:, None])

    def select(self, owners: range) -> Stream:
        """Returns the stream of a contiguous range of the owners; it draws the same numbers for them."""
        part = Stream(self.keys[owners.start : owners.stop])
        part.draws, part._part_of = self.draws, (self, owners)
        return part

    def advance(self, draws: Sequence[int]) -> None:
        """Moves on as if every owner had drawn a number of times of its own."""
        if len(set(draws)) == 1:
            self.draws += draws[0]
            self._drop_past_masks()
        else:
            self.keys = self.keys + index_tensor(tuple(draws), self.keys.device)
            self._masks = {}
            self._most = self._ahead = max(draws)  # what is drawn further ahead than one pass is lost here

    def clear_masks(self) -> None:
        """Frees the masks that were drawn ahead; called when a step is over."""
        self._masks = {}

    def _drop_past_masks(self) -> None:
        self._masks = {draw: mask for draw, mask in self._masks.items() if draw[0] > self.draws}

    def keep(self, rate: float, rows: int, width: int) -> Tensor:
        """Draws True with probability 1 - rate for every client, row and column (in steps of 1/65536)."""
        draws, least = self._draws(rate, rows, width)
        return draws >= least

    def _draws(self, rate: float, rows: int, width: int, nodes: Tensor | None = None) -> tuple[Tensor, int]:
        """Draws integers, of all rows or of some nodes' alone; returns them with the least value that is kept."""
        size, least = keep_threshold(rate)
        words = -(-width * size // 64)
        dtype = torch.int8 if size == 8 else torch.int16
        count, positions = rows * words, None
        if nodes is not None:
            rows = nodes.shape[1]
            positions = (nodes.unsqueeze(2) * words + torch.arange(words, device=nodes.device)).flatten(1)
        return self.bits(count, positions).view(dtype).view(-1, rows, words * 64 // size)[:, :, :width], least

    def dropout(self, values: Tensor, rate: float, rows: RowSelection | None = None) -> Tensor:
        """Returns values [clients, rows, width] with dropout, scaled so that their mean stays.

        Values may be those of some rows alone; each is dropped as it would be among all.
        """
        if values.is_cuda and values.dtype == torch.float32:
            self.draws += 1
            return apply_function(_Dropout, values, self.keys, self.draws, rate, rows)
        return values * self._mask(values, rate, rows)

    def _mask(self, values: Tensor, rate: float, selection: RowSelection | None) -> Tensor:
        """Draws the dropout mask to multiply these values with."""
        whole, owners = self._part_of or (self, range(len(self.keys)))
        rows, width, dtype = values.shape[1] if selection is None else selection.total, values.shape[2], values.dtype
        if self.keys.is_cuda or len(whole.keys) * rows * width > SMALL_MASK:
            draws, least = self._draws(rate, rows, width, None if selection is None else selection.nodes)
            return dropout_mask(draws, least, rate, dtype)
        # A small mask costs calls, not arithmetic: one serves all parts of a fleet, and some are drawn ahead.
        self.draws += 1
        shape = rate, rows, width, dtype
        if (self.draws, *shape) not in whole._masks:
            whole._make_masks(self.draws, *shape)
        mask = whole._masks[self.draws, *shape][owners.start : owners.stop]
        if whole is self:  # no other part of the fleet will use it
            del self._masks[self.draws, *shape]
        return mask if selection is None else selection.gather(mask)

    def _make_masks(self, first: int, rate: float, rows: int, width: int, dtype: torch.dtype) -> None:
        """Draws this mask and the next few, in case they have the same shape."""
        if any(draw[0] == first for draw in self._masks):  # drawn ahead in vain: the shapes alternate
            self._ahead = 1
        draw_numbers = range(first, first + self._ahead)
        consecutive = Stream((self.keys + torch.tensor(draw_numbers)[:, None]).flatten() - 1)
        draws, least = consecutive._draws(rate, rows, width)
        masks = dropout_mask(draws, least, rate, dtype).view(self._ahead, len(self.keys), rows, width)
        self._drop_past_masks()
        self._masks |= {(number, rate, rows, width, dtype): masks[number - first] for number in draw_numbers}
        self._ahead = 1 if self._ahead == 1 else self._most

    def uniform(self, count: int) -> Tensor:
        """Draws numbers in [0, 1), [clients, count]."""
        return ((self.bits(count) >> 40) & (2**24 - 1)).float() / 2**24

    def normal(self, count: int) -> Tensor:
        """Draws from the standard normal distribution, [clients, count] (Box and Muller, 1958)."""
        radius = (-2 * (1 - self.uniform(count)).log()).sqrt()  # 1 - u is never 0
        return radius * (2 * math.pi * self.uniform(count)).cos()


def dropout_mask(draws: Tensor, least: int, rate: float, dtype: torch.dtype) -> Tensor:
    """Returns the factors 0 or 1 / (1 - rate); as numbers, since CPUs are slow at booleans."""
    return draws.float().ge_(least).to(dtype).mul_(1 / (1 - rate))


def keep_threshold(rate: float) -> tuple[int, int]:
    """Returns how many bits a draw has, and the least signed value of them that is kept."""
    # A 64-bit number holds eight draws of 8 bits, which is enough for rates such as 0.5, or four of 16 bits.
    size = 8 if (256 * rate).is_integer() else 16
    levels = 1 << size
    # A rate just below 1 must not round up to 1: the threshold would not fit.
    return size, min(round(rate * levels), levels - 1) - levels // 2


class _Dropout(torch.autograd.Function):
    """Dropout that saves nothing for the backward pass: the mask is drawn again there."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, keys: Tensor, draws: int, rate: float, rows: RowSelection | None) -> Tensor:
        ctx.how = keys, draws, rate, rows
        return dropout_forward(values, keys, draws, rate, rows)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None, None]:
        return dropout_forward(gradient, *ctx.how), None, None, None, None


def dropout_forward(values: Tensor, keys: Tensor, draws: int, rate: float, rows: RowSelection | None) -> Tensor:
    nodes = None if rows is None else rows.nodes
    output = kernels.dropout(keys, draws, values.contiguous(), nodes, *keep_threshold(rate), 1 / (1 - rate))
    if output is not None:
        return output
    stream = Stream(keys)
    stream.draws = draws - 1
    return values * stream._mask(values, rate, rows)


class SeedBuffer:
    """Seeds on the device that a captured round reads; they are written before every replay.

    Which seeds there are is known from the capture. The number of the round stands beside them.
    """

    def __init__(self, device: torch.device, capacity: int = 256) -> None:
        self._buffer = torch.zeros(capacity + 1, dtype=torch.int64, device=device)
        self.round, self.seeds = self._buffer[0], self._buffer[1:]
        self._host = torch.zeros(capacity + 1, dtype=torch.int64, pin_memory=True)
        self._copied = torch.cuda.Event()
        self._purposes: list[tuple[int | str, ...]] = []

    def reserve(self, run: int, *purpose: int | str) -> Tensor:
        """Returns the slot of one more seed: that of a run, of the round to be replayed, and of a purpose."""
        self._purposes.append((run, *purpose))
        return self.seeds[len(self._purposes) - 1]

    def write(self, round: int) -> None:
        """Sets all seeds, and the number of the round, for the next replay."""
        count = 1 + len(self._purposes)
        self._copied.synchronize()  # the copy of the round before reads the same host memory
        seeds = [seed_for(run, round, *purpose) for run, *purpose in self._purposes]
        self._host.numpy()[:count] = [round, *seeds]
        self._buffer[:count].copy_(self._host[:count], non_blocking=True)
        self._copied.record()


def streams(device: torch.device, seed: int | Tensor, owners: Sequence[int]) -> Stream:
    """Returns one stream for every owner's number, all from one seed."""
    if device.type != "cpu" and not isinstance(seed, Tensor):  # filled on the device: a copy would synchronise
        seed = torch.full((), seed, dtype=torch.int64, device=device)
    return Stream(scramble(index_tensor(tuple(owners), device) * GOLDEN + seed))


def index_tensor(values: tuple[int, ...], device: torch.device) -> Tensor:
    """Returns integers on a device; they are copied to a GPU once and cached, since a copy synchronises."""
    return torch.tensor(values) if device.type == "cpu" else cached_index_tensor(values, device)


@cache  # captured steps read them, too
def cached_index_tensor(values: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor(values, device=device)
