"""What Prometheus reads at /metrics: requests, tokens, steps and waiting times, and how full each engine is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from loopwright.serve.models import ServedModel
from loopwright.serve.response.answer import Job

SECONDS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300)
RAN = {
    "ticks": "Ticks of the engine",
    "row_steps": "Core steps, counted by row",
    "token_steps": "Core steps, counted by token, those of earlier tokens that came along included",
    "prefill_tokens": "Prompt tokens that were run",
    "drafted": "Tokens drafted at a lower depth",
    "accepted": "Drafted tokens that held",
}


class Metrics:
    """The numbers of one server, in a registry of its own."""

    def __init__(self, models: Mapping[str, ServedModel]) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_Engines(models))

        def counter(name: str, words: str, *labels: str) -> Counter:
            return Counter(f"loopwright_{name}", words, labels, registry=self.registry)

        def seconds(name: str, words: str) -> Histogram:
            return Histogram(f"loopwright_{name}_seconds", words, ("model",), buckets=SECONDS, registry=self.registry)

        self.requests = counter("requests", "HTTP requests", "route", "status")
        self.prompt_tokens = counter("prompt_tokens", "Tokens of prompts", "model")
        self.tokens = counter("completion_tokens", "Tokens of answers", "model")
        self.steps = counter("completion_steps", "Steps that the tokens of answers took", "model")
        self.gone = counter("disconnects", "Clients that went before their answer ended", "model")
        self.first_token = seconds("first_token", "From the request to its first token")
        self.whole = seconds("request", "From the request to the end of its answer")

    def count(self, job: Job, seconds: float) -> None:
        """Counts a job that has ended, or whose client has gone."""
        name, usage = job.model.name, job.usage
        self.prompt_tokens.labels(name).inc(usage["prompt_tokens"])
        self.tokens.labels(name).inc(usage["completion_tokens"])
        self.steps.labels(name).inc(usage["completion_steps"])
        self.whole.labels(name).observe(seconds)
        if job.first_token is not None:
            self.first_token.labels(name).observe(job.first_token)
        if job.gone:
            self.gone.labels(name).inc()

    def page(self) -> tuple[bytes, str]:
        """Returns the page and its content type."""
        return generate_latest(self.registry), CONTENT_TYPE_LATEST


class _Engines:
    """Reads the engines when the page is asked for."""

    def __init__(self, models: Mapping[str, ServedModel]) -> None:
        self.models = models

    def collect(self) -> Iterator[Metric]:
        rows = GaugeMetricFamily("loopwright_rows", "Sequences that can run at a time", labels=["model"])
        held = GaugeMetricFamily("loopwright_open_sequences", "Sequences that run or wait", labels=["model"])
        room = GaugeMetricFamily("loopwright_queue_room", "Sequences that may still be taken", labels=["model"])
        for name, model in self.models.items():
            rows.add_metric([name], model.rows)
            held.add_metric([name], model.engine.open_requests)
            room.add_metric([name], max(model.rows + model.limits.queue - model.engine.open_requests, 0))
        yield from (rows, held, room)
        for field, words in RAN.items():
            family = CounterMetricFamily(f"loopwright_engine_{field}", words, labels=["model"])
            for name, model in self.models.items():
                family.add_metric([name], getattr(model.engine.ran, field))
            yield family
