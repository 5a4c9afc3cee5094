"""A few CUDA kernels of our own, for what a round does most and PyTorch does in many launches.

They are compiled when they are first needed, by the compiler that comes with PyTorch; where there is none, callers do
the same with PyTorch's own operations.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from functools import cache
from typing import Any

import torch
from torch import Tensor

PRODUCT = r"""
// Rows of a sparse matrix times a dense one. A warp has a row and looks up 32 entries of it at a time; so many threads
// as a row of the dense one needs add up an entry, and several entries are under way at once.
extern "C" __global__ void NAME(
    const int* starts, const int* columns, const float* values, const PART* dense, PART* out, int rows, int width)
{
    int lane = threadIdx.x % 32, group = lane / LANES;
    long long row = (long long)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    if (row >= rows) return;
    int first = starts[row], stop = starts[row + 1];
    for (int left = 0; left < width; left += LANES) {
        int place = left + lane % LANES;
        PART sum = {};
        for (int begin = first; begin < stop; begin += 32) {
            int entry = begin + lane, count = min(32, stop - begin);
            int column = entry < stop ? columns[entry] : 0;
            float value = entry < stop && values ? values[entry] : 1.0f;
            #pragma unroll 8  // a fixed number of times, so that several loads are under way together
            for (int next = 0; next < 32; next += 32 / LANES) {
                int from = next + group;
                int node = __shfl_sync(~0u, column, from);
                float share = __shfl_sync(~0u, value, from);
                if (from < count && place < width) {
                    PART found = dense[(long long)node * width + place];
                    ADD
                }
            }
        }
        for (int away = 16; away >= LANES; away /= 2) { MERGE }
        if (group == 0 && place < width) out[row * width + place] = sum;
    }
}
"""
PARTS = {1: ("float", [""]), 4: ("float4", [".x", ".y", ".z", ".w"])}  # by how many columns a thread holds

DRAWS = r"""
typedef unsigned long long word;

__device__ word mix(word bits)
{
    bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9ull;
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EBull;
    return bits ^ (bits >> 31);
}

__device__ word draw(word key, int draws, word place)
{
    return mix((place + 1) * 0x9E3779B97F4A7C15ull + mix(key + draws));
}

// Fresh 64-bit numbers, one row an owner.
extern "C" __global__ void bits(const word* keys, word* out, int draws, int count)
{
    int place = blockIdx.x * blockDim.x + threadIdx.x;
    if (place < count) out[(long long)blockIdx.y * count + place] = draw(keys[blockIdx.y], draws, place);
}

// Values times `scale`, or zero: an entry is kept where its 8 or 16 bits of a word are at least the threshold. Rows may
// be some of those that are drawn for: then `nodes` says which.
extern "C" __global__ void dropped(
    const word* keys, const float* from, const long long* nodes, float* out, int draws, int rows, int width, int size,
    int least, double scale)
{
    long long entry = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (entry >= (long long)rows * width) return;
    int column = entry % width, each = 64 / size, words = (width + each - 1) / each;
    long long row = entry / width;
    if (nodes) row = nodes[(long long)blockIdx.y * rows + row];
    word found = draw(keys[blockIdx.y], draws, row * words + column / each) >> (column % each) * size;
    int drawn = size == 8 ? (int)(signed char)found : (int)(short)found;
    long long place = (long long)blockIdx.y * rows * width + entry;
    out[place] = drawn >= least ? from[place] * (float)scale : 0.0f;
}
"""

ADAM = r"""
// One step of Adam with L2 weight decay; every client has taken a number of steps of its own, this one included.
extern "C" __global__ void adam(
    float* weights, const float* gradients, float* first, float* second, const float* steps, int size,
    double rate, double decay)
{
    __shared__ float one, two;
    if (threadIdx.x == 0) {
        double taken = steps[blockIdx.y];
        one = 1 - pow(0.9, taken);
        two = sqrt(1 - pow(0.999, taken));
    }
    __syncthreads();
    int place = blockIdx.x * blockDim.x + threadIdx.x;
    if (place >= size) return;
    long long entry = (long long)blockIdx.y * size + place;
    float weight = weights[entry], gradient = gradients[entry] + (float)decay * weight;
    float mean = 0.9f * first[entry] + 0.1f * gradient;
    float square = 0.999f * second[entry] + 0.001f * gradient * gradient;
    first[entry] = mean;
    second[entry] = square;
    weights[entry] = weight - (float)rate / one * mean / (sqrtf(square) / two + 1e-8f);
}
"""

BLOCK = 256  # threads of a block
SHORT = 1024  # the most entries of a row that one warp should go through


@cache
def kernel(source: str, name: str) -> Any:
    """A compiled kernel, or nothing where it cannot be had."""
    try:
        return torch.cuda._compile_kernel(source, name)
    except (AttributeError, OSError, RuntimeError) as error:
        warnings.warn(f"Graft's own CUDA kernels are not used: {error}", RuntimeWarning, stacklevel=2)
        return None


def product(starts: Tensor, columns: Tensor, values: Tensor | None, dense: Tensor) -> Tensor | None:
    """A sparse matrix without long rows times a dense one; nothing where there is no such kernel."""
    rows, width = len(starts) - 1, dense.shape[1]
    dense = dense.contiguous()
    per = 4 if width % 4 == 0 and dense.data_ptr() % 16 == 0 else 1
    lanes = min(32, 1 << (width // per - 1).bit_length())
    run = row_product(lanes, per)
    if run is None:
        return None
    out = dense.new_empty(rows, width)
    every = dense.new_empty(0) if values is None else values
    grid = -(-rows * 32 // BLOCK), 1, 1
    run(grid, (BLOCK, 1, 1), [starts, columns, every, dense, out, rows, width // per])
    return out


@cache
def row_product(lanes: int, per: int) -> Any:
    kind, axes = PARTS[per]
    name = f"product_{lanes}_{per}"
    add = " ".join(f"sum{axis} += share * found{axis};" for axis in axes)
    merge = " ".join(f"sum{axis} += __shfl_down_sync(~0u, sum{axis}, away);" for axis in axes)
    source = PRODUCT
    for word, meaning in (("NAME", name), ("LANES", str(lanes)), ("PART", kind), ("ADD", add), ("MERGE", merge)):
        source = source.replace(word, meaning)
    return kernel(source, name)


def draw_bits(keys: Tensor, draws: int, count: int) -> Tensor | None:
    """What `Stream.bits` gives."""
    run = kernel(DRAWS, "bits")
    if run is None or count == 0:
        return None
    out = torch.empty(len(keys), count, dtype=torch.int64, device=keys.device)
    run((-(-count // BLOCK), len(keys), 1), (BLOCK, 1, 1), [keys, out, draws, count])
    return out


def drop(
    keys: Tensor, draws: int, values: Tensor, nodes: Tensor | None, size: int, least: int, scale: float
) -> Tensor | None:
    """Values [owners, rows, width] times `scale` where `Stream.keep` says so, zero elsewhere; rows are all, or these
    nodes, [owners, rows]."""
    run = kernel(DRAWS, "dropped")
    if run is None or values.numel() == 0:
        return None
    owners, rows, width = values.shape
    out = torch.empty_like(values)
    grid = -(-rows * width // BLOCK), owners, 1
    every = keys.new_empty(0) if nodes is None else nodes.contiguous()
    run(grid, (BLOCK, 1, 1), [keys, values, every, out, draws, rows, width, size, least, scale])
    return out


def steps_adam(leaves: Iterable[Tensor]) -> bool:
    """Whether `adam` can take the steps of all these leaves."""
    return all(leaf.is_cuda and leaf.dtype == torch.float32 for leaf in leaves) and kernel(ADAM, "adam") is not None


def adam(
    rate: float, decay: float, steps: Tensor, weights: Tensor, gradients: Tensor, first: Tensor, second: Tensor
) -> None:
    """One step of Adam in place, for stacked weights."""
    size = weights.numel() // len(weights)
    grid = -(-size // BLOCK), len(weights), 1
    arguments = [weights, gradients, first, second, steps, size, rate, decay]
    kernel(ADAM, "adam")(grid, (BLOCK, 1, 1), arguments)
