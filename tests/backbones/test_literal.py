"""Every backbone as dense matrices, written down from its paper: on a graph with loops and weights, also zero ones."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import elu, leaky_relu
from torch_geometric.data import Data

from akegnn.backbones import BACKBONES
from akegnn.forward import forward
from small import still

IN, OUT = 5, 3


def awkward() -> Data:
    """Directed and weighted; some edges twice, one loop that counts, one of weight zero, one node without edges."""
    g = torch.Generator().manual_seed(2)
    ends = torch.randint(14, (2, 60), generator=g)
    ends = torch.cat([ends[:, ends[0] != ends[1]], torch.tensor([[3, 8], [3, 8]])], dim=1)
    ends = torch.cat([ends[:, :5], ends], dim=1)
    weight = torch.rand(ends.shape[1], generator=g, dtype=torch.float64) + 0.2
    weight[::6] = 0.0
    weight[-2:] = torch.tensor([0.7, 0.0])
    data = Data(x=torch.randn(15, IN, generator=g, dtype=torch.float64), edge_index=ends, edge_weight=weight)
    data.y, data.train_mask = torch.arange(15) % OUT, torch.arange(15) % 4 < 2
    return data


def plain(data: Data) -> Tensor:
    """Row: who receives; column: who sends."""
    a = torch.zeros(len(data.x), len(data.x), dtype=torch.float64)
    for (sender, receiver), weight in zip(data.edge_index.t().tolist(), data.edge_weight.tolist(), strict=True):
        a[receiver, sender] += weight
    return a


def looped(data: Data, loop: float = 1.0) -> Tensor:
    """An edge of weight zero is not there, a loop neither: that node then gets one as others do."""
    a = plain(data)
    for node in range(len(a)):
        a[node, node] = a[node, node] if a[node, node] != 0 else loop
    return a


def normed(a: Tensor) -> Tensor:
    degree = a.sum(1)
    return torch.stack(
        [a[i] / math.sqrt(degree[i]) / degree.sqrt() for i in range(len(a))]
    )  # every node has a loop, so no degree is zero


def average(data: Data) -> Tensor:
    return normed(looped(data))


def batch_norm(x: Tensor, s: dict[str, Tensor], name: str) -> Tensor:
    scaled = (x - s[f"{name}.running_mean"]) / (s[f"{name}.running_var"] + 1e-5).sqrt()
    return scaled * s[f"{name}.weight"] + s[f"{name}.bias"]


def line(x: Tensor, s: dict[str, Tensor], name: str) -> Tensor:
    return x @ s[f"{name}.weight"].t() + s[f"{name}.bias"]


def conv(x: Tensor, a: Tensor, s: dict[str, Tensor], name: str) -> Tensor:
    return a @ x @ s[f"{name}.lin.weight"].t() + s[f"{name}.bias"]


def relu(x: Tensor) -> Tensor:
    return x.clamp_min(0)


def gcn(data: Data, s: dict[str, Tensor]) -> Tensor:
    return conv(relu(conv(data.x, average(data), s, "convs.0")), average(data), s, "convs.1")


def gat(data: Data, s: dict[str, Tensor]) -> Tensor:
    """Node by node, head by head; of weights only counts whether they are zero."""
    there, x = looped(data) != 0, data.x
    for layer in ("convs.0", "convs.1"):
        send, take = s[f"{layer}.att_src"][0], s[f"{layer}.att_dst"][0]
        heads, width = send.shape
        h = (x @ s[f"{layer}.lin.weight"].t()).view(len(x), heads, width)
        out = torch.zeros_like(h)
        # An edge that is there twice is attended to twice.
        times = torch.zeros(len(x), len(x))
        for (a, b), weight in zip(data.edge_index.t().tolist(), data.edge_weight.tolist(), strict=True):
            times[b, a] += weight != 0
        times = torch.where(torch.eye(len(x)) == 1, torch.ones(()), times)
        for i in range(len(x)):
            for k in range(heads):
                others = [j for j in range(len(x)) if there[i, j] for _ in range(int(times[i, j]))]
                score = torch.stack(
                    [leaky_relu((h[j, k] * send[k]).sum() + (h[i, k] * take[k]).sum(), 0.2) for j in others]
                )
                out[i, k] = (score.softmax(0).unsqueeze(1) * torch.stack([h[j, k] for j in others])).sum(0)
        last = layer == "convs.1"
        x = (out.mean(1) if last else out.flatten(1)) + s[f"{layer}.bias"]
        x = x if last else elu(x)
    return x


def gcnii(data: Data, s: dict[str, Tensor]) -> Tensor:
    h = x_0 = relu(line(data.x, s, "first"))
    for k in range(2):
        mixed = 0.9 * average(data) @ h + 0.1 * x_0
        beta = math.log(0.5 / (k + 1) + 1)
        h = relu((1 - beta) * mixed + beta * mixed @ s[f"convs.{k}.weight1"])
    return line(h, s, "last")


def gcnii_dense(data: Data, s: dict[str, Tensor]) -> Tensor:
    h = x_0 = relu(line(data.x, s, "first"))
    for k in range(2):
        new = average(data) @ (h + h @ s[f"convs.{k}.weight1"]) + 0.5 * x_0 + x_0 @ s[f"convs.{k}.weight2"]
        h = relu(batch_norm(new, s, f"norms.{k}")) + h
    return line(h, s, "last")


def gin(data: Data, s: dict[str, Tensor]) -> Tensor:
    x = data.x
    for k in range(2):
        x = plain(data) @ x + (1 + s[f"convs.{k}.eps"]) * x
        x = relu(batch_norm(line(x, s, f"convs.{k}.nn.0"), s, f"convs.{k}.nn.1"))
        x = relu(line(x, s, f"convs.{k}.nn.3"))
    return line(x, s, "head")


def appnp(data: Data, s: dict[str, Tensor]) -> Tensor:
    """The three steps as one matrix: 0.1 * (I + 0.9 A + 0.81 A^2) + 0.729 A^3."""
    a = average(data)
    spread = 0.1 * (torch.eye(len(a), dtype=a.dtype) + 0.9 * a + 0.81 * a @ a) + 0.729 * a @ a @ a
    return spread @ line(relu(line(data.x, s, "first")), s, "last")


def jknet(data: Data, s: dict[str, Tensor], largest: bool) -> Tensor:
    one = relu(conv(data.x, average(data), s, "convs.0"))
    two = relu(conv(one, average(data), s, "convs.1"))
    return line(torch.where(one > two, one, two) if largest else torch.cat([one, two], dim=1), s, "last")


def grand(data: Data, s: dict[str, Tensor]) -> Tensor:
    a = average(data)
    x = (data.x + a @ data.x + a @ a @ data.x + a @ a @ a @ data.x) / 4
    return line(relu(line(x, s, "first")), s, "last")


def gcn_res(data: Data, s: dict[str, Tensor]) -> Tensor:
    x_0 = line(data.x, s, "first")
    one = relu(batch_norm(conv(x_0, average(data), s, "convs.0"), s, "norms.0")) + 0.2 * x_0
    two = relu(batch_norm(conv(one, average(data), s, "convs.1"), s, "norms.1")) + 0.2 * x_0 + 0.7 * one
    share = s["shares"].exp() / s["shares"].exp().sum()
    return line(share[0] * one + share[1] * two, s, "last")


def gcn_tricks(data: Data, s: dict[str, Tensor]) -> Tensor:
    return conv(relu(batch_norm(conv(data.x, average(data), s, "convs.0"), s, "norms.0")), average(data), s, "convs.1")


def sage(data: Data, s: dict[str, Tensor]) -> Tensor:
    a = plain(data)
    mean = torch.stack([row / row.sum() if row.sum() > 0 else row for row in a])
    x = data.x
    for k in range(2):
        beside = x @ s[f"convs.{k}.lin_r.weight"].t()
        x = line(mean @ x, s, f"convs.{k}.lin_l") + beside
        x = relu(x) if k == 0 else x
    return x


def sgc(data: Data, s: dict[str, Tensor]) -> Tensor:
    return line(average(data) @ average(data) @ data.x, s, "conv.lin")


def mixhop(data: Data, s: dict[str, Tensor]) -> Tensor:
    a, x = average(data), data.x
    for k in range(2):
        powers = [x, a @ x, a @ a @ x]
        x = torch.cat([p @ s[f"convs.{k}.lins.{j}.weight"].t() for j, p in enumerate(powers)], dim=1)
        x = batch_norm(x + s[f"convs.{k}.bias"], s, f"norms.{k}")
    return line(x, s, "last")


def unet(data: Data, s: dict[str, Tensor]) -> Tensor:
    """Two levels down and up. Its loops weigh two, its edges one each, and it takes no weights."""
    data = Data(x=data.x, edge_index=data.edge_index, edge_weight=torch.ones(data.num_edges, dtype=torch.float64))

    def step(x: Tensor, a: Tensor, name: str) -> Tensor:
        own = torch.where(a.diagonal() == 0, 2.0, a.diagonal())
        return conv(x, normed(a - a.diagonal().diag() + own.diag()), s, f"unet.{name}")

    def two_steps(a: Tensor) -> Tensor:
        one = torch.eye(len(a), dtype=a.dtype)
        a = a - a.diagonal().diag() + one
        return (a @ a) * (1 - one)

    a = plain(data)
    x = relu(step(data.x, a, "down_convs.0"))
    graphs, seen, kept = [a], [x], []
    for k in (1, 2):
        weight = s[f"unet.pools.{k - 1}.select.weight"].flatten()
        score = (x @ weight / weight.norm()).tanh()
        best = score.argsort(descending=True)[: math.ceil(len(x) / 2)]
        a = two_steps(a)[best][:, best]
        x = relu(step(x[best] * score[best].unsqueeze(1), a, f"down_convs.{k}"))
        kept.append(best)
        graphs.append(a)
        seen.append(x)
    for k in (1, 0):
        back = seen[k].clone()
        back[kept[k]] += x
        x = step(back, graphs[k], f"up_convs.{1 - k}")
        x = relu(x) if k else x
    return x


def dgi(data: Data, s: dict[str, Tensor]) -> Tensor:
    h = conv(data.x, average(data), s, "conv")
    return line(torch.where(h > 0, h, s["activation.weight"] * h), s, "probe")


LITERAL = {
    "gcn": gcn,
    "gat": gat,
    "appnp": appnp,
    "jknet-cat": lambda data, s: jknet(data, s, False),
    "jknet-max": lambda data, s: jknet(data, s, True),
    "gcnii": gcnii,
    "grand": grand,
    "gin": gin,
    "gcnii-dense": gcnii_dense,
    "gcn-res": gcn_res,
    "gcn-tricks": gcn_tricks,
    "sage": sage,
    "sgc": sgc,
    "mixhop": mixhop,
    "unet": unet,
    "dgi": dgi,
}


def test_every_backbone_is_written_down():
    assert set(LITERAL) == set(BACKBONES)


def scattered(name: str) -> nn.Module:
    """No tensor as it was initialised: zero biases and unit norms hide mistakes."""
    g = torch.Generator().manual_seed(1)
    model = still(name, IN, OUT).double().eval()
    for t in [*model.parameters(), *model.buffers()]:
        if t.is_floating_point():
            t.data = torch.rand(t.shape, generator=g, dtype=torch.float64) * 0.8 + (0.2 if t.dim() < 2 else -0.4)
    return model


@pytest.mark.parametrize("name", LITERAL)
def test_equal_to_the_dense_formula(name):
    model, data = scattered(name), awkward()
    with torch.no_grad():
        found, wanted = forward(model, data), LITERAL[name](data, model.state_dict())
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)
    assert len(found.unique()) > OUT * 10  # it tells nodes apart


@pytest.mark.parametrize("name", [n for n in LITERAL if n != "unet"])
def test_an_edge_of_weight_zero_is_not_there(name):
    """So that replicas with edges of their own can share one list of edges."""
    model, data = scattered(name), awkward()
    there = data.edge_weight != 0
    fewer = Data(x=data.x, edge_index=data.edge_index[:, there], edge_weight=data.edge_weight[there], y=data.y)
    fewer.train_mask = data.train_mask
    with torch.no_grad():
        torch.testing.assert_close(forward(model, data), forward(model, fewer), rtol=1e-12, atol=1e-12)
        data.edge_weight = torch.ones(data.num_edges, dtype=torch.float64)
        assert not torch.allclose(forward(model, data), forward(model, fewer))
