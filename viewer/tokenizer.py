"""Token ids as text, by the tokenizer in a folder or file. Nothing is downloaded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..schemas.errors import BadQuery, MissingExtra

__all__ = ["load_tokenizer"]

_HINT = "give the folder of the model (with tokenizer.json), or that file"


def load_tokenizer(path: Path, command: str) -> Callable[[Sequence[int]], str]:
    """A function from ids to text, marks of the chat template included; ids that it does not know are `<id 5>`.

    `tokenizer.json` is read by the package tokenizers; a folder without one by transformers, which no extra brings.

    Raises:
        BadQuery: the path holds no tokenizer, or a broken one, or one that only transformers could read.
        MissingExtra: the package that could read it is not installed.
    """
    file = path / "tokenizer.json" if path.is_dir() else path
    if not path.exists():
        raise BadQuery(f"--tokenizer {path}: no such file or folder", hint=_HINT)
    if file.is_file():
        return _by_tokenizers(file, command)
    return _by_transformers(path)


def _by_tokenizers(file: Path, command: str) -> Callable[[Sequence[int]], str]:
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise MissingExtra(f"{command} --tokenizer", "read", "tokenizers") from None
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # noqa: BLE001
        # the package raises bare Exception for whatever is wrong with the file
        raise BadQuery(f"--tokenizer {file}: {error}", hint=_HINT) from None

    def decode(ids: Sequence[int]) -> str:
        return str(tokenizer.decode(list(ids), skip_special_tokens=False))

    return _careful(decode)


def _by_transformers(path: Path) -> Callable[[Sequence[int]], str]:
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise BadQuery(
            f"--tokenizer {path}: no tokenizer.json in it, and without one only the package transformers can read it",
            hint=f"{_HINT}; or pip install transformers",
        ) from None
    try:
        # code that lies in the folder is not run
        tokenizer = AutoTokenizer.from_pretrained(str(path), local_files_only=True, trust_remote_code=False)
    except Exception as error:  # noqa: BLE001
        raise BadQuery(f"--tokenizer {path}: {error}", hint=_HINT) from None
    return _careful(lambda ids: str(tokenizer.decode(list(ids))))


def _careful(decode: Callable[[list[int]], str]) -> Callable[[Sequence[int]], str]:
    def tried(ids: Sequence[Any]) -> str:
        try:
            return decode(list(ids))
        except Exception:  # noqa: BLE001
            # a recorded id may be negative, no number, or of another vocabulary
            return "".join(_one(decode, token) for token in ids)

    return tried


def _one(decode: Callable[[list[int]], str], token: Any) -> str:
    try:
        return decode([token])
    except Exception:  # noqa: BLE001
        return f"<id {token}>"
