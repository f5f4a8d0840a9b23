"""The README's results are those of the committed rows, and a wrong number does not pass."""

from __future__ import annotations

import re

import pytest

from experiments.readme.check import README, SECTIONS, Section, plain, problems, problems_of

TEXT = README.read_text()


def test_the_results_are_those_of_the_rows() -> None:
    assert problems(TEXT) == []


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("96.2 / 85 / 99.2", "96.2 / 95 / 99.2"), ("three of three seeds are 100 % right", "two of three seeds are 100 % right"),
        ("p = 0.38", "p = 0.03"), ("**86.7 %**", "**87.6 %**"), ("run once, not decided", "run once, decided"),
        ("behind the\nfirst by 0.029", "behind the\nfirst by 0.009"), ("| 15 / 16 / 16 |", "| 16 / 16 / 16 |"),
        ("by 0.04 points, not decided", "by 0.04 points, decided"), ("2,172 tokens/s", "2,712 tokens/s"),
    ],
)  # fmt: skip
def test_a_planted_error_is_found(right: str, wrong: str) -> None:
    assert TEXT.count(right) == 1
    assert problems(TEXT.replace(right, wrong))


def test_every_number_of_a_result_section_is_held() -> None:
    """Each number in turn is made another: all are noticed, settings too."""
    tried = 0
    for section in SECTIONS:
        (part,) = (part for part in re.split(r"^## ", TEXT, flags=re.MULTILINE) if part.startswith(section.heading))
        text = plain(part)
        assert problems_of(f"## {text}", section) == []
        for number in re.finditer(r"\d+", text):
            changed = f"## {text[: number.start()]}{int(number[0]) + 1}{text[number.end() :]}"
            assert problems_of(changed, section), text[number.start() - 30 : number.end() + 30]
            tried += 1
    assert tried > 250


def test_a_number_that_no_row_explains_is_named() -> None:
    section = Section("Ours", lambda: ["loss 3.5"], ("width 64",))
    assert problems_of("## Ours\nwidth 64, loss\n**3.5** [more](docs/1.md) `9` ![x 7](8.svg)\n## Next\n5", section) == []
    (named,) = problems_of("## Ours\nwidth 64, loss 3.5, time 2.25 s.", section)
    assert named == "README.md, 'Ours': no row explains 2.25 in 'Ours  … ,  … , time 2.25 s.'"
    missing = problems_of("## Ours\nwidth 64, loss 3.6.", section)
    assert missing[0] == "README.md, 'Ours': the rows say 'loss 3.5', which is not there" and len(missing) == 2
    assert problems_of("## Other", section) == ["README.md: 0 sections begin with 'Ours'; allowed: one"]
