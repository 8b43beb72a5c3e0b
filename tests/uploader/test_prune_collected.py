"""`prune` on a node whose files were collected: the archive keeps what it has."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from verl_trace.recorder.sealing import seal

from .test_prune import groups, ids

SCRIPT = Path(sys.executable).with_name("verl-trace")


def done(*words: object) -> str:
    """What a command that succeeds prints."""
    ran = subprocess.run([str(SCRIPT), *map(str, words)], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_pruned_on_the_node(writer: Any, project: str, tmp_path: Path, wandb_login: Any) -> None:
    """Collected, uploaded, pruned in part and then whole, and collected after each: as somebody at a node does it."""
    node, shared = tmp_path / "node", tmp_path / "shared"
    recording, _ = groups(writer, node, project)
    seal(recording.path)
    before = ids(node)
    done("collect", node, shared)
    done("upload", node)
    done("prune", node, "--uploaded", "--step", "1", "--yes")
    told = done("collect", node, shared)

    assert ids(node) < before
    assert "0 files copied" in told
    assert "1 pruned here and kept there" in told
    assert ids(shared) == before
    done("prune", node, "--uploaded", "--yes")
    assert "0 files copied" in done("collect", node, shared)
    assert not list(node.rglob("*.zst"))
    assert ids(shared) == before
    assert "pruned" not in done("ls", shared)
    # another archive never had them
    assert "2 files copied" in done("collect", node, tmp_path / "other")
