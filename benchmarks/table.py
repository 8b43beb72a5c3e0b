"""One table at the end of all benchmarks: what was measured, the figure, its target, and whether that was reached.

A benchmark says its results by `tell`, beside what it prints. `run_all` names the file that they go to.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

__all__ = ["VARIABLE", "print_table", "tell"]

VARIABLE = "BENCH_RESULTS"


def tell(
    what: str,
    figure: float,
    unit: str = "",
    *,
    at_most: float | None = None,
    at_least: float | None = None,
    part: str | None = None,
) -> None:
    """One line of the table; without a bound it is for information. Says nothing where no table is made.

    `part` is the benchmark, by default the program that runs.
    """
    path = os.environ.get(VARIABLE)
    if not path:
        return
    name = Path(sys.argv[0]).stem.removeprefix("bench_") if part is None else part
    line = {"part": name, "what": what, "figure": figure, "unit": unit, "at_most": at_most, "at_least": at_least}
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def print_table(path: Path) -> None:
    """Of all lines in this file."""
    lines: list[dict[str, Any]] = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    widths = (
        max((len(line["part"]) for line in lines), default=0),
        max((len(line["what"]) for line in lines), default=0),
    )
    print(f"\n{'':<{widths[0]}}  {'':<{widths[1]}}  {'figure':>16}  {'target':>10}  reached")
    part = ""
    for line in lines:
        shown = line["part"] if line["part"] != part else ""
        part = line["part"]
        target, reached = _judged(line)
        figure = f"{_short(line['figure'])} {line['unit']}".strip()
        print(f"{shown:<{widths[0]}}  {line['what']:<{widths[1]}}  {figure:>16}  {target:>10}  {reached}".rstrip())


def _judged(line: dict[str, Any]) -> tuple[str, str]:
    figure, most, least = line["figure"], line["at_most"], line["at_least"]
    if most is not None:
        return f"<= {_short(most)}", "yes" if figure <= most else "NO"
    if least is not None:
        return f">= {_short(least)}", "yes" if figure >= least else "NO"
    return "", ""


def _short(figure: float) -> str:
    return f"{figure:,.0f}" if abs(figure) >= 100 or figure == round(figure) else f"{figure:.3g}"
