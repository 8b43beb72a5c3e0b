"""The committed inputs of the fuzzer, run without it: what it has found once stays found."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
CORPUS = sorted((HERE / "corpus").iterdir())


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.name)
def test_input_of_the_corpus(path: Path, tmp_path: Path) -> None:
    """Nothing raises, no damage is called whole, the copy is whole and holds what no fault has touched."""
    runpy.run_path(str(HERE / "fuzz_reader.py"))["check"](path.read_bytes(), tmp_path)
