"""`python -m verl_trace.verl_plugin verl.trainer.main_ppo …`: run a module of verl's with the plugin loaded first.

For verl 0.5, which loads no plugins; on later versions it stands in for VERL_USE_EXTERNAL_MODULES.
"""

from __future__ import annotations

import os
import runpy
import sys

from .ray_env import LOADER_VARIABLE

_PACKAGE = __spec__.parent if __spec__ is not None else "verl_trace.verl_plugin"


def main() -> None:
    """Run the module named first with the arguments behind it, as `python -m` would."""
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(f"usage: python -m {_PACKAGE} MODULE [ARGUMENT…], for example MODULE = verl.trainer.main_ppo")
    modules = [name for name in os.environ.get(LOADER_VARIABLE, "").split(",") if name]
    if _PACKAGE not in modules:
        os.environ[LOADER_VARIABLE] = ",".join([*modules, str(_PACKAGE)])
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
