"""lm-eval's tasks at every depth = lm-eval's own `hf` model, run once for each depth. Needs the `eval` extra."""

from __future__ import annotations

import json
import operator
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import loopwright as lw
from loopwright.checking.probes import Verdict
from loopwright.evaluation.harness import evaluate_tasks
from loopwright.evaluation.tasks import Asking, TaskReport
from tests.cases import noisy
from tests.generation.tiny import WORDS, word_tokenizer
from tests.leaks import leaking

pytestmark = pytest.mark.ecosystem
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_DATASETS_OFFLINE", "1")
pytest.importorskip("lm_eval")

DEPTHS = [1, 2, 4]
TASKS = {
    "choice": {"output_type": "multiple_choice", "doc_to_choice": "{{choices}}", "doc_to_target": "gold"},
    "single": {"output_type": "multiple_choice", "doc_to_choice": ["sat", "ran", "w7"], "doc_to_target": "gold"},
    "free": {
        "output_type": "generate_until", "doc_to_target": "{{choices[0]}}", "num_fewshot": 2, "fewshot_split": "train",
        "generation_kwargs": {"max_gen_toks": 9, "until": ["w9", "the"]},
    },
    "rolling": {
        "output_type": "loglikelihood_rolling", "doc_to_text": "", "doc_to_target": "{{long}}",
        "metric_list": [{"metric": "word_perplexity"}, {"metric": "bits_per_byte"}],
    },
    "said": {"output_type": "loglikelihood", "doc_to_target": "{{choices[1]}}"},
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Task files, and their questions beside them."""
    path = tmp_path_factory.mktemp("tasks")
    generator = torch.Generator().manual_seed(0)

    def text(count: int) -> str:
        return " ".join(WORDS[i] for i in torch.randint(len(WORDS), (count,), generator=generator).tolist())

    for task, fields in TASKS.items():
        config = {"task": task, "doc_to_text": "{{question}}", "test_split": "test", "training_split": "train", **fields}
        (path / f"{task}.yaml").write_text(yaml.safe_dump(config))
        for split in ("train", "test"):
            rows = [
                {
                    "question": text(3 + i % 5),
                    "choices": [text(2), text(3 + i % 2)],
                    "gold": i % 2,
                    "long": text(200 if i == 3 else 20),
                }
                for i in range(10)
            ]
            (path / f"{task}_{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return path


@pytest.fixture(scope="module", params=["huginn-tiny", "ouro-1.4b-tiny"])
def model(request: pytest.FixtureRequest) -> lw.LoopedForCausalLM:
    return noisy(request.param, std=0.3).double()


def specs(folder: Path, tasks: Sequence[str] = tuple(TASKS)) -> list[dict[str, Any]]:
    """The tasks as lm-eval takes them, with the files named one by one."""
    shared = {"doc_to_text": "{{question}}", "test_split": "test", "training_split": "train", "dataset_path": "json"}
    files = {task: {split: str(folder / f"{task}_{split}.jsonl") for split in ("train", "test")} for task in tasks}
    return [{**shared, "task": task, **TASKS[task], "dataset_kwargs": {"data_files": files[task]}} for task in tasks]


def plain(model: lw.LoopedForCausalLM, folder: Path, depth: int) -> Any:
    """lm-eval's own model at one depth, on its own loading of the files."""
    import lm_eval
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    own = model.config.depth
    model.config.depth = depth
    try:
        harness = HFLM(pretrained=model, tokenizer=word_tokenizer(), batch_size=3)
        return lm_eval.simple_evaluate(
            harness, tasks=specs(folder), task_manager=TaskManager(include_defaults=False), bootstrap_iters=0
        )
    finally:
        model.config.depth = own


def test_every_number_is_that_of_the_hf_model_at_each_depth(model: lw.LoopedForCausalLM, folder: Path) -> None:
    reports = evaluate_tasks(model, word_tokenizer(), list(TASKS), DEPTHS, folder=folder)
    assert set(reports) == set(TASKS)
    seen = 0
    for place, depth in enumerate(DEPTHS):
        results = plain(model, folder, depth)
        for task, report in reports.items():
            for name, metric in report.metrics.items():
                expected = results["results"][task][f"{name},none"]
                assert metric.value[place] == pytest.approx(expected, rel=1e-9, abs=1e-12), (task, name, depth)
                seen += 1
    assert seen == len(DEPTHS) * sum(len(report.metrics) for report in reports.values()) >= 3 * 8


def test_every_log_likelihood_and_text_is_that_of_the_hf_model(
    model: lw.LoopedForCausalLM, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from loopwright.evaluation import harness

    kept: list[Any] = []
    results = harness._results
    monkeypatch.setattr(harness, "_results", lambda *args: kept.append(results(*args)) or kept[-1])
    evaluate_tasks(model, word_tokenizer(), list(TASKS), DEPTHS, folder=folder)
    texts = set()
    for ours, depth in zip(kept, DEPTHS, strict=True):
        theirs = plain(model, folder, depth)
        for task in TASKS:
            for a, b in zip(ours["samples"][task], theirs["samples"][task], strict=True):
                assert a["arguments"] == b["arguments"]  # the same prompts, examples included
                if task == "free":
                    assert a["resps"] == b["resps"]
                    texts.add((depth, a["resps"][0][0]))
                else:
                    assert flat(a["resps"]) == pytest.approx(flat(b["resps"]), abs=1e-6)
    assert len({text for _, text in texts}) > 10  # answers that differ, by question and depth


def flat(value: Any) -> list[float]:
    return [x for one in value for x in flat(one)] if isinstance(value, list | tuple) else [float(value)]


def test_in_float32_log_likelihoods_agree_too(folder: Path) -> None:
    model = noisy("huginn-tiny", std=0.3)
    reports = evaluate_tasks(model, word_tokenizer(), ["choice", "rolling"], DEPTHS, folder=folder)
    for place, depth in enumerate(DEPTHS):
        results = plain(model, folder, depth)["results"]
        assert reports["choice"].metrics["acc"].value[place] == results["choice"]["acc,none"]
        expected = results["rolling"]["bits_per_byte,none"]
        assert reports["rolling"].metrics["bits_per_byte"].value[place] == pytest.approx(expected, rel=1e-6)


def test_a_model_that_sees_the_future_answers_no_questions(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leaks = leaking("state", monkeypatch)
    with pytest.raises(ValueError, match="not causal, so its loss is not a likelihood"):
        evaluate_tasks(leaks, word_tokenizer(), ["choice"], DEPTHS, folder=folder)


def test_one_pass_for_all_depths_and_the_limit_holds(
    model: lw.LoopedForCausalLM, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[int] = []
    embed = model.embed
    monkeypatch.setattr(model, "embed", lambda ids, **options: rows.append(len(ids)) or embed(ids, **options))
    reports = evaluate_tasks(model, word_tokenizer(), ["choice"], DEPTHS, folder=folder, limit=4, causality=Verdict(True, ""))
    assert sum(rows) == 4 * 2 and reports["choice"].questions == 4


def test_a_report_has_intervals_rates_and_a_file(model: lw.LoopedForCausalLM, folder: Path, tmp_path: Path) -> None:
    reports = evaluate_tasks(model, word_tokenizer(), ["choice", "rolling"], DEPTHS, folder=folder)
    choice = reports["choice"]
    assert choice.judged_by == "acc" and len(choice.right) == 3 and len(choice.right[0]) == 10 and choice.rates[0].last == 4
    for metric in (choice.metrics["acc"], *reports["rolling"].metrics.values()):
        assert all(low <= value <= high for low, value, high in zip(metric.low, metric.value, metric.high, strict=True))
    assert TaskReport.load(choice.save(tmp_path / "choice.json")) == choice


def test_lm_evals_own_client_of_our_server_gives_the_same_again(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`local-completions` over HTTP, at the depth that the server runs at."""
    pytest.importorskip("aiohttp")
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    import lm_eval
    from lm_eval.models.openai_completions import LocalCompletionsAPI
    from lm_eval.tasks import TaskManager

    from tests.serving.live import live

    depth, tasks, model = 2, ["choice", "single", "free"], noisy("huginn-tiny", std=0.3)
    model.config.depth = depth
    words = word_tokenizer()
    words.save_pretrained(tmp_path / "words")
    ours = evaluate_tasks(model, words, tasks, [depth], folder=folder)
    theirs = plain(model, folder, depth)
    with live({"tiny": model}, tokenizer=words, max_tokens=2000) as server:
        client = LocalCompletionsAPI(
            model="tiny", base_url=f"{server.url}/v1/completions", tokenizer=str(tmp_path / "words"), max_length=127, batch_size=4
        )
        over = lm_eval.simple_evaluate(client, tasks=specs(folder, tasks), task_manager=TaskManager(include_defaults=False))
    apart = [
        abs(x - y)
        for task in tasks[:2]
        for a, b in zip(over["samples"][task], theirs["samples"][task], strict=True)
        for x, y in zip(flat(a["filtered_resps"]), flat(b["filtered_resps"]), strict=True)
    ]
    texts = [[sample["resps"] for sample in result["samples"]["free"]] for result in (over, theirs)]
    accuracies = {task: (over["results"][task]["acc,none"], ours[task].metrics["acc"].value[0]) for task in tasks[:2]}
    print(f"\nlocal-completions and hf: {len(apart)} numbers, at most {max(apart):.1e} apart; accuracies {accuracies}; "
          f"{sum(map(operator.eq, *texts))} of {len(texts[0])} texts equal")  # fmt: skip
    assert max(apart) < 1e-5 and texts[0] == texts[1] and all(a == b for a, b in accuracies.values())


@pytest.mark.parametrize(
    ("tasks", "options", "said"),
    [
        (["chioce"], {}, r"tasks: unknown 'chioce'; did you mean 'choice'"),
        ([], {}, "tasks: none are given"),
        (["arc_easy"], {}, "has no questions of arc_easy; add arc_easy_test.jsonl or arc_easy_validation.jsonl"),
        (["arc_easy"], {"folder": None}, r"tasks: arc_easy cannot be loaded .*; give --task-data FOLDER"),
        (["choice"], {"folder": "nowhere"}, "task-data: nowhere is not a folder"),
        (["mmlu"], {}, "mmlu is no single task"),
        (["unanswered"], {}, "unanswered: question 1 has no answer"),
        (["fieldless"], {}, "fieldless: question 0 has no answer"),
    ],
)
def test_what_is_wrong_is_one_line(folder: Path, tasks: list[str], options: dict[str, Any], said: str) -> None:
    shared = {"doc_to_text": "{{question}}", "test_split": "test", **TASKS["choice"]}
    for name, rows in {"unanswered": [("gold", 0), ("gold", 2)], "fieldless": [("other", 0)]}.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump({"task": name, **shared}))
        lines = [json.dumps({"question": "the cat", "choices": ["sat", "ran"], key: gold}) for key, gold in rows]
        (folder / f"{name}_test.jsonl").write_text("\n".join(lines))
    with pytest.raises(ValueError, match=said) as told:
        evaluate_tasks(noisy("huginn-tiny"), word_tokenizer(), tasks, [1], **{"folder": folder, **options})
    assert "\n" not in str(told.value)


def test_prompts_that_are_too_long_are_counted_and_told(folder: Path) -> None:
    model, shared = noisy("ouro-1.4b-tiny"), {"doc_to_text": "{{question}}", "test_split": "test"}
    room = model.config.max_position_embeddings
    for name, task in {"longchoice": "choice", "longfree": "free"}.items():
        fields = {**TASKS[task], "num_fewshot": 0}
        (folder / f"{name}.yaml").write_text(yaml.safe_dump({"task": name, **shared, **fields}))
        sizes = [room + 5, 4, room + 1] if task == "choice" else [room + 5, 4, room - 8]
        rows = [{"question": " ".join(["the"] * size), "choices": ["sat", "ran the"], "gold": 0} for size in sizes]
        (folder / f"{name}_test.jsonl").write_text("\n".join(map(json.dumps, rows)))
    reports = evaluate_tasks(model, word_tokenizer(), ["longchoice", "longfree", "choice"], [1, 2], folder=folder)
    assert [report.cut for report in reports.values()] == [2, 2, 0]
    assert "2 of 3 prompts were too long" in str(reports["longchoice"].table().caption)
    assert "too long" not in str(reports["choice"].table().caption)


def test_warnings_are_told_once_and_bars_are_not(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    import logging
    import sys
    import warnings

    from loopwright.evaluation import harness

    results = harness._results

    def noisy_results(*args: Any) -> Any:
        print("a bar", file=sys.stderr)
        logging.getLogger("lm_eval.anywhere").warning("metric %s is odd", "acc")
        logging.getLogger("lm_eval.anywhere").info("not worth a line")
        warnings.warn("old name", FutureWarning, stacklevel=1)
        return results(*args)

    monkeypatch.setattr(harness, "_results", noisy_results)
    evaluate_tasks(noisy("ouro-1.4b-tiny"), word_tokenizer(), ["choice"], [1, 2], folder=folder)
    told = capsys.readouterr().err
    assert told.count("lm-eval: metric acc is odd\n") == 1 and told.count("FutureWarning: old name\n") == 1
    assert len(told.splitlines()) == 2, "lm-eval's doubts of a model given as an object are no news"
    assert "a bar" not in told and "not worth" not in told and "%|" not in told
    assert logging.getLogger("lm_eval").handlers != [] or logging.getLogger("lm_eval").propagate  # as it was


def test_shots_of_a_task_that_fixes_its_own_are_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fields = {"task": "bare", "doc_to_text": "{{question}}", "test_split": "test", **TASKS["choice"], "num_fewshot": 0}
    (folder / "bare.yaml").write_text(yaml.safe_dump(fields))
    (folder / "bare_test.jsonl").write_text((folder / "choice_test.jsonl").read_text())
    report = evaluate_tasks(noisy("ouro-1.4b-tiny"), word_tokenizer(), ["bare"], [1], folder=folder, shots=2, limit=2)["bare"]
    assert report.shots == 0
    assert "bare is always asked without examples, so shots=2 changes nothing there\n" in capsys.readouterr().err


def test_from_python_the_reports_are_those_of_the_command(folder: Path, tmp_path: Path) -> None:
    model = noisy("ouro-1.4b-tiny")
    word_tokenizer().save_pretrained(tmp_path)
    found = lw.evaluate(model, tasks="choice, said", task_data=folder, depths=[1, 2], tokenizer=tmp_path, rows=4)
    assert found.reports.keys() == {"choice", "said"} and found["choice"].questions == 4
    alone = evaluate_tasks(model, word_tokenizer(), ["choice", "said"], [1, 2], folder=folder, limit=4)
    assert found.to_dict() == {name: report.to_dict() for name, report in alone.items()}
    with pytest.raises(KeyError, match="'free' was not measured; there are choice, said"):
        found["free"]
    with pytest.raises(ValueError, match="tasks: given with text, which does not go with it"):
        lw.evaluate(model, tasks=["choice"], text="file.txt", tokenizer=tmp_path)
    with pytest.raises(ValueError, match="tokenizer: a model alone has none"):
        lw.evaluate(model, tasks=["choice"], task_data=folder)


SYSTEM = "the cat and the dog"


def chat_words(**more: Any) -> Any:
    """A tokenizer with a template that opens a text itself, and that opens any other text, too."""
    from tokenizers import processors

    words = word_tokenizer()
    words.add_special_tokens({"bos_token": "<start>"})
    opening = ("<start>", words.bos_token_id)
    words.backend_tokenizer.post_processor = processors.TemplateProcessing(single="<start> $A", special_tokens=[opening])
    words.chat_template = (
        "{{ bos_token }}{% for m in messages %}{{ m['role'] }} {{ m['content'] }} again\n{% endfor %}"
        "{% if add_generation_prompt %}then once\n{% endif %}"
    )
    for name, value in more.items():
        setattr(words, name, value)
    return words


def wider() -> lw.LoopedForCausalLM:
    return noisy("huginn-tiny", std=0.3, vocab_size=97).double()


@pytest.mark.parametrize("opens", [True, False])
def test_in_a_chat_every_prompt_is_the_template_with_the_system_message(
    folder: Path, monkeypatch: pytest.MonkeyPatch, opens: bool
) -> None:
    from loopwright.evaluation import harness
    from loopwright.generation.engine import Engine

    words, sent, scored = chat_words(), list[list[int]](), list[Any]()
    words.chat_template = words.chat_template if opens else words.chat_template.removeprefix("{{ bos_token }}")
    submit, score = Engine.submit, harness.score_continuations
    monkeypatch.setattr(Engine, "submit", lambda self, **wish: sent.append(wish["prompt"]) or submit(self, **wish))
    monkeypatch.setattr(harness, "score_continuations", lambda m, pairs, *a, **k: scored.extend(pairs) or score(m, pairs, *a, **k))
    reports = evaluate_tasks(
        wider(), words, ["free", "choice"], [1, 2], folder=folder, shots=0, limit=3, asking=Asking(True, SYSTEM, 4)
    )
    questions = [json.loads(line) for line in (folder / "choice_test.jsonl").read_text().splitlines()[:3]]
    free = [json.loads(line)["question"] for line in (folder / "free_test.jsonl").read_text().splitlines()[:3]]
    ids = [
        words.apply_chat_template(
            [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}], add_generation_prompt=True, return_dict=True
        )["input_ids"]
        for text in (*free, *(row["question"] for row in questions))
    ]
    assert all(row.count(words.bos_token_id) == opens for row in ids) and sent == [*ids[:3], *ids[:3]]  # three requests, two depths
    pairs = [(*context, *said) for context, said in scored]
    wanted = [
        (*row, *words(choice, add_special_tokens=False).input_ids)
        for row, question in zip(ids[3:], questions, strict=True) for choice in question["choices"]
    ]  # fmt: skip
    assert sorted(pairs) == sorted(wanted)
    report = reports["free"]
    assert (report.chat, report.system, report.max_new_tokens) == (True, SYSTEM, 4)
    assert f"in the chat template, after the system message '{SYSTEM}', answers of at most 4 tokens" in str(report.table().title)


def test_in_a_chat_every_number_is_that_of_the_hf_model_at_each_depth(folder: Path) -> None:
    import lm_eval
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    model, words, tasks = wider(), chat_words(), ["choice", "single", "said", "free"]
    reports = evaluate_tasks(model, words, tasks, DEPTHS, folder=folder, asking=Asking(True, SYSTEM, 5))
    for place, depth in enumerate(DEPTHS):
        model.config.depth = depth
        theirs = lm_eval.simple_evaluate(
            HFLM(pretrained=model, tokenizer=words, batch_size=1), tasks=specs(folder, tasks), bootstrap_iters=0,
            task_manager=TaskManager(include_defaults=False), apply_chat_template=True, system_instruction=SYSTEM,
            gen_kwargs={"max_gen_toks": 5},
        )["results"]  # fmt: skip
        for task, report in reports.items():
            for name, metric in report.metrics.items():
                assert metric.value[place] == pytest.approx(theirs[task][f"{name},none"], rel=1e-9, abs=1e-12), (task, name, depth)


LEAVES_OUT = "{{ messages[-1]['content'] }}"
REFUSES = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}{{ messages[0]['content'] }}"


@pytest.mark.parametrize(
    ("words", "tasks", "asking", "said"),
    [
        ({"chat_template": None}, ["choice"], {"chat": True}, "chat: the tokenizer has no chat template; leave --chat out"),
        ({"chat_template": REFUSES}, ["choice"], {"chat": True, "system": "x"}, r"refuses messages of system, user \(no system\)"),
        (
            {"chat_template": "{{ messages[-1]['content'] }}"},
            ["choice"],
            {"chat": True, "system": "x"},
            "leaves system messages out",
        ),
        ({}, ["choice", "rolling"], {"chat": True}, "chat: rolling measures whole texts, which are no conversation; leave --chat"),
        ({}, ["choice"], {"max_new_tokens": 9}, "max_new_tokens: choice ask for no answer that is written; leave"),
        ({}, ["free"], {"max_new_tokens": 2000}, "answers of up to 2000 tokens do not fit into the 128 positions"),
    ],
)
def test_what_cannot_be_asked_is_one_line(folder: Path, words: Any, tasks: list[str], asking: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said) as told:
        evaluate_tasks(wider(), chat_words(**words), tasks, [1], folder=folder, asking=Asking(**asking))
    assert "\n" not in str(told.value)
