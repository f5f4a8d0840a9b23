"""Pushing to a stand-in of the hub that speaks its HTTP: what goes up, and what is refused before and by it."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch

import loopwright as lw
from loopwright.storage.manifest import entries_of, write_entries
from loopwright.training.loop import train
from tests.cases import noisy
from tests.training.runs import small


class Hub(ThreadingHTTPServer):
    """Repositories by name, each with its files; `status` answers every question with that error."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.repos: dict[str, dict[str, bytes]] = {}
        self.private: dict[str, Any] = {}
        self.status = 200

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Answer(BaseHTTPRequestHandler):
    server: Hub

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.server.status != 200:
            return self.say({"error": "no"}, self.server.status)
        if self.path == "/api/repos/create":
            asked = json.loads(body)
            repo = f"{asked['organization']}/{asked['name']}"
            self.server.repos.setdefault(repo, {})
            hidden = asked.get("private") is True or asked.get("visibility") == "private"
            there = repo in self.server.private  # it stays as visible as it is
            self.server.private.setdefault(repo, hidden)
            return self.say({"url": f"{self.server.address}/{repo}"}, 409 if there else 200)
        if self.path == "/api/validate-yaml":
            return self.say({"errors": [], "warnings": []})
        if "/preupload/" in self.path:
            files = [{"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in json.loads(body)["files"]]
            return self.say({"files": files})
        repo = "/".join(self.path.split("/")[3:5])
        for line in map(json.loads, body.splitlines()):
            if line["key"] == "file":
                self.server.repos[repo][line["value"]["path"]] = base64.b64decode(line["value"]["content"])
        address = f"{self.server.address}/{repo}/commit/1"
        return self.say({"success": True, "commitOid": "1", "commitUrl": address, "pullRequestUrl": None})

    def do_GET(self) -> None:
        repo = self.path.removeprefix("/api/models/")
        if repo in self.server.private:
            return self.say({"id": repo, "private": self.server.private[repo], "tags": []})
        return self.say({"error": "not here"}, 404)

    def say(self, data: dict[str, Any], status: int = 200) -> None:
        body = json.dumps(data).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words: Any) -> None:
        pass


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    server = Hub()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", server.address)
    monkeypatch.setenv("HF_TOKEN", "hf_" + "x" * 34)
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def placed(files: dict[str, bytes], folder: Path) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def test_what_went_up_is_the_model(hub: Hub, tmp_path: Path) -> None:
    model = noisy("ouro-1.4b-tiny")
    lw.save(model, tmp_path / "m")
    address = lw.push(tmp_path / "m", "me/mine", private=True)
    assert address == f"{hub.address}/me/mine" and hub.private == {"me/mine": True}
    assert hub.repos["me/mine"] == {path.name: path.read_bytes() for path in (tmp_path / "m").iterdir()}
    assert {"README.md", "manifest.json"} <= set(hub.repos["me/mine"])


def test_of_a_run_the_averaged_model_goes_up_without_the_optimiser(hub: Hub, tmp_path: Path) -> None:
    run = train(small({"updates": 3, "average": {"kind": "ema", "decay": 0.5}}), tmp_path / "run")
    lw.push(tmp_path / "run", "me/run")
    files = hub.repos["me/run"]
    back = lw.load(placed(files, tmp_path / "down"))
    for name, tensor in lw.load(tmp_path / "run").state_dict().items():
        assert torch.equal(back.state_dict()[name], tensor)
    assert not [name for name in files if "optimizer" in name or "average" in name or "state.json" in name]
    assert files["README.md"] == (run.checkpoint / "README.md").read_bytes()


def own_files(folder: Path) -> dict[str, bytes]:
    """Saves a model and returns what it consists of; then puts beside it what is nobody's business."""
    lw.save(noisy("ouro-1.4b-tiny"), folder)
    own = {path.name: path.read_bytes() for path in folder.iterdir()}
    placed({"secret.txt": b"x", "wandb/.netrc": b"x", ".env": b"x", "logs/config.json": b"x", "optimizer.pt": b"x"}, folder)
    (folder / "notes.txt").symlink_to(folder.parent)
    return own


@pytest.mark.parametrize("with_manifest", [True, False])
def test_only_the_model_goes_up_and_what_stays_is_counted(with_manifest: bool, hub: Hub, tmp_path: Path) -> None:
    own = own_files(tmp_path / "m")
    if not with_manifest:
        (tmp_path / "m" / "manifest.json").unlink()
        del own["manifest.json"]
    with pytest.warns(UserWarning, match=r"^push: files of .* that are not part of the model were left out: 6$"):
        lw.push(tmp_path / "m", "me/mine")
    assert hub.repos["me/mine"] == own and {"README.md", "config.json", "model.safetensors"} <= set(own)


@pytest.mark.parametrize("name", ["README.md", "config.json", "generation_config.json", "manifest.json"])
def test_a_link_is_refused(name: str, hub: Hub, tmp_path: Path) -> None:
    file = lw.save(noisy("ouro-1.4b-tiny"), tmp_path / "m") / name
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match=rf"^push: .*{name} is a link; put the file itself there$"):
        lw.push(tmp_path / "m", "me/mine")
    assert hub.repos == {}


def test_a_linked_folder_and_a_name_outside_are_refused(hub: Hub, tmp_path: Path) -> None:
    folder = lw.save(noisy("ouro-1.4b-tiny"), tmp_path / "m")
    own = entries_of(folder)
    placed({"extra/a.txt": b"x"}, tmp_path)
    (folder / "extra").symlink_to(tmp_path / "extra")
    for name, message in (("extra/a.txt", "is a link"), ("../extra/a.txt", "outside its folder")):
        write_entries(folder, own | {name: entries_of(tmp_path / "extra")["a.txt"]})
        with pytest.raises(ValueError, match=message):
            lw.push(folder, "me/mine")
    assert hub.repos == {}


def test_a_public_repository_is_not_taken_for_a_private_one(hub: Hub, tmp_path: Path) -> None:
    lw.save(noisy("ouro-1.4b-tiny"), tmp_path / "m")
    hub.repos, hub.private = {"me/open": {}, "me/closed": {}}, {"me/open": False, "me/closed": True}
    with pytest.raises(ValueError, match=r"^push: me/open exists and is public; make it private on the hub"):
        lw.push(tmp_path / "m", "me/open", private=True)
    assert hub.repos["me/open"] == {}
    lw.push(tmp_path / "m", "me/closed", private=True)
    lw.push(tmp_path / "m", "me/open")
    assert "config.json" in hub.repos["me/closed"] and "config.json" in hub.repos["me/open"]


def test_no_older_checkpoint_goes_up_for_a_damaged_one(hub: Hub, tmp_path: Path) -> None:
    train(small({"updates": 2, "save": {"every": 1}}), tmp_path / "run")
    [new, old, *_] = sorted((tmp_path / "run" / "checkpoints").iterdir(), reverse=True)
    weights = new / "model.safetensors"
    data = weights.read_bytes()
    weights.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(ValueError, match=rf"^push: {weights}: its content changed .*; {old} is used instead only"):
        lw.push(tmp_path / "run", "me/run")
    assert hub.repos == {}
    lw.push(old, "me/run")
    assert "model.safetensors" in hub.repos["me/run"]


@pytest.mark.parametrize("repo", ["mine", "me/", "me/a b", "me/a/b", "", "me/..", "me/a--b", "me/" + "x" * 99])
def test_a_malformed_name_is_refused_before_anything_is_asked(repo: str, hub: Hub, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"push: repo must be owner/name .*\(got"):
        lw.push(tmp_path, repo)
    assert hub.repos == {}


def test_no_token_no_folder_and_damaged_files_are_refused(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="is no folder"):
        lw.push(tmp_path / "none" / "x", "me/mine")
    lw.save(noisy("ouro-1.4b-tiny"), tmp_path / "m")
    weights = tmp_path / "m" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    with pytest.raises(ValueError, match=r"model.safetensors: its content changed"):
        lw.push(tmp_path / "m", "me/mine")
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: None)
    with pytest.raises(ValueError, match="no token of the hub; run `hf auth login`"):
        lw.push(tmp_path / "m", "me/mine")
    assert hub.repos == {}


def test_refusals_of_the_hub_and_no_hub_at_all_are_one_line(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lw.save(noisy("ouro-1.4b-tiny"), tmp_path / "m")
    hub.status = 403
    with pytest.raises(ValueError, match=r"^push: the hub refused me/mine \(status 403\): may this token write there\?$"):
        lw.push(tmp_path / "m", "me/mine")
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(ValueError, match=r"^push: the hub cannot be reached \(\w+: [^\n]*\)$"):
        lw.push(tmp_path / "m", "me/mine")
