"""Chromium with its own driver, for tests that open the pages of a report."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest
from selenium import webdriver

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

OPTIONS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)


@pytest.fixture(scope="session")
def programs() -> tuple[str, str]:
    """Chromium and its driver."""
    found = shutil.which("chromium"), shutil.which("chromedriver")
    if None in found:
        missing = "no Chromium with a driver here: apt-get install -y chromium chromium-driver"
        if os.environ.get("CI") == "true":
            pytest.fail(missing)
        pytest.skip(missing)
    return found  # type: ignore[return-value]


@pytest.fixture(scope="session")
def chromium(
    programs: tuple[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    options.binary_location = programs[0]
    for option in (*OPTIONS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(programs[1]))
    yield driver
    driver.quit()


@pytest.fixture
def browser(chromium: webdriver.Chrome) -> Iterator[Callable[[int, str], webdriver.Chrome]]:
    """The browser at this width, for a user who likes pages light or dark."""

    def at(width: int, theme: str) -> webdriver.Chrome:
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        chromium.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        features = [{"name": "prefers-color-scheme", "value": theme}]
        chromium.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        for log in ("browser", "performance"):  # what an earlier test left
            chromium.get_log(log)
        return chromium

    yield at
    if chromium.current_url.startswith("file:"):
        chromium.execute_script("localStorage.clear()")
