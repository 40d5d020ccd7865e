"""Run the notebooks anew, each in a folder that is thrown away, and keep their outputs.

python examples/run.py [NAME ...]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient


def main(names: list[str]) -> None:
    """Run those that are named, or all."""
    for path in sorted(Path(__file__).parent.glob("*.ipynb")):
        if names and path.stem not in names:
            continue
        notebook = nbformat.read(path, as_version=4)
        kept = dict(notebook.metadata)
        with tempfile.TemporaryDirectory() as folder:
            client = NotebookClient(notebook, record_timing=False, resources={"metadata": {"path": folder}})
            client.execute()
        notebook.metadata = kept  # the kernel adds its version
        nbformat.write(notebook, path)
        print(path.name)


if __name__ == "__main__":
    main(sys.argv[1:])
