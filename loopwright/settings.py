"""Strict plain-data settings: unknown names are refused with a suggestion, `a.b=c` overrides are parsed once, here."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any

import yaml


class _Loader(yaml.SafeLoader):
    """Plain YAML, but 3e-4 is a number, as in YAML 1.2 (PyYAML reads it as text)."""


_Loader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789"))


def suggest(name: str, allowed: Iterable[str]) -> str:
    """Returns the tail of an error message: the nearest allowed name, then all of them."""
    names = sorted(allowed)
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"{hint}allowed: {', '.join(names) if names else 'nothing'}"


def refuse_unknown(where: str, names: Iterable[str], allowed: Iterable[str]) -> None:
    """Raises a ValueError that names every unknown name and what is allowed."""
    allowed = set(allowed)
    unknown = [name for name in names if name not in allowed]
    if unknown:
        listed = ", ".join(repr(name) for name in unknown)
        raise ValueError(f"{where}: unknown {listed}; {suggest(unknown[0], allowed)}")


def parse_overrides(words: Iterable[str]) -> dict[str, Any]:
    """Returns the nested dictionary that `a.b=c` words describe; values are read as YAML."""
    result: dict[str, Any] = {}
    for word in words:
        path, sign, text = word.partition("=")
        if not sign or not path:
            raise ValueError(f"override: {word!r} is not of the form name=value")
        try:
            value = yaml.load(text, _Loader) if text else None
        except yaml.YAMLError:
            raise ValueError(f"override: the value of {word!r} is not valid YAML") from None
        node = result
        *parents, last = path.split(".")
        for parent in parents:
            child = node.setdefault(parent, {})
            if not isinstance(child, dict):
                raise ValueError(f"override: {word!r} sets a field of {parent!r}, which already has a plain value")
            node = child
        node[last] = value
    return result


def merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns `base` with `changes` laid over it, dictionaries merged key by key.

    A dictionary that changes its `kind` replaces the old one: the options of one kind mean nothing to another.
    """
    result = dict(base)
    for key, value in changes.items():
        old = result.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping) and value.get("kind", old.get("kind")) == old.get("kind"):
            result[key] = merge(old, value)
        else:
            result[key] = value
    return result
