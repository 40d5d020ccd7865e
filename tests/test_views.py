"""Views: what they change, how often, from which random numbers, and all that they leave alone."""

from __future__ import annotations

import copy
import dataclasses
import json
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kstest
from torch_geometric import transforms as T  # noqa: N812 (PyG's own name for it)
from torch_geometric.data import Data
from torch_geometric.utils import is_undirected, to_undirected

from akegnn.errors import AkeError
from akegnn.views import (
    VIEWS,
    CorruptFeatures,
    DropEdges,
    MaskFeatures,
    Original,
    Subgraph,
    Transform,
    View,
    as_view,
    corrupt_features,
    drop_edges,
    from_spec,
    mask_features,
    paper_views,
    subgraph_edges,
)

few = settings(max_examples=40, deadline=None)
rates = st.floats(0, 1)
# Small graphs of any kind: self loops, duplicate edges, isolated nodes, no edges at all.
graphs = st.integers(1, 25).flatmap(
    lambda n: st.tuples(
        st.just(n), st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=60).map(edges_of)
    )
)


def edges_of(pairs):
    return torch.tensor(pairs, dtype=torch.long).reshape(-1, 2).T.contiguous()


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def close_to(count, total, rate):
    """A binomial count within five standard deviations of its expectation."""
    return abs(count - total * rate) <= 5 * math.sqrt(total * rate * (1 - rate))


def graph(nodes=60, pairs=150, directed=False):
    """A graph with all sorts of attributes; ``edge_weight`` counts the edges, so that it tells which ones are left."""
    g = seeded(7)
    edges = torch.randint(nodes, (2, pairs), generator=g)
    edges = edges.unique(dim=1) if directed else to_undirected(edges, num_nodes=nodes)
    x = torch.rand(nodes, 40, generator=g) + 0.1
    x[torch.rand(nodes, 40, generator=g) < 0.4] = 0
    number = torch.arange(edges.shape[1], dtype=torch.float)
    return Data(
        x=x,
        edge_index=edges,
        edge_weight=number,
        edge_attr=torch.stack([number, -number], 1),
        y=torch.arange(nodes) % 3,
        train_mask=torch.arange(nodes) < 20,
        val_mask=torch.rand(nodes, 5, generator=g) < 0.3,
        name="a graph",
    )


def same(a, b):
    return a.keys() == b.keys() and all(
        torch.equal(v, b[k]) if isinstance(v, torch.Tensor) else v == b[k] for k, v in a.items()
    )


def noisy(data):
    """A transform of one's own that draws from torch's global generator."""
    data.x = data.x + torch.rand(data.x.shape)
    return data


RANDOM = [
    MaskFeatures(0.4),
    CorruptFeatures(0.4),
    CorruptFeatures(0.4, "replace"),
    DropEdges(0.4),
    Subgraph(0.4),
    Subgraph(0.4, "walk"),
    as_view(T.RandomNodeSplit(num_val=10, num_test=10)),
    as_view(noisy),
]
ALL = [Original(), as_view(T.NormalizeFeatures()), *RANDOM]


def label(view):
    """The same in every process, which a function's address is not."""
    if isinstance(view, Transform):
        return getattr(view.transform, "__name__", type(view.transform).__name__)
    return "-".join(str(v) for k, v in view.spec().items() if k != "resample")


@pytest.mark.parametrize("view", ALL, ids=label)
@pytest.mark.parametrize("directed", [False, True])
def test_the_given_graph_is_left_alone(view, directed):
    data = graph(directed=directed)
    objects, before = dict(data.items()), copy.deepcopy(data)
    result = view(data, seeded())
    assert result is not data
    assert dict(data.items()).keys() == objects.keys()
    assert all(data[k] is v for k, v in objects.items())
    assert same(data, before)


@pytest.mark.parametrize("view", ALL, ids=label)
def test_nodes_and_what_belongs_to_them_stay(view):
    data = graph()
    result = view(data, seeded())
    assert result.num_nodes == data.num_nodes == len(result.x)
    kept = ["y", "name"] if isinstance(view, Transform) else ["y", "name", "train_mask", "val_mask"]
    for key in kept:
        assert result[key] is data[key]


@pytest.mark.parametrize("view", RANDOM, ids=label)
def test_the_seed_decides(view):
    data = graph()
    assert same(view(data, seeded(1)), view(data, seeded(1)))
    assert not same(view(data, seeded(1)), view(data, seeded(2)))
    one = seeded(1)
    assert not same(view(data, one), view(data, one)), "the generator has to move on from draw to draw"


@pytest.mark.parametrize("view", RANDOM, ids=label)
def test_a_generator_leaves_the_global_one_alone(view):
    state = torch.get_rng_state()
    first = view(graph(), seeded())
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(3)  # nor does the global one have a say
    assert same(view(graph(), seeded()), first)


@pytest.mark.parametrize("view", RANDOM, ids=label)
def test_without_a_generator_torch_is_asked(view):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        first, second = view(graph()), view(graph())
        torch.manual_seed(1)
        again = view(graph())
    assert same(first, again)
    assert not same(first, second)


def test_original_is_the_graph():
    assert same(Original()(graph(), seeded()), graph())


@pytest.mark.parametrize("kind", [MaskFeatures, CorruptFeatures, DropEdges, Subgraph])
def test_rate_zero_changes_nothing(kind):
    assert same(kind(0.0)(graph(), seeded()), graph())


@pytest.mark.parametrize("view", [Subgraph(0.0, "walk"), CorruptFeatures(0.0, "replace")], ids=label)
def test_rate_zero_changes_nothing_in_the_other_modes(view):
    assert same(view(graph(), seeded()), graph())


def test_rate_one_leaves_nothing():
    data = graph()
    assert not MaskFeatures(1.0)(data, seeded()).x.any()
    for view in (DropEdges(1.0), Subgraph(1.0), Subgraph(1.0, "walk")):
        result = view(data, seeded())
        assert result.edge_index.shape == (2, 0)
        assert (result.edge_weight.shape, result.edge_attr.shape) == ((0,), (0, 2))
        assert result.num_nodes == 60
    multiplied = CorruptFeatures(1.0)(data, seeded()).x
    assert torch.equal(multiplied == data.x, data.x == 0)
    assert (CorruptFeatures(1.0, "replace")(data, seeded()).x != data.x).all()


def test_views_compose_as_pyg_transforms():
    data, before = graph(), graph()
    result = T.Compose([MaskFeatures(1.0), DropEdges(1.0)])(data)
    assert not result.x.any()
    assert result.num_edges == 0
    assert same(data, before)


# ---- masking ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.8])
def test_mask_hits_its_rate(rate):
    x = torch.ones(2, 20_000)
    _, kept = mask_features(x, rate, seeded())
    assert close_to(int((~kept).sum()), 20_000, rate)


@given(st.integers(1, 12), st.integers(1, 12), rates, st.integers(0, 9))
@few
def test_mask_takes_whole_columns(nodes, columns, rate, seed):
    x = torch.randn(nodes, columns, generator=seeded(seed))
    before = x.clone()
    result, kept = mask_features(x, rate, seeded(seed))
    assert kept.shape == (columns,)
    assert torch.equal(result[:, kept], x[:, kept])
    assert not result[:, ~kept].any()
    assert torch.equal(x, before)
    assert kept.all() or rate > 0
    assert not kept.any() or rate < 1


def sparse(x, layout):
    return x.to_sparse_coo() if layout == "coo" else x.to_sparse_csr()


@pytest.mark.parametrize("layout", ["coo", "csr"])
@pytest.mark.parametrize("rate", [0.0, 0.3, 1.0])
def test_sparse_features_are_masked_as_dense_ones(layout, rate):
    data = graph()
    expected = MaskFeatures(rate)(data, seeded()).x
    data.x = given_x = sparse(data.x, layout)
    before = given_x.to_dense()
    result = MaskFeatures(rate)(data, seeded()).x
    assert result.layout == given_x.layout
    assert torch.equal(result.to_dense(), expected)
    assert data.x is given_x
    assert torch.equal(given_x.to_dense(), before)


# ---- corrupting ------------------------------------------------------------------------------------------------------


def features(nodes=3, columns=10_000):
    """Rows of different means, with a third of zeros; float64, so that a quotient gives the noise back."""
    g = seeded(3)
    x = (torch.rand(nodes, columns, generator=g, dtype=torch.float64) + 0.5) * torch.arange(1.0, nodes + 1)[:, None]
    x[torch.rand(nodes, columns, generator=g) < 1 / 3] = 0
    return x


def is_standard_normal(z):
    n = len(z)
    return (
        abs(float(z.mean())) < 5 / math.sqrt(n)
        and abs(float(z.std()) - 1) < 5 / math.sqrt(2 * n)
        and kstest(z.numpy(), "norm").pvalue > 1e-4
    )


@pytest.mark.parametrize("rate", [0.2, 0.5, 1.0])
def test_multiply_disturbs_entries_by_noise_around_their_nodes_mean(rate):
    x = features()
    before = x.clone()
    result, kept = corrupt_features(x, rate, "multiply", seeded())
    assert kept.shape == x.shape
    assert kept[x == 0].all(), "a zero is never among the disturbed"
    assert not result[x == 0].any()
    assert torch.equal(result[kept], x[kept])
    assert (result[~kept] != x[~kept]).all()
    assert close_to(int((~kept).sum()), int((x != 0).sum()), rate)
    for i in range(len(x)):
        assert is_standard_normal(result[i][~kept[i]] / x[i][~kept[i]] - x[i].mean())
    assert torch.equal(x, before)


@pytest.mark.parametrize("rate", [0.2, 0.5, 1.0])
def test_replace_puts_noise_around_the_nodes_mean(rate):
    x = features()
    before = x.clone()
    result, kept = corrupt_features(x, rate, "replace", seeded())
    assert kept.shape == x.shape
    assert torch.equal(result[kept], x[kept])
    assert (result[~kept] != x[~kept]).all()
    assert close_to(int((~kept).sum()), x.numel(), rate)
    for i in range(len(x)):
        assert is_standard_normal(result[i][~kept[i]] - x[i].mean())
    assert torch.equal(x, before)


@pytest.mark.parametrize("layout", ["coo", "csr"])
@pytest.mark.parametrize("rate", [0.0, 0.5, 1.0])
def test_multiply_keeps_sparse_features_sparse(layout, rate):
    dense = features()
    x = sparse(dense, layout)
    result, kept = corrupt_features(x, rate, "multiply", seeded())
    assert result.layout == x.layout
    assert torch.equal(x.to_dense(), dense)
    old, new = x.to_sparse_coo().coalesce(), result.to_sparse_coo().coalesce()
    assert torch.equal(old.indices(), new.indices())
    assert kept.shape == old.values().shape
    assert torch.equal(new.values()[kept], old.values()[kept])
    assert (new.values()[~kept] != old.values()[~kept]).all()
    assert close_to(int((~kept).sum()), len(kept), rate)
    for i in range(3):
        disturbed = ~kept & (old.indices()[0] == i)
        if rate > 0:
            assert is_standard_normal((new.values() / old.values())[disturbed] - dense[i].mean())


def test_an_uncoalesced_tensor_is_summed_first():
    x = torch.sparse_coo_tensor([[0, 0, 1], [1, 1, 0]], [1.0, 2.0, 4.0], (2, 2), check_invariants=False)
    result, kept = corrupt_features(x, 0.0, "multiply", seeded())
    assert torch.equal(result.to_dense(), torch.tensor([[0.0, 3.0], [4.0, 0.0]]))
    assert kept.tolist() == [True, True]


def test_a_stored_zero_stays_zero():
    x = torch.sparse_coo_tensor([[0, 1], [1, 0]], [0.0, 4.0], (2, 2), check_invariants=False)
    result, kept = corrupt_features(x, 1.0, "multiply", seeded())
    assert result.to_dense()[0, 1] == 0
    assert kept.tolist() == [True, False]


@pytest.mark.parametrize("layout", ["coo", "csr"])
def test_replace_makes_sparse_features_dense(layout):
    dense = features(3, 50)
    result, kept = corrupt_features(sparse(dense, layout), 0.5, "replace", seeded())
    expected, kept_of_dense = corrupt_features(dense, 0.5, "replace", seeded())
    assert result.layout == torch.strided
    assert torch.equal(result, expected)
    assert torch.equal(kept, kept_of_dense)


# ---- edges -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.8])
def test_drop_hits_its_rate(rate):
    there = torch.stack([torch.arange(20_000), torch.arange(20_000) + 20_000])
    both = torch.cat([there, there.flip(0)], 1)
    _, kept = drop_edges(both, rate, True, seeded())
    assert torch.equal(kept[:20_000], kept[20_000:])
    assert close_to(int((~kept[:20_000]).sum()), 20_000, rate)
    _, kept = drop_edges(both, rate, False, seeded())
    assert close_to(int((~kept).sum()), 40_000, rate)
    apart = int((kept[:20_000] != kept[20_000:]).sum())
    assert close_to(apart, 20_000, 2 * rate * (1 - rate)), "the two directions must be independent"


@given(graphs, rates, st.booleans(), st.integers(0, 9))
@few
def test_drop_edges_gives_both_directions_one_fate(nodes_and_edges, rate, undirected, seed):
    _, edges = nodes_and_edges
    before = edges.clone()
    result, kept = drop_edges(edges, rate, undirected, seeded(seed))
    assert kept.shape == (edges.shape[1],)
    assert torch.equal(result, edges[:, kept])
    assert torch.equal(edges, before)
    assert kept.all() or rate > 0
    assert not kept.any() or rate < 1
    if undirected:  # self loops and duplicates included
        fates = {}
        for u, v, fate in zip(*edges.tolist(), kept.tolist(), strict=True):
            fates.setdefault(frozenset((u, v)), set()).add(fate)
        assert all(len(fate) == 1 for fate in fates.values())


def test_duplicates_of_a_directed_edge_are_edges_of_their_own():
    _, kept = drop_edges(torch.zeros(2, 400, dtype=torch.long), 0.5, False, seeded())
    assert close_to(int(kept.sum()), 400, 0.5)


def test_drop_edges_sees_whether_the_graph_is_undirected():
    data = graph()
    result = DropEdges(0.5)(data, seeded())
    assert 0 < result.num_edges < data.num_edges
    assert is_undirected(result.edge_index)
    one_missing = data.edge_subgraph(torch.arange(data.num_edges) > 0)  # one edge without its reverse is enough
    left = {tuple(e) for e in DropEdges(0.5)(one_missing, seeded()).edge_index.T.tolist()}
    pairs = {tuple(e) for e in one_missing.edge_index[:, 1:].T.tolist() if e[::-1] in one_missing.edge_index.T.tolist()}
    assert any((e in left) != (e[::-1] in left) for e in pairs), "in a directed graph fates are drawn edge by edge"


@given(graphs, rates, st.sampled_from(["nodes", "walk"]), st.integers(0, 9))
@few
def test_subgraph_keeps_edges_inside_its_nodes(nodes_and_edges, rate, method, seed):
    nodes, edges = nodes_and_edges
    before = edges.clone()
    result, kept, inside = subgraph_edges(edges, nodes, rate, method, seeded(seed))
    assert inside.shape == (nodes,)
    assert int(inside.sum()) == round((1 - rate) * nodes)
    chosen = set(inside.nonzero().flatten().tolist())
    assert kept.tolist() == [u in chosen and v in chosen for u, v in edges.T.tolist()]
    assert torch.equal(result, edges[:, kept])
    assert torch.equal(edges, before)


@pytest.mark.parametrize("method", ["nodes", "walk"])
@pytest.mark.parametrize("edges", [[], [(0, 1), (1, 0)]], ids=["no edge", "one edge"])
def test_subgraph_of_isolated_nodes(method, edges):
    data = Data(x=torch.rand(31, 2), edge_index=edges_of(edges))
    result = Subgraph(0.5, method)(data, seeded())
    assert result.num_nodes == 31
    _, _, inside = subgraph_edges(data.edge_index, 31, 0.5, method, seeded())
    assert int(inside.sum()) == 16  # round(15.5), to even


@pytest.mark.parametrize("method", ["nodes", "walk"])
def test_every_node_can_be_drawn(method):
    """No node is favoured by its number: on a ring, all are inside about equally often."""
    ring = torch.stack([torch.arange(40), (torch.arange(40) + 1) % 40])
    ring = torch.cat([ring, ring.flip(0)], 1)
    g = seeded()
    times = sum(subgraph_edges(ring, 40, 0.5, method, g)[2].long() for _ in range(200))
    assert int(times.sum()) == 200 * 20
    assert all(close_to(int(t), 200, 0.5) for t in times)


def cliques(count=60, size=5):
    inside = torch.combinations(torch.arange(size)).T
    return to_undirected(torch.cat([inside + k * size for k in range(count)], 1)), count * size


def path(nodes=300):
    return to_undirected(torch.stack([torch.arange(nodes - 1), torch.arange(1, nodes)])), nodes


@pytest.mark.parametrize("shape", [cliques, path])
def test_a_walk_keeps_more_edges_than_chance(shape):
    edges, nodes = shape()
    kept = {
        method: [int(subgraph_edges(edges, nodes, 0.5, method, seeded(s))[1].sum()) for s in range(10)]
        for method in ("nodes", "walk")
    }
    assert min(kept["walk"]) > 1.2 * max(kept["nodes"])


EDGE_VIEWS = [DropEdges(0.4), Subgraph(0.4), Subgraph(0.4, "walk")]


@pytest.mark.parametrize("view", EDGE_VIEWS, ids=label)
@pytest.mark.parametrize("directed", [False, True])
def test_edge_attributes_go_with_their_edges(view, directed):
    data = graph(directed=directed)
    result = view(data, seeded())
    left = result.edge_weight.long()
    assert 0 < len(left) < data.num_edges
    assert (left.diff() > 0).all(), "the order of the edges stays"
    assert torch.equal(result.edge_index, data.edge_index[:, left])
    assert torch.equal(result.edge_attr, data.edge_attr[left])


@pytest.mark.parametrize("view", EDGE_VIEWS, ids=label)
def test_as_many_edges_as_nodes(view):
    """Node attributes must not be taken for edge attributes where lengths do not tell them apart."""
    n = 20
    data = Data(
        x=torch.rand(n, 3),
        edge_index=torch.stack([torch.arange(n), (torch.arange(n) + 1) % n]),
        edge_weight=torch.arange(n),
        y=torch.arange(n),
        train_mask=torch.arange(n) < 5,
        val_mask=torch.rand(n, 4) < 0.5,
    )
    result = view(data, seeded())
    assert 0 < result.num_edges < n
    assert torch.equal(result.edge_index, data.edge_index[:, result.edge_weight])
    assert all(torch.equal(result[k], data[k]) for k in ("x", "y", "train_mask", "val_mask"))


@pytest.mark.parametrize("view", EDGE_VIEWS, ids=label)
def test_edges_to_be_predicted_are_not_edges_of_the_graph(view):
    """Labelled edges, as ``RandomLinkSplit`` lays them out, may be as many as the edges but are none of them."""
    data = graph(directed=True)
    data.edge_label_index, data.edge_label = data.edge_index.clone(), torch.ones(data.num_edges)
    result = view(data, seeded())
    assert 0 < result.num_edges < data.num_edges
    assert torch.equal(result.edge_label_index, data.edge_label_index)
    assert torch.equal(result.edge_label, data.edge_label)


@pytest.mark.parametrize("view", EDGE_VIEWS, ids=label)
@pytest.mark.filterwarnings("ignore:Unable to accurately infer 'num_nodes':UserWarning")
def test_nodes_known_only_by_their_edges_stay(view):
    data = Data(edge_index=graph().edge_index)
    assert dataclasses.replace(view, rate=1.0)(data, seeded()).num_nodes == data.num_nodes


@pytest.mark.parametrize("layout", ["coo", "csr"])
@pytest.mark.parametrize("view", EDGE_VIEWS, ids=label)
def test_edge_views_take_graphs_with_sparse_features(view, layout):
    data = graph()
    expected = view(data, seeded()).edge_index
    data.x = sparse(data.x, layout)
    result = view(data, seeded())
    assert result.x is data.x
    assert torch.equal(result.edge_index, expected)


# ---- other transforms as views ---------------------------------------------------------------------------------------


def test_a_pyg_transform_does_what_it_does():
    data = graph()
    assert same(as_view(T.NormalizeFeatures())(data, seeded()), T.NormalizeFeatures()(graph()))
    split = as_view(T.RandomNodeSplit(num_val=10, num_test=10))(data, seeded())
    assert (int(split.val_mask.sum()), int(split.test_mask.sum())) == (10, 10)
    assert torch.equal(data.train_mask, graph().train_mask)


def shrink(data):
    return data.subgraph(torch.arange(5))


def shrink_in_place(data):
    data.x, data.edge_index, data.edge_weight, data.edge_attr = data.x[:5], data.edge_index[:, :0], None, None
    return data


@pytest.mark.parametrize("transform", [shrink, shrink_in_place])
@pytest.mark.parametrize("generator", [None, seeded()], ids=["no generator", "generator"])
def test_a_transform_that_changes_the_nodes_is_refused(transform, generator):
    with pytest.raises(AkeError, match=r"shrink.*keep the node set.*5 nodes of 60"):
        as_view(transform)(graph(), generator)


# ---- specs, names, errors --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "view",
    [
        *(kind(resample="epoch") for kind in VIEWS.values()),
        Original(),
        MaskFeatures(0.1),
        CorruptFeatures(0.2, "replace"),
        DropEdges(0),
        Subgraph(1, "walk", resample="epoch"),
        *paper_views(0.7, "epoch"),
    ],
    ids=label,
)
def test_spec_and_back(view):
    again = from_spec(json.loads(json.dumps(view.spec())))
    assert type(again) is type(view)
    assert again == view
    assert again.spec() == view.spec()
    assert as_view(view) is view


def test_every_kind_names_itself():
    assert {kind().spec()["kind"] for kind in VIEWS.values()} == set(VIEWS)


def test_a_transform_of_ones_own_has_a_spec_without_a_way_back():
    spec = as_view(T.NormalizeFeatures()).spec()
    assert spec["kind"] == "custom"
    assert "NormalizeFeatures" in spec["repr"]
    with pytest.raises(AkeError, match="custom"):
        from_spec(spec)


def test_paper_views_are_the_four_in_order():
    views = paper_views()
    assert [type(v) for v in views] == [MaskFeatures, CorruptFeatures, DropEdges, Subgraph]
    assert all((v.rate, v.resample) == (0.3, "once") for v in views)
    assert all((v.rate, v.resample) == (0.5, "epoch") for v in paper_views(0.5, "epoch"))


@pytest.mark.parametrize(
    ("text", "view"),
    [
        ("mask", MaskFeatures()),
        ("mask:0.5", MaskFeatures(0.5)),
        ("corrupt:0.1", CorruptFeatures(0.1)),
        ("drop-edges:1", DropEdges(1.0)),
        ("subgraph:0", Subgraph(0.0)),
        ("original", Original()),
    ],
)
def test_a_view_by_name(text, view):
    assert isinstance(as_view(text), View)
    assert as_view(text) == view


@pytest.mark.parametrize("kind", [MaskFeatures, CorruptFeatures, DropEdges, Subgraph])
@pytest.mark.parametrize("rate", [-0.1, 1.001, math.nan, math.inf])
def test_a_rate_lies_between_zero_and_one(kind, rate):
    with pytest.raises(AkeError, match=rf"^{kind.__name__}: rate .*{rate}"):
        kind(rate)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MaskFeatures(resample="often"), "MaskFeatures: resample .*'often'"),
        (lambda: Original(resample=None), "Original: resample .*None"),
        (lambda: CorruptFeatures(0.3, "add"), "CorruptFeatures: mode .*'add'"),
        (lambda: Subgraph(0.3, "jump"), "Subgraph: method .*'jump'"),
        (lambda: from_spec({"kind": "blur"}), "'blur' is not one of mask"),
        (lambda: from_spec({"rate": 0.3}), "None is not one of mask"),
        (lambda: from_spec({"kind": "mask", "rates": 0.3}), "'mask': takes .*rate.*, got rates"),
        (lambda: from_spec({"kind": "mask", "rate": 3}), "rate must lie .*3"),
        (lambda: as_view("blur"), "'blur' is not one of mask"),
        (lambda: as_view("mask:much"), "'mask:much': the rate .* number"),
        (lambda: as_view("mask:2"), "MaskFeatures: rate .*2"),
        (lambda: as_view("original:0.3"), "'original': takes resample, got rate"),
    ],
)
def test_errors_name_the_thing(make, message):
    with pytest.raises(AkeError, match=message):
        make()


@pytest.mark.parametrize("kind", [MaskFeatures, CorruptFeatures])
def test_features_are_needed(kind):
    with pytest.raises(AkeError, match=rf"{kind.__name__}: .*data\.x"):
        kind(0.3)(Data(edge_index=edges_of([(0, 1)]), num_nodes=2), seeded())


@pytest.mark.parametrize("kind", [DropEdges, Subgraph])
def test_edges_are_needed(kind):
    with pytest.raises(AkeError, match=rf"{kind.__name__}: .*edge_index"):
        kind(0.3)(Data(x=torch.rand(3, 2)), seeded())


def test_a_transform_may_work_in_place():
    data = graph()
    before = data.clone()

    def louder(data: Data) -> Data:
        data.x += 1
        data.edge_index[0, 0] = 0
        return data

    seen = Transform(louder)(data)
    assert torch.equal(data.x, before.x)
    assert torch.equal(data.edge_index, before.edge_index)
    assert torch.equal(seen.x, before.x + 1)
    assert seen.y is data.y  # what is as it was is the same tensor: what follows from it is worked out once
