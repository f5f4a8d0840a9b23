"""The map of the rooms in docs/architecture.md is drawn from the imports, and says what they are."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
HOUSE = runpy.run_path(str(ROOT / "docs" / "house.py"))
FILES = {
    "__init__.py": "import tree.top\n",
    "top/__init__.py": "",
    "top/x.py": "from tree.middle import y\nfrom tree import low\nimport os\n",
    "middle/__init__.py": "",
    "middle/y.py": "def f():\n    from tree.single import z\n",
    "single.py": "import tree.low.w\n",
    "low/__init__.py": "",
    "low/w.py": "from tree.low import v\n",
    "aside/__init__.py": "from __future__ import annotations\n",
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / "tree" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "tree"


def test_the_map_is_that_of_the_imports() -> None:
    assert HOUSE["drawing"]() == HOUSE["PICTURE"].read_text(), "docs/house.svg is out of date: python docs/house.py"
    page = (ROOT / "docs" / "architecture.md").read_text()
    assert "](house.svg)" in page
    table = page.split("| room | what is in it |")[1].split("\n\n")[0]
    named = [room for row in table.splitlines() if row.startswith("| `") for room in re.findall(r"`(\w+)`", row.split("|")[1])]
    assert sorted(named) == sorted(path.parent.name for path in (ROOT / "loopwright").glob("*/__init__.py"))


def test_every_room_stands_once_and_every_arrow_points_down() -> None:
    folders = {path.parent.name for path in (ROOT / "loopwright").glob("*/__init__.py")}
    picture = HOUSE["PICTURE"].read_text()
    assert sorted(re.findall(r"<text[^>]*>(\w+)</text>", picture)) == sorted(folders)
    arrows = re.findall(r'd="M[\d.]+ ([\d.]+)C[^"]* ([\d.]+)"', picture)
    assert len(arrows) == picture.count("marker-end") > 20
    assert all(float(start) < float(end) for start, end in arrows)


def test_rooms_are_joined_through_files_and_arrows_that_follow_are_left_out(tree: Path) -> None:
    assert HOUSE["imports"](tree)["top"] == {"middle", "low"}
    assert HOUSE["rooms"](tree) == {"aside": set(), "low": set(), "middle": {"low"}, "top": {"middle"}}
    assert HOUSE["ranks"](HOUSE["rooms"](tree)) == {"aside": 0, "low": 0, "middle": 1, "top": 2}
    before = HOUSE["drawing"](tree)
    (tree / "aside" / "new.py").write_text("from tree.top import x\n")
    assert HOUSE["rooms"](tree)["aside"] == {"top"} and HOUSE["drawing"](tree) != before


def test_an_arrow_over_several_rows_passes_beside_the_rooms_between(tree: Path) -> None:
    (tree / "left").mkdir()
    (tree / "left" / "__init__.py").write_text("")
    (tree / "top" / "x.py").write_text("import tree.middle\nimport tree.left\n")
    (tree / "middle" / "y.py").write_text("import tree.low\n")
    rows, pieces = HOUSE["arranged"](HOUSE["rooms"](tree))
    assert ("top", "left", 1) in rows[1] and "middle" in rows[1]
    assert ("top", ("top", "left", 1)) in pieces and (("top", "left", 1), "left") in pieces
    x = HOUSE["spots"](rows, pieces)
    assert abs(x["middle"] - x["top", "left", 1]) >= (HOUSE["WIDTH"] + HOUSE["THIN"]) / 2
    assert HOUSE["crossings"](rows, pieces) == 0
