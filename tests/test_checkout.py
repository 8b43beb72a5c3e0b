"""The checkout is the import package `verl_trace`: the few rules that keep it one."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Folders with Python files that are no part of the package.
BESIDE = {"tests", "examples", "benchmarks"}
ROOT_MODULES = ["__init__.py", "cli.py"]


def listed_packages() -> list[str]:
    """The names under `packages` in the setuptools table of pyproject.toml."""
    table = (ROOT / "pyproject.toml").read_text().split("[tool.setuptools]")[1]
    found = re.search(r"^packages = \[(.*?)\]", table, re.MULTILINE | re.DOTALL)

    assert found is not None
    return re.findall(r'"([^"]+)"', found[1])


def package_folders() -> list[str]:
    """Dotted names of all folders of the checkout that are packages."""
    found = []
    for init in ROOT.rglob("__init__.py"):
        parts = init.relative_to(ROOT).parent.parts
        if parts and (parts[0].startswith(".") or parts[0] in BESIDE | {"build", "dist"}):
            continue
        found.append(".".join(("verl_trace", *parts)))
    return sorted(found)


def test_every_package_is_listed() -> None:
    """A folder that is a package is named in pyproject.toml; otherwise a wheel would lack it."""
    assert sorted(listed_packages()) == package_folders()


def test_every_folder_with_modules_is_a_package() -> None:
    """A folder of the package with `.py` files has an `__init__.py`; otherwise a wheel would lack it."""
    packages = set(package_folders())
    missing = []
    for module in ROOT.rglob("*.py"):
        parts = module.relative_to(ROOT).parent.parts
        if parts and not parts[0].startswith(".") and parts[0] not in BESIDE | {"build", "dist"}:
            name = ".".join(("verl_trace", *parts))
            missing += [name] if name not in packages else []

    assert missing == []


def test_root_holds_no_stray_modules() -> None:
    """Every `.py` in the root ships as a module of verl_trace, so there are only the two that should."""
    assert sorted(path.name for path in ROOT.glob("*.py")) == ROOT_MODULES


def test_root_init_imports_absolutely() -> None:
    """A relative import there would load the package a second time under the checkout's folder name."""
    assert re.findall(r"^\s*from \.", (ROOT / "__init__.py").read_text(), re.MULTILINE) == []


def test_type_checker_links_are_complete() -> None:
    """`.typecheck/verl_trace` links to every top-level part of the package, and to nothing else."""
    top = {name.split(".")[1] for name in package_folders() if "." in name}
    links = {path.name: path for path in (ROOT / ".typecheck" / "verl_trace").iterdir()}

    assert sorted(links) == sorted({*top, *ROOT_MODULES, "py.typed"})
    for name, link in links.items():
        assert link.is_symlink(), name
        assert link.resolve() == ROOT / name
