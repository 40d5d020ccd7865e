"""What a page shows of a run besides its scores: channels before and after the exchange, and how the network errs.

It is worked out once, for the network that ships, on the original data and the test part, while the networks are still
at hand. All of it is small: correlations as whole hundredths, and at most :data:`POINTS` outputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .channels import Layer
from .exchange import correlation, entropy
from .forward import forward
from .tasks import LinkTask, Task
from .training import evaluate

CHANNELS = 128  # of a layer whose correlations are kept
NUMBERS = 300_000  # correlations kept of all layers together, before and after
POINTS = 2000  # outputs kept for a map
DIMENSIONS = 16  # of an output, by principal components
BINS = 10  # of confidence
CURVE = 200  # points of a ROC curve


def weights(state: Mapping[str, Tensor], layers: Sequence[Layer]) -> dict[str, Tensor]:
    """A copy of the weights of some layers, ``[R, ...]`` each: what they were before others took their place."""
    return {slot.name: state[slot.name].detach().cpu().clone() for layer in layers for slot in layer.weights}


def collect(
    model: nn.Module,
    task: Task,
    layers: Sequence[Layer],
    around: Sequence[Mapping[str, Tensor]],
    replica: int,
    bins: int,
) -> dict[str, Any]:
    """Everything, as plain numbers; ``around`` are the weights before and after the exchange (see :func:`weights`)."""
    prediction = evaluate(model, task)
    before, after = ({name: w[replica] for name, w in state.items()} for state in around)
    found: dict[str, Any] = {"layers": _layers(layers, before, after, bins)}
    if not bool(torch.isfinite(prediction).all()):  # there is nothing to be seen in it
        return found
    scores, target = (t.detach().cpu() for t in task.part(prediction, "test"))
    if isinstance(task, LinkTask):
        with torch.no_grad():
            outputs = forward(model, task.data).detach().cpu()
        labels = task.data.get("y")
        known = isinstance(labels, Tensor) and labels.dim() == 1 and not labels.is_floating_point()
        found["roc"] = roc(scores.double().numpy(), target.numpy())
        found["map"] = _map(outputs, labels.cpu() if known else None)
    elif scores.dim() == 2:
        found["confusion"] = confusion(scores.argmax(-1).numpy(), target.numpy(), scores.shape[1])
        found["calibration"] = calibration(scores.double().softmax(-1).numpy(), target.numpy())
        found["map"] = _map(scores, target, scores.argmax(-1))
    return found


def _layers(
    layers: Sequence[Layer], before: Mapping[str, Tensor], after: Mapping[str, Tensor], bins: int
) -> list[dict[str, Any]]:
    """Entropy of every layer; correlations of those that are small enough, while there is room."""
    found, room = [], NUMBERS
    for layer in layers:
        told: dict[str, Any] = {"name": layer.name, "channels": layer.channels}
        pairs = layer.channels * (layer.channels - 1) // 2
        if 2 <= layer.channels <= CHANNELS and 2 * pairs <= room:
            room -= 2 * pairs
            told |= {"before": _hundredths(_matrix(before, layer)), "after": _hundredths(_matrix(after, layer))}
        told["entropy"] = [round(float(entropy(_matrix(w, layer), bins)), 6) for w in (before, after)]
        found.append(told)
    return found


def _matrix(state: Mapping[str, Tensor], layer: Layer) -> Tensor:
    """The layer's weights, one row per channel."""
    return torch.cat([slot.rows(state[slot.name], lead=0).flatten(1) for slot in layer.weights], dim=1)


def _hundredths(matrix: Tensor) -> list[int]:
    """The correlations of the pairs ``a < b``, row by row, in hundredths."""
    upper = torch.triu_indices(len(matrix), len(matrix), offset=1)
    return (100 * correlation(matrix)[upper[0], upper[1]]).round().int().tolist()  # type: ignore[no-any-return]


def confusion(predicted: np.ndarray, target: np.ndarray, classes: int) -> list[list[int]]:
    """How often each class (row) was taken for each (column)."""
    counts = np.bincount(classes * target + predicted, minlength=classes * classes)
    return counts.reshape(classes, classes).tolist()  # type: ignore[no-any-return]


def calibration(probabilities: np.ndarray, target: np.ndarray) -> dict[str, Any]:
    """How often predictions of some confidence are right, and the expected calibration error over equal bins."""
    confidence, right = probabilities.max(1), probabilities.argmax(1) == target
    place = np.minimum((confidence * BINS).astype(int), BINS - 1)
    bins, error = [], 0.0
    for k in range(BINS):
        here = place == k
        if count := int(here.sum()):
            sure, true = float(confidence[here].mean()), float(right[here].mean())
            error += count / len(place) * abs(sure - true)
            bins.append({"bin": k, "count": count, "confidence": round(sure, 4), "accuracy": round(true, 4)})
    return {"bins": bins, "error": round(error, 6)}


def roc(scores: np.ndarray, target: np.ndarray) -> dict[str, Any]:
    """The ROC curve, thinned out, and the area under it."""
    from sklearn.metrics import roc_auc_score, roc_curve

    false, true, _ = roc_curve(target, scores)
    some = np.unique(np.linspace(0, len(false) - 1, min(CURVE, len(false))).round().astype(int))
    points = [[round(float(a), 4), round(float(b), 4)] for a, b in zip(false[some], true[some], strict=True)]
    return {"points": points, "area": round(float(roc_auc_score(target, scores)), 6)}


def _map(outputs: Tensor, labels: Tensor | None, predicted: Tensor | None = None) -> dict[str, Any]:
    """Outputs of some nodes or graphs, by their principal components; which ones does not depend on the seed."""
    some = torch.randperm(len(outputs), generator=torch.Generator().manual_seed(0))[:POINTS].sort().values
    points = outputs[some].double()
    points = points - points.mean(0)
    if points.shape[1] > 2:
        _, _, axes = torch.linalg.svd(points, full_matrices=False)
        points = points @ axes[:DIMENSIONS].T
    return {
        "of": len(outputs),
        "points": [[round(v, 3) for v in row] for row in points.tolist()],
        "labels": labels[some].tolist() if labels is not None else None,
        "predicted": predicted[some].tolist() if predicted is not None else None,
    }
