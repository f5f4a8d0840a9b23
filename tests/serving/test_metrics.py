"""The numbers that Prometheus reads are those of the requests."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from tests.serving.live import Live, live


def numbers(server: Live) -> dict[str, float]:
    page = server.client.get("/metrics")
    assert page.headers["content-type"].startswith("text/plain")
    return {
        " ".join([sample.name, *sorted(sample.labels.values())]): sample.value
        for family in text_string_to_metric_families(page.text)
        for sample in family.samples
    }


def test_requests_tokens_and_steps_are_counted() -> None:
    with live() as server:
        server.ask(depth=2, ignore_eos=True)
        server.ask(depth=3, ignore_eos=True, draft_depth=1)
        assert server.post(depth=99).status_code == 400
        assert server.client.get("/%ff" + "x" * 500).status_code == 404
        server.last_record()
        found = numbers(server)
    assert found["loopwright_requests_total /v1/completions 200"] == 2
    assert found["loopwright_requests_total /v1/completions 400"] == 1
    assert found["loopwright_requests_total 404 other"] == 1  # a path of the client's is no label
    assert found["loopwright_prompt_tokens_total tiny"] == 6 and found["loopwright_completion_tokens_total tiny"] == 10
    assert found["loopwright_completion_steps_total tiny"] == 5 * 2 + 5 * 3
    assert found["loopwright_request_seconds_count tiny"] == found["loopwright_first_token_seconds_count tiny"] == 2
    assert found["loopwright_open_sequences tiny"] == 0 and found["loopwright_rows tiny"] == 4
    assert found["loopwright_engine_drafted_total tiny"] > 0 and found["loopwright_engine_row_steps_total tiny"] > 0
