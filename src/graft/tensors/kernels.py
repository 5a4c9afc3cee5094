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
// as a row of the dense one needs add up an entry, and several entries are under way at once. Values may be those of
// another order: then `order` says where each is.
extern "C" __global__ void NAME(
    const int* starts, const int* columns, const float* values, const long long* order, const PART* dense, PART* out,
    int rows, int width)
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
            float value = entry < stop && values ? values[order ? order[entry] : entry] : 1.0f;
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

// Values times `scale`, or zero: an entry is kept where its 8 or 16 bits of a word are at least the threshold. A thread
// has four entries of a row, which never span two words. Rows may be some of those that are drawn for; then `nodes`
// says which.
extern "C" __global__ void dropped(
    const word* keys, const float* from, const long long* nodes, float* out, int draws, int rows, int width, int size,
    int least, double scale)
{
    unsigned fours = (width + 3) / 4, place = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned row = place / fours, column = place % fours * 4, words = (width * size + 63) / 64;
    if (row >= rows) return;
    long long owner = blockIdx.y, here = (owner * rows + row) * width + column;
    word node = nodes ? nodes[owner * rows + row] : row;
    word found = draw(keys[owner], draws, node * words + column * size / 64) >> column * size % 64;
    float kept[4];
    for (int next = 0; next < 4; next++, found >>= size) {
        int drawn = size == 8 ? (int)(signed char)found : (int)(short)found;
        kept[next] = drawn >= least ? (float)scale : 0.0f;
    }
    if (width % 4 == 0) {
        float4 four = *(const float4*)(from + here);
        // What is dropped is zero even where it was infinite.
        four.x = kept[0] ? four.x * kept[0] : 0;
        four.y = kept[1] ? four.y * kept[1] : 0;
        four.z = kept[2] ? four.z * kept[2] : 0;
        four.w = kept[3] ? four.w * kept[3] : 0;
        *(float4*)(out + here) = four;
    } else {
        for (int next = 0; next < 4 && column + next < width; next++)
            out[here + next] = kept[next] ? from[here + next] * kept[next] : 0;
    }
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

ATTENTION = r"""
__device__ float leaky(float value, float slope) { return value > 0 ? value : slope * value; }

__device__ float total(float value)
{
    for (int away = 16; away; away /= 2) value += __shfl_xor_sync(~0u, value, away);
    return value;
}

// How much every row takes of each of its entries: the softmax over them of leaky_relu(target + source). A warp has a
// row. An entry whose `kept` is zero gets nothing.
extern "C" __global__ void shares(
    const int* starts, const int* columns, const float* kept, const float* target, const float* source, float* out,
    int rows, double slope)
{
    long long row = (long long)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    if (row >= rows) return;
    int first = starts[row] + threadIdx.x % 32, stop = starts[row + 1];
    float mine = target[row], most = -3.4e38f, sum = 0;
    for (int entry = first; entry < stop; entry += 32) {
        float score = leaky(mine + source[columns[entry]], slope);
        if (!kept || kept[entry] != 0) most = fmaxf(most, score);
        out[entry] = score;
    }
    for (int away = 16; away; away /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, away));
    for (int entry = first; entry < stop; entry += 32) {
        float part = !kept || kept[entry] != 0 ? expf(out[entry] - most) : 0;
        out[entry] = part;
        sum += part;
    }
    sum = total(sum);
    for (int entry = first; entry < stop; entry += 32) out[entry] /= sum;
}

// The way back: from the gradient of the rows, [rows, width], to that of every entry's target + source, and of targets.
extern "C" __global__ void shares_back(
    const int* starts, const int* columns, const float* target, const float* source, const float* share,
    const PART* gradient, const PART* values, float* out, float* to_target, int rows, int width, double slope)
{
    long long row = (long long)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    if (row >= rows) return;
    int lane = threadIdx.x % 32, first = starts[row] + lane, stop = starts[row + 1];
    float mine = target[row], mean = 0, sum = 0;
    for (int entry = first; entry < stop; entry += 32) {
        const PART *left = gradient + row * width, *right = values + (long long)columns[entry] * width;
        float found = 0;
        for (int place = 0; place < width; place++) {
            PART one = left[place], other = right[place];
            DOT
        }
        out[entry] = found;
        mean += share[entry] * found;
    }
    mean = total(mean);
    for (int entry = first; entry < stop; entry += 32) {
        float found = share[entry] * (out[entry] - mean);
        found *= mine + source[columns[entry]] > 0 ? 1 : (float)slope;
        out[entry] = found;
        sum += found;
    }
    sum = total(sum);
    if (lane == 0) to_target[row] = sum;
}

// Sums of one value an entry over each row; values may be in another order, as above.
extern "C" __global__ void sums(const int* starts, const float* values, const long long* order, float* out, int rows)
{
    long long row = (long long)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    if (row >= rows) return;
    float sum = 0;
    for (int entry = starts[row] + threadIdx.x % 32; entry < starts[row + 1]; entry += 32)
        sum += values[order ? order[entry] : entry];
    sum = total(sum);
    if (threadIdx.x % 32 == 0) out[row] = sum;
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


def product(
    starts: Tensor, columns: Tensor, values: Tensor | None, dense: Tensor, order: Tensor | None = None
) -> Tensor | None:
    """A sparse matrix without long rows times a dense one; nothing where there is no such kernel.

    The value of entry e is values[order[e]], where there is an order.
    """
    rows, width = len(starts) - 1, dense.shape[1]
    dense = dense.contiguous()
    per = vector_lanes(width, dense)
    lanes = min(32, 1 << (width // per - 1).bit_length())
    run = row_product(lanes, per)
    if run is None:
        return None
    out = dense.new_empty(rows, width)
    arguments = [starts, columns, or_null(values, dense), or_null(order, starts), dense, out, rows, width // per]
    run(warps(rows), (BLOCK, 1, 1), arguments)
    return out


def vector_lanes(width: int, *tensors: Tensor) -> int:
    """How many columns a thread can read at once."""
    return 4 if width % 4 == 0 and all(one.data_ptr() % 16 == 0 for one in tensors) else 1


def warps(rows: int) -> tuple[int, int, int]:
    """A grid with a warp for every row."""
    return -(-rows * 32 // BLOCK), 1, 1


def or_null(values: Tensor | None, like: Tensor) -> Tensor:
    """An argument that a kernel sees as null where there is none."""
    return like.new_empty(0) if values is None else values.contiguous()


def supports_attention(values: Tensor) -> bool:
    """Whether `shares`, `shares_back` and `sums` can be had for such values."""
    return values.is_cuda and values.dtype == torch.float32 and attention_kernel("sums") is not None


@cache
def attention_kernel(name: str, per: int = 1) -> Any:
    kind, axes = PARTS[per]
    dot = " ".join(f"found += one{axis} * other{axis};" for axis in axes)
    return kernel(ATTENTION.replace("PART", kind).replace("DOT", dot), name)


def attention_weights(
    starts: Tensor, columns: Tensor, kept: Tensor | None, target: Tensor, source: Tensor, slope: float
) -> Tensor:
    """How much every row takes of each of its entries, flat; `target` and `source` are one number a row."""
    out, rows = target.new_empty(len(columns)), len(starts) - 1
    arguments = [starts, columns, or_null(kept, out), target, source, out, rows, slope]
    attention_kernel("shares")(warps(rows), (BLOCK, 1, 1), arguments)
    return out


def attention_weights_backward(
    starts: Tensor,
    columns: Tensor,
    target: Tensor,
    source: Tensor,
    share: Tensor,
    gradient: Tensor,
    values: Tensor,
    slope: float,
) -> tuple[Tensor, Tensor]:
    """From the gradient of what rows took, [rows, width], to those of each entry's target + source, and of targets."""
    rows, width = gradient.shape
    per = vector_lanes(width, gradient, values)
    out, to_target = torch.empty_like(share), torch.empty_like(target)
    arguments = [starts, columns, target, source, share, gradient, values, out, to_target, rows, width // per, slope]
    attention_kernel("shares_back", per)(warps(rows), (BLOCK, 1, 1), arguments)
    return out, to_target


def sums(starts: Tensor, values: Tensor, order: Tensor) -> Tensor:
    """Sums of one value an entry over each row, where the value of entry e is values[order[e]]."""
    rows = len(starts) - 1
    out = values.new_empty(rows)
    attention_kernel("sums")(warps(rows), (BLOCK, 1, 1), [starts, values, order, out, rows])
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


def dropout(
    keys: Tensor, draws: int, values: Tensor, nodes: Tensor | None, size: int, least: int, scale: float
) -> Tensor | None:
    """Values [owners, rows, width] times `scale` where `Stream.keep` says so, zero elsewhere; rows are all, or these
    nodes, [owners, rows]."""
    run = kernel(DRAWS, "dropped")
    if run is None or values.numel() == 0:
        return None
    owners, rows, width = values.shape
    out = torch.empty_like(values)
    if values.data_ptr() % 16:  # four of them are read at a time
        values = values.clone()
    grid = -(-rows * -(-width // 4) // BLOCK), owners, 1
    run(grid, (BLOCK, 1, 1), [keys, values, or_null(nodes, keys), out, draws, rows, width, size, least, scale])
    return out


def supports_adam(leaves: Iterable[Tensor]) -> bool:
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
