"""The files of deploy/ name options, routes and extras that exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import typer.main
import yaml

from loopwright.cli import make_app

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"


def parse(words: list[str]) -> dict[str, Any]:
    """Returns the options of `loopwright serve` as the command line reads them."""
    command = typer.main.get_command(make_app()).commands["serve"]  # type: ignore[attr-defined]
    return command.make_context("serve", list(words)).params


def test_the_container_starts_the_server() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    entry, rest = (yaml.safe_load(re.findall(rf"^{word} (\[.*\])$", text, re.MULTILINE)[-1]) for word in ("ENTRYPOINT", "CMD"))
    assert entry == ["loopwright", "serve"] and parse(rest)["host"] == "0.0.0.0"
    assert ".[serve,constrain]" in text and "/health" in text and "USER 10001" in text
    assert all((ROOT / name).exists() for line in re.findall(r"^COPY ((?!--).*) \S+$", text, re.MULTILINE) for name in line.split())


def test_the_unit_starts_the_server_and_waits_for_its_drain() -> None:
    lines = (DEPLOY / "loopwright.service").read_text().splitlines()
    fields = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
    program, verb, *rest = shlex.split(fields["ExecStart"])
    assert (Path(program).name, verb) == ("loopwright", "serve")
    assert int(fields["TimeoutStopSec"]) > parse(rest)["drain_seconds"]


def test_the_pods_are_probed_and_drain_before_they_are_killed() -> None:
    deployment, service = yaml.safe_load_all((DEPLOY / "kubernetes" / "loopwright.yaml").read_text())
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    options = parse(container["args"])
    assert {container[probe]["httpGet"]["path"] for probe in ("startupProbe", "readinessProbe", "livenessProbe")} == {"/health"}
    pause = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] > options["drain_seconds"] + pause
    assert options["api_key_env"] in {variable["name"] for variable in container["env"]}
    assert service["spec"]["selector"] == deployment["spec"]["template"]["metadata"]["labels"]
