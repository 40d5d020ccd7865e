"""The Python examples of the README run as they stand, in order, in one session."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_every_python_example_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    assert len(blocks) >= 4
    session: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), session)
    printed = capsys.readouterr().out
    assert "AKE" in printed
    assert "convs.0.lin_l.weight" in printed
