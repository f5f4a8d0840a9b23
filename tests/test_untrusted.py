"""What comes from outside: files that never end, JSON without bounds, paths of nobody."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopwright.untrusted import NESTING, WORD, check_file, check_plain, first_line, parse_json, read_text, shown, user_path

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**62), 2**62)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text("ab☃", max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", max_size=2), inner, max_size=3),
    max_leaves=8,
)


def test_a_regular_file_and_a_link_to_one_are_read(tmp_path: Path) -> None:
    (tmp_path / "blob").write_text("ünï\n")
    (tmp_path / "config.json").symlink_to("blob")  # the hub's cache is made of links
    assert read_text(tmp_path / "blob") == read_text(tmp_path / "config.json") == "ünï\n"


def test_what_may_never_end_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    (tmp_path / "folder").mkdir()
    for name, kind in {"pipe": "a pipe", "zero": "a device", "folder": "a folder"}.items():
        with pytest.raises(ValueError, match=f"{name}: is {kind}; allowed: a regular file"):
            read_text(tmp_path / name)


def test_a_file_that_is_too_large_is_refused_before_it_is_read(tmp_path: Path) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(ValueError, match=r"has 1,099,511,627,776 bytes; allowed: at most 16,777,216"):
        read_text(tmp_path / "sparse")
    (tmp_path / "small").write_text("12345")
    check_file(tmp_path / "small", 5)
    with pytest.raises(ValueError, match="has 5 bytes; allowed: at most 4"):
        read_text(tmp_path / "small", 4)
    with pytest.raises(ValueError, match="more than 10 bytes"):
        read_text(Path("/proc/self/maps"), 10)  # says that it has none


def test_what_is_no_text_or_not_there(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"ab\xff")
    with pytest.raises(ValueError, match=r"is not UTF-8 text \(byte 2\)"):
        read_text(tmp_path / "x")
    with pytest.raises(FileNotFoundError):
        read_text(tmp_path / "none")


def test_a_user_who_is_not_there() -> None:
    assert user_path("~/x") == Path.home() / "x" and user_path("a/~") == Path("a/~")
    with pytest.raises(FileNotFoundError, match=r"^~nosuchuser/x: there is no such folder \(~ names a user who is not here\)$"):
        user_path("~nosuchuser/x")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 5000, "nested|not readable"),
        ('{"a":' * 5000 + "1" + "}" * 5000, "nested"),
        ("[" * 200 + "]" * 200, "nested"),
        ('{"a": 1, "b": {"c": 1, "c": 2}}', "'c' stands twice in one object"),
        ('{"a": {"b": [1, 9223372036854775808]}}', r"a\.b\.1 is 9223372036854775808; allowed: whole numbers of at most 64 bits"),
        ("9" * 5000, "not readable as JSON"),
        ('{"a": "\\ud800"}', r"a is '\\ud800'; allowed: text without lone surrogates"),
        ('{"\\udfff": 1}', "lone surrogates"),
        ("{", "not readable as JSON"),
        ("", "not readable as JSON"),
    ],
)
def test_json_that_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^here: .*{message}") as caught:
        parse_json(text, "here")
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 1000


@settings(max_examples=50)
@given(JSON)
def test_plain_json_is_taken_as_it_is(data: object) -> None:
    assert parse_json(json.dumps(data), "here") == data


@pytest.mark.long
def test_data_without_end_is_refused() -> None:
    itself: list = []
    itself.append(itself)
    wide: list = ["x"] * 10
    for _ in range(8):
        wide = [wide] * 10
    for data in (itself, wide, {"a": {1: itself}}):
        with pytest.raises(ValueError, match=r"nested more than|more than 1,000,000 values"):
            check_plain(data, "here")
    with pytest.raises(ValueError, match=r"x is \{1\}; allowed: text"):
        check_plain({"x": {1}}, "here")
    deep: list = []
    for _ in range(NESTING - 1):
        deep = [deep]
    check_plain(deep, "here")


def test_a_value_in_a_message_is_short() -> None:
    endless: list = []
    for _ in range(10_000):
        endless = [endless]
    assert shown("a") == "'a'" and shown({"a": 1}) == "{'a': 1}" and shown(float("nan")) == "nan"
    for value in ("x" * 10**6, list(range(10**6)), {n: n for n in range(10**5)}, 10**5000, [10**5000], endless):
        assert len(shown(value)) <= WORD + 40 and "\n" not in shown(value)


def test_the_first_line_of_an_error_is_what_it_says_or_its_name():
    assert first_line(ValueError(" one\ntwo")) == "one" and first_line(KeyError()) == "KeyError"
