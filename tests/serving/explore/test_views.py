"""The explorer's routes on a live server: values are the model's own, hostile input is refused, and the page is safe and whole."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import loopwright as lw
from loopwright.parts import Alphabet
from loopwright.serving.explore import views
from loopwright.serving.explore.views import EXPLORER
from loopwright.serving.schema import ServerLimits
from tests.generation.mix import make
from tests.generation.tiny import DENSE
from tests.serving.live import SMALL, WORDS, Live, live

PROMPT, IDS = "the cat sat", [2, 4, 8]
ZERO = {"kind": "zero", "point": "mlp", "stack": "core", "layer": 0}


@pytest.fixture(scope="module")
def server() -> Iterator[Live]:
    models = {
        "gate": make("ouro-1.4b-tiny").float(),
        "dense": make("ouroboros-qwen2.5-3b-tiny", **DENSE).float(),
        "<img src=x onerror=alert(1)>": make("huginn-tiny", **SMALL).float(),
    }
    with live(models, limits=ServerLimits(body_bytes=40_000), site=EXPLORER) as running:
        yield running


def look(server: Live, view: str, **body: Any) -> dict[str, Any]:
    response = server.client.post(f"/explore/{view}", json={"model": "gate", "prompt": PROMPT} | body)
    assert response.status_code == 200, response.text
    return response.json()


@torch.no_grad()
def test_steps_are_the_models_own(server: Live) -> None:
    found = look(server, "steps", depth=5, top=3, exit="gate:0.5")
    out = server.models["gate"].engine.model(torch.tensor([IDS]), depth=5, output_steps=True)
    assert found["prompt"] == IDS and found["depth"] == 5 and len(found["tokens"]) == 5
    assert found["tokens"] == [logits[0].topk(3).indices.tolist() for logits in out.step_logits]
    reached = out.exit_probs[0].cumsum(-1) >= 0.5
    assert found["leaves"] == [int(row[:4].float().argmax()) + 1 if row[:4].any() else 5 for row in reached]
    assert found["words"][str(IDS[1])] == " cat"
    assert len(found["path"]["coordinates"][0]) == 6 and len(found["settles"]) == len(IDS)
    assert len(look(server, "steps")["tokens"]) == server.models["gate"].max_depth


@torch.no_grad()
def test_an_edit_is_the_models_own(server: Live) -> None:
    edit = {"kind": "zero", "point": "mlp", "stack": "core", "layer": 1}
    found = look(server, "steps", depth=3, top=2, edit=edit)
    tap = lw.zero("mlp", lw.at(stack="core", layer=1))
    out = server.models["gate"].engine.model(torch.tensor([IDS]), depth=3, output_steps=True, tap=tap)
    assert found["tokens"] == [logits[0].topk(2).indices.tolist() for logits in out.step_logits]
    assert max(max(row) for row in found["shift"]) > 0
    maps = [look(server, "attention", depth=3, layer=1, edit=one)["maps"] for one in (None, edit)]
    assert maps[0][0] == maps[1][0] and maps[0][1] != maps[1][1]  # the queries of a layer come before its MLP: from step 2 on
    patch = {"kind": "patch", "step": 2, "prompt": "a dog ran"}
    other = look(server, "steps", prompt="a dog ran", depth=3, top=2)
    assert look(server, "steps", depth=3, top=2, edit=patch)["tokens"][2] == other["tokens"][2]


def test_a_dense_model_opens(server: Live) -> None:
    card = server.client.post("/explore/model", json={"model": "dense"}).json()
    assert not card["looped"] and card["depths"]["max"] == 1 and card["layers"]["prelude"] == 6
    found = look(server, "steps", model="dense", exit="change:0.1")
    assert len(found["tokens"]) == 1 and found["path"] is None and found["leaves"] is None and found["settles"] is None
    assert len(look(server, "attention", model="dense", layer=5)["maps"]) == 1
    refused = server.client.post("/explore/steps", json={"model": "dense", "prompt": PROMPT, "depth": 2})
    assert refused.status_code == 400 and "depth: 2 is more than 1" in refused.text


@pytest.mark.parametrize(
    ("symbols", "example"),
    [(Alphabet(["Ʌ", "§", *"0123456789+="]), "79+87="), (Alphabet(["Ʌ", "§", *"abcdef"]), "a")],
)
def test_the_first_prompt_is_one_that_the_tokenizer_can_read(symbols: Alphabet, example: str) -> None:
    with live({"tiny": make("huginn-tiny", **SMALL).float()}, site=EXPLORER, tokenizer=symbols.tokenizer()) as running:
        card = running.client.post("/explore/model", json={"model": "tiny"}).json()
        steps = running.client.post("/explore/steps", json={"model": "tiny", "prompt": card["example"], "depth": 2})
        assert card["example"] == example and steps.status_code == 200


def test_long_prompts_show_the_first_tokens_of_a_map(server: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    long = "the cat sat and the dog ran"
    whole, zeroed = (look(server, "attention", prompt=long, depth=4, **more) for more in ({}, {"edit": ZERO}))
    monkeypatch.setattr(views, "MOST_MAP_NUMBERS", 40)
    for uncut, more in ((whole, {}), (zeroed, {"edit": ZERO})):
        found = look(server, "attention", prompt=long, depth=4, **more)
        assert len(found["prompt"]) == 4 < len(uncut["prompt"])
        for cut, rows in zip(found["maps"], uncut["maps"], strict=True):
            assert cut == [pytest.approx(row, abs=1e-3) for row in rows[:4]]
    patched = {"prompt": long, "depth": 4, "edit": {"kind": "patch", "step": 0, "prompt": "the dog"}}
    refused = server.client.post("/explore/attention", json={"model": "gate", **patched})
    assert refused.status_code == 400 and "their maps fit 4 at this depth" in refused.text


@pytest.mark.parametrize(
    ("view", "body", "status", "message"),
    [
        ("steps", {"prompt": None}, 400, "prompt: missing"),
        ("steps", {"prompt": ""}, 400, "prompt: it has no tokens"),
        ("steps", {"prompt": 7}, 400, "prompt: 7; allowed: text"),
        ("steps", {"prompt": "cat " * 600}, 400, "leave no room"),
        ("steps", {"depth": 999}, 400, "depth: 999 is more than"),
        ("steps", {"depth": True}, 400, "depth: True"),
        ("steps", {"top": 99}, 400, "at most 20"),
        ("steps", {"exit": "nonsense"}, 400, "unknown kind 'nonsense'"),
        ("steps", {"exit": "act"}, 400, "needs a model that halts by ACT"),
        ("steps", {"edit": "<script>"}, 400, "edit: '<script>'; allowed: a mapping"),
        ("steps", {"edit": {"kind": "patch", "step": 0, "prompt": ""}}, 400, "edit.prompt: it has no tokens"),
        ("steps", {"model": "nobody"}, 404, "not served here"),
        ("steps", {"sneaky": 1}, 400, "unknown 'sneaky'"),
        ("attention", {"layer": 99}, 400, "layer must be below"),
        ("attention", {"stack": "\n\n"}, 400, "stack: "),
    ],
)
def test_hostile_input_is_refused_in_one_line(server: Live, view: str, body: Any, status: int, message: str) -> None:
    response = server.client.post(f"/explore/{view}", json={"model": "gate", "prompt": PROMPT} | body)
    assert response.status_code == status, response.text
    said = response.json()["error"]["message"]
    assert message in said and "\n" not in said


def test_more_cells_than_allowed(server: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "MOST_CELLS", 8)
    response = server.client.post("/explore/steps", json={"model": "gate", "prompt": PROMPT, "depth": 3})
    assert response.status_code == 400 and "3 tokens × 3 steps are more than 8 cells" in response.json()["error"]["message"]


def test_views_and_answers_run_side_by_side(server: Live) -> None:
    body = {"model": "gate", "ignore_eos": True, "max_tokens": 12}
    alone, steps = server.ask(**body)["choices"][0]["text"], look(server, "steps", depth=4)
    seen: list[dict[str, Any]] = []
    threads = [threading.Thread(target=lambda: seen.append(look(server, "steps", depth=4))) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert server.ask(**body)["choices"][0]["text"] == alone
    for thread in threads:
        thread.join()
    assert seen == [steps] * 3


# the page


@pytest.mark.long
def test_the_page_loads_nothing_from_elsewhere(server: Live) -> None:
    page = server.client.get("/")
    assert page.status_code == 200 and page.headers["content-type"].startswith("text/html")
    wanted = re.findall(r'(?:src|href)="(/[^"#]*)"', page.text)
    for script in EXPLORER.folder.glob("*.js"):
        text = script.read_text()
        wanted += [f"/explorer/{name}" for name in re.findall(r'from "\./([\w.]+)"', text)]
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", text), script.name
    assert len(set(wanted)) > 10
    for path in set(wanted):
        file = server.client.get(path)
        assert file.status_code == 200 and "default-src 'none'" in file.headers["content-security-policy"], path
        assert file.headers["x-content-type-options"] == "nosniff"
    every = "".join(path.read_text() for path in EXPLORER.folder.iterdir())
    assert set(re.findall(r"https?://[^\s\"'`)]+", every)) <= {"http://www.w3.org/2000/svg"}
    assert "style=" not in page.text and "<script>" not in page.text


def test_the_page_is_small(server: Live) -> None:
    sizes = {path.name: path.stat().st_size for path in EXPLORER.folder.iterdir()}
    lines = {path.name: len(path.read_text().splitlines()) for path in EXPLORER.folder.iterdir()}
    assert sum(sizes.values()) < 100_000 and max(lines.values()) <= 400


def test_with_a_key_the_page_opens_and_its_views_do_not() -> None:
    with live({"tiny": make("huginn-tiny", **SMALL).float()}, key="secret-word", site=EXPLORER, tokenizer=WORDS) as running:
        stranger = {"authorization": ""}
        assert running.client.get("/", headers=stranger).status_code == 200
        assert running.client.post("/explore/steps", json={"prompt": PROMPT}, headers=stranger).status_code == 401
        assert running.client.post("/explore/steps", json={"prompt": PROMPT}).status_code == 200


def test_other_names_of_this_machine_are_refused(server: Live) -> None:
    assert server.client.get("/", headers={"host": "evil.example"}).status_code == 403
    assert server.client.post("/explore/model", json={"model": "gate"}, headers={"host": "evil.example"}).status_code == 403
