"""Writing TOML: what studies and machines need of it. Reading is in the standard library."""

from __future__ import annotations

import json
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any

import numpy as np


def dumps(document: Mapping[str, Any]) -> str:
    """The document; tables inside become inline tables."""
    return "".join(_entry(key, value) + "\n" for key, value in document.items())


def _entry(key: Any, value: Any) -> str:
    try:
        return f"{_key(key)} = {_value(value)}"
    except TypeError as error:
        raise TypeError(f"{key}: {error}") from None


def _key(key: Any) -> str:
    if not isinstance(key, str):
        raise TypeError(f"a key is text, not {type(key).__name__}")
    bare = key.replace("-", "").replace("_", "")
    return key if bare.isascii() and bare.isalnum() else _text(key)


def _text(text: str) -> str:
    # JSON's escapes are TOML's, but for those of two halves, and for the one control character that JSON leaves.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _value(value: Any) -> str:
    if isinstance(value, (bool, np.bool_)):
        return "true" if value else "false"
    # Also numpy's, whose own forms name their types.
    if isinstance(value, Integral):
        return repr(int(value))
    if isinstance(value, Real):
        return repr(float(value))
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, Mapping):
        return "{ " + ", ".join(_entry(key, inner) for key, inner in value.items()) + " }"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_value(inner) for inner in value) + "]"
    raise TypeError(f"{type(value).__name__} has no form in TOML")
