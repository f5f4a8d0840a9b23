"""Plain data and bytes made hostile: field by field, by a dictionary of nasty values. A pure function of the generator."""

from __future__ import annotations

import copy
import json
from random import Random
from typing import Any


def nested(depth: int) -> list:
    """Returns a list in a list in a list."""
    found: list = []
    for _ in range(depth):
        found = [found]
    return found


NASTY: list[Any] = [
    0, -1, 1, 2, 3, 7, 10**6, 10**9, 10**12, -(10**12), 2**31, 2**63, 2**64, 10**30, 10**400, 0.0, -0.0, 0.5, 1.5, -3.5, 1e-40,
    5e-324, 1e38, 1e308, float("nan"), float("inf"), float("-inf"), "", "a", "0", "1e3", "nan", "rotary", "none", "None", "true",
    "last", "float99", "every", "../../etc/passwd", "/dev/zero", "~nosuchuser/x", "a/b/c", "\x00", "\n\n", "\x1b[31mred",
    "ünïcödé ☃", "\ud800", "x" * 100_000, "{{ 7*7 }}", "__class__", "kind", [], [[]], [0], [None], ["a"], ["q", "q"],
    [1, "a", None], [{}], {}, {"kind": "none"}, {"kind": "a"}, {"kind": None}, {"kind": []}, {"kind": {}}, {"a": 1}, {"": ""},
    {"depth": 1, "kind": "fixed"}, None, True, False, list(range(1000)), [{"kind": "sinusoidal"}] * 300,
    {str(n): n for n in range(1000)}, nested(60),
]  # fmt: skip
BYTES = [
    b"", b"\x00", b"\xff\xfe", b"{", b"}", b"[", b'"', b":", b",", b"\\u", b"\\ud800", b"NaN", b"-Infinity", b"1e999", b"\n",
    b"&a", b"*a", b"!!python/object/apply:os.system ['touch executed']", b"<<: ", b"9" * 5000, b"- " * 3000, b"[" * 5000,
    b'{"a":' * 5000, b"\t",
]  # fmt: skip


def places(data: Any, path: tuple = (), most: int = 400) -> list[tuple]:
    """Returns the path of every value in nested data, the whole excepted."""
    found: list[tuple] = []
    inner = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in inner:
        found.append((*path, key))
        found += places(value, (*path, key), most)
        if len(found) > most:
            break
    return found


def mutate(data: Any, rng: Random, count: int | None = None) -> Any:
    """Returns a copy with a few of its values replaced, dropped, added, renamed, wrapped or exchanged."""
    data = copy.deepcopy(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 5)) if count is None else count):
        where = places(data)
        if not where:
            return copy.deepcopy(rng.choice(NASTY))
        path = rng.choice(where)
        owner = data
        for key in path[:-1]:
            owner = owner[key]
        _change(owner, path[-1], rng)
    return data


def _change(owner: Any, key: Any, rng: Random) -> None:
    what = rng.random()
    if what < 0.65:
        owner[key] = copy.deepcopy(rng.choice(NASTY))
    elif what < 0.75:
        owner[key] = _other_type(owner[key], rng)
    elif what < 0.82:
        del owner[key]
    elif what < 0.90 and isinstance(owner, dict):
        owner[rng.choice(["kind", "", "x", f"{key}s", "num_labels", "id2label", "dtype", "per_layer_config", "auto_map"])] = (
            copy.deepcopy(rng.choice(NASTY))  # else later changes would be made to the dictionary itself
        )
    elif what < 0.95 and isinstance(owner, list):
        owner.extend(copy.deepcopy(owner) or [1])
    else:
        owner[key] = [owner[key]] if rng.random() < 0.5 else {"kind": owner[key]}


def _other_type(value: Any, rng: Random) -> Any:
    if isinstance(value, bool):
        return rng.choice([int(value), str(value), None])
    if isinstance(value, int):
        return rng.choice([float(value) if abs(value) < 2**60 else 0.5, str(value), -value, value * 10**6, 0.5])
    if isinstance(value, float):
        return rng.choice([str(value), -value, int(value) if abs(value) < 1e18 else 0, value * 1e30])
    if isinstance(value, str):
        return rng.choice([[value], value + "x", value.upper(), len(value)])
    return rng.choice([str(value), None, 1])


def damage(raw: bytes, rng: Random) -> bytes:
    """Returns bytes with a few places cut, doubled, flipped or filled with something nasty."""
    for _ in range(rng.choice((1, 1, 2, 4))):
        at, end = sorted((rng.randrange(len(raw) + 1), rng.randrange(len(raw) + 1)))
        what = rng.random()
        if what < 0.4:
            raw = raw[:at] + rng.choice(BYTES) + raw[at:]
        elif what < 0.6:
            raw = raw[:at] + raw[min(end, at + 40) :]
        elif what < 0.75:
            raw = raw[:end] + raw[at:end] + raw[end:]
        elif what < 0.9 and raw:
            at = rng.randrange(len(raw))
            raw = raw[:at] + bytes([raw[at] ^ 1 << rng.randrange(8)]) + raw[at + 1 :]
        else:
            raw = raw[:at]
    return raw


def as_json(data: Any) -> str:
    """Returns JSON as Python writes it: NaN, Infinity and lone surrogates included."""
    return json.dumps(data)
