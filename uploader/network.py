"""Proxies and certificate authorities, as `requests`, `httpx` and W&B know them, made one for both sides of an upload.

The W&B API is asked by weave's client (httpx), the trace server by ours (requests). Left alone, the one does not know
REQUESTS_CA_BUNDLE, the other not SSL_CERT_FILE, and neither WANDB_HTTPS_PROXY.
"""

from __future__ import annotations

import configparser
import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

__all__ = ["environment", "one_network", "verification"]

# First that is set, in the order of the client that sends the calls.
_BUNDLES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE", "SSL_CERT_DIR")
# What weave's client looks at.
_INSECURE = "WEAVE_INSECURE_DISABLE_SSL"


@contextlib.contextmanager
def one_network() -> Iterator[None]:
    """For the time of the block, the environment says to both clients what the user has said to one of them."""
    wanted: dict[str, str] = {}
    for scheme in ("http", "https"):
        proxy = _wandb_setting(f"{scheme}_proxy")
        if proxy:
            # either spelling may be set, and the small one would win
            wanted |= {f"{scheme.upper()}_PROXY": proxy, f"{scheme}_proxy": proxy}
    bundle = _bundle()
    if bundle and not os.path.isdir(bundle):
        wanted["SSL_CERT_FILE"] = bundle
    elif bundle:
        wanted["SSL_CERT_DIR"] = bundle
    if _wandb_setting("insecure_disable_ssl").lower() in ("true", "1"):
        wanted[_INSECURE] = "true"
    with environment(wanted):
        yield


@contextlib.contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """The process's environment with these variables, for the time of the block."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def verification() -> bool | str:
    """What `requests` takes as `verify`: False, a file or folder of certificate authorities, or True for its own."""
    if os.environ.get(_INSECURE, "").lower() == "true":
        return False
    return _bundle() or True


def _bundle() -> str:
    return next((os.environ[name] for name in _BUNDLES if os.environ.get(name)), "")


def _wandb_setting(name: str) -> str:
    """One of W&B's own settings: WANDB_NAME, ./wandb/settings, ~/.config/wandb/settings; "" when none has it."""
    value = os.environ.get(f"WANDB_{name.upper()}")
    if value:
        return value
    folder = os.environ.get("WANDB_CONFIG_DIR") or os.path.join(os.path.expanduser("~"), ".config", "wandb")
    settings = configparser.ConfigParser(interpolation=None)
    try:
        settings.read([Path(folder) / "settings", Path("wandb") / "settings"], encoding="utf-8")
    except (configparser.Error, OSError, UnicodeDecodeError):
        # whoever needs the file for the base URL says what is wrong with it
        return ""
    return settings.get("default", name, fallback="")
