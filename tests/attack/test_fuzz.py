"""Hostile configs, recipes, command lines and files: refused in one line or taken; nothing raw, no hang, nothing executed."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.attack import hostile, pool


@pytest.fixture(scope="module", autouse=True)
def sound(tmp_path_factory: pytest.TempPathFactory) -> None:
    hostile.prepare(tmp_path_factory.mktemp("sound"))


@pytest.mark.attack
@pytest.mark.parametrize("kind", hostile.KINDS)
def test_fuzzed(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    case, count = hostile.KINDS[kind]
    found = pool.run(case, count)
    wrong = {verdict: seeds for verdict, seeds in found.items() if verdict not in ("taken", "refused")}
    failed = sum(map(len, wrong.values()))
    with capsys.disabled():
        print(f"\n{kind}: tried {count}, failed {failed} (refused {len(found['refused'])}, taken {len(found['taken'])})")
        for verdict, seeds in sorted(wrong.items(), key=lambda item: -len(item[1])):
            print(f"  {len(seeds)} × {verdict} (seed {seeds[0]})")
    assert len(found["refused"]) + len(found["taken"]) + failed == count
    assert not wrong


@pytest.mark.parametrize("kind", ["configs of our own", "configs of other families", "YAML files", "safetensors headers"])
@settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(seed=st.integers(10_000, 10**6))
def test_a_few_of_each(kind: str, seed: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The quick form, in this process: the inputs that might hang it or fill its memory were drawn above."""
    case, _ = hostile.KINDS[kind]
    assert pool.judge(case, Random(seed), tmp_path_factory.mktemp("case")) in ("taken", "refused")
