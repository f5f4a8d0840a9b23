"""The explorer in a real browser: load, type, slide, hover, edit, links, keys, sizes, hostile text, a server that goes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from urllib.parse import quote

import pytest
import torch

import loopwright as lw
from loopwright.parts import Alphabet
from loopwright.serving.explore.views import EXPLORER
from tests.generation.tiny import STORIES
from tests.serving.explore.browser import Browser, chromium
from tests.serving.live import Live, live

pytestmark = pytest.mark.browser

HOSTILE = '<img src=x onerror="window.hit=1"><script>window.hit=1</script>\'"&amp;\u202e\u0000'
NAME = "<b onmouseover=alert(1)>loop"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


@pytest.fixture(scope="module")
def server() -> Iterator[Live]:
    if not STORIES.exists():
        pytest.skip("stories260K is not here")
    dense = lw.load(STORIES)
    looped = lw.retrofit(dense, "plain-loop", prelude=1, core=[1, 2, 3], coda=1)
    models = {NAME: looped.eval(), "dense": dense}
    with live(models, tokenizer=lw.tokenizer(STORIES), site=EXPLORER, max_tokens=2000, depth=None) as running:
        yield running


@pytest.fixture(autouse=True)
def fresh(browser: Browser) -> None:
    browser.resize(1280)


def answered(browser: Browser) -> str:
    """Waits for a whole answer and returns it."""
    browser.until("return /tokens in/.test(document.querySelector('.answer.one .cost')?.textContent)")
    return browser.text(".answer.one .made")


def test_it_loads_at_once_and_asks_nobody_else(browser: Browser, server: Live) -> None:
    browser.asked(), browser.complaints()
    browser.open(f"{server.url}/")
    painted = browser.until("return performance.getEntriesByName('first-contentful-paint')[0]?.startTime")
    assert painted < 1000
    assert answered(browser) and browser.text(".answer.one .given").startswith("Once upon a time")
    asked = [url for url in browser.asked() if not url.startswith(("about:", "data:"))]
    assert asked and all(url.startswith(server.url) for url in asked), asked
    assert browser.complaints() == []


def test_typing_brings_another_prompt(browser: Browser, server: Live) -> None:
    browser.open(f"{server.url}/")
    browser.type("#prompt", "The dog ran")
    rows = len(server.models["dense"].encode("The dog ran"))
    browser.until("return document.querySelectorAll('.grid tbody tr').length === arguments[0]", rows)
    browser.until("return document.querySelector('.answer.one .given').textContent === 'The dog ran'")


def test_a_move_of_the_slider_is_shown_at_once(browser: Browser, server: Live) -> None:
    browser.open(f"{server.url}/")
    most = int(browser.run("return document.querySelector('#depth').max"))
    moves = [browser.slide("#depth", to) for to in range(1, most + 1)]
    print("slider:", [round(1000 * move) for move in moves], "ms")
    assert sorted(moves)[len(moves) // 2] < 0.2 and max(moves) < 0.5, moves
    assert browser.text("#depth-words") == f"{most} of {most} steps"
    assert browser.text(".grid thead th.now") == str(most)
    assert f"at step {most}" in browser.text("#curves output") and browser.text("#limit")
    last = browser.run("return document.querySelector('tr.chosen .cell.now').textContent")
    assert last == browser.text(".detail .bars .word")


def test_hovering_shows_the_alternatives(browser: Browser, server: Live) -> None:
    browser.open(f"{server.url}/")
    browser.run(
        "document.querySelector('.cell[data-t=\"2\"][data-s=\"1\"]').dispatchEvent(new MouseEvent('mouseover', {bubbles: true}))"
    )
    assert browser.text(".detail h3") == "After “upon”, at step 2"
    assert browser.run("return document.querySelectorAll('.detail .bars li').length") == 6
    browser.click('.choice [data-value="divergence"]')
    browser.until("return location.hash.includes('c=divergence')")
    assert "as the last step says" in browser.text(".legend")


def test_play_walks_to_the_last_step(browser: Browser, server: Live) -> None:
    browser.open(f"{server.url}/")
    browser.type("#depth", "13")
    browser.click("#play")
    assert browser.text("#play") == "Pause"
    browser.until("return document.querySelector('#play').textContent === 'Play'")
    assert browser.run("return document.querySelector('#depth').value === document.querySelector('#depth').max")


def test_attention_follows_stack_layer_and_head(browser: Browser, server: Live) -> None:
    browser.open(f"{server.url}/")
    browser.click(".heads button:nth-child(5)")
    browser.until("return document.querySelector('.heads button:nth-child(5)').getAttribute('aria-checked') === 'true'")
    browser.type("#stack", "prelude")
    browser.until("return /sink/i.test(document.querySelector('#attention .verdict').textContent)")
    assert "Attention map of head 5" in browser.run("return document.querySelector('canvas').getAttribute('aria-label')")


def test_an_edit_shows_what_it_changes(browser: Browser, server: Live) -> None:
    browser.open(f"{server.url}/")
    browser.click("#edit-apply")
    browser.until("return /the edit changes \\d+ of \\d+ predictions/.test(document.querySelector('#edit-verdict').textContent)")
    assert browser.until("return document.querySelectorAll('.cell.moved').length") > 0
    browser.type("#edit-kind", "patch")
    browser.click("#edit-apply")
    browser.until("return /patch/.test(decodeURIComponent(location.hash))")
    browser.click("#edit-remove")
    browser.until("return document.querySelectorAll('.cell.moved').length === 0")


def test_two_depths_side_by_side_and_the_link_brings_them_back(browser: Browser, server: Live) -> None:
    browser.open(f"{server.url}/")
    browser.type("#depth", "1")
    browser.click("#compare")
    browser.until("return document.querySelectorAll('.answer').length === 2")
    browser.until("return document.querySelector('.answer.other .made').textContent && document.querySelector('.differs')")
    browser.click('.cell[data-t="3"][data-s="2"]')
    browser.until("return /t=3/.test(location.hash) && /d=3/.test(location.hash) && /d2=/.test(location.hash)")
    link = browser.run("return location.href")
    before = [browser.text(selector) for selector in ("#depth-words", ".detail h3", "tr.chosen th", ".answer.other h3")]
    browser.open(link)
    browser.until("return document.querySelectorAll('.answer').length === 2")
    assert [browser.text(selector) for selector in ("#depth-words", ".detail h3", "tr.chosen th", ".answer.other h3")] == before
    edit = quote(json.dumps({"kind": "swap", "first": 0, "second": 5}))
    browser.open(f"{server.url}/#e={edit}&v=edited")
    browser.until("return /the edit changes/.test(document.querySelector('#edit-verdict').textContent)")
    assert browser.run("return document.querySelector('#edit-kind').value") == "swap"
    browser.open(f"{server.url}/#d=999&t=x&e=%7Bbroken&c=")  # a broken link opens, with what can be made of it
    assert browser.text("#depth-words") == "16 of 16 steps"
    browser.open(f"{server.url}/#d=9&t=x&m=nobody")  # a depth of another model says nothing of this one
    assert browser.text("#depth-words") == "4 of 16 steps"


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [390, 1280, 1920])
def test_it_fits_and_is_legible(browser: Browser, server: Live, width: int, dark: bool) -> None:
    browser.resize(width, dark=dark)
    browser.open(f"{server.url}/#d=4&d2=9")
    answered(browser)
    assert browser.run("return document.documentElement.scrollWidth") <= width
    assert browser.run("return document.documentElement.dataset.theme") == ("dark" if dark else "light")
    assert browser.run(CONTRAST) == []
    browser.click("#theme")
    assert browser.run("return document.documentElement.dataset.theme") == ("light" if dark else "dark")
    browser.run("localStorage.clear()")


def test_keys_alone_are_enough(browser: Browser, server: Live) -> None:
    browser.open(f"{server.url}/")
    reached = set()
    for _ in range(60):
        browser.keys("TAB")
        reached.add(browser.run("const a = document.activeElement; return a.id || a.className.split(' ')[0] || a.tagName"))
    assert {"model", "theme", "prompt", "depth", "play", "compare", "cell", "stack", "edit-kind", "edit-apply"} <= reached
    browser.run("document.querySelector('#depth').focus()")
    before = browser.run("return document.querySelector('#depth').valueAsNumber")
    browser.keys("ARROW_RIGHT")
    assert browser.run("return document.querySelector('#depth').valueAsNumber") == before + 1
    browser.run("document.querySelector('.cell[tabindex=\"0\"]').focus()")
    browser.keys("ARROW_UP", "ARROW_LEFT")
    assert browser.text(".grid thead th.now") == str(before)
    assert browser.run("return document.activeElement === document.querySelector('tr.chosen .cell.now')")
    assert browser.run("return getComputedStyle(document.activeElement).outlineStyle") != "none"


def test_hostile_text_stays_text(browser: Browser, server: Live) -> None:
    browser.complaints()
    browser.open(f"{server.url}/#p={quote(HOSTILE)}&m={quote(NAME)}")
    answered(browser)
    assert browser.run("return window.hit ?? null") is None
    assert browser.run("return document.querySelectorAll('main img, main script, main b:not(.note b)').length") == 0
    assert browser.run("return document.querySelector('#model').selectedOptions[0].textContent") == NAME
    assert browser.text(".answer.one .said").startswith("<img src=x")
    assert [line for line in browser.complaints() if "400" not in line] == []


def test_a_dense_model_opens(browser: Browser, server: Live) -> None:
    browser.open(f"{server.url}/#m=dense")
    assert "not looped" in browser.text("#facts") and browser.run("return document.querySelector('#depth').disabled")
    assert answered(browser) and browser.run(
        "return document.querySelector('#motion').hidden && document.querySelector('#depthbar').hidden"
    )
    browser.type("#model", NAME)
    browser.until(
        "return !document.querySelector('#depthbar').hidden && document.querySelectorAll('tr:last-child .cell').length === 16"
    )
    assert "again and again" in browser.text("#lead")
    browser.type("#edit-kind", "swap")
    browser.click("#edit-apply")
    browser.until("return /the edit changes/.test(document.querySelector('#edit-verdict').textContent)")
    browser.complaints()
    browser.type("#model", "dense")  # which has no steps to swap: the edit goes with the model
    browser.until("return document.querySelector('#depthbar').hidden && !location.hash.includes('e=')")
    assert browser.complaints() == [] and browser.text("#problem") == ""


def test_wrong_input_is_told_where_it_is_typed(browser: Browser, server: Live) -> None:
    browser.open(f"{server.url}/")
    browser.type(".exits input", "-1")
    assert browser.run("return document.querySelector('.exits input').matches(':invalid')")
    assert "-1" not in browser.run("return location.hash") and browser.text("#problem") == ""
    browser.type(".exits input", "1000")
    browser.until("return /20 of 20 tokens leave early, after 1.0 steps/.test(document.querySelector('.legend').textContent)")
    browser.type("#prompt", "word " * 3000)
    browser.until("return /no room for an answer/.test(document.querySelector('#problem').textContent)")
    assert browser.run("return document.querySelectorAll('.grid tbody tr').length") == 20
    browser.type("#prompt", "The cat")
    browser.until("return document.querySelectorAll('.grid tbody tr').length < 10")
    assert browser.text("#problem") == ""


def test_a_server_that_comes_back_with_other_models(browser: Browser, server: Live) -> None:
    browser.open(f"{server.url}/#m=gone&x=gate:0.5&l=1&h=1")  # what the link says of the model that is gone goes with it
    browser.until("return location.hash.includes('x=change') && document.querySelectorAll('tr:last-child .cell').length === 16")
    assert browser.text("#problem") == "" and not browser.run("return /gate|[lh]=/.test(location.hash)")
    browser.open(f"{server.url}/#m=dense&l=1&h=1")
    # at one stroke: a view that asks between "the model is gone" and "these are there" would find its model still in the list
    browser.run(
        "const plain = window.fetch, [there] = arguments; window.fetch = async (path, given) => (path === '/v1/models'"
        " ? new Response(JSON.stringify({data: [{id: there}]}))"
        " : plain(path, given?.body ? {...given, body: given.body.replace('\"dense\"', '\"gone\"')} : given));",
        NAME,
    )
    browser.type("#prompt", "The cat sat")
    browser.until("return document.querySelector('#model').value === arguments[0]", NAME)
    browser.until("return document.querySelectorAll('tr:last-child .cell').length === 16")
    browser.until("return location.hash.includes('x=change') && !/[lh]=/.test(location.hash)")


def test_a_card_that_comes_late_is_not_the_model_s_that_was_chosen_meanwhile(browser: Browser, server: Live) -> None:
    browser.open(f"{server.url}/")
    browser.run(
        "const plain = window.fetch; window.late = 0; window.fetch = async (path, given) => {"
        " const answer = await plain(path, {...given, signal: undefined});"
        " if (path === '/explore/model' && given.body.includes('dense')) {"
        "   await new Promise((done) => setTimeout(done, 400)); window.late += 1; }"
        " if (given?.signal?.aborted) throw new DOMException('', 'AbortError');"
        " return answer; };"
    )
    browser.type("#model", "dense")
    browser.type("#model", NAME)
    browser.until("return window.late && document.querySelectorAll('tr:last-child .cell').length === 16")
    browser.type("#prompt", "The cat")
    browser.until("return document.querySelectorAll('.grid tbody tr').length < 10")
    assert "looped" in browser.text("#facts") and "not looped" not in browser.text("#facts") and browser.text("#problem") == ""


def test_the_server_goes_and_comes_back(browser: Browser, server: Live) -> None:
    browser.open(f"{server.url}/")
    answered(browser)
    browser.driver.execute_cdp_cmd("Network.enable", {})
    lost = {"offline": True, "latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
    browser.driver.execute_cdp_cmd("Network.emulateNetworkConditions", lost)
    browser.type("#prompt", "The cat")
    browser.until("return !document.querySelector('#notice').hidden")
    assert browser.run("return document.querySelectorAll('.cell').length") > 0  # what came last is still there
    found = {"offline": False, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
    browser.driver.execute_cdp_cmd("Network.emulateNetworkConditions", found)
    browser.until("return document.querySelector('#notice').hidden")
    browser.until("return document.querySelector('.answer.one .given').textContent === 'The cat'")


def test_the_page_asks_for_the_key(browser: Browser, server: Live) -> None:
    with live(
        {"tiny": server.models["dense"].engine.model}, tokenizer=lw.tokenizer(STORIES), key="secret-word", site=EXPLORER
    ) as locked:
        browser.driver.get(f"{locked.url}/")
        browser.until("return !document.querySelector('#key').hidden && document.querySelector('#main').hidden")
        browser.type("#key-word", "secret-word")
        browser.click("#key button")
        browser.until("return document.querySelectorAll('.cell').length > 0")
        assert "secret" not in browser.run("return location.href")


# Text whose contrast with what lies behind it is below WCAG AA: 4.5, or 3 where it is large.
CONTRAST = """
const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
const pixel = (colours) => { canvas.clearRect(0, 0, 1, 1);
  for (const c of colours) { canvas.fillStyle = c; canvas.fillRect(0, 0, 1, 1); }
  return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3); };
const linear = (v) => (v <= 0.03928 * 255 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4);
const light = (rgb) => { const [r, g, b] = rgb.map(linear);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
const bad = [];
for (const node of document.querySelectorAll('body *')) {
  const own = [...node.childNodes].some((c) => c.nodeType === 3 && c.data.trim());
  const box = node.getBoundingClientRect(), style = getComputedStyle(node);
  if (!own || !box.width || style.visibility === 'hidden' || node.disabled || node.closest('svg, select, .skip')) continue;
  const behind = []; for (let up = node; up; up = up.parentElement) behind.unshift(getComputedStyle(up).backgroundColor);
  const back = pixel(behind), front = pixel([...behind, style.color]);
  const [a, b] = [light(front), light(back)].sort((x, y) => y - x), ratio = (a + 0.05) / (b + 0.05);
  const large = parseFloat(style.fontSize) >= 24 || (parseFloat(style.fontSize) >= 18.7 && Number(style.fontWeight) >= 700);
  if (ratio < (large ? 3 : 4.5)) bad.push([node.className || node.tagName, node.textContent.slice(0, 20), ratio.toFixed(2)]);
}
return bad;
"""


def test_a_model_of_few_symbols_and_short_rows_opens_with_an_answer(browser: Browser) -> None:
    """Its first prompt is one that it can read, its answer fits, and a state that only grows is not said to rest."""
    torch.manual_seed(0)
    symbols = Alphabet([*"0123456789", "+", "=", "Ʌ", "§"])
    changes = {"norm_placement": ["input"], "injection": {"kind": "add"}, "max_position_embeddings": 32}
    grows = lw.build("stars-addition-tiny", vocab_size=len(symbols), depth=4, **changes).eval()
    with live({"sums": grows}, tokenizer=symbols.tokenizer(), site=EXPLORER) as running:
        browser.open(f"{running.url}/")
        assert answered(browser) and browser.text(".answer.one .given") == "79+87="
        assert browser.text("#problem") == ""
        assert browser.text("#limit") == "Its direction is at rest."


def test_a_model_that_is_chosen_while_an_answer_is_awaited_opens_without_an_error(browser: Browser, server: Live) -> None:
    browser.open(f"{server.url}/")
    answered(browser)
    browser.complaints()
    browser.run(LATE)
    browser.slide("#depth", 1)
    browser.type("#model", "dense")
    browser.until("return document.querySelector('#title').textContent === 'Look inside a model'")
    assert answered(browser) and browser.complaints() == []


# the card of a model comes later than the pause before an answer is asked for
LATE = """
const before = window.fetch;
window.fetch = async (url, ...given) => {
  if (String(url).includes('/explore/model')) await new Promise((done) => setTimeout(done, 600));
  return before(url, ...given);
};
"""
