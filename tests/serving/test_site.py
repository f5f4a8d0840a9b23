"""Files of a page are read once and sent with their tags; views take turns, and no more wait than may."""

from __future__ import annotations

import asyncio
from pathlib import Path

from loopwright.serving.schema import Refusal, whole
from loopwright.serving.site import SiteView, StaticSite, Turns, read_files
from tests.serving.live import live


def test_files_have_their_kind_and_tag(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("<!doctype html>")
    (tmp_path / "a.js").write_text("1")
    (tmp_path / "notes.txt").write_text("not of the page")
    files = read_files(tmp_path)
    assert set(files) == {"index.html", "a.js"} and files["a.js"].kind.startswith("text/javascript")
    (tmp_path / "a.js").write_text("2")
    assert (
        read_files(tmp_path)["a.js"].tag != files["a.js"].tag and read_files(tmp_path)["index.html"].tag == files["index.html"].tag
    )


def test_a_site_beside_the_api(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("<!doctype html>hello")

    def fail(model: object, given: dict[str, int]) -> dict[str, int]:
        if given["n"] == 1:
            raise ValueError("n: one\nis none")
        if given["n"] == 2:
            raise RuntimeError("unforeseen")
        return given

    with live(site=StaticSite(tmp_path, (SiteView("/explore/n", {"n": whole(0)}, fail),))) as running:
        page = running.client.get("/")
        assert page.text.endswith("hello")
        again = running.client.get("/", headers={"if-none-match": page.headers["etag"]})
        assert again.status_code == 304 and not again.content
        assert running.client.get("/explorer/..%2f..%2fpyproject.toml").status_code == 404
        assert [running.client.post("/explore/n", json={"n": n}).status_code for n in (0, 1, 2)] == [200, 400, 500]
        assert running.client.post("/explore/n", json={"n": 2}).headers["connection"] == "close"
        assert running.client.post("/explore/n", json={"n": 1}).json()["error"]["message"] == "n: one is none"
        assert running.client.get("/explore/n").status_code == 405
        running.server.service.draining = True
        assert running.client.post("/explore/n", json={"n": 0}).status_code == 503
    with live() as plain:
        assert plain.client.get("/").status_code == 404


def test_one_turn_at_a_time_and_few_wait() -> None:
    async def scene() -> tuple[list[str], int]:
        turns, said, running = Turns(waiting=2), [], 0

        async def work(name: str) -> None:
            nonlocal running
            async with turns.turn():
                running += 1
                assert running == 1
                await asyncio.sleep(0.001)
                running -= 1
                said.append(name)

        results = await asyncio.gather(*(work(name) for name in "abcde"), return_exceptions=True)
        refused = [one for one in results if isinstance(one, Refusal)]
        assert all(one.status == 429 and one.headers["retry-after"] == "1" for one in refused)
        await work("later")
        return said, len(refused)

    assert asyncio.run(scene()) == (["a", "b", "c", "later"], 2)
