"""Block-diagonal sparse matrices: the graphs, or the sparse features, of a whole fleet as one matrix.

Products never build a tensor of shape edges by width, forwards or backwards. On a CPU they run through
`embedding_bag`, which was measured 2 to 3 times as fast as the CSR product there; on a GPU through a kernel of our own,
or cuSPARSE where some rows are long.
"""

from __future__ import annotations

import warnings
import weakref
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from graft.tensors import kernels
from graft.tensors.autograd import apply_function


class BlockSparse:
    """One sparse block a client, all blocks of the same shape, in CSR form."""

    def __init__(
        self, starts: Tensor, columns: Tensor, values: Tensor | None, blocks: int, shape: tuple[int, int]
    ) -> None:
        self.starts = starts  # int32 [blocks * rows + 1]
        self.columns = columns  # int32 [entries], counted over the whole matrix
        self.values = values  # float32 [entries]; None means all ones
        self.blocks = blocks
        self.rows, self.width = shape  # of one block
        self.symmetric = False  # whether it is its own transpose
        self.binary = False  # whether its values are known to be 0 and 1 alone
        # No matrix may hold itself, not even through its transpose: its memory would wait for the garbage collector.
        self._transpose: BlockSparse | None = None
        self._transpose_of: weakref.ref[BlockSparse] | None = None
        self._pattern: BlockSparse | None = (
            None  # the matrix that caches what depends on the pattern alone, if not this
        )

    @property
    def entries(self) -> int:
        return self.columns.numel()

    def with_values(self, values: Tensor | None, transposed: Tensor | None = None) -> BlockSparse:
        """Returns the matrix of the same pattern with other values; the pattern must be symmetric, as graphs are, and
        so must the values be, unless those of the transpose are given too."""
        forward = self._same_pattern(values)
        forward.symmetric = transposed is None
        if transposed is not None:
            forward._pair_with(self._same_pattern(transposed))
        return forward

    def _same_pattern(self, values: Tensor | None) -> BlockSparse:
        other = BlockSparse(self.starts, self.columns, values, self.blocks, (self.rows, self.width))
        other._pattern = self._pattern or self
        return other

    def _pair_with(self, transpose: BlockSparse) -> None:
        self._transpose, transpose._transpose_of = transpose, weakref.ref(self)

    @cached_property
    def row_of(self) -> Tensor:
        """Returns the row of every entry."""
        return self._rows() if self._pattern is None else self._pattern.row_of

    def _rows(self) -> Tensor:
        counts = self.starts.diff()
        rows = torch.arange(len(counts), device=counts.device)
        return torch.repeat_interleave(rows, counts, output_size=self.entries)

    @cached_property
    def transpose_permutation(self) -> Tensor:
        """Returns the permutation of this matrix's entries that gives those of the transpose."""
        if self._pattern is not None:
            return self._pattern.transpose_permutation
        key = self.columns.long() * (self.blocks * self.rows) + self.row_of
        return torch.argsort(key)

    @property
    def transpose(self) -> BlockSparse:
        """Returns the transpose, block by block; kept, so that its transpose is this matrix."""
        if self.symmetric:
            return self
        transpose = (self._transpose_of and self._transpose_of()) or self._transpose
        if transpose is None:
            counts = torch.bincount(self.columns, minlength=self.blocks * self.width)
            starts = functional.pad(counts.cumsum(0), (1, 0)).to(torch.int32)
            # Entries come row by row, so a stable sort keeps them in order. What is sorted by is not kept: nothing else
            # needs it of features, and it would take twice their memory.
            order = torch.sort(self.columns, stable=True).indices
            columns = self._rows().to(torch.int32)[order]
            values = None if self.values is None else self.values[order]
            transpose = BlockSparse(starts, columns, values, self.blocks, (self.width, self.rows))
            self._pair_with(transpose)
        return transpose

    @cached_property
    def _csr(self) -> Tensor:
        values = torch.ones_like(self.columns, dtype=torch.float32) if self.values is None else self.values
        size = (self.blocks * self.rows, self.blocks * self.width)
        return csr(self.starts, self.columns, values, size)

    @cached_property
    def log_values(self) -> Tensor:
        """Returns the logarithms of the values: -inf for an entry of zero."""
        assert self.values is not None
        return self.values.log()

    @cached_property
    def stacked(self) -> BlockSparse:
        """Returns the matrix with its blocks on top of each other instead of along a diagonal."""
        return BlockSparse(
            self.starts, self.columns % self.width, self.values, 1, (self.blocks * self.rows, self.width)
        )

    def times(self, dense: Tensor) -> Tensor:
        """Returns the product with [blocks, width, d], without gradient."""
        if self.blocks > 1 and dense.stride(0) == 0:  # the same for every block: no need to write it out
            return self.stacked.times(dense[:1]).view(self.blocks, self.rows, -1)
        flat = dense.reshape(self.blocks * self.width, -1)
        if self.entries == 0:
            return flat.new_zeros(self.blocks, self.rows, flat.shape[1])
        if flat.device.type == "cpu":
            # For a tensor that requires a gradient it would save more than the product. 0 is the mode "sum".
            product = torch.embedding_bag(
                flat.detach(), self.columns, self.starts, False, 0, False, self.values, include_last_offset=True
            )[0]
        else:
            supported = flat.dtype == torch.float32 and self._has_short_rows
            by_kernel = kernels.product(self.starts, self.columns, self.values, flat) if supported else None
            product = self._csr @ flat if by_kernel is None else by_kernel
        return product.view(self.blocks, self.rows, -1)

    @cached_property
    def _has_short_rows(self) -> bool:
        """Returns whether no row is so long that several groups of threads should share it."""
        if self._pattern is not None:
            return self._pattern._has_short_rows
        return int(self.starts.diff().max()) <= kernels.LONGEST_ROW

    def dense(self) -> Tensor:
        """Returns the blocks as a dense tensor, [blocks, rows, width]."""
        full = torch.zeros(self.blocks * self.rows, self.width, device=self.columns.device)
        full[self.row_of, self.columns.long() % self.width] = 1.0 if self.values is None else self.values
        return full.view(self.blocks, self.rows, self.width)

    def __matmul__(self, dense: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            return self.times(dense)
        return apply_function(_Product, self, dense)

    @cached_property
    def _bounds(self) -> Tensor:
        """Returns the offsets of the blocks' entries, on the CPU."""
        if self._pattern is not None:
            return self._pattern._bounds
        return self.starts[:: self.rows].long().cpu()

    def entries_of(self, chosen: list[int]) -> Tensor | slice:
        """Returns the positions of the entries of some blocks, in the order given."""
        if contiguous(chosen):
            return slice(int(self._bounds[chosen[0]]), int(self._bounds[chosen[-1] + 1]))
        blocks = torch.tensor(chosen)
        start, stop = self._bounds[blocks], self._bounds[blocks + 1]
        ends = (stop - start).cumsum(0)
        positions = torch.arange(int(ends[-1]), device=self.columns.device)
        return positions + self._repeat_per_entry(stop - ends, blocks)

    def values_of(self, chosen: list[int]) -> Tensor | None:
        """Returns the values of some blocks, in the order given."""
        return None if self.values is None else self.values[self.entries_of(chosen)]

    def _repeat_per_entry(self, values: Tensor, blocks: Tensor) -> Tensor:
        """Returns values of blocks repeated for each of their entries; counts are on the CPU, so nothing waits for a
        device."""
        counts = self._bounds[blocks + 1] - self._bounds[blocks]
        device = self.columns.device
        return torch.repeat_interleave(values.to(device), counts.to(device), output_size=int(counts.sum()))

    def select(self, chosen: list[int]) -> BlockSparse:
        """Returns the matrix of some of the blocks, in the order given; a block may be taken more than once."""
        selected = self._select_blocks(chosen)
        selected.symmetric = self.symmetric
        if not self.symmetric:  # training will need it, and it is sorted once here instead of in every selection
            selected._pair_with(self.transpose._select_blocks(chosen))
        return selected

    def _select_blocks(self, chosen: list[int]) -> BlockSparse:
        entries = self.entries_of(chosen)
        if isinstance(entries, slice):  # contiguous: one shift for all of them, and values need no copy
            starts = self.starts[chosen[0] * self.rows : (chosen[-1] + 1) * self.rows + 1] - entries.start
            columns = self.columns[entries] - chosen[0] * self.width
        else:
            first, stop = (ends.view(self.blocks, self.rows)[chosen] for ends in (self.starts[:-1], self.starts[1:]))
            starts = functional.pad((stop - first).flatten().cumsum(0), (1, 0)).to(torch.int32)
            blocks = torch.tensor(chosen)
            shifts = ((torch.arange(len(chosen)) - blocks) * self.width).to(torch.int32)
            columns = self.columns[entries] + self._repeat_per_entry(shifts, blocks)
        values = None if self.values is None else self.values[entries]
        return BlockSparse(starts, columns, values, len(chosen), (self.rows, self.width))

    def select_rows(self, rows: Tensor, real: Tensor) -> BlockSparse:
        """Returns the matrix of some rows of every block, [blocks, some]; one that is padding has no entries."""
        first = torch.arange(self.blocks, device=rows.device)[:, None] * self.rows
        chosen = (rows + first).flatten()
        counts = self.starts.diff()[chosen] * real.flatten()
        ends = counts.cumsum(0)
        total = int(ends[-1])
        shifts = torch.repeat_interleave(self.starts[chosen] - (ends - counts), counts, output_size=total)
        entries = torch.arange(total, device=rows.device) + shifts
        values = None if self.values is None else self.values[entries]
        starts = functional.pad(ends, (1, 0)).to(torch.int32)
        return BlockSparse(starts, self.columns[entries], values, self.blocks, (rows.shape[1], self.width))

    def row_sums(self, values: Tensor) -> Tensor:
        """Returns the sum over each row of one value an entry, [blocks * rows]."""
        ones = values.new_ones(self.blocks, self.width, 1)
        return self.with_values(values).times(ones).flatten()


def contiguous(chosen: list[int]) -> bool:
    """Returns whether these are consecutive numbers."""
    return chosen == list(range(chosen[0], chosen[-1] + 1))


def stacked_product(dense: Tensor, weight: Tensor) -> Tensor:
    """Returns the batched product of dense matrices, `dense @ weight`, in the form that is fastest on the device."""
    _, inputs, outputs = weight.shape
    if _has_shared_product(dense, weight):
        return shared_product(dense[0], weight)
    if weight.is_cuda and dense.shape[1] >= MANY_NODES:
        return apply_function(_TallProduct, dense, weight)
    if weight.is_cuda or outputs >= 16 or inputs < 16:
        return dense @ weight
    if not torch.is_grad_enabled():
        # Of two sides that are both read transposed, some CPUs were seen to take fifteen times as long. Training still
        # does: the sums come out in another order, and runs should not change.
        return (weight.mT.contiguous() @ dense.mT).mT
    return apply_function(_TransposedProduct, dense, weight)


def shared_product(dense: Tensor, weight: Tensor) -> Tensor:
    """Returns the products of one dense matrix [nodes, inputs] with all clients' weights, on a CPU without gradient.

    They are one product of oneDNN; the library that PyTorch asks otherwise was seen to take twice as long on an AMD
    processor.
    """
    clients, inputs, outputs = weight.shape
    product: Tensor = functional.linear(dense.to_mkldnn(), weight.mT.reshape(-1, inputs)).to_dense()
    return product.view(-1, clients, outputs).transpose(0, 1)


def _has_shared_product(dense: Tensor, weight: Tensor) -> bool:
    """Returns whether all clients have the same dense matrix, and `shared_product` can multiply it."""
    same = dense.stride(0) == 0 and bool(dense.numel()) and bool(weight.numel())
    plain = weight.device.type == "cpu" and dense.dtype == weight.dtype == torch.float32
    return same and plain and not torch.is_grad_enabled() and torch.backends.mkldnn.is_available()


CHUNK_NODES = 256  # nodes that one product sums over, where a GPU is to run several at a time
MANY_NODES = 4096  # nodes of a client from which on that is worth it


def padded_size(nodes: int, device: torch.device) -> int:
    """Returns the number of nodes, padded so that they can be viewed as chunks without a copy."""
    return -(-nodes // CHUNK_NODES) * CHUNK_NODES if device.type == "cuda" and nodes >= MANY_NODES else nodes


class _TallProduct(torch.autograd.Function):
    """The gradient of few weights is a sum over many nodes, which GPUs were seen to leave to a few of their cores."""

    @staticmethod
    def forward(ctx: Any, dense: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(dense, weight)
        return dense @ weight

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        dense, weight = ctx.saved_tensors
        to_dense, to_weight = ctx.needs_input_grad
        return gradient @ weight.mT if to_dense else None, split_product(dense, gradient) if to_weight else None


def split_product(left: Tensor, right: Tensor) -> Tensor:
    """left^T right, [clients, a, b] from [clients, nodes, a] and [clients, nodes, b], chunk by chunk of the nodes."""
    whole = left.shape[1] // CHUNK_NODES * CHUNK_NODES
    first, second = (side[:, :whole].reshape(-1, CHUNK_NODES, side.shape[2]) for side in (left, right))
    summed = (first.mT @ second).view(len(left), -1, left.shape[2], right.shape[2]).sum(1)
    return summed if whole == left.shape[1] else summed + left[:, whole:].mT @ right[:, whole:]


class _TransposedProduct(torch.autograd.Function):
    """The product by transposes: CPUs were seen to be four times as fast at few rows as at few columns."""

    @staticmethod
    def forward(ctx: Any, dense: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(dense, weight)
        return (weight.mT @ dense.mT).mT

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        dense, weight = ctx.saved_tensors
        transposed = gradient.mT.contiguous()  # whatever its layout was, these are the same products
        to_dense, to_weight = ctx.needs_input_grad
        return transposed.mT @ weight.mT if to_dense else None, (transposed @ dense).mT if to_weight else None


def csr(starts: Tensor, columns: Tensor, values: Tensor, size: tuple[int, int]) -> Tensor:
    """Returns a `torch.sparse_csr_tensor` without warnings and checks: the patterns here are right by construction."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse")
        return torch.sparse_csr_tensor(starts, columns, values, size=size, check_invariants=False)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, matrix: BlockSparse, dense: Tensor) -> Tensor:
        ctx.matrix = matrix
        return matrix.times(dense)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor]:
        return None, ctx.matrix.transpose.times(gradient.contiguous())


def attention(pattern: BlockSparse, target: Tensor, source: Tensor, values: Tensor, slope: float) -> Tensor:
    """Returns the mean of each node's neighbours' values, weighted by softmax(leaky_relu(target + source)), whose
    exponentials are multiplied by the pattern's values.

    `target` and `source` are [blocks, rows], `values` [blocks, rows, d]; the pattern is symmetric, no value is
    negative, and every row has an entry that is not zero.
    """
    return apply_function(_Attention, pattern, target, source, values, slope)


class _Attention(torch.autograd.Function):
    """With a backward of its own: between forward and backward only one number an edge is saved.

    `alpha` are the attention weights, one an entry.
    """

    @staticmethod
    def forward(ctx: Any, pattern: BlockSparse, target: Tensor, source: Tensor, values: Tensor, slope: float) -> Tensor:
        ctx.pattern, ctx.slope = pattern, slope
        if kernels.supports_attention(values) and pattern._has_short_rows:
            target, source = target.contiguous(), source.contiguous()
            alpha = kernels.attention_weights(pattern.starts, pattern.columns, pattern.values, target, source, slope)
            ctx.save_for_backward(target, source, alpha, values)
            return pattern.with_values(alpha).times(values)
        rows, columns = pattern.row_of, pattern.columns
        # On a CPU `index_select` was measured four times as fast as an index in brackets.
        raw = target.flatten().index_select(0, rows) + source.flatten().index_select(0, columns)
        score = functional.leaky_relu(raw, slope)
        if pattern.values is not None and pattern.binary:  # an edge that a view masks gets no attention
            score = score.masked_fill(pattern.values == 0, -torch.inf)
        elif pattern.values is not None:  # w exp(e) is exp(e + log w); on a CPU log(0) is slow
            score += pattern.log_values
        row_max = torch.segment_reduce(score, "max", offsets=pattern.starts, unsafe=True)  # it trusts the offsets
        alpha = (score - row_max.index_select(0, rows)).exp_()
        alpha /= pattern.row_sums(alpha).index_select(0, rows)
        ctx.save_for_backward(raw, alpha, values)
        return pattern.with_values(alpha).times(values)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor, Tensor, Tensor, None]:
        pattern: BlockSparse = ctx.pattern
        gradient = gradient.contiguous()
        if len(ctx.saved_tensors) == 4:
            return attention_backward(pattern, ctx.saved_tensors, gradient, ctx.slope)
        raw, alpha, values = ctx.saved_tensors
        rows, columns = pattern.row_of, pattern.columns
        # The pattern is symmetric, so the transpose is the same pattern with its entries in another order.
        to_values = pattern.with_values(alpha.index_select(0, pattern.transpose_permutation)).times(gradient)
        width = pattern.blocks * pattern.rows
        sampled = torch.sparse.sampled_addmm(
            csr(pattern.starts, columns, torch.zeros_like(alpha), (width, width)),
            gradient.flatten(0, 1),
            values.reshape(width, -1).t(),
            beta=0.0,
        )
        to_alpha = sampled.values()
        to_raw = alpha * (to_alpha - pattern.row_sums(alpha * to_alpha).index_select(0, rows))
        to_raw = torch.ops.aten.leaky_relu_backward(to_raw, raw, ctx.slope, False)
        shape = gradient.shape[:2]
        to_target = pattern.row_sums(to_raw).view(shape)
        to_source = pattern.row_sums(to_raw.index_select(0, pattern.transpose_permutation)).view(shape)
        return None, to_target, to_source, to_values, None


def attention_backward(
    pattern: BlockSparse, saved: tuple[Tensor, ...], gradient: Tensor, slope: float
) -> tuple[None, Tensor, Tensor, Tensor, None]:
    """Returns the gradients of attention, by kernels of our own."""
    target, source, alpha, values = saved
    starts, columns, order = pattern.starts, pattern.columns, pattern.transpose_permutation
    flat, width = gradient.flatten(0, 1), gradient.shape[2]
    rows = values.reshape(-1, width)
    to_raw, to_target = kernels.attention_weights_backward(starts, columns, target, source, alpha, flat, rows, slope)
    # The pattern is symmetric, so the transpose is the same pattern with its entries in another order.
    to_values = kernels.product(starts, columns, alpha, flat, order)
    assert to_values is not None
    to_source = kernels.row_sums(starts, to_raw, order).view_as(source)
    return None, to_target, to_source, to_values.view_as(gradient), None
