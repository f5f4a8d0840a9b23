"""Continuous depth batching: every tick is one core step of all rows, each at its own step, with prelude and coda batched apart.

A row is one request in flight. Its prompt is prefilled in chunks; then each of its tokens passes the prelude, as many ticks as its
depth has steps, and the coda. Rows join and leave at every tick, so a shallow request never waits for a deep one and no row runs
a step that nobody asked for. One thread at a time may call `tick`.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import torch
from torch import Tensor

from loopwright.generation.constraints import ConstraintError
from loopwright.generation.graphs import SHORT_PROMPT, PassGraphs, TickGraphs
from loopwright.generation.mixed_depth import (
    StateHistory,
    begin_round,
    check_mean_read,
    count_round,
    keep_even,
    leaving,
    read_drafts,
    read_histories,
    step_histories,
    verified,
)
from loopwright.generation.passes import Passes, mean_read, prefill
from loopwright.generation.prefix import Prefixes, Weights
from loopwright.generation.request import Request
from loopwright.generation.rows import AsyncHostCopy, EngineStats, Running, SampledTokens
from loopwright.generation.sampling import TokenCounts, no_choice, sample
from loopwright.generation.scores import score
from loopwright.generation.speculation import DraftChoice
from loopwright.model.causal_lm import LoopedForCausalLM
from loopwright.model.keys.pool import KeyPool, Row
from loopwright.model.parts.part import row_steps
from loopwright.model.passes import Pass, choosable, weighted_sum

OVERTAKES = 64  # a priority of 1 lets a request pass this many that were submitted before it: a bounded wait for everybody


class Scheduler:
    """Requests in rows of a pool. `lag` is how many ticks later tokens are read: 1 lets the device run ahead of the host."""

    def __init__(
        self,
        model: LoopedForCausalLM,
        *,
        rows: int,
        tokens: int,
        depth: int | None = None,
        readings: int = 1,
        chunk: int = 256,
        lag: int | None = None,
    ) -> None:
        weight = model.embed_tokens.weight  # the head's may be quantised, or no tensor at all
        like = torch.empty(0, dtype=weight.dtype, device=weight.device)
        self.model, self.chunk = model, chunk
        self.pool = KeyPool(model.config, tokens, like, depth=depth, readings=readings)
        self.state = like.new_zeros(rows, 1, model.config.hidden_size)
        self.input = torch.zeros_like(self.state)
        self.token = torch.zeros(rows, 1, dtype=torch.long, device=weight.device)
        self.graphs: TickGraphs | None = None
        self.passes = Passes(model, self.pool)
        self.averages_states = mean_read(model)
        if weight.is_cuda and not self.averages_states:  # what is captured reads the last state
            self.graphs = TickGraphs(model, self.pool, self.state, self.input, self.token)
            self.passes = PassGraphs(model, self.pool, rows)
        self.weights = Weights(model)
        self.prefixes = Prefixes(self.pool)
        self.choices: dict[int, DraftChoice] = {}  # of drafts, by the depth that verifies them
        self.free_slots = list(range(rows))
        self.running: list[Running] = []
        self.ran = EngineStats()
        self.lag = (0 if weight.device.type == "cpu" else 1) if lag is None else lag
        self._waiting: list[tuple[int, int, Request]] = []
        self._submitted = 0
        self._unread: list[list[SampledTokens]] = []

    @property
    def busy(self) -> bool:
        """Whether a tick would do anything."""
        return bool(self.running or self._waiting)

    def add(self, request: Request) -> None:
        """Queues a request. Its order is its arrival, moved forward by its priority."""
        self._submitted += 1
        heapq.heappush(self._waiting, (self._submitted - OVERTAKES * request.options.priority, self._submitted, request))

    def tick(self) -> None:
        """Runs one step of every row in the loop, and what stands before and after it."""
        self._drop_cancelled()
        self._admit()
        self.ran.ticks += 1
        self._unread.append([])
        self._prefill()
        entering = [run for run in self.running if run.phase == "embed"]
        self._begin(entering)
        stepped, read = (set(), set()) if self.graphs is None else self.graphs.play(self.running)  # what follows counts it
        self._embed(entering)
        inside = [run for run in self.running if run.phase == "core"]
        even = [run for run in inside if run.history is None]
        self._step([run for run in even if run.t < run.steps])
        self._read_out([run for run in even if run.t == run.steps])
        self._step_mixed([run for run in inside if run.history is not None], stepped, read)
        while len(self._unread) > self.lag or (self._unread and not any(run.phase != "drained" for run in self.running)):
            self._read_tokens(self._unread.pop(0))

    def fail_all(self, error: BaseException) -> None:
        """Ends every running request with an error and empties the rows."""
        self._unread = []
        for run in list(self.running):
            run.request.fail(error)
            self._release(run)

    def cancel_all(self) -> None:
        """Cancels every request, running or waiting."""
        for request in [run.request for run in self.running] + [entry[2] for entry in self._waiting]:
            request.cancel()
        self._drop_cancelled()

    # who is in

    def _drop_cancelled(self) -> None:
        for run in [run for run in self.running if run.request.cancelled or run.request.done]:
            run.request.finish("cancelled")
            self._release(run)
        gone = [entry for entry in self._waiting if entry[2].cancelled]
        if gone:
            self._waiting = [entry for entry in self._waiting if not entry[2].cancelled]
            heapq.heapify(self._waiting)
            for _, _, request in gone:
                request.finish("cancelled")

    def _admit(self) -> None:
        while self._waiting and self.free_slots:
            request = self._waiting[0][2]
            options = request.options
            # requests start strictly in queue order, or a large one would wait for ever
            row = self.pool.admit(options.capacity, options.depth, options.readings)
            while row is None and self.prefixes.evict():
                row = self.pool.admit(options.capacity, options.depth, options.readings)
            if row is None:
                return
            heapq.heappop(self._waiting)
            try:
                self.running.append(self._start(request, row))
            except BaseException as error:  # of this request alone: the others go on, and nobody waits for it
                self.pool.free(row)
                request.fail(error)
                continue
            self.free_slots.pop()
            self.ran.admitted += 1

    def _start(self, request: Request, row: Row) -> Running:
        """Starts a request in the next free row, its prompt as far run as others have run it."""
        options, counts = request.options, None
        if options.sampling.counts_tokens:
            counts = TokenCounts(torch.tensor(options.prompt, device=self.token.device), self.model.config.vocab_size)
        address, version = self.weights.read()
        grammar = None if options.constraint is None else options.constraint.begin()
        run = Running(request, row, self.free_slots[-1], row.steps, counts, grammar, version)
        if options.mixed_depth:
            check_mean_read(self.model, "exit, step_tokens or draft_depth")
            averages = self.averages_states or (options.exit is not None and options.exit.averages_states)
            run.history = StateHistory(self.pool, row, averages_states=averages)
            self._end_prefill(run)
        elif not options.prompt_logprobs:  # what is copied is not scored
            running = [other.held for other in self.running if other.history is None]
            run.prefilled = self.prefixes.fill(row, run.held.key, options.prompt, running)
            # n tokens take n ticks, in which the other rows go on, or one pass, for which they wait
            if self.graphs is not None and run.to_prefill - run.prefilled <= min(SHORT_PROMPT, max(1, len(self.state) - 1)):
                run.phase = "embed"
        if self.graphs is not None:
            self.graphs.refresh(address)
        self.passes.refresh(address)
        return run

    def _release(self, run: Running) -> None:
        self.running.remove(run)
        self.free_slots.append(run.slot)
        if run.history is None and run.request.error is None:
            self.prefixes.keep(run.held)
        else:
            self.pool.free(run.row)

    # the three stages

    def _prefill(self) -> None:
        for runs, count, logits in prefill(self.passes, self.running, self.chunk):
            self.ran.prefill_tokens += count * len(runs)
            for run in runs:
                run.prefilled += count
                if run.history is not None:
                    self._end_prefill(run)
            if logits is not None:
                self._draw(runs, logits)

    def _end_prefill(self, run: Running) -> None:
        """Lets the last prompt token of a row of mixed depth go the way of the tokens that follow, once all others are run."""
        if run.prefilled == run.to_prefill:
            self.token[run.slot] = run.request.options.prompt[-1]
            run.phase = "embed"

    def _begin(self, runs: list[Running]) -> None:
        """Lets rows begin their next token."""
        for run in runs:
            run.t, run.memory, run.step_candidates, run.passed = 0, {}, [], []
            if run.request.options.draft_depth is not None and not run.drafts:
                begin_round(self.model, run, self.choices)

    def _embed(self, runs: list[Running]) -> None:
        if not runs:
            return
        if self.graphs is None:
            at, p = [run.slot for run in runs], self._pass(runs)
            e = self.model.run_prelude(self.model.token_vectors(self.token[at]), p)
            self.input[at], self.state[at] = e, self._start_states(runs, e, p)
            for run in runs:
                if run.history is not None:
                    run.history.begin(run.offset, self.input[run.slot], self.state[run.slot])
        for run in runs:
            run.phase = "core"

    def _step(self, runs: list[Running]) -> None:
        if not runs:
            return
        if self.graphs is None:
            at, steps = [run.slot for run in runs], [run.t for run in runs]
            t, p, before, e = row_steps(steps, self.token.device), self._pass(runs), self.state[at], self.input[at]
            self.state[at] = after = self.model.step(before, e, t, p)
            if self.averages_states:
                values = self.model.halting_value(before, after, e, t, p)
                for run, value, state in zip(runs, values, after, strict=True):
                    run.passed.append((value, state))
        self.ran.row_steps += len(runs)
        self.ran.token_steps += len(runs)
        for run in runs:
            run.t += 1

    def _step_mixed(self, runs: list[Running], stepped: set[Running], read: set[Running]) -> None:
        """Runs a step of rows with exits or drafts, and reads out those that are through; some have taken it in the tick's graph,
        and some of these were read out there."""
        if not runs:
            return
        before = sum(run.work for run in runs)
        step_histories(self.passes, [run for run in runs if run not in stepped])
        for run in runs:
            if run in stepped:
                run.t += 1
                run.work += 1
        self.ran.row_steps += len(runs)
        self.ran.token_steps += sum(run.work for run in runs) - before
        at_end = [run for run in runs if run.request.options.draft_depth is not None and run.t == run.limit]
        drafting = [run for run in at_end if run.drafting]
        self._verify([run for run in at_end if not run.drafting], read)
        read_drafts(self.passes, self.graphs, drafting, read, self.token)
        self._leave([run for run in runs if run.request.options.exit is not None], stepped, read)

    def _leave(self, runs: list[Running], stepped: set[Running], read: set[Running]) -> None:
        """Draws the tokens that follow those that leave the loop now."""
        if not runs:
            return
        graphs = self.graphs
        known = {} if graphs is None else {run: graphs.logits[run.slot] for run in runs if run in read}
        logits_of, others = leaving(self.passes, runs, known)
        leavers = [*logits_of, *others]
        if graphs is not None:
            self._draw_captured([run for run in logits_of if run in known], graphs)
            alone = [run for run in others if run in stepped and graphs.can_read(run, run.t)]
            graphs.launch([], [], [(run, run.t) for run in alone])  # all else that the tick has read is drawn
            self._draw_captured(alone, graphs)
            others = [run for run in others if run not in alone]
        rest = {run: logits[None] for run, logits in logits_of.items() if run not in known}
        rest.update(read_histories(self.passes, others, lambda run: 1))
        if rest:
            self._draw(list(rest), torch.cat(list(rest.values())))
        for run in leavers:
            keep_even(self.pool, run)

    def _verify(self, runs: list[Running], read: set[Running]) -> None:
        """Draws what full depth says after each draft, and goes on after the first that differs."""
        if not runs:
            return
        for run in runs:
            if not run.drafts:
                count_round(run, 0, self.ran, self.choices)
        if self.graphs is not None:
            self._draw_captured([run for run in runs if run in read], self.graphs)
        pairs = read_histories(self.passes, [run for run in runs if run not in read], lambda run: len(run.drafts) + 1)
        alone = {run: logits for run, logits in pairs if not run.drafts}
        if alone:
            self._draw(list(alone), torch.cat(list(alone.values())))
        if len(alone) == len(pairs):
            return
        drafted = [(run, logits) for run, logits in pairs if run not in alone]
        for run, tokens, logits, values in verified(*zip(*drafted, strict=True)):
            options, count = run.request.options, len(tokens)
            scores = score(logits, tokens, options.top_logprobs) if options.logprobs else None
            self._unread[-1].append(SampledTokens([run] * count, values, scores, [run.t] * count))
            count_round(run, count - 1, self.ran, self.choices)
            self.token[run.slot] = tokens[-1]
            self._count(run, tokens)

    def _read_out(self, runs: list[Running]) -> None:
        if not runs:
            return
        if self.graphs is not None:
            self._read_captured(runs, self.graphs)
            return
        reading = row_steps([run.request.options.depth for run in runs], self.token.device)
        read = torch.stack([self._mean(run) for run in runs]) if self.averages_states else self.state[[run.slot for run in runs]]
        logits = self.model.read_out(read, self._pass(runs), reading=reading)
        self._draw(runs, logits[:, 0])

    def _mean(self, run: Running) -> Tensor:
        """Returns the mean [1, D] of the states of the present token, by halting weight."""
        values, states = zip(*run.passed, strict=True)
        return weighted_sum(self.model.halting(torch.cat(values, -1)[None])[0], states)

    def _read_captured(self, runs: list[Running], graphs: TickGraphs) -> None:
        ends = [run for run in runs if run.answers_next]
        for run in runs:
            if run.in_prompt:
                run.prefilled, run.phase = run.prefilled + 1, "embed"
                self.ran.prefill_tokens += 1
        self._draw_captured(ends, graphs)

    def _pass(self, runs: Sequence[Running]) -> Pass:
        """Returns the pass of the present tokens of some rows."""
        return self.passes.open([run.row for run in runs], [run.offset for run in runs], 1)

    def _start_states(self, runs: Sequence[Running], e: Tensor, p: Pass) -> Tensor:
        return self.model.start_state(e, p, self.passes.seeds([run.request.options.state_seed for run in runs]))

    # tokens

    def _draw_captured(self, runs: list[Running], graphs: TickGraphs) -> None:
        """Draws the next token of rows that a captured tick has read out: mostly it is drawn already."""
        plain = [run for run in runs if run.draws_largest]
        if plain:  # their tokens are where the next prelude takes them from
            for run in plain:
                self._count(run, graphs.greedy[:1])
            drawn = AsyncHostCopy(graphs.greedy, graphs.usable)
            depths = [run.request.options.depth if run.history is None else run.t for run in plain]
            self._unread[-1].append(SampledTokens(plain, drawn, None, depths, places=[run.slot for run in plain]))
        if len(plain) < len(runs):
            others = [run for run in runs if run not in plain]
            self._draw(others, graphs.logits[[run.slot for run in others]])

    def _draw(self, runs: list[Running], logits: Tensor) -> None:
        """Draws the next token of each row. It stays on the device, where the next prelude takes it from."""
        draws = [run.request.options.draw(run.drawn) for run in runs]
        tokens = sample(logits, draws, [run.counts for run in runs], [run.grammar for run in runs])
        self.token[[run.slot for run in runs]] = tokens[:, None]
        scores = None
        if any(run.request.options.logprobs for run in runs):
            scores = score(logits, tokens, max(run.request.options.top_logprobs for run in runs))
        depths = [run.request.options.depth if run.history is None else run.t for run in runs]
        for i, run in enumerate(runs):
            self._count(run, tokens[i : i + 1])
        candidates = [run.step_candidates for run in runs]
        self._unread[-1].append(SampledTokens(runs, AsyncHostCopy(tokens, choosable(logits)), scores, depths, candidates))

    def _count(self, run: Running, tokens: Tensor) -> None:
        run.drawn += len(tokens)
        self.ran.drawn += len(tokens)
        run.drafts = []
        run.phase = "drained" if run.drawn == run.request.options.max_new_tokens else "embed"
        if run.counts is not None:
            run.counts.add(tokens)
        if run.grammar is not None:
            run.grammar.take(tokens.tolist())  # waits for the device: what may follow depends on it
            if run.grammar.ended:
                run.phase = "drained"

    def _read_tokens(self, unread: list[SampledTokens]) -> None:
        """Hands drawn tokens to their requests, and frees the rows of those that are done."""
        for drawn in unread:
            none = [None] * len(drawn.rows)
            scores = none if drawn.scores is None else drawn.scores.read()
            columns = (drawn.rows, *drawn.read(), scores, drawn.depths, drawn.step_candidates or none)
            for run, token, usable, one, depth, candidates in zip(*columns, strict=True):
                if run.request.done:
                    continue
                if not usable:
                    run.request.fail(no_choice(len(run.request.options.prompt) + len(run.request.tokens)))
                elif run.grammar is not None and run.grammar.error is not None and run.at_end:
                    run.request.fail(ConstraintError(f"constrain: {run.grammar.error}"))
                else:
                    run.request.push(token, depth, one, candidates, last=run.at_end)
                if run.request.done:
                    self._release(run)
