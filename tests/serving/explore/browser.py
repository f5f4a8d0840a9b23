"""Debian's chromium for the browser suite: a window of a size and theme, what it asked for, and how long things took."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

PATIENCE = 15.0  # seconds that a change on the page may take on a busy machine


class Browser:
    """A chromium that is driven by selenium."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def run(self, script: str, *given: Any) -> Any:
        """Returns what a script on the page returns."""
        return self.driver.execute_script(script, *given)

    def open(self, url: str) -> None:
        """Opens the page anew, and waits until the grid is there."""
        self.driver.get("about:blank")  # a change of the fragment alone would not load it
        self.driver.get(url)
        self.until("return document.querySelectorAll('.cell').length > 0")

    def until(self, script: str, *given: Any) -> Any:
        """Waits until a script returns something true, and returns it."""
        end = time.monotonic() + PATIENCE
        while not (found := self.run(script, *given)):
            assert time.monotonic() < end, f"did not happen: {script}"
            time.sleep(0.03)
        return found

    def text(self, selector: str) -> str:
        """Returns the text of the first element of a selector."""
        return str(self.run("return document.querySelector(arguments[0])?.textContent ?? ''", selector))

    def type(self, selector: str, words: str) -> None:
        """Puts words into a field as typing does."""
        self.run(
            "const f = document.querySelector(arguments[0]); f.value = arguments[1];"
            "f.dispatchEvent(new Event('input', {bubbles: true})); f.dispatchEvent(new Event('change', {bubbles: true}));",
            selector, words,
        )  # fmt: skip

    def click(self, selector: str) -> None:
        """Clicks the first element of a selector."""
        self.until("return Boolean(document.querySelector(arguments[0]))", selector)
        self.run("document.querySelector(arguments[0]).click()", selector)

    def keys(self, *names: str) -> None:
        """Presses keys wherever the focus is."""
        from selenium.webdriver.common.action_chains import ActionChains
        from selenium.webdriver.common.keys import Keys

        ActionChains(self.driver, duration=10).send_keys(*(getattr(Keys, name, name) for name in names)).perform()

    def resize(self, width: int, height: int = 900, *, dark: bool = False) -> None:
        """Gives the window a size and a colour scheme."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        scheme = {"features": [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", scheme)

    def asked(self) -> list[str]:
        """Returns the addresses that were asked for since the last call."""
        messages = (json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance"))
        return [one["params"]["request"]["url"] for one in messages if one["method"] == "Network.requestWillBeSent"]

    def complaints(self) -> list[str]:
        """Returns what the console was told since the last call: errors of scripts and of the security policy."""
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE"]

    def slide(self, selector: str, value: int) -> float:
        """Moves a slider, and returns the seconds until the frame that shows it is drawn, by the page's own clock."""
        return float(
            self.driver.execute_async_script(
                "const [selector, value, done] = arguments, begin = performance.now(), slider = document.querySelector(selector);"
                "slider.value = value; slider.dispatchEvent(new Event('input', {bubbles: true}));"
                "requestAnimationFrame(() => requestAnimationFrame(() => done((performance.now() - begin) / 1000)));",
                selector, value,
            )
        )  # fmt: skip


@contextmanager
def chromium() -> Iterator[Browser]:
    """Runs chromium without a window while the block runs; skips where it or selenium is missing."""
    pytest.importorskip("selenium")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    paths = shutil.which("chromium"), shutil.which("chromedriver")
    if None in paths:
        pytest.skip("chromium and chromium-driver are not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = str(paths[0])
    for word in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(str(paths[1])))
    try:
        yield Browser(driver)
    finally:
        driver.quit()
