"""A web page of another origin, in Debian's chromium, asks as OpenAI's JavaScript client does."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.serving.explore.browser import Browser, chromium
from tests.serving.live import live

pytestmark = pytest.mark.browser
# what the client of npm, version 6.49, sends beside the key and the content type; with these a browser asks for leave first
STAINLESS = {
    "x-stainless-arch": "unknown", "x-stainless-lang": "js", "x-stainless-os": "Unknown", "x-stainless-package-version": "6.49.0",
    "x-stainless-retry-count": "0", "x-stainless-runtime": "browser:chrome", "x-stainless-runtime-version": "150.0.0",
    "x-stainless-timeout": "600",
}  # fmt: skip
ASK = """
const [url, headers, body, done] = arguments;
fetch(url + "/v1/chat/completions", {method: "POST", headers, body: JSON.stringify(body)})
  .then(async answer => done([answer.status, answer.headers.get("x-request-id"), await answer.text()]))
  .catch(error => done([0, null, String(error)]));
"""


class Page(BaseHTTPRequestHandler):
    """An empty page, whatever is asked for."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>a page</title>")

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def page() -> Iterator[tuple[Browser, str]]:
    """A browser on a page that is not the server's, and the origin of that page."""
    pages = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=pages.serve_forever, daemon=True).start()
    origin = f"http://localhost:{pages.server_address[1]}"
    with chromium() as browser:
        browser.driver.get(origin)
        yield browser, origin
    pages.shutdown()
    pages.server_close()


def ask(browser: Browser, url: str, **body: Any) -> Any:
    """Returns status, request id and text of a chat that the page asks for."""
    headers = STAINLESS | {"authorization": "Bearer none", "content-type": "application/json"}
    body = {"messages": [{"role": "user", "content": "the cat"}], "max_tokens": 4, "temperature": 0} | body
    return browser.driver.execute_async_script(ASK, url, headers, body)


def test_a_page_that_is_let_in_gets_its_answer(page: tuple[Browser, str]) -> None:
    browser, origin = page
    with live(cors=(origin,)) as server:
        status, name, text = ask(browser, server.url)
        assert status == 200 and name.startswith("chatcmpl-") and '"role": "assistant"' in text
        status, _, text = ask(browser, server.url, stream=True)
        assert status == 200 and text.endswith("data: [DONE]\n\n")
        status, _, text = ask(browser, server.url, tools=[{"type": "function"}])
        assert status == 400 and '"param": "tools"' in text  # the page may read why


def test_another_page_learns_nothing(page: tuple[Browser, str]) -> None:
    browser, _ = page
    with live(cors=("https://app.example",)) as server:
        assert ask(browser, server.url) == [0, None, "TypeError: Failed to fetch"]
        assert [record["path"] for record in server.records if record.get("method") == "POST"] == []
