"""Graphs by name, from a person's files, or as they are. To add a dataset, give it an entry in :data:`DATASETS`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from torch_geometric.data import Data

from ..errors import AkeError
from . import embedded, formats, named, own
from .named import Source as Source

Graphs: TypeAlias = Data | list[Data]


@dataclass(frozen=True)
class Size:
    """What `akegnn data list` tells of a dataset without loading it; edges as in ``edge_index``."""

    graphs: int
    nodes: int
    edges: int
    features: int
    classes: int
    splits: str


@dataclass(frozen=True)
class Dataset:
    """A named dataset: what it is for, how to get it, and where it comes from."""

    source: Source | Callable[[], Graphs]  # files, or a function that makes the graphs
    tasks: tuple[str, ...]
    about: str
    size: Size
    home: str

    def load(self, root: str | Path | None = None) -> Graphs:
        return self.source.load(root) if isinstance(self.source, Source) else self.source()

    def path(self, root: str | Path | None = None) -> Path | None:
        """The folder or file it is read from, if it is read from files and they are there."""
        found = self.source.find(root) if isinstance(self.source, Source) else None
        return found.path if found else None

    def present(self, root: str | Path | None = None) -> str:
        if not isinstance(self.source, Source):
            return "embedded"
        return str(self.path(root) or "not found")


NODE, DIRECTED, GRAPH = ("node", "link"), ("node",), ("graph",)  # links need undirected edges (edges="undirected")
DIGITS = "scikit-learn's load_digits; UCI, https://doi.org/10.24432/C50P49"
PLANETOID = "kimiyoung/planetoid; Yang et al. 2016, https://arxiv.org/abs/1603.08861"
GEOM_GCN = "graphdml-uiuc-jlu/geom-gcn; Pei et al. 2020, https://arxiv.org/abs/2002.05287"
CORRECTED = "bingzhewei/geom-gcn (corrected July 2022); Pei et al. 2020, https://arxiv.org/abs/2002.05287"
FAIR = "folds: diningphil/gnn-comparison, Errica et al. 2020, https://arxiv.org/abs/1912.09893"
TU = f"chrsmrrs/tudataset; Morris et al. 2020, https://arxiv.org/abs/2007.08663; {FAIR}"
OGB = "snap-stanford/ogb; Hu et al. 2020, https://arxiv.org/abs/2005.00687"

DATASETS: dict[str, Dataset] = {
    "digits": Dataset(
        embedded.digits,
        NODE,
        "handwritten digits as one graph: edges from the upper half of each image, features from the lower",
        Size(1, 1797, 12620, 32, 10, "30/300/1000"),
        DIGITS,
    ),
    "digits-graphs": Dataset(
        embedded.digits_graphs,
        GRAPH,
        "handwritten digits, each image a grid of 64 pixels",
        Size(1797, 115008, 402528, 3, 10, "1000/300/497"),
        DIGITS,
    ),
    "cora": Dataset(
        named.planetoid("cora", "Cora"),
        NODE,
        "machine-learning papers that cite each other, words as features; public split",
        Size(1, 2708, 10556, 1433, 7, "140/500/1000"),
        PLANETOID,
    ),
    "citeseer": Dataset(
        named.planetoid("citeseer", "CiteSeer"),
        NODE,
        "computer-science papers that cite each other, words as features; public split",
        Size(1, 3327, 9104, 3703, 6, "120/500/1000"),
        PLANETOID,
    ),
    "pubmed": Dataset(
        named.planetoid("pubmed", "PubMed"),
        NODE,
        "papers on diabetes that cite each other, weighted words as features; public split",
        Size(1, 19717, 88648, 500, 3, "60/500/1000"),
        PLANETOID,
    ),
    "chameleon": Dataset(
        named.wikipedia("chameleon"),
        DIRECTED,
        "Wikipedia pages on chameleons, directed links, classes by traffic; ten splits",
        Size(1, 2277, 36101, 2325, 5, "10 x 1092/729/456"),
        GEOM_GCN,
    ),
    "squirrel": Dataset(
        named.wikipedia("squirrel"),
        DIRECTED,
        "Wikipedia pages on squirrels, directed links, classes by traffic; ten splits",
        Size(1, 5201, 217073, 2089, 5, "10 x 2496/1664/1041"),
        GEOM_GCN,
    ),
    "actor": Dataset(
        named.actor("actor"),
        DIRECTED,
        "actors who appear on the same Wikipedia pages, also called film, directed; ten splits",
        Size(1, 7600, 30019, 932, 5, "10 x 3648/2432/1520"),
        CORRECTED,
    ),
    "cornell": Dataset(
        named.webkb(
            "cornell",
            "cornell",
            hint="PyG's download address still serves the faulty file from before July 2022 (that one is called "
            "cornell-2021 here); the corrected files are in bingzhewei/geom-gcn",
        ),
        DIRECTED,
        "web pages of a university, directed links; ten splits; the file as corrected in July 2022",
        Size(1, 183, 298, 1703, 5, "10 x 87/59/37"),
        CORRECTED,
    ),
    "cornell-2021": Dataset(
        named.webkb(
            "cornell-2021",
            "cornell",
            places=("webkb_cornell_before_2022_fix/cornell/raw", "cornell-2021/raw"),
            shared=("webkb/cornell/raw", "cornell/raw"),
        ),
        DIRECTED,
        "Cornell as it was before July 2022, faulty: its features and labels are those of Texas; ten splits",
        Size(1, 183, 298, 1703, 5, "10 x 87/59/37"),
        GEOM_GCN,
    ),
    "texas": Dataset(
        named.webkb("texas", "texas"),
        DIRECTED,
        "web pages of a university, directed links; ten splits",
        Size(1, 183, 325, 1703, 5, "10 x 87/59/37"),
        CORRECTED,
    ),
    "wisconsin": Dataset(
        named.webkb("wisconsin", "wisconsin"),
        DIRECTED,
        "web pages of a university, directed links; ten splits",
        Size(1, 251, 515, 1703, 5, "10 x 120/80/51"),
        CORRECTED,
    ),
    "dd": Dataset(
        named.tu("dd", "DD", split="CHEMICAL/DD"),
        GRAPH,
        "proteins, enzymes or not; nodes are amino acids; ten folds",
        Size(1178, 334925, 1686092, 89, 2, "10 folds"),
        TU,
    ),
    "nci1": Dataset(
        named.tu("nci1", "NCI1", split="CHEMICAL/NCI1"),
        GRAPH,
        "molecules, active against lung cancer or not; nodes are atoms; ten folds",
        Size(4110, 122747, 265506, 37, 2, "10 folds"),
        TU,
    ),
    "proteins": Dataset(
        named.tu("proteins", "PROTEINS", split="CHEMICAL/PROTEINS_full"),
        GRAPH,
        "proteins, enzymes or not; nodes are secondary structures, without their attributes; ten folds",
        Size(1113, 43471, 162088, 3, 2, "10 folds"),
        TU,
    ),
    "imdb-binary": Dataset(
        named.tu(
            "imdb-binary",
            "IMDB-BINARY",
            split="COLLABORATIVE_1/IMDB-BINARY",
            split_degree="COLLABORATIVE_DEGREE/IMDB-BINARY",
        ),
        GRAPH,
        "who acted with whom, action or romance; a constant as feature; ten folds",
        Size(1000, 19773, 193062, 1, 2, "10 folds"),
        TU,
    ),
    "reddit-binary": Dataset(
        named.tu(
            "reddit-binary",
            "REDDIT-BINARY",
            split="COLLABORATIVE_1/REDDIT-BINARY",
            split_degree="COLLABORATIVE_DEGREE/REDDIT-BINARY",
        ),
        GRAPH,
        "who answered whom in a thread, discussion or questions; a constant as feature; ten folds",
        Size(2000, 859254, 1991016, 1, 2, "10 folds"),
        TU,
    ),
    "ogbn-arxiv": Dataset(
        named.arxiv(
            "ogbn-arxiv",
            formats.arxiv,
            ("raw/node-feat.csv.gz",),
            hint="the official features (raw/node-feat.csv.gz) come with OGB's arxiv.zip; "
            "without them the same graph is 'ogbn-arxiv-substitute'",
        ),
        DIRECTED,
        "computer-science papers that cite each other, directed, split by year; official features",
        Size(1, 169343, 1166243, 128, 40, "90941/29799/48603"),
        OGB,
    ),
    "ogbn-arxiv-substitute": Dataset(
        named.arxiv("ogbn-arxiv-substitute", formats.arxiv_substitute, (), hint=""),
        DIRECTED,
        "the graph of ogbn-arxiv with features made from its edges: NOT the official features, so scores on it are "
        "not comparable with published ones",
        Size(1, 169343, 1166243, 128, 40, "90941/29799/48603"),
        OGB,
    ),
}


def find(name: str) -> Dataset:
    """The entry of a dataset."""
    if name not in DATASETS:
        raise AkeError(f"data: no dataset is called {name!r}; there are {', '.join(DATASETS)}")
    return DATASETS[name]


def load(name: str, root: str | Path | None = None) -> Graphs:
    """A named dataset, a folder with ``nodes.csv`` and ``edges.csv``, or a file from ``torch.save(data, path)``.

    The files of a named one are looked for below ``root``, AKEGNN_DATA and the cache, in this order.
    """
    if name in DATASETS:
        return DATASETS[name].load(root)
    path = Path(name)
    if path.is_dir():
        return own.read_folder(path)
    if path.is_file():
        return own.read_saved(path)
    raise AkeError(f"data: {name!r} is neither a dataset ({', '.join(DATASETS)}) nor an existing folder or file")
