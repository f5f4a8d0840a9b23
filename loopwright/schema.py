"""Strict plain data: unknown names are refused with a suggestion, values are checked, `a.b=c` overrides are parsed once, here.

Two forms are filled from plain data: a *kind*, `{"kind": name, options}`, whose options are the keyword arguments of the class
that a literal table gives for the name; and a *section*, a dataclass whose fields are the keys. Each check of a value returns it,
or raises one line: its name, what it must be, and what was given.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import math
import operator
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, get_args

import yaml

from loopwright.untrusted import check_plain, shown

LONGEST_NAME = 100  # characters of a name that is compared with others: the search takes the square of the length
MOST_NUMBER: float = (2 - 2**-23) * 2.0**127  # the largest that float32 holds
MOST_COUNT = 2**31 - 1  # of any count, and of a seed in a recipe
LONGEST_PROBLEM = 4096  # digits, hops or steps: numbers of that many digits are made


def is_whole(value: Any, least: float = -math.inf, most: float = math.inf) -> bool:
    """Returns whether a value is a whole number between two others, both included."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def is_number(value: Any, least: float = -MOST_NUMBER, most: float = MOST_NUMBER) -> bool:
    """Returns whether a value is a number between two others, both included; NaN is between none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most


def check_whole(name: str, value: Any, least: int | None = None, most: int | None = None) -> int:
    """Returns a whole number between two others, both included; a refusal names the bound that was crossed."""
    if not is_whole(value, -math.inf if least is None else least):
        raise ValueError(f"{name} must be a whole number{'' if least is None else f' >= {least:,}'} (got {shown(value)})")
    if most is not None and value > most:
        raise ValueError(f"{name} must be at most {most:,} (got {shown(value)})")
    return value


def check_number(name: str, value: Any, **bounds: float | None) -> float:
    """Returns a number within bounds: `least`, `above`, `most` and `below`, of which the second and last are not included."""
    asked = {word: bound for word, bound in bounds.items() if bound is not None}
    if not is_number(value) or not all(_SIDES[word][1](value, bound) for word, bound in asked.items()):
        words = " and ".join(f"{_SIDES[word][0]} {bound:g}" for word, bound in asked.items())
        raise ValueError(f"{name} must be {words or 'a number'} (got {shown(value)})")
    return value


_SIDES = {"least": (">=", operator.ge), "above": (">", operator.gt), "most": ("<=", operator.le), "below": ("<", operator.lt)}


def check_count(where: str, name: str, value: Any, least: int = 0) -> int:
    """Returns a whole number from `least` to below 2**31."""
    return check_whole(f"{where}: {name}", value, least, MOST_COUNT)


def check_numbers(where: str, name: str, values: Any, apart_from: Sequence[int] | None = None) -> tuple[int, ...]:
    """Returns different whole numbers of at least 1, sorted. With `apart_from` there may be none, but none of those."""
    listed = isinstance(values, Sequence) and not isinstance(values, str)
    if not listed or not all(is_whole(x, 1) for x in values):
        raise ValueError(f"{where}: {name} must be a list of whole numbers >= 1 (got {shown(values)})")
    if any(x > LONGEST_PROBLEM for x in values):
        raise ValueError(f"{where}: {name} must be whole numbers of at most {LONGEST_PROBLEM:,} (got {shown(values)})")
    if not values and apart_from is None:
        raise ValueError(f"{where}: {name} is empty; give at least one number")
    both = sorted(set(values) & set(apart_from or ()))
    if both:
        raise ValueError(f"{where}: {name} must be numbers that are not trained on (got {list(values)}; {both[0]} is trained on)")
    return tuple(sorted(set(values)))


def check_choice(where: str, name: str, value: Any, allowed: Collection[str]) -> str:
    """Returns one of the allowed names, or names the nearest."""
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"{where}: {name} is {shown(value)}; {suggest(str(value), allowed)}")
    return value


def suggest(name: str, allowed: Iterable[str], ending: str = "") -> str:
    """Returns the tail of an error message: the nearest allowed name, with the ending that the name had, then all of them."""
    names = sorted(allowed)
    near = difflib.get_close_matches(name[:LONGEST_NAME].removesuffix(ending), names, n=1)
    hint = f"did you mean {near[0] + (ending if name.endswith(ending) else '')!r}? " if near else ""
    return f"{hint}allowed: {', '.join(names) if names else 'nothing'}"


LISTED = 20  # names in a message
LEVELS = 20  # of names in an override
CUSTOM_PART_HINT = "if it is a part of your own, import its file first (lw.register; --import FILE; import: in the recipe)"


# What a plain word is by YAML 1.2's core schema, and how words of that form may begin. PyYAML has YAML 1.1's, by which 020 is 16,
# 1:30 is 90 and off is false.
_WORDS: dict[str, tuple[str, Sequence[str]]] = {
    "null": (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    "bool": (r"true|True|TRUE|false|False|FALSE", "tTfF"),
    "int": (r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    "float": (
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        "-+.0123456789",
    ),
    "merge": (r"<<", "<"),  # of YAML 1.1
}
_SWITCHES = {"yes": "true", "y": "true", "on": "true", "no": "false", "n": "false", "off": "false"}  # of YAML 1.1
_LITTLE = 2**53  # up to here a float holds every whole number


class _Loader(yaml.SafeLoader):
    """Plain YAML 1.2: a key that stands twice is refused, and a whole number may be written as 1e4."""

    yaml_implicit_resolvers: dict[str, list[Any]] = {}  # noqa: RUF012  (of the class, as in PyYAML)

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen: dict[tuple[str, str], yaml.Mark] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == "tag:yaml.org,2002:merge":
                continue
            here, there = key.start_mark, seen.setdefault((key.tag, key.value), key.start_mark)
            if there is not here:
                problem = f"{key.value!r} stands in line {there.line + 1} and again in line {here.line + 1}; allowed: once"
                raise yaml.composer.ComposerError(None, None, problem, here)
        return node

    def number(self, node: yaml.ScalarNode) -> int | float:
        """Returns a number; what an explicit tag calls one and is none is a ValueError."""
        text = self.construct_scalar(node).lower()
        if re.fullmatch(_WORDS["int"][0], text):
            return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))
        if not re.fullmatch(_WORDS["float"][0], text):
            raise ValueError(f"{text!r} is not a number")
        value = float(text.replace(".inf", "inf").replace(".nan", "nan"))
        return int(value) if "e" in text and value.is_integer() and abs(value) <= _LITTLE else value


class _Dumper(yaml.SafeDumper):
    """Writes in quotes what YAML 1.1 or YAML 1.2 would read as something else than text, or fold as an end of line."""

    def text(self, value: str) -> yaml.Node:
        """Writes a string."""
        return self.represent_scalar("tag:yaml.org,2002:str", value, style='"' if re.search("[\x85\u2028\u2029]", value) else None)


_Dumper.add_representer(str, _Dumper.text)


for _name, (_form, _letters) in _WORDS.items():
    for _kind in (_Loader, _Dumper):
        _kind.add_implicit_resolver(f"tag:yaml.org,2002:{_name}", re.compile(f"(?:{_form})$"), _letters)
for _name in ("int", "float"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_name}", _Loader.number)


def read_yaml(text: str, where: str) -> Any:
    """Returns the plain data of YAML text; `where` names its source in the error."""
    try:
        data = yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        reason = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise ValueError(f"{where}{line}: not valid YAML ({shown(reason)[1:-1]})") from None
    except RecursionError:
        raise ValueError(f"{where}: not valid YAML (nested too deep); allowed: fewer levels") from None
    except (ValueError, TypeError, LookupError, AttributeError) as error:  # a date, number or tag that cannot be made
        raise ValueError(f"{where}: not valid YAML ({shown(str(error))[1:-1]})") from None
    check_plain(data, where)
    return data


def write_yaml(data: Any) -> str:
    """Returns plain data as YAML text, keys in their own order."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


def refuse_unknown(where: str, names: Iterable[str], allowed: Iterable[str]) -> None:
    """Raises a ValueError that names every unknown name and what is allowed."""
    allowed = set(allowed)
    unknown = [str(name) for name in names if not isinstance(name, str) or name not in allowed]
    if unknown:
        more = f" and {len(unknown) - LISTED} more" if unknown[LISTED:] else ""
        listed = ", ".join(shown(name) for name in unknown[:LISTED]) + more
        raise ValueError(f"{where}: unknown {listed}; {suggest(unknown[0], allowed)}")


def parse_overrides(words: Iterable[str]) -> dict[str, Any]:
    """Returns the nested dictionary that `a.b=c` words describe; values are read as YAML."""
    result: dict[str, Any] = {}
    for word in words:
        path, sign, text = word.partition("=")
        if not sign or not path:
            raise ValueError(f"override: {shown(word)} is not of the form name=value")
        value = read_yaml(text, f"override: {shown(path)}") if text else None
        node = result
        *parents, last = path.split(".")
        if len(parents) >= LEVELS:
            raise ValueError(f"override: {shown(word)} names {len(parents) + 1} levels; allowed: at most {LEVELS}")
        for parent in parents:
            child = node.setdefault(parent, {})
            if not isinstance(child, dict):
                raise ValueError(f"override: {shown(word)} sets a field of {parent!r}, which already has a plain value")
            node = child
        node[last] = value
    return result


def merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns `base` with `changes` laid over it, dictionaries merged key by key.

    A dictionary that changes its `kind` replaces the old one: the options of one kind mean nothing to another. Where `base` has
    a list, a dictionary of places (`penalties.0.weight=0.2`) changes what stands there.
    """
    result = dict(base)
    for key, value in changes.items():
        old = result.get(key)
        if isinstance(old, list) and isinstance(value, Mapping) and value and all(str(place).isdecimal() for place in value):
            result[key] = _merge_places(key, old, value)
        elif isinstance(old, Mapping) and isinstance(value, Mapping) and value.get("kind", old.get("kind")) == old.get("kind"):
            result[key] = merge(old, value)
        else:
            result[key] = value
    return result


def _merge_places(name: str, old: list[Any], changes: Mapping[Any, Any]) -> list[Any]:
    absent = [place for place in changes if int(place) >= len(old)]
    if absent:
        raise ValueError(f"{name}.{absent[0]}: {name} has {len(old)}; allowed: {name}.0 to {name}.{len(old) - 1}, or the whole list"
                         if old else f"{name}.{absent[0]}: {name} is empty; give the whole list")  # fmt: skip
    places = {str(place): entry for place, entry in enumerate(old)}
    return list(merge(places, {str(int(place)): value for place, value in changes.items()}).values())


def differences(several: Sequence[Mapping[str, Any]], path: str = "") -> Iterator[tuple[str, list[Any]]]:
    """Yields each setting, as `a.b` or `list.0.b`, in which mappings differ, with its value in each; None where one has none."""
    for key in dict.fromkeys(key for each in several for key in each):
        values: list[Any] = [each.get(key) for each in several]
        here = f"{path}.{key}" if path else str(key)
        listed = all(isinstance(value, list) for value in values) and len({len(value) for value in values}) == 1
        inner: list[Any] = [dict(enumerate(value)) for value in values] if listed else values
        if all(isinstance(value, Mapping) for value in inner):
            yield from differences(inner, here)
        elif any(value != values[0] for value in values):
            yield here, values


# kinds


class Kinds(dict[str, Any]):
    """The literal table of a place of variation, to which `lw.register` adds kinds of the user's own.

    A kind inherits from `inherits`, which has all that may be left out, and offers the methods `offers` itself. Its `__init__`
    takes `given` from the place, then its options, of which the place keeps `reserved` for itself. Where a plain function may stand
    for a kind without options, `from_function` makes the class of it.
    """

    def __init__(
        self,
        place: str,
        kinds: Mapping[str, type],
        *,
        inherits: type = object,
        offers: Sequence[str],
        given: Sequence[str] = (),
        reserved: Sequence[str] = (),
        from_function: Callable[[Callable[..., Any]], type] | None = None,
    ) -> None:
        super().__init__(kinds)
        self.from_function = from_function
        self.place, self.inherits, self.offers = place, inherits, tuple(offers)
        self.given, self.reserved = tuple(given), tuple(reserved)
        self.shipped = frozenset(kinds)

    def unknown(self, name: Any) -> str:
        """Returns what is wrong with a name that is no kind of this table, and how to register a custom kind."""
        return f"unknown kind {shown(name)}; {suggest(str(name), self)}; {CUSTOM_PART_HINT}"


def options_of(kind: type) -> dict[str, inspect.Parameter]:
    """Returns the options of a kind: the arguments of its `__init__` after config or site; none where it has no `__init__`."""
    if kind.__init__ is object.__init__:  # type: ignore[misc]
        return {}
    return {n: p for n, p in inspect.signature(kind.__init__).parameters.items() if n not in ("self", "config", "site")}


def check_kind(where: str, spec: Any, table: Mapping[str, type]) -> None:
    """Raises a ValueError where `spec` is not a kind of `table` with options that kind takes."""
    if not isinstance(spec, Mapping) or "kind" not in spec:
        raise ValueError(f"{where}: {shown(spec)} is not a mapping with a 'kind'; {suggest('', table)}")
    if not isinstance(spec["kind"], str) or spec["kind"] not in table:
        own = table.unknown(spec["kind"]) if isinstance(table, Kinds) else None
        raise ValueError(f"{where}: " + (own or f"unknown kind {shown(spec['kind'])}; {suggest(str(spec['kind']), table)}"))
    options = options_of(table[spec["kind"]])
    place = f"{where} ({spec['kind']})"
    refuse_unknown(place, [key for key in spec if key != "kind"], options)
    missing = [n for n, p in options.items() if p.default is inspect.Parameter.empty and n not in spec]
    if missing:
        raise ValueError(f"{place}: missing {', '.join(missing)}")
    for name, parameter in options.items():
        if name in spec:
            check_form(f"{place}: {name}", spec[name], parameter.annotation)


def build_kind(spec: Mapping[str, Any], table: Mapping[str, type], *arguments: Any) -> Any:
    """Returns the object that a checked `spec` describes; `arguments` come before its options."""
    return table[spec["kind"]](*arguments, **{key: value for key, value in spec.items() if key != "kind"})


# sections


def fill_section(section: type, data: Any, where: str) -> Any:
    """Returns the dataclass that plain data describes; unknown, missing and malformed fields are refused."""
    if not isinstance(data, Mapping):
        raise ValueError(f"{where}: {shown(data)}; allowed: a mapping of names to values")
    fields = {field.name: field for field in dataclasses.fields(section)}
    refuse_unknown(where, data, fields)
    missing = [n for n, f in fields.items() if n not in data and f.default is f.default_factory is dataclasses.MISSING]
    if missing:
        raise ValueError(f"{where}: missing {', '.join(missing)}")
    for name, value in data.items():
        check_form(f"{where}: {name}", value, fields[name].type)
    return section(**data)


# what a written type admits in plain data; a type that is not named here is the receiver's to check
_FORMS: dict[str, tuple[type, ...]] = {
    "int": (int,), "float": (int, float), "str": (str,), "bool": (bool,), "None": (type(None),), "Any": (object,),
    "list": (list, tuple), "tuple": (list, tuple), "Sequence": (list, tuple), "dict": (Mapping,), "Mapping": (Mapping,),
}  # fmt: skip
_IN_WORDS = {
    "int": "a whole number", "float": "a number", "str": "text", "bool": "true or false", "None": "nothing (null)",
    "Any": "anything",
    "list": "a list", "tuple": "a list", "Sequence": "a list", "dict": "a mapping of names to values",
    "Mapping": "a mapping of names to values",
}  # fmt: skip


def check_form(where: str, value: Any, annotation: Any) -> None:
    """Raises a ValueError where a value does not have the form that an annotation such as "list[int] | None" asks for."""
    written = list(_written_types(_as_written(annotation)))
    if not written or any(name not in _FORMS for name, _ in written):
        return
    fitting = [(name, inner) for name, inner in written if _fits(value, name)]
    if not fitting:
        words = " or ".join(dict.fromkeys(_IN_WORDS[name] for name, _ in written))
        raise ValueError(f"{where} is {shown(value)}; allowed: {words}{_other_spelling(value, [name for name, _ in written])}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{where} is {value!r}; allowed: a finite number")
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError(f"{where} is {shown(value)}; allowed: a number of at most 64 bits")
    inner = fitting[0][1]
    if isinstance(value, list | tuple) and inner:
        member = inner.split(",")[0].strip() if fitting[0][0] == "tuple" else inner
        for place, entry in enumerate(value):
            check_form(f"{where}[{place}]", entry, member)
    if isinstance(value, Mapping) and inner.startswith("str"):
        wrong = [key for key in value if not isinstance(key, str)]
        if wrong:
            raise ValueError(f"{where} names {shown(wrong[0])}; allowed: names that are text")


def _other_spelling(value: Any, wanted: Sequence[str]) -> str:
    """Returns the end of a refusal of text that YAML 1.1 would have taken for what is wanted; nothing for other values."""
    text = value.lower() if isinstance(value, str) else ""
    if "bool" in wanted and text in _SWITCHES:
        return f" (write {_SWITCHES[text]}: in YAML 1.2 {text} is text)"
    if {"int", "float"} & {*wanted} and re.fullmatch(r"[-+]?[0-9]+(_[0-9]+)+", text):
        return f" (write {text.replace('_', '')}: in YAML 1.2 a number has no _)"
    return ""


def _as_written(annotation: Any) -> str:
    """An annotation as text: a module without `from __future__ import annotations` has types in their place."""
    if isinstance(annotation, str):
        return annotation
    return annotation.__name__ if isinstance(annotation, type) and not get_args(annotation) else str(annotation)


def _fits(value: Any, name: str) -> bool:
    return isinstance(value, _FORMS[name]) and (name in ("bool", "Any") or not isinstance(value, bool))


def _written_types(annotation: str) -> Iterator[tuple[str, str]]:
    """Yields each type of an annotation with what stands in its brackets: of "list[int] | None" ("list", "int"), ("None", "")."""
    level, word = 0, ""
    for letter in f"{annotation}|":
        level += (letter == "[") - (letter == "]")
        if letter == "|" and not level:
            name, _, inner = word.strip().partition("[")
            if name:
                yield name, inner.removesuffix("]")
            word = ""
        else:
            word += letter


class Given:
    """An object from Python in the place of a kind; `what` says which. It cannot be built from the recipe: pass it again."""

    def __init__(self, what: str = "an object") -> None:
        raise ValueError(f"{what} was passed from Python, so the recipe cannot build it; pass it again (lw.train, lw.evaluate)")
