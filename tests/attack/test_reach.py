"""What a folder names reaches no network, no loader of kernels and no prompt, however the folder is opened."""

from __future__ import annotations

import builtins
import json
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers.modeling_utils
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForSequenceClassification

import loopwright as lw
from tests.generation.tiny import save_model

REPO, CODE = "evil/kernel", "evil/repo--module.Class"
KERNELS: list[dict[str, Any]] = [
    *({"attn_implementation": name} for name in (REPO, f"{REPO}@v1:f", f"paged|{REPO}", f"{REPO}:f", {"": REPO}, [REPO], "")),
    *({"attn_implementation": name} for name in ("kernels-community/flash-attn", "flash_attention_2", "flex_attention")),
    *({name: REPO} for name in ("_attn_implementation", "experts_implementation", "_experts_implementation")),
    {"experts_implementation": "sonicmoe"},
    {"text_config": {"attn_implementation": REPO}},
    {"use_kernels": True, "kernel_config": {"RMSNorm": REPO}},
]
HARMLESS: list[tuple[str, dict[str, Any]]] = [  # read by nothing, or refused
    ("config.json", {"_attn_implementation_internal": REPO, "_experts_implementation_internal": REPO}),
    ("config.json", {"auto_map": {f"Auto{name}": CODE for name in ("Config", "Model", "ModelForCausalLM", "Tokenizer")}}),
    ("config.json", {"_name_or_path": "evil/repo", "name_or_path": "evil/repo", "_commit_hash": "0" * 40}),
    ("config.json", {"transformers_weights": "evil/w.safetensors"}),
    ("config.json", {"configuration_files": ["config.9.9.9.json"]}),
    ("config.json", {"fusion_config": {"patch_embeddings": True}}),
    ("config.json", {"quantization_config": {"quant_method": "fp8"}}),
    ("config.json", {"tokenizer_class": "MistralCommonBackend"}),
    *(
        ("tokenizer_config.json", {"auto_map": value})
        for value in ({"AutoTokenizer": [CODE, CODE]}, [CODE, None], {"AutoTokenizer": ["t.T", None]})
    ),
    *(
        ("tokenizer_config.json", {"tokenizer_class": name})
        for name in ("MistralCommonBackend", "EvilTokenizer", "RagTokenizer", "AutoTokenizer", "BertJapaneseTokenizer", 5)
    ),
    ("tokenizer_config.json", {"tokenizer_file": "https://evil/x.json", "name_or_path": "evil/repo", "_commit_hash": "x"}),
    ("tokenizer_config.json", {"fast_tokenizer_files": ["../../tokenizer.1.json"], "processor_class": "EvilProcessor"}),
    ("generation_config.json", {"custom_generate": "evil/repo", "trust_remote_code": True}),
    ("generation_config.json", {"penalty_alpha": 0.6, "top_k": 4}),
    ("generation_config.json", {"dola_layers": "high"}),
    ("generation_config.json", {"num_beam_groups": 2, "num_beams": 4, "diversity_penalty": 1.0}),
    ("generation_config.json", {"assistant_model": "evil/repo"}),
    ("adapter_config.json", {"peft_type": "LORA", "base_model_name_or_path": "evil/repo"}),
    ("processor_config.json", {"processor_class": "EvilProcessor", "auto_map": {"AutoProcessor": CODE}}),
    ("preprocessor_config.json", {"processor_class": "EvilProcessor"}),
]
PLANTS = [("config.json", plant) for plant in KERNELS] + HARMLESS
OPENINGS: dict[str, Callable[[Path], Any]] = {
    "AutoConfig": AutoConfig.from_pretrained,
    "AutoModelForCausalLM": AutoModelForCausalLM.from_pretrained,
    "AutoModel": AutoModel.from_pretrained,
    "a head": AutoModelForSequenceClassification.from_pretrained,
    "lw.load": lambda folder: lw.load(folder).generate(torch.tensor([[3, 4]]), max_new_tokens=2),
    "lw.tokenizer": lambda folder: lw.tokenizer(folder)("the cat"),
}


@pytest.fixture
def reached(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was reached since the test began. Nothing gets through."""
    found: list[str] = []

    def shut(name: str) -> Callable[..., Any]:
        def refuse(*args: Any, **options: Any) -> Any:
            found.append(f"{name} {args}")
            raise OSError(f"{name} is shut")

        return refuse

    for name in ("connect", "connect_ex"):
        monkeypatch.setattr(socket.socket, name, shut(name))
    monkeypatch.setattr(socket, "getaddrinfo", shut("getaddrinfo"))
    monkeypatch.setattr(builtins, "input", shut("input"))  # by which transformers asks whether code of a repository may run
    # the package of kernels need not be installed for this
    monkeypatch.setattr(transformers.modeling_utils, "lazy_import_flash_attention", shut("the loader of kernels"))
    return found


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("sound") / "m", chat=True)


def planted(sound: Path, into: Path, name: str, plant: dict[str, Any]) -> Path:
    """A copy of a sound folder with one of its files changed."""
    shutil.copytree(sound, into)
    file = into / name
    file.write_text(json.dumps((json.loads(file.read_text()) if file.exists() else {}) | plant))
    return into


@pytest.mark.parametrize("opening", OPENINGS)
def test_a_folder_that_names_a_kernel_is_refused(opening: str, sound: Path, tmp_path: Path, reached: list[str]) -> None:
    folder = planted(sound, tmp_path / "m", "config.json", {"attn_implementation": REPO})
    if opening == "lw.tokenizer":
        OPENINGS[opening](folder)
    else:
        with pytest.raises(ValueError, match=f"attn_implementation is '{REPO}'; allowed: eager, sdpa") as refused:
            OPENINGS[opening](folder)
        assert "\n" not in str(refused.value)
    assert reached == []


@pytest.mark.attack
@pytest.mark.parametrize("opening", OPENINGS)
@pytest.mark.parametrize(("name", "plant"), PLANTS, ids=[f"{name}-{i}" for i, (name, _) in enumerate(PLANTS)])
def test_nothing_that_a_folder_names_is_reached(
    name: str, plant: dict[str, Any], opening: str, sound: Path, tmp_path: Path, reached: list[str]
) -> None:
    folder = planted(sound, tmp_path / "m", name, plant)
    said = ""
    try:
        OPENINGS[opening](folder)
    except ValueError as error:
        said = str(error)
    except (ImportError, RecursionError):  # transformers' own, in words that are not ours
        assert opening.startswith("Auto")
    assert reached == [] and (opening.startswith(("Auto", "a head")) or "\n" not in said)


def test_a_model_is_not_called_after_what_its_file_says(sound: Path, tmp_path: Path) -> None:
    """A trainer asks the hub for the tokenizer of that name where it is given none."""
    folder = planted(sound, tmp_path / "m", "config.json", {"_name_or_path": "evil/repo", "name_or_path": "evil/other"})
    assert lw.load(folder).config.name_or_path == lw.load(folder).name_or_path == ""
