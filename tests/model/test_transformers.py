"""At home in transformers: AutoModel and the base model, the cache in the output, Trainer with gradient checkpointing."""

import pytest
import torch
from transformers import AutoModel, Trainer, TrainingArguments

import loopwright as lw
from tests.cases import SOME_TINY_CASES, gap, noisy


def ids_of(model, rows: int, length: int, seed: int = 1) -> torch.Tensor:
    return torch.randint(0, model.config.vocab_size, (rows, length), generator=torch.Generator().manual_seed(seed))


# without the head


@pytest.mark.parametrize("name", SOME_TINY_CASES)
@torch.no_grad()
def test_the_headless_model_gives_what_the_head_reads(name, tmp_path):
    """The same folder opens as either; the head on the one is the other, on a cache too."""
    model = noisy(name)
    ids = ids_of(model, 2, 6)
    model.save_pretrained(tmp_path)
    body = AutoModel.from_pretrained(tmp_path)
    assert isinstance(body, lw.LoopedModel) and set(model.state_dict()) - set(body.state_dict()) <= {
        "lm_head.weight",
        "lm_head.bias",
    }
    whole, both = model(ids), {"output_hidden_states": True, "output_attentions": True}
    assert torch.equal(model.lm_head(body(ids).last_hidden_state), whole.logits)
    first = body(ids[:, :4], use_cache=True)
    later = body(ids[:, 4:], past_key_values=first.past_key_values, **both)
    assert gap(later.last_hidden_state, whole.last_hidden_state[:, 4:]) < 1e-5
    assert gap(later.hidden_states[-1], later.last_hidden_state) == 0
    assert len(later.attentions) == model.config.num_hidden_layers and body(ids, return_dict=False)[0].shape == (2, 6, 32)


def test_nothing_is_missing_and_nothing_reported_when_the_head_is_left_out(tmp_path):
    model = noisy("asura-tiny")
    lw.save(model, tmp_path)
    _, report = lw.LoopedModel.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"] and not report["mismatched_keys"]
    body = AutoModel.from_config(model.config)
    assert isinstance(body, lw.LoopedModel) and not body.can_generate() and body.base_model is body


@torch.no_grad()
def test_the_base_model_is_a_view():
    """It shares every module and follows what is done to the model: new embeddings, a cast, training."""
    model = noisy("ouro-1.4b-tiny")
    ids = ids_of(model, 1, 4)
    assert isinstance(model.base_model, lw.LoopedModel) and model.get_decoder().embed_tokens is model.embed_tokens
    assert "lm_head" not in dict(model.model.named_children()) and model.lm_head is not None
    assert all(a is b for a, b in zip(model.model.parameters(), model.parameters(), strict=False))
    assert not any(name.startswith("model.") for name in model.state_dict())
    model.set_input_embeddings(torch.nn.Embedding(96, 32))
    model.train().double()
    assert model.model.training and torch.equal(model.lm_head(model.model(ids).last_hidden_state), model(ids).logits)


@torch.no_grad()
def test_a_headless_folder_opens_with_a_fresh_head(tmp_path):
    model = noisy("ouro-1.4b-tiny")
    model.model.save_pretrained(tmp_path)
    found, report = lw.LoopedForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert set(report["missing_keys"]) == {"lm_head.weight"}
    assert torch.equal(found.core[0].mlp.up_proj.weight, model.core[0].mlp.up_proj.weight)


# a cache in the output


@pytest.mark.parametrize("name", ["ouro-1.4b-tiny", "huginn-tiny"])
@torch.no_grad()
def test_a_cache_comes_back_where_it_is_asked_for(name):
    model = noisy(name)
    ids = ids_of(model, 2, 6)
    first = model(ids[:, :4], use_cache=True)
    assert first.past_key_values.get_seq_length() == 4 and len(first.past_key_values) == model.config.num_hidden_layers
    assert gap(model(ids[:, 4:], past_key_values=first.past_key_values).logits, model(ids).logits[:, 4:]) < 1e-5
    again = model(ids[:, :4]).past_key_values  # left out: as the config says
    assert torch.equal(
        model(ids[:, 4:], past_key_values=again).logits, model(ids[:, 4:], past_key_values=first_of(model, ids)).logits
    )
    assert model(ids, use_cache=False).past_key_values is None
    assert model(ids, labels=ids).past_key_values is None and model(ids, output_steps=True).past_key_values is None
    with torch.enable_grad():
        assert model(ids).past_key_values is None
    model.train()
    assert model(ids).past_key_values is None and model(ids, use_cache=True).past_key_values is not None
    model.eval().config.use_cache = False
    assert model(ids).past_key_values is None


def first_of(model, ids):
    return model(ids[:, :4], use_cache=True).past_key_values


# compilation


@pytest.mark.slow
@pytest.mark.parametrize("name", ["universal-tiny", "huginn-tiny", "stars-addition-tiny", "ouroboros-qwen2.5-3b-tiny"])
@torch.no_grad()
def test_a_pass_without_a_cache_is_one_graph(name):
    """Padding, states and maps included."""
    model = noisy(name, depth=2)
    ids, mask = ids_of(model, 2, 6), torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]])
    torch.compiler.reset()
    options = {"attention_mask": mask, "output_hidden_states": True, "output_attentions": True}
    found = torch.compile(model, fullgraph=True, backend="eager")(ids, **options)  # makes no cache; as written it would
    expected = model(ids, use_cache=False, **options)
    assert found.keys() == expected.keys()
    assert gap(found.logits, expected.logits) < 1e-5
    for a, b in zip((*found.hidden_states, *found.attentions), (*expected.hidden_states, *expected.attentions), strict=True):
        assert gap(a, b) < 1e-5


# training mode


@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_pass_that_trains_draws_its_start_anew(checkpointing):
    """A seed a row, from torch's generator; in `eval()`, in generation and where a seed is given it is always the same."""
    model = noisy("huginn-tiny")
    ids = ids_of(model, 3, 6)[:1].expand(3, -1)
    fixed, seeded = model(ids, use_cache=False).logits, model(ids, use_cache=False, state_seed=5).logits
    written = model.generate(ids, max_new_tokens=6, do_sample=False)
    model.train()
    if checkpointing:
        model.gradient_checkpointing_enable()
    torch.manual_seed(1)
    first, second = model(ids).logits, model(ids).logits
    assert gap(first, second) > 1e-3 and gap(first, fixed) > 1e-3 and gap(first[0], first[1]) > 1e-3
    torch.manual_seed(1)
    assert torch.equal(model(ids).logits, first) and torch.equal(model(ids).logits, second)
    torch.manual_seed(1)
    rows = torch.randint(1 << 62, (3,))
    assert torch.equal(model(ids, state_seed=rows).logits, first)
    assert gap(model(ids, state_seed=5).logits, seeded) < 1e-6
    model.gradient_checkpointing_disable()
    for cached in (True, False):
        assert torch.equal(model.generate(ids, max_new_tokens=6, do_sample=False, use_cache=cached), written)
    assert torch.equal(model.eval()(ids, use_cache=False).logits, fixed) and torch.equal(model(ids, use_cache=False).logits, fixed)


@pytest.mark.slow
def test_a_pass_that_trains_is_one_graph_that_draws():
    model = noisy("huginn-tiny", depth=2).train()
    ids = ids_of(model, 2, 6)
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    torch.manual_seed(1)
    first, second = compiled(ids).logits, compiled(ids).logits
    torch.manual_seed(1)
    assert gap(first, model(ids).logits) < 1e-5 and gap(second, model(ids).logits) < 1e-5 and gap(first, second) > 1e-3
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True)  # its own generator: other numbers, drawn anew as well
    assert gap(compiled(ids).logits, compiled(ids).logits) > 1e-3


@pytest.mark.parametrize("packing", ["segment_ids", "position_ids"])
def test_documents_of_a_row_do_not_share_their_noise(packing):
    """In training the place in the row counts. A document alone in its row starts as its place says, padded or not."""
    model = noisy("huginn-tiny").train()
    ids = ids_of(model, 1, 8)
    split = {"segment_ids": torch.tensor([[0, 0, 0, 0, 1, 1, 1, 1]]), "position_ids": torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3]])}
    e, p = model.embed(ids, **{packing: split[packing]})
    seeds = torch.tensor([7])
    found = model.start_anew(e, p, seeds)
    assert gap(found[:, :4], found[:, 4:]) > 1e-2
    shared = model.state(e, p.span.positions, seeds)  # planted: by the place in the document
    assert torch.equal(shared[:, :4], shared[:, 4:])
    alone, place = model.embed(ids)
    assert torch.equal(found, model.start_anew(alone, place, seeds))
    mask = torch.tensor([[0] * 3 + [1] * 8])
    padded, place = model.embed(torch.nn.functional.pad(ids, (3, 0)), attention_mask=mask)
    assert torch.equal(model.start_anew(padded, place, seeds)[:, 3:], found)


# Trainer


def trained(name: str, folder, *, checkpointing: bool) -> tuple[lw.LoopedForCausalLM, list[float]]:
    """Returns a model after two updates of transformers' Trainer, and the loss of each."""
    model = noisy(name, dropout=0.1)
    rows = [{"input_ids": row, "labels": row} for row in ids_of(model, 8, 6)]
    arguments = TrainingArguments(
        output_dir=str(folder), max_steps=2, per_device_train_batch_size=2, learning_rate=1e-2, report_to=[], use_cpu=True,
        save_strategy="no", logging_steps=1, disable_tqdm=True, gradient_checkpointing=checkpointing, eval_strategy="steps",
        eval_steps=2,
    )  # fmt: skip
    shapes = []

    def metric(found):
        shapes.append(found.predictions.shape)  # a metric is handed the logits alone, not whatever else a pass returns
        return {}

    trainer = Trainer(model=model, args=arguments, train_dataset=rows, eval_dataset=rows[:4], compute_metrics=metric)
    trainer.train()
    assert shapes == [(4, 6, model.config.vocab_size)]
    return model, [row["loss"] for row in trainer.state.log_history if "loss" in row]


@pytest.mark.long
@pytest.mark.parametrize("name", ["ouro-1.4b-tiny", "ouroboros-qwen2.5-3b-tiny", "huginn-tiny"])
def test_trainer_trains_the_same_weights_with_gradient_checkpointing(name, tmp_path):
    plain, losses = trained(name, tmp_path / "plain", checkpointing=False)
    saved, same = trained(name, tmp_path / "saved", checkpointing=True)
    assert saved.is_gradient_checkpointing and not plain.is_gradient_checkpointing
    assert len(losses) == 2 and losses == same
    assert all(torch.equal(a, b) for a, b in zip(saved.parameters(), plain.parameters(), strict=True))
    start = noisy(name)
    assert not torch.equal(saved.core[0].self_attn.q_proj.weight, start.core[0].self_attn.q_proj.weight)


@pytest.mark.long
@pytest.mark.parametrize("name", ["ouro-1.4b-tiny", "asura-tiny"])
def test_accumulated_batches_are_one_large_batch(name, tmp_path):
    """Trainer hands over how many tokens all parts of a batch predict: rows of unequal length, four at once or one by one."""

    def collate(rows: list[dict]) -> dict[str, torch.Tensor]:
        most = max(len(row["input_ids"]) for row in rows)
        pads = {"input_ids": 0, "attention_mask": 0, "labels": -100}
        return {key: torch.tensor([[*row[key], *[pads[key]] * (most - len(row[key]))] for row in rows]) for key in pads}

    found = []
    for size, parts in ((4, 1), (1, 4)):
        model = noisy(name).double()
        rows = [
            {"input_ids": row[:n], "attention_mask": [1] * n, "labels": row[:n]}
            for n, row in enumerate(ids_of(model, 8, 9).tolist(), 2)
        ]
        arguments = TrainingArguments(
            output_dir=str(tmp_path / str(size)), max_steps=2, per_device_train_batch_size=size, gradient_accumulation_steps=parts,
            learning_rate=1e-2, report_to=[], use_cpu=True, save_strategy="no", logging_steps=1, disable_tqdm=True, optim="sgd",
        )  # fmt: skip
        trainer = Trainer(model=model, args=arguments, train_dataset=rows, data_collator=collate)
        trainer.train()
        found.append(([row["loss"] for row in trainer.state.log_history if "loss" in row], model))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-6) and len(found[0][0]) == 2
    for a, b in zip(found[0][1].parameters(), found[1][1].parameters(), strict=True):
        assert gap(a, b) < 1e-9


# what transformers' own suites ask besides


@pytest.mark.parametrize("name", SOME_TINY_CASES)
@torch.no_grad()
def test_a_vocabulary_grows_and_shrinks(name, tmp_path):
    model = noisy(name)
    vocabulary = model.config.vocab_size
    ids = ids_of(model, 2, 5).clamp(max=vocabulary - 3)
    plain = model(ids).logits
    for size in (vocabulary + 7, vocabulary - 2):
        model.resize_token_embeddings(size)
        found, kept = model(ids).logits, min(size, vocabulary)
        assert found.shape[-1] == model.config.vocab_size == size and gap(found[..., :kept], plain[..., :kept]) < 1e-5
        assert (model.lm_head.weight.data_ptr() == model.embed_tokens.weight.data_ptr()) == model.config.tie_word_embeddings
        lw.save(model, tmp_path / str(size))
        assert torch.equal(lw.load(tmp_path / str(size))(ids).logits, found)


@torch.no_grad()
def test_kinds_of_attention():
    """Maps come without a change of kind; those that transformers would run in other code are refused by it."""
    model = noisy("ouro-1.4b-tiny")
    ids = ids_of(model, 2, 5)
    plain = model(ids).logits
    for kind in ("eager", "sdpa"):
        model.set_attn_implementation(kind)
        out = model(ids, output_attentions=True)
        assert gap(out.logits, plain) < 1e-5 and len(out.attentions) == model.config.num_hidden_layers
    for kind in ("flash_attention_2", "flex_attention"):
        with pytest.raises(ValueError, match="does not support"):
            model.set_attn_implementation(kind)
