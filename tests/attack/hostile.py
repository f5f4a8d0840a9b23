"""What is attacked: one function per kind of input. Each makes a hostile input from its generator and hands it to the package."""

from __future__ import annotations

import gzip
import json
import math
import os
import shlex
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import torch

from loopwright.analysis.study import read_prompts
from loopwright.checkpoints.families import FAMILIES, OWN
from loopwright.checkpoints.load import empty_model
from loopwright.checkpoints.source import load, tokenizer
from loopwright.checkpoints.weights import read_json
from loopwright.cli import VERBS, main
from loopwright.data.build import build_data
from loopwright.data.records import Files
from loopwright.model import cost
from loopwright.model.causal_lm import LoopedForCausalLM
from loopwright.model.config import LoopedConfig
from loopwright.model.presets import PRESETS, preset
from loopwright.recipes import FOLDER, names
from loopwright.schema import build_kind, read_yaml, write_yaml
from loopwright.training.depth import RULES
from loopwright.training.gradient import REMATS
from loopwright.training.objectives.losses import OBJECTIVES
from loopwright.training.objectives.penalties import PENALTIES, Weighted
from loopwright.training.optim import AVERAGES, OPTIMISERS, SCHEDULES
from loopwright.training.recipe import read_recipe
from tests.attack.mutate import BYTES, NASTY, as_json, damage, mutate
from tests.attack.pool import WrongError
from tests.generation.tiny import DENSE, save_model

SMALL = 300_000  # parameters of a model that is also run
ADAPTERS = (
    "sinusoidal",
    "low-rank",
    "hira",
    "abba",
    "diagonal",
    "controller",
    "basis-controller",
)


def prepare(home: Path) -> None:
    """Makes the sound inputs, once, before the workers start."""
    global HOME
    HOME = home
    save_model(home / "model", "huginn-tiny", chat=True)
    save_model(home / "dense", "ouroboros-qwen2.5-3b-tiny", **DENSE)
    (home / "prompts.jsonl").write_text('{"text": "the cat sat"}\n{"prompt": "a dog ran"}\n')
    (home / "text.txt").write_text("the cat sat and the dog ran\n" * 50)


HOME = Path()

# configs


@cache
def own_configs() -> list[dict[str, Any]]:
    """Returns configs of our own: every preset, small, and one with each adapter."""
    found = [preset(f"{name}-tiny").to_dict() for name in PRESETS]
    for kind in ADAPTERS:
        steps = {} if kind == "sinusoidal" else {"max_steps": 4}
        found.append(LoopedConfig(core_layers=2, adapters=[{"kind": kind}], **steps).to_dict())
    rope = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 512}
    found.append(
        LoopedConfig(rope_parameters=rope, gate={"kind": "mix", "weight": 0.5}, state={"kind": "learned", "std": 0.1}).to_dict()
    )
    return json.loads(json.dumps(found))


@cache
def foreign_configs() -> list[dict[str, Any]]:
    """Returns a config.json of every foreign family."""
    found = []
    for name in ("llama", "mistral", "qwen2", "qwen3", "olmo2"):
        plain = LoopedConfig(core_layers=0, prelude_layers=2, depth=1, norm_placement=["output"] if name == "olmo2" else ["input"])
        found.append(FAMILIES[name].settings(plain, torch.float32))
    for folder in ("huginn-tiny", "ouro-gqa", "retrofit-llama", "retrofit-olmo2"):
        found.append(json.loads((Path(__file__).parents[1] / "golden" / folder / "config.json").read_text()))
    return json.loads(json.dumps(found))


def own_config(rng: Random, folder: Path) -> None:
    """A config.json of ours: read, costed, built without memory, and run where it is small."""
    settings = mutate(rng.choice(own_configs()), rng)
    (folder / "config.json").write_text(as_json(settings))
    survey(OWN.config(read_json(folder / "config.json"), "config.json"))


def foreign_config(rng: Random, folder: Path) -> None:
    """A config.json of another family."""
    settings = mutate(rng.choice(foreign_configs()), rng)
    (folder / "config.json").write_text(as_json(settings))
    found = read_json(folder / "config.json")
    families = [family for family in FAMILIES.values() if family is not OWN and family.model_type == found.get("model_type")]
    family = rng.choice(families or [FAMILIES["llama"]])
    config = family.config(found, "config.json")
    survey(config)
    family.settings(config, torch.float32)


def survey(config: LoopedConfig) -> None:
    """Asks a config all that a user may ask of it before its weights are there."""
    facts = cost.survey(config, depth=None, context=None, batch=1, dtype=torch.float32, policy="every")
    empty_model(config)
    if facts["parameters"]["total"]["unique"] < SMALL and config.depth <= 64:
        with torch.no_grad():
            model = LoopedForCausalLM(config).eval()
            ids = torch.arange(4)[None] % config.vocab_size
            logits = model(
                ids[:, : config.max_position_embeddings], depth=min(config.depth, 2) if config.is_looped else None, return_dict=True
            ).logits
        numbers = [v for v in _numbers(config.to_dict()) if abs(v) > 1e4 or 0 < abs(v) < 1e-20]
        if not logits.isfinite().all() and not numbers:  # a number as large as a float goes may overflow; nothing else may
            raise WrongError("a fresh model of an accepted config gives numbers that are not finite")


def _numbers(data: Any) -> list[float]:
    if isinstance(data, dict):
        return [n for value in data.values() for n in _numbers(value)]
    if isinstance(data, list):
        return [n for value in data for n in _numbers(value)]
    return [data] if isinstance(data, float) and math.isfinite(data) else []


# recipes


@cache
def recipes() -> list[tuple[dict[str, Any], list[str]]]:
    """Returns the shipped recipes as data."""
    found = [read_yaml((FOLDER / f"{name}.yaml").read_text(), name) for name in names()]
    for data in found:
        data.setdefault("average", {"kind": "ema"})
        data.setdefault("remat", {"kind": "step"})
    return found


def recipe(rng: Random, folder: Path) -> None:
    """A recipe: read, and every part that it names made."""
    data = mutate(rng.choice(recipes()), rng)
    path = folder / "recipe.yaml"
    try:
        text = as_json(data) if rng.random() < 0.5 else write_yaml(data)
    except Exception:  # what YAML cannot write, JSON can, and JSON is YAML
        text = as_json(data)
    path.write_text(text, errors="surrogatepass")
    overrides = [f"{rng.choice(OVERRIDES)}={word(rng)}" for _ in range(rng.choice((0, 0, 1, 2)))]
    found = read_recipe(path, overrides, toy=rng.random() < 0.5)
    rule = build_kind(found.depth, RULES)
    assert rule.median and rule.span and rule(0, torch.Generator())
    schedule = build_kind(found.schedule, SCHEDULES)
    assert all(schedule(update, found.updates) is not None for update in (0, found.updates - 1))
    optim = build_kind(found.optim, OPTIMISERS)
    build_kind(found.remat_spec, REMATS)
    if found.average is not None:
        build_kind(found.average, AVERAGES)
    for spec in found.penalties:
        Weighted.build(spec, PENALTIES)
    if found.objective["kind"] != "distil":
        build_kind(found.objective, OBJECTIVES)
    if found.model["kind"] == "preset":
        changes = found.model.get("changes") or {}
        config = LoopedConfig(**changes) if found.model.get("name") is None else preset(found.model["name"], **changes)
        model = empty_model(config)
        optim.prepare(model)
        optim(model)
    if found.data["kind"] in ("addition", "hops", "chain", "columns"):
        build_data(found.data, folder / "data")


OVERRIDES = [
    "optim.lr", "optim.betas", "accumulate", "batch", "updates", "model.name", "model.changes", "depth.kind", "data.kind",
    "data.train",
    "validate.depths", "seed", "clip", "a.b.c", "", "toy", "objective.kind", "penalties", "schedule.kind", "save.keep",
    "order.repeat", "about",
]  # fmt: skip


def word(rng: Random) -> str:
    """Returns one word as a shell would hand it over: no NUL, at most as long as the system takes."""
    value = rng.choice(NASTY)
    text = value if isinstance(value, str) else as_json(value) if rng.random() < 0.7 else str(value)[:4000]
    return text.replace("\x00", "")[:20_000]


# command lines


def command_line(rng: Random, folder: Path) -> None:
    """A command line. The long work of train, check, analyze and demo is replaced; what is said before it is not."""
    import loopwright.cli.analysis as analysing
    import loopwright.cli.checks as checking
    import loopwright.cli.demonstration as demo
    import loopwright.training.loop as training

    checking.conformance.check = lambda model, progress: _stop()
    analysing._study = lambda *args, **options: _stop()
    training.train = lambda *args, **options: _stop()
    demo.demo = lambda *args, **options: _stop()
    verb = rng.choice([*VERBS] * 6 + [word(rng), "--help", "--version"])
    words = [verb, *sound_words(verb, rng)]
    for _ in range(rng.choice((0, 1, 1, 2, 3))):
        option = rng.choice(OPTIONS)
        words[1:1] if rng.random() < 0.1 else words.extend([option, word(rng)] if rng.random() < 0.9 else [option])
    if rng.random() < 0.3 and len(words) > 1:
        words[rng.randrange(len(words))] = word(rng)
    if rng.random() < 0.2:
        words.append(f"{rng.choice(['hidden_size', 'depth', 'dtype', 'core_layers', 'optim.lr', 'state', 'x'])}={word(rng)}")
    called(words)


OPTIONS = [
    "--depth", "--context", "--batch", "--dtype", "--policy", "--tensors", "--json", "--device", "--seed", "--full",
    "--max-new-tokens",
    "--temperature", "--top-p", "--top-k", "--min-p", "--state-seed", "--chat", "--show-depth", "--prelude", "--core", "--coda",
    "--search", "--search-depth",
    "--search-by", "--text", "--tokens", "--out", "--resume", "--toy", "--depths", "--split", "--checkpoint", "--data",
    "--tokenizer",
    "--field", "--teacher-forced", "--honest", "--rows", "--prompts", "--compare", "--examples", "--pairs", "--ablate",
    "--nosuch", "-x",
]  # fmt: skip


def sound_words(verb: str, rng: Random) -> list[str]:
    """Returns arguments with which a verb would work, quickly."""
    model = str(HOME / rng.choice(["model", "model", "dense"]))
    return {
        "inspect": [rng.choice([model, "huginn-tiny", "asura-tiny", "ouroboros-qwen2.5-3b-tiny"])],
        "check": [rng.choice([model, "asura-tiny"])],
        "generate": [model, "the cat", "--max-new-tokens", "2"],
        "retrofit": [str(HOME / "dense"), "out", "--prelude", "2", "--coda", "2"],
        "train": [rng.choice(["demo-stable", "controller-halting"]), "--toy"],
        "recipes": ["demo-stable"],
        "evaluate": [model, "--text", str(HOME / "text.txt"), "--rows", "1", "--context", "16", "--depths", "1"],
        "analyze": [model, "--prompts", "the cat", "--pairs", "0", "--out", "analysis"],
    }.get(verb, [])


def _stop() -> None:
    raise ValueError("the work begins here")


def called(words: list[str]) -> None:
    """Runs the command line and judges its exit: a code of ours, one line where it is a mistake."""
    import contextlib
    import io

    err = io.StringIO()
    with contextlib.redirect_stderr(err):
        try:
            main(words)
        except SystemExit as stop:
            code = stop.code or 0
    lines = [line for line in err.getvalue().splitlines() if line.startswith("loopwright: ")]
    told = f"{shlex.join(words)[:200]}: exit {code}, {err.getvalue()[-300:]!r}"
    if code not in (0, 1, 2):
        raise WrongError(told)
    if code == 2 and (len(lines) != 1 or not err.getvalue().endswith("\n") or len(lines[0]) > 3000):
        raise WrongError(told)


# files


def header(rng: Random, folder: Path) -> None:
    """A model.safetensors whose header, or whose bytes, are not what they should be."""
    raw = (HOME / "model" / "model.safetensors").read_bytes()
    size = int.from_bytes(raw[:8], "little")
    table, body = json.loads(raw[8 : 8 + size]), raw[8 + size :]
    if rng.random() < 0.6:
        text = as_json(mutate(table, rng)).encode()
        raw = len(text).to_bytes(8, "little") + text + body
    elif rng.random() < 0.5:
        text = damage(raw[8 : 8 + size], rng)
        raw = len(text).to_bytes(8, "little") + text + body
    else:
        raw = rng.choice([2**63, 2**64 - 1, 2**40, 0, 1, size - 1, size + 1]).to_bytes(8, "little") + raw[8:]
    (folder / "config.json").write_bytes((HOME / "model" / "config.json").read_bytes())
    (folder / "model.safetensors").write_bytes(raw)
    load(folder)


def json_file(rng: Random, folder: Path) -> None:
    """A model folder with one of its JSON files damaged, mutated, endless or no file at all."""
    name = rng.choice(
        ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors.index.json"]
    )
    for path in (HOME / "model").iterdir():
        (folder / path.name).symlink_to(path)
    where, sound = folder / name, b'{"weight_map": {"embed_tokens.weight": "model.safetensors"}}'
    if where.exists():
        sound = where.read_bytes()
        where.unlink()
    else:
        (folder / "model.safetensors").rename(folder / "model-1.safetensors")
    _place(where, sound, rng)
    if rng.random() < 0.5 and name.startswith("token"):
        tokenizer(folder)("the cat")
    else:
        called(["generate", str(folder), "the cat", "--max-new-tokens", "1"])


def yaml_file(rng: Random, folder: Path) -> None:
    """A recipe, damaged as text."""
    _place(folder / "r.yaml", (FOLDER / f"{rng.choice(names())}.yaml").read_bytes(), rng)
    read_recipe(folder / "r.yaml")


def text_file(rng: Random, folder: Path) -> None:
    """A file of prompts or of text, damaged."""
    suffix = rng.choice([".jsonl", ".txt", ".jsonl.gz", ".txt.gz"])
    raw = (HOME / ("prompts.jsonl" if "jsonl" in suffix else "text.txt")).read_bytes()
    path = folder / f"x{suffix}"
    if rng.random() < 0.5 and suffix.endswith("gz"):
        path.write_bytes(damage(gzip.compress(raw), rng))
    else:
        _place(path, raw, rng, packed=suffix.endswith("gz"))
    if rng.random() < 0.5:
        read_prompts(str(path))
    else:
        for _, fields in Files(str(path)):
            assert isinstance(fields, dict)


def _place(path: Path, sound: bytes, rng: Random, *, packed: bool = False) -> None:
    what = rng.random()
    if what < 0.03:
        os.mkfifo(path)
    elif what < 0.06:
        path.symlink_to("/dev/zero")
    elif what < 0.08:
        path.mkdir()
    elif what < 0.10:
        path.symlink_to(path)  # a link to itself
    elif what < 0.12:
        with path.open("wb") as file:  # many bytes of nothing, which take no room
            file.truncate(2**40)
    else:
        raw = rng.choice(BOMBS) if what < 0.3 else damage(sound, rng)
        if what > 0.7 and path.suffix == ".json":
            raw = as_json(mutate(json.loads(sound), rng)).encode()
        path.write_bytes(gzip.compress(raw) if packed else raw)


_LAUGHS = b"a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + b"".join(
    b"a%d: &a%d [%s]\n" % (n, n, b", ".join([b"*a%d" % (n - 1)] * 10)) for n in range(1, 12)
)
BOMBS = [
    b"[" * 5000, b"[" * 5000 + b"]" * 5000, b'{"a":' * 5000 + b"1" + b"}" * 5000, b"- " * 5000, b"a: &a [*a]\n", _LAUGHS,
    b"&a {x: *a, *a : 1}", b"model: &m {kind: *m}\n", b"toy: &t {toy: *t}\nabout: x\n", b"about: !!python/name:os.system\n",
    b"!!python/object/apply:os.system ['touch executed']\n", b"x: 2020-99-99\n", b"x: !!binary '====a'\n", b"x: 0x_\n",
    b"? [a]\n: b\n", b"null\n", b"1\n", b"[]", b"{}", b'{"about": "a", "about": "b"}', b"\xef\xbb\xbf{}", b"9" * 100_000,
    b'{"vocab_size": ' + b"9" * 10_000 + b"}", b"x: !!set {a, b}\n", b"about: !!timestamp 2020-01-01\n",
    b"%YAML 9.9\n---\na: 1\n", b"a: 1\n---\nb: 2\n", b"\x00" * 100, *BYTES,
]  # fmt: skip

KINDS: dict[str, tuple[Callable[[Random, Path], None], int]] = {
    "configs of our own": (own_config, 3000),
    "configs of other families": (foreign_config, 2000),
    "recipes": (recipe, 2500),
    "command lines": (command_line, 1500),
    "safetensors headers": (header, 1500),
    "JSON files of a model": (json_file, 600),
    "YAML files": (yaml_file, 800),
    "text and prompt files": (text_file, 600),
}
