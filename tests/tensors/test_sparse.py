"""Block-diagonal products and attention against the same sums written out densely."""

import gc
import weakref

import pytest
import torch
from torch.nn import functional

from graft.graphs.fleet_graph import build_fleet_graph
from graft.tensors.sparse import MANY_NODES, BlockSparse, _TallProduct, attention, stacked_product
from tests.memory import crowded_graph, gather_rows, peak_of


def make_dense(blocks=3, rows=5, width=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    dense = torch.randn(blocks, rows, width, generator=generator)
    dense[torch.rand(blocks, rows, width, generator=generator) < 0.5] = 0
    dense[0, 1] = 0  # an empty row
    dense[1, :, 2] = 0  # and an empty column
    return dense


def compress(dense, values=True):
    blocks, rows, width = dense.shape
    block, row, column = dense.nonzero(as_tuple=True)
    counts = torch.bincount(block * rows + row, minlength=blocks * rows)
    starts = functional.pad(counts.cumsum(0), (1, 0)).int()
    kept = dense[block, row, column] if values else None
    return BlockSparse(starts, (block * width + column).int(), kept, blocks, (rows, width))


def make_pattern(blocks=2, nodes=6, seed=0):
    """A symmetric pattern with loops."""
    generator = torch.Generator().manual_seed(seed)
    upper = torch.rand(blocks, nodes, nodes, generator=generator) < 0.25
    linked = upper | upper.transpose(1, 2) | torch.eye(nodes, dtype=torch.bool)
    return linked, compress(linked.float(), values=False).with_values(None)


def test_dense_undoes_compress():
    dense = make_dense()
    assert torch.equal(compress(dense).dense(), dense)
    assert torch.equal(compress(dense, values=False).dense(), (dense != 0).float())


def test_product_and_its_gradient_equal_dense_ones():
    dense, other = make_dense(), torch.randn(3, 4, 7, generator=torch.Generator().manual_seed(1))
    sparse = compress(dense)
    ours, wanted = other.clone().requires_grad_(), other.clone().requires_grad_()
    torch.testing.assert_close(sparse @ ours, dense @ wanted)
    up = torch.randn(3, 5, 7, generator=torch.Generator().manual_seed(2))
    (sparse @ ours).backward(up)
    (dense @ wanted).backward(up)
    torch.testing.assert_close(ours.grad, wanted.grad)
    assert not torch.allclose(compress(make_dense(seed=9)) @ other, dense @ other)


def test_matrix_of_ones_needs_no_values():
    dense = make_dense()
    other = torch.randn(3, 4, 2)
    torch.testing.assert_close(compress(dense, values=False) @ other, (dense != 0).float() @ other)


def test_gradient_arrives_whatever_its_layout():
    sparse, dense = compress(make_dense()), make_dense()
    dense_input = torch.randn(3, 7, 4).transpose(1, 2).requires_grad_()
    (sparse @ dense_input).transpose(1, 2).sum().backward()  # an expanded gradient, with strides of zero
    torch.testing.assert_close(dense_input.grad, dense.transpose(1, 2) @ torch.ones(3, 5, 7))


def test_transpose_is_the_transpose_and_goes_back():
    dense = make_dense()
    sparse = compress(dense)
    assert torch.equal(sparse.transpose.dense(), dense.transpose(1, 2))
    assert sparse.transpose.transpose is sparse
    assert not torch.equal(sparse.transpose.dense()[:, :4, :4], dense[:, :4, :4])


@pytest.mark.parametrize("prepared", [False, True], ids=["no transpose yet", "transpose known"])
@pytest.mark.parametrize("chosen", [[0], [2, 0], [1, 1, 0], [0, 1, 2]], ids=str)
def test_selected_blocks_are_those_blocks(chosen, prepared):
    dense = make_dense()
    sparse = compress(dense)
    if prepared:
        assert sparse.transpose.blocks == 3
    picked = sparse.select(chosen)
    assert torch.equal(picked.dense(), dense[chosen])
    assert torch.equal(picked.transpose.dense(), dense[chosen].transpose(1, 2))
    other = torch.randn(len(chosen), 4, 3)
    torch.testing.assert_close(picked @ other, dense[chosen] @ other)


def test_selection_of_a_symmetric_matrix_is_its_own_transpose():
    _, pattern = make_pattern()
    assert pattern.transpose is pattern
    picked = pattern.select([1, 0])
    assert picked.transpose is picked


def test_values_that_are_not_symmetric_bring_their_transpose():
    linked, pattern = make_pattern()
    values = torch.rand(2, 6, 6) * linked
    flat, flat_transposed = values[linked], values.transpose(1, 2)[linked]
    matrix = pattern.with_values(flat, flat_transposed)
    torch.testing.assert_close(matrix.dense(), values)
    torch.testing.assert_close(matrix.transpose.dense(), values.transpose(1, 2))
    assert matrix.transpose.transpose is matrix
    picked = matrix.select([1])
    torch.testing.assert_close(picked.transpose.dense(), values[1:].transpose(1, 2))


def test_row_sums_count_each_row():
    linked, pattern = make_pattern()
    values = torch.rand(pattern.entries)
    written = torch.zeros(2, 6, 6)
    written[linked] = values
    torch.testing.assert_close(pattern.row_sums(values), written.sum(2).flatten())


def test_empty_matrix_gives_zeros_and_no_gradient():
    empty = compress(torch.zeros(2, 3, 4))
    other = torch.randn(2, 4, 5, requires_grad=True)
    product = empty @ other
    assert product.shape == (2, 3, 5)
    assert not product.any()
    product.sum().backward()
    assert not other.grad.any()
    assert empty.transpose.dense().shape == (2, 4, 3)
    assert empty.select([1, 1, 0]).entries == 0


def test_one_empty_block_among_others_is_kept_apart():
    dense = make_dense()
    dense[1] = 0
    sparse = compress(dense)
    other = torch.randn(3, 4, 2)
    torch.testing.assert_close(sparse @ other, dense @ other)
    assert not (sparse.select([1]) @ other[1:2]).any()


def test_memory_is_free_as_soon_as_a_matrix_is_forgotten():
    """With a cycle, large values would stay until Python's garbage collector happens to run."""
    _, pattern = make_pattern()
    values = torch.rand(pattern.entries)
    makers = {
        "values": lambda: pattern.with_values(values),
        "pair": lambda: pattern.with_values(values, values),
        "selection": lambda: pattern.select([1]),
        "selected pair": lambda: pattern.with_values(values, values).select([0]),
        "transposed": lambda: compress(make_dense()),
    }
    gc.disable()
    try:
        for name, make in makers.items():
            matrix = make()
            assert matrix.transpose.transpose is matrix
            held = [weakref.ref(matrix), weakref.ref(matrix.transpose)]
            assert matrix.row_of.shape == (matrix.entries,)
            del matrix
            assert [one() for one in held] == [None, None], name
    finally:
        gc.enable()


def test_transpose_outlives_what_it_was_made_from():
    dense = make_dense()
    turned = compress(dense).transpose
    assert torch.equal(turned.transpose.dense(), dense)
    assert turned.transpose is turned.transpose


def test_matrices_of_one_pattern_share_what_follows_from_it():
    _, pattern = make_pattern()
    first, second = (pattern.with_values(torch.rand(pattern.entries)) for _ in range(2))
    assert first.row_of is second.row_of
    assert first.with_values(None).transpose_permutation is second.transpose_permutation
    assert first._bounds is second._bounds
    assert first.row_of is not pattern.select([0, 1]).row_of


# Attention -----------------------------------------------------------------------------------------------------------


def dense_attention(linked, target, source, values, slope):
    score = functional.leaky_relu(target.unsqueeze(2) + source.unsqueeze(1), slope)
    return score.masked_fill(~linked, -torch.inf).softmax(2) @ values


def make_inputs(dtype=torch.float64, blocks=2, nodes=6, width=3):
    generator = torch.Generator().manual_seed(3)
    shapes = ((blocks, nodes), (blocks, nodes), (blocks, nodes, width))
    return [torch.randn(shape, generator=generator, dtype=dtype).requires_grad_() for shape in shapes]


@pytest.mark.parametrize(("dtype", "close"), [(torch.float32, 1e-5), (torch.float64, 1e-12)], ids=str)
def test_attention_and_its_gradients_equal_a_masked_softmax(dtype, close):
    linked, pattern = make_pattern()
    ours, wanted = make_inputs(dtype), make_inputs(dtype)
    up = torch.randn(2, 6, 3, generator=torch.Generator().manual_seed(4), dtype=dtype)
    mixed, reference = attention(pattern, *ours, slope=0.2), dense_attention(linked, *wanted, slope=0.2)
    torch.testing.assert_close(mixed, reference, atol=close, rtol=close)
    mixed.backward(up)
    reference.backward(up)
    for our, theirs in zip(ours, wanted, strict=True):
        torch.testing.assert_close(our.grad, theirs.grad, atol=close, rtol=close)
    assert not torch.allclose(attention(pattern, *ours, slope=0.9), reference)


def test_attention_passes_gradcheck():
    _, pattern = make_pattern()
    assert torch.autograd.gradcheck(lambda *inputs: attention(pattern, *inputs, 0.2), make_inputs())


def test_target_and_source_are_not_the_same_side():
    _, pattern = make_pattern()
    target, source, values = make_inputs()
    assert not torch.allclose(
        attention(pattern, target, source, values, 0.2), attention(pattern, source, target, values, 0.2)
    )


def test_attention_survives_very_large_scores():
    _, pattern = make_pattern()
    target, source, values = (part.detach().float() for part in make_inputs())
    source = (source * 1e4).requires_grad_()
    mixed = attention(pattern, target, source, values, 0.2)
    mixed.sum().backward()
    assert mixed.isfinite().all()
    assert source.grad.isfinite().all()


def test_node_alone_attends_to_itself():
    pattern = compress(torch.eye(4).unsqueeze(0), values=False).with_values(None)
    target, source, values = make_inputs(torch.float32, blocks=1, nodes=4)
    mixed = attention(pattern, target, source, values, 0.2)
    torch.testing.assert_close(mixed, values)
    mixed.sum().backward()
    assert not target.grad.any()  # nothing to choose between
    torch.testing.assert_close(values.grad, torch.ones_like(values))


def test_attention_never_makes_anything_of_edges_by_width():
    graph, width = crowded_graph(), 64
    laid = build_fleet_graph([graph], torch.device("cpu"))
    inputs = make_inputs(torch.float32, blocks=1, nodes=graph.nodes, width=width)

    def attend():
        attention(laid.self_loops_per_head(1), *inputs, slope=0.2).sum().backward()

    def average():
        (laid.normalised @ inputs[2]).sum().backward()

    too_much = graph.edges.shape[1] * width * 4
    attend()  # what depends on the pattern alone is worked out once
    average()
    assert peak_of(attend) < too_much / 4  # a few numbers an edge
    assert peak_of(average) < too_much / 16
    assert peak_of(lambda: gather_rows(graph, width)) >= too_much


@pytest.mark.parametrize(("nodes", "inputs", "outputs"), [(500, 133, 64), (7, 20, 3), (1, 5, 1), (9, 0, 4), (0, 3, 4)])
def test_one_matrix_times_the_weights_of_all_clients_is_every_product_alone(nodes, inputs, outputs):
    generator = torch.Generator().manual_seed(0)
    single, weight = torch.randn(nodes, inputs, generator=generator), torch.randn(3, outputs, inputs).mT
    with torch.no_grad():
        together = stacked_product(single.expand(3, -1, -1), weight)
    assert together.shape == (3, nodes, outputs)
    torch.testing.assert_close(together, torch.stack([single @ own for own in weight]), atol=1e-4, rtol=1e-5)
    leaf = weight.clone().requires_grad_()
    product = stacked_product(single.expand(3, -1, -1), leaf)
    torch.testing.assert_close(product.detach(), together, atol=1e-4, rtol=1e-5)
    (gradient,) = torch.autograd.grad(product.sum(), leaf)
    torch.testing.assert_close(gradient, single.sum(0).view(1, -1, 1).expand_as(weight), atol=1e-4, rtol=1e-5)


def test_where_there_is_no_onednn_one_matrix_is_multiplied_all_the_same(monkeypatch):
    single, weight = torch.randn(6, 5), torch.randn(3, 5, 20)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    monkeypatch.setattr("graft.tensors.sparse.shared_product", None)
    with torch.no_grad():
        torch.testing.assert_close(stacked_product(single.expand(3, -1, -1), weight), single @ weight)


@pytest.mark.parametrize("outputs", [1, 7, 15, 16, 40])
@pytest.mark.parametrize("inputs", [3, 20])
def test_products_of_any_width_and_their_gradients_are_plain_ones(inputs, outputs):
    generator = torch.Generator().manual_seed(0)
    dense = torch.randn(2, 5, inputs, dtype=torch.float64, generator=generator).requires_grad_()
    weight = torch.randn(2, inputs, outputs, dtype=torch.float64, generator=generator).requires_grad_()
    torch.testing.assert_close(stacked_product(dense, weight), dense @ weight)
    assert torch.autograd.gradcheck(stacked_product, (dense, weight))
    for needed in (dense, weight):
        (gradient,) = torch.autograd.grad(stacked_product(dense, weight).square().sum(), needed)
        torch.testing.assert_close(gradient, torch.autograd.grad((dense @ weight).square().sum(), needed)[0])


@pytest.mark.parametrize("nodes", [MANY_NODES, MANY_NODES + 37])
def test_a_long_product_and_its_gradients_are_the_plain_ones(nodes):
    draw = torch.Generator().manual_seed(0)
    given = [torch.randn(2, *shape, generator=draw) for shape in ((nodes, 5), (5, 3), (nodes, 3))]
    plain, parts = ([one.clone().requires_grad_() for one in given[:2]] for _ in range(2))
    weights = given[2]
    ((plain[0] @ plain[1]) * weights).sum().backward()
    (_TallProduct.apply(*parts) * weights).sum().backward()
    for one, other in zip(plain, parts, strict=True):
        torch.testing.assert_close(one.grad, other.grad, atol=1e-3, rtol=1e-4)
    assert parts[1].grad.abs().min() > 0.1
