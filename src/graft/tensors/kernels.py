"""CUDA kernels of our own, for what a round does most and PyTorch does in many launches.

They are compiled when they are first needed, by the compiler that comes with PyTorch; where there is none, callers
fall back to PyTorch's own operations.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from functools import cache
from typing import Any

import torch
from torch import Tensor

PRODUCT = r"""
// Rows of a sparse matrix times a dense one. A warp has a row and loads 32 entries of it at a time; LANES threads add
// an entry, as many as a row of the dense one needs, and several entries are in flight at once. Values may be in
// another order: then `order` is the permutation.
extern "C" __global__ void NAME(
    const int* starts, const int* columns, const float* values, const long long* order, const PART* dense, PART* out,
    int rows, int width)
{
    int lane = threadIdx.x % 32, group = lane / LANES;
    long long row = (long long)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    if (row >= rows) return;
    int first = starts[row], stop = starts[row + 1];
    for (int left = 0; left < width; left += LANES) {
        int feature = left + lane % LANES;
        PART sum = {};
        for (int begin = first; begin < stop; begin += 32) {
            int entry = begin + lane, count = min(32, stop - begin);
            int column = entry < stop ? columns[entry] : 0;
            float value = entry < stop && values ? values[order ? order[entry] : entry] : 1.0f;
            #pragma unroll 8  // a fixed number of times, so that several loads are in flight together
            for (int next = 0; next < 32; next += 32 / LANES) {
                int from = next + group;
                int node = __shfl_sync(~0u, column, from);
                float weight = __shfl_sync(~0u, value, from);
                if (from < count && feature < width) {
                    PART term = dense[(long long)node * width + feature];
                    ADD
                }
            }
        }
        for (int offset = 16; offset >= LANES; offset /= 2) { MERGE }
        if (group == 0 && feature < width) out[row * width + feature] = sum;
    }
}
"""
PARTS = {1: ("float", [""]), 4: ("float4", [".x", ".y", ".z", ".w"])}  # by how many columns a thread loads

DRAWS = r"""
typedef unsigned long long word;

__device__ word mix(word bits)
{
    bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9ull;
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EBull;
    return bits ^ (bits >> 31);
}

__device__ word draw(word key, int draws, word index)
{
    return mix((index + 1) * 0x9E3779B97F4A7C15ull + mix(key + draws));
}

// Fresh 64-bit numbers, one row an owner.
extern "C" __global__ void bits(const word* keys, word* out, int draws, int count)
{
    int index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index < count) out[(long long)blockIdx.y * count + index] = draw(keys[blockIdx.y], draws, index);
}

// Values times `scale`, or zero: an entry is kept where its 8 or 16 bits of a word are at least the threshold. A thread
// has four entries of a row, which never span two words. Rows may be a subset of those that are drawn for: then `nodes`
// are their indices.
extern "C" __global__ void dropout(
    const word* keys, const float* from, const long long* nodes, float* out, int draws, int rows, int width, int size,
    int least, double scale)
{
    unsigned quads = (width + 3) / 4, quad = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned row = quad / quads, column = quad % quads * 4, words = (width * size + 63) / 64;
    if (row >= rows) return;
    long long owner = blockIdx.y, start = (owner * rows + row) * width + column;
    word node = nodes ? nodes[owner * rows + row] : row;
    word random = draw(keys[owner], draws, node * words + column * size / 64) >> column * size % 64;
    float factor[4];
    for (int next = 0; next < 4; next++, random >>= size) {
        int drawn = size == 8 ? (int)(signed char)random : (int)(short)random;
        factor[next] = drawn >= least ? (float)scale : 0.0f;
    }
    if (width % 4 == 0) {
        float4 value = *(const float4*)(from + start);
        // What is dropped is zero even where it was infinite.
        value.x = factor[0] ? value.x * factor[0] : 0;
        value.y = factor[1] ? value.y * factor[1] : 0;
        value.z = factor[2] ? value.z * factor[2] : 0;
        value.w = factor[3] ? value.w * factor[3] : 0;
        *(float4*)(out + start) = value;
    } else {
        for (int next = 0; next < 4 && column + next < width; next++)
            out[start + next] = factor[next] ? from[start + next] * factor[next] : 0;
    }
}
"""

ADAM = r"""
// One step of Adam with L2 weight decay; every client has taken a number of steps of its own, this one included.
extern "C" __global__ void adam(
    float* weights, const float* gradients, float* first, float* second, const float* steps, int size,
    double rate, double decay)
{
    __shared__ float first_correction, second_correction;
    if (threadIdx.x == 0) {
        double step = steps[blockIdx.y];
        first_correction = 1 - pow(0.9, step);
        second_correction = sqrt(1 - pow(0.999, step));
    }
    __syncthreads();
    int index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= size) return;
    long long entry = (long long)blockIdx.y * size + index;
    float weight = weights[entry], gradient = gradients[entry] + (float)decay * weight;
    float mean = 0.9f * first[entry] + 0.1f * gradient;
    float square = 0.999f * second[entry] + 0.001f * gradient * gradient;
    first[entry] = mean;
    second[entry] = square;
    weights[entry] = weight - (float)rate / first_correction * mean / (sqrtf(square) / second_correction + 1e-8f);
}
"""

ATTENTION = r"""
__device__ float leaky(float value, float slope) { return value > 0 ? value : slope * value; }

__device__ float warp_sum(float value)
{
    for (int offset = 16; offset; offset /= 2) value += __shfl_xor_sync(~0u, value, offset);
    return value;
}

// The attention weight of every entry: the softmax over its row of leaky_relu(target + source), each exponential times
// the value of the entry, which may be zero. A warp has a row.
extern "C" __global__ void attention_weights(
    const int* starts, const int* columns, const float* values, const float* target, const float* source, float* out,
    int rows, double slope)
{
    long long row = (long long)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    if (row >= rows) return;
    int first = starts[row] + threadIdx.x % 32, stop = starts[row + 1];
    float own = target[row], largest = -3.4e38f, sum = 0;
    for (int entry = first; entry < stop; entry += 32) {
        float score = leaky(own + source[columns[entry]], slope);
        if (values) score = values[entry] > 0 ? score + logf(values[entry]) : -3.4e38f;
        largest = fmaxf(largest, score);
        out[entry] = score;
    }
    for (int offset = 16; offset; offset /= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, offset));
    for (int entry = first; entry < stop; entry += 32) {
        float weight = expf(out[entry] - largest);
        out[entry] = weight;
        sum += weight;
    }
    sum = warp_sum(sum);
    for (int entry = first; entry < stop; entry += 32) out[entry] /= sum;
}

// Backward: from the gradient of the rows, [rows, width], to that of every entry's target + source, and of targets.
extern "C" __global__ void attention_weights_backward(
    const int* starts, const int* columns, const float* target, const float* source, const float* alpha,
    const PART* gradient, const PART* values, float* out, float* to_target, int rows, int width, double slope)
{
    long long row = (long long)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    if (row >= rows) return;
    int lane = threadIdx.x % 32, first = starts[row] + lane, stop = starts[row + 1];
    float own = target[row], mean = 0, sum = 0;
    for (int entry = first; entry < stop; entry += 32) {
        const PART *row_gradient = gradient + row * width, *row_values = values + (long long)columns[entry] * width;
        float to_alpha = 0;
        for (int feature = 0; feature < width; feature++) {
            PART left = row_gradient[feature], right = row_values[feature];
            DOT
        }
        out[entry] = to_alpha;
        mean += alpha[entry] * to_alpha;
    }
    mean = warp_sum(mean);
    for (int entry = first; entry < stop; entry += 32) {
        float to_score = alpha[entry] * (out[entry] - mean);
        to_score *= own + source[columns[entry]] > 0 ? 1 : (float)slope;
        out[entry] = to_score;
        sum += to_score;
    }
    sum = warp_sum(sum);
    if (lane == 0) to_target[row] = sum;
}

// The sum over each row of one value an entry; values may be in another order, as above.
extern "C" __global__ void row_sums(
    const int* starts, const float* values, const long long* order, float* out, int rows)
{
    long long row = (long long)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    if (row >= rows) return;
    float sum = 0;
    for (int entry = starts[row] + threadIdx.x % 32; entry < starts[row + 1]; entry += 32)
        sum += values[order ? order[entry] : entry];
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) out[row] = sum;
}
"""

BLOCK = 256  # threads of a block
LONGEST_ROW = 1024  # entries of a row that one warp should go through, at the most


@cache
def compile_kernel(source: str, name: str) -> Any:
    """Returns a compiled kernel, or None where none can be compiled."""
    try:
        return torch.cuda._compile_kernel(source, name)
    except (AttributeError, OSError, RuntimeError) as error:
        warnings.warn(f"Graft's own CUDA kernels are not used: {error}", RuntimeWarning, stacklevel=2)
        return None


def product(
    starts: Tensor, columns: Tensor, values: Tensor | None, dense: Tensor, order: Tensor | None = None
) -> Tensor | None:
    """Returns a sparse matrix without long rows times a dense one; None where there is no such kernel.

    The value of entry e is values[order[e]], where there is an order.
    """
    rows, width = len(starts) - 1, dense.shape[1]
    dense = dense.contiguous()
    vector = vector_width(width, dense)
    lanes = min(32, 1 << (width // vector - 1).bit_length())
    launch = product_kernel(lanes, vector)
    if launch is None:
        return None
    out = dense.new_empty(rows, width)
    arguments = [starts, columns, or_null(values, dense), or_null(order, starts), dense, out, rows, width // vector]
    launch(warp_grid(rows), (BLOCK, 1, 1), arguments)
    return out


def vector_width(width: int, *tensors: Tensor) -> int:
    """Returns the number of columns that a thread can load at once."""
    return 4 if width % 4 == 0 and all(tensor.data_ptr() % 16 == 0 for tensor in tensors) else 1


def warp_grid(rows: int) -> tuple[int, int, int]:
    """Returns a grid with a warp for every row."""
    return -(-rows * 32 // BLOCK), 1, 1


def or_null(values: Tensor | None, like: Tensor) -> Tensor:
    """Returns the values, or an empty tensor of the same dtype, which a kernel sees as a null pointer."""
    return like.new_empty(0) if values is None else values.contiguous()


def supports_attention(values: Tensor) -> bool:
    """Returns whether there are attention kernels for such values."""
    return values.is_cuda and values.dtype == torch.float32 and attention_kernel("row_sums") is not None


@cache
def attention_kernel(name: str, vector: int = 1) -> Any:
    """Returns one of the kernels of ATTENTION, for vectors of so many columns."""
    kind, axes = PARTS[vector]
    dot = " ".join(f"to_alpha += left{axis} * right{axis};" for axis in axes)
    return compile_kernel(ATTENTION.replace("PART", kind).replace("DOT", dot), name)


def attention_weights(
    starts: Tensor, columns: Tensor, values: Tensor | None, target: Tensor, source: Tensor, slope: float
) -> Tensor:
    """Returns the attention weight of every entry, [entries]; `target` and `source` are one number a row, `values` one
    factor of the exponential an entry."""
    out, rows = target.new_empty(len(columns)), len(starts) - 1
    arguments = [starts, columns, or_null(values, out), target, source, out, rows, slope]
    attention_kernel("attention_weights")(warp_grid(rows), (BLOCK, 1, 1), arguments)
    return out


def attention_weights_backward(
    starts: Tensor,
    columns: Tensor,
    target: Tensor,
    source: Tensor,
    alpha: Tensor,
    gradient: Tensor,
    values: Tensor,
    slope: float,
) -> tuple[Tensor, Tensor]:
    """Returns the gradients of each entry's target + source and of targets, from the gradient of the rows, [rows,
    width]."""
    rows, width = gradient.shape
    vector = vector_width(width, gradient, values)
    out, to_target = torch.empty_like(alpha), torch.empty_like(target)
    arguments = [starts, columns, target, source, alpha, gradient, values, out, to_target, rows, width // vector, slope]
    attention_kernel("attention_weights_backward", vector)(warp_grid(rows), (BLOCK, 1, 1), arguments)
    return out, to_target


def row_sums(starts: Tensor, values: Tensor, order: Tensor) -> Tensor:
    """Returns the sum over each row of one value an entry, where the value of entry e is values[order[e]]."""
    rows = len(starts) - 1
    out = values.new_empty(rows)
    attention_kernel("row_sums")(warp_grid(rows), (BLOCK, 1, 1), [starts, values, order, out, rows])
    return out


@cache
def product_kernel(lanes: int, vector: int) -> Any:
    """Returns the kernel of PRODUCT for so many threads an entry, each with a vector of so many columns."""
    kind, axes = PARTS[vector]
    name = f"product_{lanes}_{vector}"
    add = " ".join(f"sum{axis} += weight * term{axis};" for axis in axes)
    merge = " ".join(f"sum{axis} += __shfl_down_sync(~0u, sum{axis}, offset);" for axis in axes)
    source = PRODUCT
    for word, meaning in (("NAME", name), ("LANES", str(lanes)), ("PART", kind), ("ADD", add), ("MERGE", merge)):
        source = source.replace(word, meaning)
    return compile_kernel(source, name)


def draw_bits(keys: Tensor, draws: int, count: int) -> Tensor | None:
    """Returns the numbers of `Stream.bits`; None where there is no such kernel."""
    launch = compile_kernel(DRAWS, "bits")
    if launch is None or count == 0:
        return None
    out = torch.empty(len(keys), count, dtype=torch.int64, device=keys.device)
    launch((-(-count // BLOCK), len(keys), 1), (BLOCK, 1, 1), [keys, out, draws, count])
    return out


def dropout(
    keys: Tensor, draws: int, values: Tensor, nodes: Tensor | None, size: int, least: int, scale: float
) -> Tensor | None:
    """Returns values [owners, rows, width] times `scale` where `Stream.keep` keeps them, zero elsewhere; rows are those
    of all nodes, or of these, [owners, rows]. None where there is no such kernel."""
    launch = compile_kernel(DRAWS, "dropout")
    if launch is None or values.numel() == 0:
        return None
    owners, rows, width = values.shape
    out = torch.empty_like(values)
    if values.data_ptr() % 16:  # four of them are loaded at a time
        values = values.clone()
    grid = -(-rows * -(-width // 4) // BLOCK), owners, 1
    launch(grid, (BLOCK, 1, 1), [keys, values, or_null(nodes, keys), out, draws, rows, width, size, least, scale])
    return out


def supports_adam(leaves: Iterable[Tensor]) -> bool:
    """Returns whether `adam` can update all these leaves."""
    return (
        all(leaf.is_cuda and leaf.dtype == torch.float32 for leaf in leaves)
        and compile_kernel(ADAM, "adam") is not None
    )


def adam(
    rate: float, decay: float, steps: Tensor, weights: Tensor, gradients: Tensor, first: Tensor, second: Tensor
) -> None:
    """One step of Adam in place, for stacked weights."""
    size = weights.numel() // len(weights)
    grid = -(-size // BLOCK), len(weights), 1
    arguments = [weights, gradients, first, second, steps, size, rate, decay]
    compile_kernel(ADAM, "adam")(grid, (BLOCK, 1, 1), arguments)
