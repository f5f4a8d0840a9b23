"""Questions with answers, and whole conversations: only what the assistant says is predicted, to the token.

A conversation is written by the tokenizer's chat template, or, where it has none, as plain lines: what is asked, a line end, the
answer, EOS. What the assistant says begins where the prompt ends (the template is rendered up to there, with the opening of the
answer) and ends with the token that ends the turn. Tokens are matched to that stretch by their places in the text.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from loopwright.data.batch import IGNORED, Batch, Progress, Splits
from loopwright.data.records import FilePart, Files, Record, Records, text_field
from loopwright.data.text import GROUP, HubRows, named_tests, part_shards, split_parts, warn_of_leaks
from loopwright.data.tokenizer import Tokenizer
from loopwright.data.tokens import Document, Shards
from loopwright.schema import check_count, suggest
from loopwright.untrusted import first_line, read_text, shown, user_path

Message = dict[str, str]  # role and content
ROLES = ("system", "user", "assistant")
TEMPLATE_BYTES = 2**17  # of a template's file


class Chat:
    """Pairs of a question and an answer, or conversations, from JSON lines or a Hugging Face dataset, with answer-only loss.

    `question` and `answer` name the fields of a pair (GSM8K: question, answer; NuminaMath: problem, solution); `messages` names
    one field that holds a list of {role, content} instead. `system` opens the conversations that have no such message. What is
    longer than `length` tokens is cut; samples whose answer is cut off whole, that are empty or that hold control words are left
    out and counted. Where no `valid_files` or `valid_split` are given, the first `valid` samples are held out. `template` is a
    Jinja file in the place of the tokenizer's own chat template, or "tokenizer": there must be one. `packed` lays the samples that
    are trained on side by side in rows of `length` tokens, each a document of its own; those that are measured stay one to a row.
    """

    def __init__(
        self,
        *,
        tokenizer: str,
        files: str | list[str] | None = None,
        valid_files: str | list[str] | None = None,
        test_files: str | list[str] | dict[str, Any] | None = None,
        dataset: str | None = None,
        subset: str | None = None,
        split: str = "train",
        valid_split: str | None = None,
        revision: str | None = None,
        question: str = "question",
        answer: str = "answer",
        messages: str | None = None,
        system: str | None = None,
        length: int = 2048,
        limit: int | None = None,
        limit_seed: int | None = None,
        valid: int = 100,
        template: str | None = None,
        packed: bool = False,
    ) -> None:
        where = "data (chat)"
        if (files is None) == (dataset is None):
            raise ValueError(f"{where}: files is {files!r} and dataset is {dataset!r}; allowed: one of them")
        if dataset is None and (subset or valid_split or revision):
            raise ValueError(f"{where}: subset, valid_split and revision belong to a dataset; allowed: files, or a dataset")
        self.tokenizer, self.length = tokenizer, check_count(where, "length", length, least=2)
        self.template, self.packed = template, packed
        self.fields = {"question": question, "answer": answer, "messages": messages, "system": system}
        tests: dict[str, Records] = {name: Files(patterns) for name, patterns in named_tests(test_files).items()}
        held: Records | None = None if valid_files is None else Files(valid_files)
        if files is not None:
            source: Records = Files(files)
        else:
            assert dataset is not None
            source = HubRows(dataset, subset, split, revision)
            held = HubRows(dataset, subset, valid_split, revision) if valid_split is not None else held
        self.parts = split_parts(where, source, held, limit, valid, tests, limit_seed)

    def splits(self, folder: Path, progress: Progress | None = None) -> Splits:
        """Returns the samples; their tokens are kept in `folder`."""
        tokenizer = Tokenizer(self.tokenizer)
        if not tokenizer.own.is_fast:
            raise ValueError(
                f"{self.tokenizer}: the tokenizer does not say where its tokens stand; allowed: one with tokenizer.json"
            )
        template = take_template(tokenizer, self.template)
        chats: dict[str, Chats] = {}
        notes = {}
        for name, part in self.parts.items():
            about = {
                "source": part.fingerprint(), "fields": self.fields, "length": self.length,
                "tokenizer": tokenizer.fingerprint, "template": template,
            }  # fmt: skip
            counts = {"empty": 0, "control words": 0, "answer cut off": 0, "cut": 0}

            def documents(name: str = name, part: FilePart = part, counts: dict[str, int] = counts) -> Iterator[Document]:
                return self._documents(name, part, tokenizer, counts, progress)

            shards = part_shards("data (chat)", folder, name, part, about, documents, tokenizer, counts, self.length)
            chats[name] = Chats(shards, tokenizer)
            notes[name] = {"samples": shards.documents, "tokens": shards.tokens, **shards.notes}
        warn_of_leaks("data (chat)", {name: each.shards for name, each in chats.items()})
        train, valid = chats.pop("train"), chats.pop("valid")
        packed = PackedChats(train, self.length) if self.packed else None
        if packed is not None:
            notes["train"]["rows"] = len(packed)
        return Splits(
            packed or train, valid, chats,
            vocab_size=tokenizer.vocab_size, eos_id=tokenizer.eos_id, pad_id=tokenizer.pad_id, exact=True, notes=notes,
            tokenizer=tokenizer.own,
        )  # fmt: skip

    def _documents(
        self, name: str, part: FilePart, tokenizer: Tokenizer, counts: dict[str, int], progress: Progress | None
    ) -> Iterator[Document]:
        records, done = iter(part), 0
        while group := list(islice(records, GROUP)):
            conversations = []
            for record in group:
                messages = read_messages(record, self.fields)
                if messages is None:
                    counts["empty"] += 1
                elif any(word in message["content"] for message in messages for word in tokenizer.own.all_special_tokens):
                    counts["control words"] += 1
                else:
                    conversations.append((record[0], messages))
            for ids, answers in mark_answers(conversations, tokenizer):
                assert answers is not None
                if not any(answers[1 : self.length]):
                    counts["answer cut off"] += 1
                    continue
                counts["cut"] += len(ids) > self.length
                yield ids[: self.length], answers[: self.length]
            done += len(group)
            if progress is not None:
                progress(f"tokenising {name}", done, part.limit)


class Chats:
    """Samples of different lengths; a batch is padded on the right to its longest and masked."""

    def __init__(self, shards: Shards, tokenizer: Tokenizer) -> None:
        self.shards, self._tokenizer, self.pad_id = shards, tokenizer, tokenizer.pad_id

    def __len__(self) -> int:
        return self.shards.documents

    def made_of(self) -> dict[str, str]:
        """Returns digests of the tokens, and of what they were made of."""
        return self.shards.made_of()

    def batch(self, indices: Sequence[int] | Tensor) -> Batch:
        """Returns the samples of these indices as one batch."""
        rows = [self._bounds(int(index)) for index in indices]
        longest = max(stop - start for start, stop in rows)
        ids = np.full((len(rows), longest), self.pad_id, dtype=np.int64)
        labels, mask = np.full_like(ids, IGNORED), np.zeros_like(ids)
        for row, (start, stop) in enumerate(rows):
            count = stop - start
            ids[row, :count], mask[row, :count] = self.shards.read(start, stop), 1
            labels[row, :count] = np.where(self.shards.answers(start, stop), ids[row, :count], IGNORED)
        labels[:, 0] = IGNORED
        padded = None if mask.all() else torch.from_numpy(mask)
        return Batch(torch.from_numpy(ids), torch.from_numpy(labels), attention_mask=padded)

    def show(self, row: int) -> str:
        """Returns the text of a sample."""
        return self._tokenizer.decode(self.shards.read(*self._bounds(row)))

    def _bounds(self, index: int) -> tuple[int, int]:
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index}; allowed: 0 to {len(self) - 1}")
        return int(self.shards.starts[index]), int(self.shards.starts[index + 1])


class PackedChats:
    """The same samples, several to a row: each is a document of its own, which sees nothing of its neighbours.

    The longest come first, each into the fullest row that has room: a function of the lengths alone. A batch is padded to its
    longest row; padding is a document of its own at the end, so that no mask is needed.
    """

    def __init__(self, chats: Chats, length: int) -> None:
        self.chats, self.rows = chats, pack(np.diff(chats.shards.starts), length)

    def __len__(self) -> int:
        return len(self.rows)

    def made_of(self) -> dict[str, str]:
        """Returns digests of the tokens, and of what they were made of."""
        return self.chats.made_of()

    def batch(self, indices: Sequence[int] | Tensor) -> Batch:
        """Returns the rows of these indices as one batch."""
        rows = [[self.chats.batch([sample]) for sample in self.rows[int(index)]] for index in indices]
        lengths = torch.tensor([sum(sample.input_ids.shape[1] for sample in row) for row in rows])
        longest = int(lengths.max())

        def laid(parts: Sequence[Sequence[Tensor]], fill: Sequence[int]) -> Tensor:
            whole = [torch.cat([*row, torch.full((longest - int(n),), f)]) for row, n, f in zip(parts, lengths, fill, strict=True)]
            return torch.stack(whole)

        pads = [self.chats.pad_id] * len(rows)
        segments = [[torch.full_like(sample.input_ids[0], place) for place, sample in enumerate(row)] for row in rows]
        return Batch(
            laid([[sample.input_ids[0] for sample in row] for row in rows], pads),
            laid([[sample.labels[0] for sample in row] for row in rows], [IGNORED] * len(rows)),
            segment_ids=laid(segments, [len(row) for row in rows]),
            lengths=None if bool((lengths == longest).all()) else lengths,
        )

    def show(self, row: int) -> str:
        """Returns the text of a row."""
        return "".join(self.chats.show(sample) for sample in self.rows[row])


def pack(lengths: Sequence[int] | np.ndarray, room: int) -> list[list[int]]:
    """Returns the samples of each row: the longest first, each into the fullest row that it fits in, else into a new one."""
    rows: list[list[int]] = []
    free: list[tuple[int, int]] = []  # (tokens left, row), sorted
    for sample in sorted(range(len(lengths)), key=lambda i: (-int(lengths[i]), i)):
        need = int(lengths[sample])
        place = bisect.bisect_left(free, (need, -1))
        left, row = free.pop(place) if place < len(free) else (room, len(rows))
        if row == len(rows):
            rows.append([])
        rows[row].append(sample)
        bisect.insort(free, (left - need, row))
    return rows


def take_template(tokenizer: Tokenizer, template: str | None) -> str | None:
    """Returns the chat template to write with, which is then the tokenizer's own and saved with it."""
    if template == "tokenizer" and not tokenizer.own.chat_template:
        raise ValueError(f"data (chat): {tokenizer.source} has no chat template; give template: FILE, a Jinja file of one")
    if template not in (None, "tokenizer"):
        path = user_path(str(template))
        try:
            tokenizer.own.chat_template = read_text(path, TEMPLATE_BYTES)
        except OSError as error:
            raise ValueError(f"data (chat): template: {path} cannot be read ({error.strerror or error})") from None
    return tokenizer.own.chat_template


def read_messages(record: Record, fields: Mapping[str, str | None]) -> list[Message] | None:
    """Returns the conversation of a record; None where something in it is empty. One without an answer is refused."""
    where, values = record
    if fields["messages"] is None:
        missing = next((name for name in ("question", "answer") if fields[name] not in values), None)
        if missing is not None:
            name = next((name for name, value in values.items() if _is_conversation(value)), None)
            if name is not None:
                raise ValueError(f"{where}: field {name!r} holds a conversation; give data.messages={name}")
            names = shown(", ".join(map(str, values)) or "none")[1:-1]
            raise ValueError(
                f"{where}: no field {fields[missing]!r}; it has: {names}; give data.{missing}=FIELD, or data.messages=FIELD for "
                "one that holds a conversation"
            )
        roles_of = {"user": "question", "assistant": "answer"}
        spoken = [(role, text_field(record, str(fields[name]))) for role, name in roles_of.items()]
    else:
        turns = values.get(fields["messages"])
        if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
            allowed = f"a list of messages with a content and a role ({', '.join(ROLES)})"
            raise ValueError(f"{where}: field {fields['messages']!r} is {shown(turns)}; allowed: {allowed}")
        odd = next((place for place, turn in enumerate(turns, start=1) if turn.get("role") not in ROLES), None)
        if odd is not None:
            role = turns[odd - 1].get("role")
            raise ValueError(f"{where}: message {odd} has the role {shown(role)}; {suggest(str(role), ROLES)}")
        if not any(turn["role"] == "assistant" for turn in turns):
            raise ValueError(f"{where}: no message of the assistant, so there is nothing to learn; take it out or add an answer")
        spoken = [(turn["role"], text_field((where, turn), "content")) for turn in turns]
    roles = [role for role, _ in spoken]
    if any(text is None for _, text in spoken):
        return None
    if fields["system"] is not None and roles[0] != "system":
        spoken.insert(0, ("system", fields["system"]))
    return [{"role": role, "content": str(text)} for role, text in spoken]


def _is_conversation(value: object) -> bool:
    turns = value if isinstance(value, list) else []  # tools and tags are lists of mappings too, without a speaker
    return bool(turns) and all(isinstance(turn, dict) and ("role" in turn or "from" in turn) for turn in turns)


def mark_answers(conversations: Sequence[tuple[str, list[Message]]], tokenizer: Tokenizer) -> Iterator[Document]:
    """Yields the ids of each conversation, and which of them the assistant says, the end of its turns included."""
    written = [_write(where, messages, tokenizer) for where, messages in conversations]
    if not written:
        return
    whole = tokenizer.encode_written([text for text, _ in written], return_offsets_mapping=True)
    prompts = iter(tokenizer.encode_written([text[: turn.start] for text, turns in written for turn in turns]).input_ids)
    special = set(tokenizer.own.all_special_ids)
    opening = [] if tokenizer.own.chat_template else tokenizer.opening
    for (text, turns), ids, offsets in zip(written, whole.input_ids, whole.offset_mapping, strict=True):
        chosen = [False] * len(ids)
        for turn in turns:
            first = _first(offsets, turn.start)
            if next(prompts) != ids[:first] and offsets[first - 1][1] <= turn.start:
                first += 1  # the prompt alone has other tokens: this one may hold a blank of the prompt
            content, stop = _first(offsets, turn.said), _first(offsets, turn.stop)
            end = next((i + 1 for i in range(content, stop) if ids[i] in special), content)
            chosen[first:end] = [True] * (end - first)
            if end == content and turn.stop == len(text):  # the template ends the last turn with nothing
                ids, chosen = [*ids[:end], tokenizer.eos_id], [*chosen[:end], True]
        yield [*opening, *ids], [*([False] * len(opening)), *chosen]


def _first(offsets: Sequence[tuple[int, int]], place: int) -> int:
    """Returns the first token that begins at a place of the text or after it."""
    return next((i for i, (left, _) in enumerate(offsets) if left >= place), len(offsets))


@dataclass(frozen=True)
class Turn:
    """Where a turn of the assistant begins in the text, where its content ends, and where the turn does."""

    start: int
    said: int
    stop: int


def _write(where: str, messages: list[Message], tokenizer: Tokenizer) -> tuple[str, list[Turn]]:
    """Returns the text of a conversation and the turns of the assistant in it."""
    whole = _render(where, messages, tokenizer, prompt=False)
    turns = []
    for place, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        prompt = _render(where, messages[:place], tokenizer, prompt=True)
        if not whole.startswith(prompt):
            raise ValueError(f"{where}: the chat template writes the prompt of message {place + 1} otherwise in the whole")
        stop = len(whole)
        if place + 1 < len(messages):  # how far a conversation that ends here is the same: it may be closed with more
            part = _render(where, messages[: place + 1], tokenizer, prompt=False)
            stop = next((i for i, (a, b) in enumerate(zip(whole, part, strict=False)) if a != b), len(part))
        start = whole.find(message["content"], len(prompt), stop)
        turns.append(Turn(len(prompt), len(prompt) if start < 0 else start + len(message["content"]), stop))
    return whole, turns


def _render(where: str, messages: list[Message], tokenizer: Tokenizer, prompt: bool) -> str:
    if not tokenizer.own.chat_template:
        return "".join(m["content"] + (tokenizer.eos if m["role"] == "assistant" else "\n") for m in messages)
    try:
        return tokenizer.own.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt)
    except Exception as error:  # a template raises what it likes
        raise ValueError(f"{where}: the chat template refuses the conversation ({first_line(error)})") from None
