"""Checkpoints: all that a run needs to go on as if it had never stopped, in safetensors and JSON only.

A checkpoint is a folder named after the number of updates done. It holds a model as `save_pretrained` writes it (so that
`lw.load` reads it) or, where its base is frozen and only the parts are asked for, those alone (so that `lw.load_adapters` puts
them on the base), tensors by group (`optimizer.safetensors`, `generators.safetensors`, `average.safetensors` …), the
progress of the run (`state.json`), a card for people and a manifest. It comes into being whole or not at all. The last one is
the one of the highest number; which one is best so far stands in `state.json`, so that no pointer can come apart from what it
points to.

Beside its recipe a checkpoint holds digests of what the run is made of: data, tokenizer, files of parts, the models that it holds
on to, versions. A run that goes on must be made of the same, and so must all processes of one run: what differs is refused.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from loopwright.checkpoints.adapters import RECORD, References, check_values, divided, find_references, read_references, write_parts
from loopwright.checkpoints.adapters import WEIGHTS as PARTS_FILE
from loopwright.checkpoints.export import SILENT
from loopwright.checkpoints.families import OWN
from loopwright.checkpoints.families.family import listed
from loopwright.checkpoints.save import command_line, model_card, put_card, without_bars, without_folders
from loopwright.checkpoints.source import load
from loopwright.checkpoints.weights import read_header, read_tensors, stored_tensors
from loopwright.data.batch import Splits, made_of
from loopwright.model.causal_lm import LoopedForCausalLM
from loopwright.model.config import LoopedConfig
from loopwright.registry import file_digests
from loopwright.schema import differences, is_whole, write_yaml
from loopwright.storage.files import read_json, write_json
from loopwright.storage.folder import clear_leftovers, remove_folder, whole_folder
from loopwright.storage.manifest import MANIFEST, verify
from loopwright.storage.run import ANEW, MADE, STATE, RunFolder, saved, update_of
from loopwright.training.optim import spread, whole
from loopwright.training.recipe import Recipe, read_recipe
from loopwright.training.report import Log, Progress, ProgressReporter, last_row, marked
from loopwright.untrusted import shown
from loopwright.version import VERSION

if TYPE_CHECKING:
    from loopwright.training.run import Job

ALONE = ("about", "toy", "track", "imported")  # what a recipe may say otherwise in each process: no update comes from it
# where the recipe says what a digest is of
NAMES = {
    "source": "what data.files or data.dataset hold", "tokenizer": "the tokenizer (data.tokenizer)",
    "template": "the chat template (data.template)", "rows": "its rows",
}  # fmt: skip
WORDS = 1 << 22  # numbers of a tensor that are summed at once
# what the card shows of the recipe
SHOWN = ("model", "data", "updates", "batch", "depth", "objective", "penalties", "average", "precision", "seed")
OTHERWISE = "not made as before"  # how the note on a run begins that does not go on bit for bit


# the folder


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose files are as they were written: the updates done, the best of the updates saved so far, the state."""

    folder: Path
    update: int
    best: int | None
    state: dict[str, Any]


def save_checkpoint(
    checkpoints: str | Path,
    update: int,
    *,
    model: LoopedForCausalLM,
    tensors: Mapping[str, Mapping[str, Tensor]],
    state: Mapping[str, Any],
    best: int | None = None,
    keep: int | None = None,
    weights: Mapping[str, Tensor] | None = None,
    references: References | None = None,
    beside: Callable[[Path], None] | None = None,
) -> Path:
    """Saves what was reached after `update` updates and returns its folder; then older ones beyond `keep` are removed.

    Those that any kept checkpoint names as the best stay. `tensors` go to one file a group; `state` is plain data. `weights`
    are the model's tensors (`model_tensors`), whole, where those of the model are spread over processes. Tensors that
    `references` finds in the model's base are not written. `beside` writes further files into the folder.
    """
    _check_request(update, tensors, state, keep)
    folder = Path(checkpoints)
    folder.mkdir(parents=True, exist_ok=True)
    _clear(folder)
    weights = {name: tensor if weights is None else weights[name] for name, tensor in model_tensors(model).items()}
    weights = {name: tensor for name, tensor in weights.items() if name not in (references or {})}
    needed = sum(tensor.nbytes for group in (weights, *tensors.values()) for tensor in group.values())
    target = folder / f"{update:08d}"
    with whole_folder(target, needed=needed, kept="the checkpoints that were there are unharmed") as made:
        if references is None:
            with without_bars():
                model.save_pretrained(made, state_dict=dict(weights))
        else:
            write_parts(made, model, weights, references)
        for name, group in tensors.items():
            save_file({key: value.detach().cpu().contiguous() for key, value in group.items()}, made / f"{name}.safetensors")
        write_json(made / STATE, {"update": update, "best": best, "state": state})
        if beside is not None:
            beside(made)
    if keep is not None:
        _prune(folder, update, keep)
    return target


def open_checkpoint(folder: str | Path) -> Checkpoint:
    """Returns a checkpoint, or a ValueError that says what is wrong with its files."""
    folder = Path(folder)
    problems = verify(folder)
    if problems:
        raise ValueError("; ".join(problems))
    data = read_json(folder / STATE)
    update, best, state = data.get("update", ""), data.get("best"), data.get("state")
    if set(data) != {"update", "best", "state"} or not is_whole(update, 0) or not isinstance(state, dict):
        raise ValueError(f"{folder / STATE}: not the state of a run; allowed: update, best, state")
    if best is not None and not is_whole(best, 0):
        raise ValueError(f"{folder / STATE}: best is {best!r}; allowed: the number of an update, or null")
    return Checkpoint(folder, update, best, state)


def latest_good(checkpoints: str | Path) -> tuple[Checkpoint, list[str]]:
    """Returns the newest checkpoint that is whole, and what is wrong with each newer one."""
    skipped: list[str] = []
    for folder in saved(checkpoints):
        try:
            return open_checkpoint(folder), skipped
        except (OSError, ValueError) as error:
            skipped.append(str(error))
    if skipped:
        raise ValueError(f"{checkpoints}: none of the {len(skipped)} checkpoints is whole: " + "; ".join(skipped))
    raise FileNotFoundError(f"{checkpoints}: there is no checkpoint")


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Returns the tensors of a model by name, a tied one once: under its first name, as `save_pretrained` keeps it."""
    tensors: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            tensors[name] = tensor
            seen.add(id(tensor))
    return tensors


def load_weights(folder: str | Path, model: LoopedForCausalLM) -> None:
    """Fills a model, in place and in its own dtypes, with the weights of a checkpoint: exactly its tensors, no cast.

    Of a checkpoint of parts the others must be in the model already, value for value.
    """
    folder, weights = Path(folder), model_tensors(model)
    references = read_references(folder) if (folder / RECORD).is_file() else {}
    stored = read_header(folder / PARTS_FILE) if references else stored_tensors(folder)
    missing = [name for name in weights if name not in stored and name not in references]
    if missing:
        raise ValueError(f"{folder}: the model's tensors do not fit; missing: {listed(missing)}")
    held = {name: whole(weights[name]) for name in references if name in weights}
    check_values(str(folder), {name: (name, references[name][1]) for name in held}, held)
    with torch.no_grad():
        for name, value in read_tensors(str(folder), stored, weights).items():
            weights[name].copy_(spread(value, weights[name]))


def base_references(spec: Mapping[str, Any], model: LoopedForCausalLM) -> References:
    """Returns where the frozen tensors of a run's model stand in the model that its spec loads; the parts' own are left out."""
    if "source" not in spec:
        raise ValueError(
            f"save: parts is true, and a model of kind {spec.get('kind')!r} has no base; allowed: one that names a source, or false"
        )
    _, rest = divided(dict(model.named_parameters()), model.config)
    frozen = {name: tensor for name, tensor in rest.items() if not tensor.requires_grad}
    references = find_references(frozen, load(spec["source"], dtype=spec.get("dtype", "float32")))
    if not references:
        raise ValueError("save: parts is true, and nothing of the model's base is frozen; allowed: false, or optim: train")
    return references


def _check_request(update: int, tensors: Mapping[str, Mapping[str, Tensor]], state: Mapping[str, Any], keep: int | None) -> None:
    if not is_whole(update, 0):
        raise ValueError(f"checkpoint: update is {update!r}; allowed: the number of updates done")
    if keep is not None and keep < 1:
        raise ValueError(f"checkpoint: keep is {keep}; allowed: at least 1, or None for all")
    wrong = [name for name in tensors if not re.fullmatch("[a-z][a-z_]*", name) or name.startswith("model")]
    if wrong:
        raise ValueError(f"checkpoint: {wrong[0]!r} names no group of tensors; allowed: lower-case words other than model")
    try:
        same = json.loads(json.dumps(state, allow_nan=False)) == state
    except (TypeError, ValueError) as error:
        raise ValueError(f"checkpoint: the state is not plain data ({error})") from None
    if not same:  # what comes back as something else (tuples, numbers as keys) would not resume as it was
        raise ValueError("checkpoint: the state does not come back from JSON as it was; allowed: lists, and text as keys")


def _clear(folder: Path) -> None:
    clear_leftovers(folder)
    for path in saved(folder):
        if path.suffix and path.with_suffix("").exists():  # replaced, and the save killed before it could go
            remove_folder(path)


def _prune(folder: Path, update: int, keep: int) -> None:
    # newer ones belong to a run that was further: what resumes from an older one writes them again
    mine = [path for path in saved(folder) if update_of(path) <= update]
    kept = sorted({update_of(path) for path in mine})[-keep:]
    bests = [_best_of(path) for path in mine if update_of(path) in kept]
    for path in reversed(mine):
        if update_of(path) not in {*kept, *bests}:
            remove_folder(path)


def _best_of(folder: Path) -> int | None:
    try:
        return read_json(folder / STATE).get("best")
    except (OSError, ValueError):  # damaged: it names none
        return None


# a run, saved and resumed


def made_with(job: Job) -> dict[str, Any]:
    """Returns what decides how sums are rounded, beside the recipe: a run that goes on with the same goes on bit for bit."""
    device = torch.cuda.get_device_name(job.device) if job.device.type == "cuda" else job.device.type
    threads = torch.get_num_threads() if job.device.type == "cpu" else None
    facts: dict[str, Any] = {"threads": threads, "processes": job.processes.world, "device": device, "compiled": job.compiled}
    facts["replayed"] = job.replays
    facts["torch"] = str(torch.__version__)
    return facts


def check_finite(weights: Mapping[str, Tensor], run: RunFolder, update: int, lr: float) -> None:
    """Raises a ValueError where a parameter is not finite: it is not worth saving, and must not take a good checkpoint's place."""
    odd = next((name for name, x in weights.items() if x.is_floating_point() and not bool(x.isfinite().all())), None)
    if odd is None:
        return
    good = next(iter(saved(run.checkpoints)), None)
    kept = "there is no checkpoint yet" if good is None else f"the newest checkpoint is {good}"
    raise ValueError(f"update {update}: {odd} is not finite, so nothing is saved; {kept}; lower optim.lr (it is {lr:g}) or clip")


def _saved_best(run: RunFolder, progress: Progress) -> int | None:
    """The best update so far where it is, or is being, saved: validation goes on judging where a recipe does not save the best."""
    best = progress.best_update
    return best if best == progress.update or (run.checkpoints / f"{best or 0:08d}").is_dir() else None


def save_job(job: Job, run: RunFolder, progress: Progress, log: Log | None) -> Path:
    """Saves a run as it stands, its log first, and returns the checkpoint's folder. Parameters must be finite."""
    weights, tensors = job.weights(), job.tensors()
    check_finite(weights, run, progress.update, job.optimiser.lr)
    if log is not None:  # in the main process
        facts = {"log": log.mark(), "with": made_with(job), "rows": len(job.splits.train)}
        facts |= {"of": job.made_of, "parts": file_digests()}
        facts |= {"start": job.start} if job.model.state.seeded else {}
        card = run_card(job.model.config, job.recipe, run, progress)

        def beside(folder: Path) -> None:
            write_json(folder / MADE, facts)
            put_card(folder, card, before=run.checkpoints / f"{progress.update:08d}")
            if job.splits.tokenizer is not None:
                job.splits.tokenizer.save_pretrained(folder)

        save_checkpoint(
            run.checkpoints, progress.update,
            model=job.model, weights=weights, tensors=tensors, state=asdict(progress),
            best=_saved_best(run, progress), keep=job.recipe.save.keep, references=job.references,
            beside=beside,
        )  # fmt: skip
    job.processes.wait()
    return run.checkpoints / f"{progress.update:08d}"


def resume_job(job: Job, run: RunFolder, reporter: ProgressReporter) -> tuple[Progress, dict[str, Any] | None]:
    """Puts the newest good checkpoint into a run's objects; returns how far it was, and its mark of the log (None: no log yet)."""
    try:
        checkpoint, damaged = latest_good(run.checkpoints)
    except FileNotFoundError:
        job.processes.check_same({"the checkpoint": "none"})
        reporter.note("no checkpoint yet: the run starts again from its first update")
        return Progress(), None
    job.processes.check_same({"the checkpoint": f"{checkpoint.update} ({digest_of_files([checkpoint.folder / MANIFEST])})"})
    for line in damaged:
        reporter.note(f"skipped a damaged checkpoint: {line}")
    if not (checkpoint.folder / MADE).is_file():
        raise ValueError(
            f"{checkpoint.folder}: has no {MADE}, so an older version saved it; train with that version, or start a new run"
        )
    facts, rows = read_json(checkpoint.folder / MADE), len(job.splits.train)
    if facts.get("rows", rows) != rows:  # an older version did not say
        raise ValueError(
            f"resume: train has {rows:,} rows now and had {facts['rows']:,} when {checkpoint.folder} was saved; "
            "give the run its own data again, or start a new one"
        )
    if "rows" not in facts:
        _refuse_older(job, checkpoint.folder)
    check_same_parts(checkpoint.folder, facts.get("parts", {}))
    check_same_config(checkpoint.folder, job.model.config)
    if "of" in facts:
        check_same_objects(checkpoint.folder, facts["of"], job.made_of)
    else:
        reporter.note("an older version saved this checkpoint without a digest of its data: that they are the same is not checked")
    job.load(checkpoint.folder)
    reporter.note(f"resumed from {checkpoint.folder} ({checkpoint.update} updates done)")
    before, now = {"compiled": False, **facts["with"]}, made_with(job)
    if "replayed" not in before:  # an older version, which replayed where it was asked to
        before["replayed"] = read_recipe(run.recipe).graph is True
    differs = [name for name in now if before.get(name) != now[name]]
    if set(differs) <= {"compiled", "replayed"} and now["compiled"] and not before["compiled"] and job.recipe.compile is not True:
        reporter.note("compile: auto leaves the model as it is written: it ran so until here (compile: true compiles it)")
        job.leave_compiled()
        now = made_with(job)
        differs = [name for name in now if before.get(name) != now[name]]
    if differs == ["replayed"] and job.replayed is not None and not job.replayed.asked:
        job.replayed.give_up("so they ran until here, and so the run goes on bit for bit (graph: true replays them)")
    elif differs:
        changes = "; ".join(f"{name}: {before.get(name)} then, {now[name]} now" for name in differs)
        reporter.note(f"{OTHERWISE} ({changes}): sums are rounded otherwise, so the run goes on alike, but not bit for bit")
    job.start = facts.get("start", f"{ANEW} from update {checkpoint.update}")
    if job.model.state.seeded and "start" not in facts:
        reporter.note("until here every row began at one and the same noise; from here on each row of each update has its own")
    if not run.log.is_file():
        reporter.note(f"{run.log} is not there: it begins anew at update {checkpoint.update}")
    return Progress(**checkpoint.state), facts["log"]


def _refuse_older(job: Job, folder: Path) -> None:
    """Raises where a run of version 0.2.0 or before would go on as another: with other windows of text or trained weights."""
    again = "train with that version, or start a new run"
    if getattr(job.splits.train, "documents", None) is not None:  # windows of text know theirs
        raise ValueError(f"resume: {folder} is of a version whose windows of text did not overlap by a token; {again}")
    model = job.recipe.model
    if isinstance(model, Mapping) and model.get("system") == "relaxed" and "trains" not in model:
        raise ValueError(f"resume: {folder} is of a version that trained the low-rank parts alone; give model.trains=parts")


# what a run is made of


def as_started(recipe: Recipe, *, resume: bool, spread: str) -> dict[str, Any]:
    """Returns what all processes of a run must have been started with: the recipe, and what else their command lines and machines
    decide."""
    settings = {name: value for name, value in recipe.data_of().items() if name not in ALONE}
    parts = {Path(file).name: digest for file, digest in file_digests().items()}
    versions = {"loopwright": VERSION, "torch": str(torch.__version__), "the code of loopwright": _code()}
    return {**settings, "--resume": resume, "spread as": spread, "version of": versions, "the file of parts": parts}


def as_built(job: Job) -> dict[str, dict[str, str]]:
    """Returns what the objects of a run are made of, as a checkpoint notes it."""
    fixed = {name: digest_of_model(model) for name, model in job.objective.fixed_models().items()}
    return {**_of_data(job.splits), **({"fixed": fixed} if fixed else {})}


def _of_data(splits: Splits) -> dict[str, dict[str, str]]:
    return {name: made_of(source) for name, source in (("train", splits.train), ("valid", splits.valid))}


def check_same_objects(where: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raises a ValueError where the objects of a run that is to go on are not made of what they were, and names what is not."""
    paths = [path for path, _ in differences([before, now])]
    if not paths:
        return
    # rows follow from what they are made of, where that differs
    part, _, name = next((path for path in paths if not path.endswith(".rows")), paths[0]).partition(".")
    what = f"the {name} of the objective" if part == "fixed" else f"{part}: {NAMES.get(name, name)}"
    raise ValueError(_changed(what, where))


def check_same_parts(where: Path, before: Mapping[str, Any]) -> None:
    """Raises a ValueError where a file that parts of the run came from is no longer what it was."""
    now = file_digests().values()
    file = next((file for file, digest in before.items() if digest not in now), None)
    if file is not None:
        raise ValueError(_changed(f"{shown(file)[1:-1]}, which parts came from,", where))


def check_same_config(where: Path, now: LoopedConfig) -> None:
    """Raises a ValueError where the model that a recipe's source gives is another than the run's."""
    saved = OWN.config(read_json(where / "config.json"), str(where / "config.json"))
    first = next(differences([_plain(saved), _plain(now)]), None)
    if first is not None:
        path, (saved_value, value) = first
        raise ValueError(_changed(f"{path} of the model's config ({shown(saved_value)} then, {shown(value)} now)", where))


def _changed(what: str, where: Path) -> str:
    remedy = "put it back as it was, or start a new run"
    return f"resume: {what} changed since {where} was saved, so the run would go on as another; {remedy}"


def digest_of_model(model: LoopedForCausalLM) -> str:
    """Returns a digest of what a model computes with: its config and its tensors."""
    whole = hashlib.sha256(json.dumps(_plain(model.config), sort_keys=True).encode())
    for name, tensor in model_tensors(model).items():
        whole.update(f"{name} {tensor.dtype} {list(tensor.shape)} {_checksum(tensor)}\n".encode())
    return whole.hexdigest()[:12]


def _plain(config: LoopedConfig) -> dict[str, Any]:
    """What a model computes with in training, as its file has it."""
    fields = {name: getattr(config, name) for name in LoopedConfig.__annotations__ if name == "dropout" or name not in SILENT}
    plain: dict[str, Any] = json.loads(json.dumps(fields))
    return plain


def _checksum(tensor: Tensor) -> int:
    """A sum of a tensor's bits, each number of it by its place: sha256 of a large model would take longer than loading it."""
    flat = tensor.detach().contiguous().flatten()
    words = flat.view({1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[flat.element_size()])
    total = torch.zeros((), dtype=torch.int64, device=words.device)
    for place in range(0, len(words), WORDS):
        part = words[place : place + WORDS].long()
        total += (part * (2 * torch.arange(place, place + len(part), device=part.device) + 1)).sum()
    return int(total)


def _code() -> str:
    """A digest of the package's own files: two checkouts may have one version."""
    return digest_of_files(Path(__file__).parents[1].rglob("*.py"))


def digest_of_files(paths: Iterable[Path]) -> str:
    """Returns a digest of the content of files, in the order of their paths."""
    whole = hashlib.sha256()
    for path in sorted(paths):
        whole.update(f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return whole.hexdigest()[:12]


# the card


def run_card(config: LoopedConfig, recipe: Recipe, run: RunFolder, progress: Progress) -> str:
    """Returns the card of a checkpoint after so many updates."""
    data = without_folders(recipe.data_of())
    recipe_text = write_yaml({name: data[name] for name in SHOWN if data[name] not in (None, [])})
    seen = f"{progress.tokens:,} tokens in {progress.rows:,} rows"
    training = f"{progress.update:,} of {recipe.updates:,} updates, {seen}.\n\n```yaml\n{recipe_text}```"
    row = last_row(run.log, "valid")
    sections = {"Training": training} | ({} if row is None else {"Results by depth": by_depth(row)}) | versions_section(run)
    return model_card(config, title=recipe.about, sections=sections)


def by_depth(row: Mapping[str, Any]) -> str:
    """Returns what a validation measured as a table: a row per depth, a column per number that was measured."""
    measured = {int(depth): scores for depth, scores in row["valid"].items()}
    names = [name for name in next(iter(measured.values())) if any(scores.get(name) is not None for scores in measured.values())]
    lines = [f"| depth | {' | '.join(names)} |", "|" + "---|" * (len(names) + 1)]
    for depth, scores in sorted(measured.items()):
        cells = ["–" if scores.get(name) is None else f"{scores[name]:.4f}" for name in names]
        lines.append(f"| {depth} | {' | '.join(cells)} |")
    return f"The validation split after {row['update'] + 1:,} updates{marked(row)}.\n\n" + "\n".join(lines)


def versions_section(run: RunFolder) -> dict[str, str]:
    """Returns the section on how the run was made, as its origin.json has it; nothing where that cannot be read."""
    try:
        origin = read_json(run.origin)
    except (OSError, ValueError):
        return {}
    if isinstance(origin.get("command"), str):
        origin["command"] = _shown_command(origin["command"])
    names = ("loopwright", "commit", "torch", "transformers", "devices", "command")
    return {"Made with": "\n".join(f"- {name}: `{_text(origin[name])}`" for name in names if origin.get(name))}


def _shown_command(command: str) -> str:
    try:
        words = shlex.split(command)
    except ValueError:  # no closing quote: an edited file
        return ""
    return command_line(words) if words else ""


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
