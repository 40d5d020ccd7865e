"""Who is trained on, validated on and tested on: masks as they come, one column of several, or drawn and recorded."""

from __future__ import annotations

import torch
from torch import Tensor
from torch_geometric.data import Data

from ..errors import AkeError

PARTS = ("train", "val", "test")
FRACTIONS = {"train": 0.6, "val": 0.2, "test": 0.2}


def node_splits(
    data: Data, split: int, seed: int, masks: str = "given", labels_per_class: int | None = None
) -> tuple[dict[str, Tensor], str]:
    """Node indices of the three parts, and a note of what was drawn (empty if nothing was).

    A missing part is drawn, class by class, from the labelled nodes that no given mask holds; with no such node left,
    from the training nodes. With ``masks="random"`` all parts are drawn. With ``labels_per_class`` the training nodes
    are drawn anew, so many of each class, from those that are neither for validation nor for testing.
    """
    if masks not in ("given", "random"):
        raise AkeError(f"masks: {masks!r} is not one of given, random")
    given = {}
    for part in PARTS if masks == "given" else ():
        mask = data.get(f"{part}_mask")
        if mask is not None:
            given[part] = _column(mask, split, f"{part}_mask", int(data.num_nodes or 0)).nonzero().flatten()
    labels = data.y.cpu() if data.get("y") is not None else torch.empty(0, dtype=torch.long)
    parts, note = complete(given, (labels >= 0).nonzero().flatten(), labels, seed)
    if labels_per_class is None:
        return parts, note
    parts["train"] = few_labels(parts, labels, labels_per_class, seed)
    return parts, "; ".join(x for x in (note, f"{labels_per_class} labels of each class drawn with seed {seed}") if x)


def few_labels(parts: dict[str, Tensor], labels: Tensor, count: int, seed: int) -> Tensor:
    """``count`` nodes of each class that are neither for validation nor for testing."""
    if count < 1:
        raise AkeError(f"labels_per_class: must be at least 1, got {count}")
    free = labels >= 0
    free[torch.cat([parts["val"], parts["test"]])] = False
    generator = torch.Generator().manual_seed(seed)
    chosen = []
    for c in labels[labels >= 0].unique().tolist():
        members = (free & (labels == c)).nonzero().flatten()
        if len(members) < count:
            raise AkeError(f"labels_per_class: class {c} has only {len(members)} nodes to train on, asked for {count}")
        chosen.append(members[torch.randperm(len(members), generator=generator)[:count]])
    return torch.cat(chosen).sort().values


def complete(given: dict[str, Tensor], pool: Tensor, labels: Tensor | None, seed: int) -> tuple[dict[str, Tensor], str]:
    """Draw the parts that are missing."""
    missing = [part for part in PARTS if part not in given]
    if missing:
        taken = torch.cat([*given.values(), torch.empty(0, dtype=torch.long)])
        free = pool[~torch.isin(pool, taken)]
        if len(free) == 0 and "train" in given:
            free = given["train"]
            shares = {"train": 1 - 0.2 * len(missing), **dict.fromkeys(missing, 0.2)}
            del given["train"]
        else:
            shares = {part: FRACTIONS[part] for part in missing}
        given = {**given, **_draw(free, shares, labels, seed)}
    note = f"{', '.join(missing)} drawn by class with seed {seed}" if missing else ""
    for part in PARTS:
        if len(given[part]) == 0:
            raise AkeError(f"{part}_mask: the {part} split is empty")
    for a, b in (("train", "val"), ("train", "test"), ("val", "test")):
        if bool(torch.isin(given[a], given[b]).any()):
            raise AkeError(f"{a}_mask: shares nodes or graphs with {b}_mask")
    return {part: given[part].sort().values for part in PARTS}, note


def _draw(pool: Tensor, shares: dict[str, float], labels: Tensor | None, seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    classes = labels[pool] if labels is not None else torch.zeros(len(pool), dtype=torch.long)
    parts: dict[str, list[Tensor]] = {part: [] for part in shares}
    total = sum(shares.values())
    for c in classes.unique():
        members = pool[classes == c]
        members = members[torch.randperm(len(members), generator=generator)]
        start = 0.0
        for part, share in shares.items():
            stop = start + share / total * len(members)
            parts[part].append(members[round(start) : round(stop)])
            start = stop
    return {part: torch.cat(chunks) if chunks else torch.empty(0, dtype=torch.long) for part, chunks in parts.items()}


def _column(mask: Tensor, split: int, name: str, nodes: int) -> Tensor:
    if not isinstance(mask, Tensor):
        raise AkeError(f"{name}: must be a tensor, is a {type(mask).__name__}")
    if mask.dim() == 2:
        if not 0 <= split < mask.shape[1]:
            raise AkeError(f"{name}: has splits 0 to {mask.shape[1] - 1}, asked for {split}")
        mask = mask[:, split]
    if mask.shape != (nodes,):
        raise AkeError(f"{name}: must have one entry per node ({nodes}), has shape {tuple(mask.shape)}")
    return mask.bool().cpu()
