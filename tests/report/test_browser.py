"""The pages of `npugx-cache report` in headless Chromium: what is drawn, and what keys do."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from npugx_cache.store import Journal, JournalLine

pytestmark = pytest.mark.thorough

LAYERS = 28
HOSTILE = "</script><script>document.title = 'taken'</script>"
PATIENCE = 60

MAKE = f"""
import json, torch
from transformers import Qwen3Config, Qwen3ForCausalLM
from npugx_cache import cache_compile
config = Qwen3Config(
    num_hidden_layers={LAYERS}, vocab_size=256, hidden_size=64, intermediate_size=128,
    num_attention_heads=4, num_key_value_heads=2, head_dim=16,
)
model = cache_compile(Qwen3ForCausalLM(config).eval(), dynamic=False, strict=True)
ids = torch.arange(16)[None]
with torch.no_grad():
    model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False)

def act(x):
    return x.sin() + 1

cached = cache_compile(act, dynamic=False)
cached(torch.ones(3))
cached(torch.ones(4))
print(json.dumps(None))
"""


def write(surroundings):
    """A report on a store with a model of 28 layers; its folder and the page of the model."""
    surroundings.run("-W", "ignore", "-c", MAKE)
    journal = Journal(str(surroundings.store), surroundings.folder / "state" / "npugx_cache")
    line = JournalLine(time.time(), HOSTILE, "bypass", (HOSTILE,), os.getpid())
    journal.add(line)
    journal.flush()
    out = surroundings.folder / "pages"
    done = surroundings.command("report", "--out", out, "--format", "json")
    assert (done.returncode, done.stderr) == (0, "")
    rows = surroundings.listing()
    (model,) = (row["entry"] for row in rows if "Qwen3" in row["function"])
    return [str(out), f"entry-{model}.html"]


@pytest.fixture
def written(programs, once):
    folder, model = once("report", write)
    return Path(folder), model


def opened(driver, page):
    driver.get(page.as_uri())
    WebDriverWait(driver, PATIENCE).until(
        lambda _: driver.execute_script("return document.readyState") == "complete"
    )


def drawn(driver, written):
    """Open the page of the model, and wait until its graph is drawn; the element and the time."""
    folder, model = written
    opened(driver, folder / model)
    box = driver.find_element(By.ID, "drawing")
    WebDriverWait(driver, PATIENCE).until(lambda _: box.get_attribute("data-drawn"))
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", box)
    return box, int(box.get_attribute("data-drawn"))


def boxes(driver):
    """The number of boxes that are drawn, and of layers that are open."""
    script = "return [drawing.nodes().length, drawing.nodes('.opened').length]"
    return driver.execute_script(script)


def check_quiet(driver):
    """Nothing went wrong on the page, and nothing was asked of a network."""
    assert driver.get_log("browser") == []
    messages = (json.loads(row["message"])["message"] for row in driver.get_log("performance"))
    asked = [
        each["params"]["request"]["url"]
        for each in messages
        if each["method"] == "Network.requestWillBeSent"
    ]
    assert [url for url in asked if not url.startswith(("file:", "data:", "chrome:"))] == []


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 400])
def test_every_page_fits_its_width_in_its_theme(browser, written, width, theme):
    driver = browser(width, theme)
    folder, _ = written
    pages = sorted(folder.glob("*.html"))
    assert len(pages) == 7
    for page in pages:
        opened(driver, page)
        script = "return [document.documentElement.scrollWidth, innerWidth]"
        needed, there = driver.execute_script(script)
        assert needed <= there == width, page.name
        assert driver.title.endswith(" - npugx-cache")
        dark = "return getComputedStyle(document.body).backgroundColor"
        (red, *_) = map(int, driver.execute_script(dark)[4:-1].split(","))
        assert (red < 128) is (theme == "dark")
    check_quiet(driver)


def test_a_reader_may_choose_the_other_theme(browser, written):
    driver = browser(1400, "dark")
    drawn(driver, written)
    root = driver.find_element(By.TAG_NAME, "html")
    colour = "return drawing.nodes()[0].style('color')"
    before = driver.execute_script(colour)
    driver.find_element(By.ID, "theme").click()
    assert root.get_attribute("data-theme") == "light"
    assert driver.execute_script(colour) != before
    drawn(driver, written)
    assert driver.find_element(By.TAG_NAME, "html").get_attribute("data-theme") == "light"


@pytest.mark.parametrize("width", [1400, 400])
def test_a_click_opens_a_layer(browser, written, width):
    driver = browser(width, "light")
    box, took = drawn(driver, written)
    print(f"a page of {LAYERS} layers, {width} pixels wide: drawn after {took} ms")
    before, none = boxes(driver)
    assert none == 0
    at = driver.execute_script(
        "const n = drawing.nodes('.closed')[0].renderedPosition();"
        "return [n.x - arguments[0].clientWidth / 2, n.y - arguments[0].clientHeight / 2]",
        box,
    )
    ActionChains(driver).move_to_element_with_offset(box, *map(int, at)).click().perform()
    WebDriverWait(driver, PATIENCE).until(lambda _: boxes(driver)[1] == 1)
    assert boxes(driver)[0] > before + 50
    button = driver.find_element(By.CSS_SELECTOR, "#layers button")
    assert (button.text, button.get_attribute("aria-expanded")) == (
        f"layer \N{MULTIPLICATION SIGN} {LAYERS}",
        "true",
    )
    button.click()
    assert boxes(driver) == [before, 0]
    check_quiet(driver)


def test_keys_open_and_close_a_layer_and_tell_of_each_box(browser, written):
    driver = browser(1400, "light")
    box, _ = drawn(driver, written)
    before, _ = boxes(driver)
    tabs = ActionChains(driver)
    driver.execute_script("document.activeElement.blur()")
    for _ in range(30):
        if driver.switch_to.active_element.get_attribute("id") == "drawing":
            break
        tabs.send_keys(Keys.TAB).perform()
    assert driver.switch_to.active_element.get_attribute("id") == "drawing"
    about = driver.find_element(By.ID, "about")
    for _ in range(before):
        box.send_keys(Keys.ARROW_DOWN)
        if about.text.startswith(f"box\nlayer \N{MULTIPLICATION SIGN} {LAYERS}"):
            break
    box.send_keys(Keys.ENTER)
    assert boxes(driver)[1] == 1
    box.send_keys(Keys.ARROW_DOWN)
    assert "self.model.layers[i].input_layernorm" in about.text
    assert "modeling_qwen3.py:" in about.text
    box.send_keys(Keys.ESCAPE)
    assert boxes(driver) == [before, 0]
    box.send_keys(Keys.SPACE)
    assert boxes(driver)[1] == 1
    check_quiet(driver)


def test_the_filter_is_reached_by_a_key_and_hides_rows(browser, written):
    driver = browser(1400, "light")
    opened(driver, written[0] / "index.html")
    rows = (
        "return [...document.querySelectorAll('#entries tbody tr')].filter(r => !r.hidden).length"
    )
    assert driver.execute_script(rows) == 3
    driver.find_element(By.TAG_NAME, "body").send_keys("/")
    field = driver.switch_to.active_element
    assert field.get_attribute("data-filters") == "entries"
    field.send_keys("Qwen3 GRAPH")
    assert driver.execute_script(rows) == 1
    field.send_keys(Keys.ESCAPE)
    assert driver.execute_script(rows) == 3


def test_a_head_sorts_its_column(browser, written):
    driver = browser(1400, "light")
    opened(driver, written[0] / "index.html")

    def sizes():
        cells = driver.find_elements(By.CSS_SELECTOR, "#entries tbody td:nth-child(7)")
        return [int(cell.get_attribute("data-value")) for cell in cells]

    button = driver.find_element(By.XPATH, "//table[@id='entries']//th[7]/button")
    button.click()
    assert sizes() == sorted(sizes(), reverse=True)
    button.send_keys(Keys.ENTER)
    assert sizes() == sorted(sizes())
    assert len(set(sizes())) > 1


def test_charts_are_drawn_and_hostile_texts_are_shown(browser, written):
    driver = browser(1400, "light")
    folder, model = written
    opened(driver, folder / "index.html")
    assert len(driver.find_elements(By.CSS_SELECTOR, ".chart canvas")) == 2
    opened(driver, folder / model)
    frames = driver.find_elements(By.CSS_SELECTOR, "#phases svg g.frame")
    assert len(frames) >= 4
    assert "tracing and lowering" in driver.find_element(By.ID, "phases").text
    opened(driver, folder / "misses.html")
    assert HOSTILE in driver.find_element(By.ID, "misses").text
    assert driver.title == "Misses - npugx-cache"
    check_quiet(driver)
