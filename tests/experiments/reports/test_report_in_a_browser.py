"""The report as people see it: in Chromium, at the widths of a phone, a tablet and a desk, light and dark."""

import base64
import json
import os
import shutil
import time
from pathlib import Path

import pytest

import graft
from graft.experiments.comparison.comparison import Comparison
from graft.experiments.comparison.finished_runs import find_runs
from graft.experiments.reports.report import write_comparison_report, write_report, write_tuning_report
from graft.experiments.verdicts import Verdict, write_verdicts
from tests.experiments.reports.folders import write_run, write_tuning

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
pytest.importorskip("vl_convert", reason="figures need vl-convert")
BROWSER = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
DRIVER = shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(not (BROWSER and DRIVER), reason="there is no chromium with chromedriver here")

WIDTHS = (360, 768, 1300)
QUIET = (
    "--headless --no-sandbox --disable-gpu --disable-background-networking --disable-component-update --disable-sync "
    "--no-first-run --disable-dev-shm-usage --hide-scrollbars"
)
SIZE = (1300, 1295)  # of the picture: down to the curves
PICTURE = Path(__file__).parents[3] / "docs" / "images" / "report.png"
METHODS, SEEDS = ("fedavg", "fedgkc", "local"), 3
REAL = dict(
    dataset="digits",
    clients=5,
    partition="random",
    split="5/20/75",
    rounds=25,
    width=16,
    threads=1,
    device="cpu",
)
LONG = "a name that is far too long for any column of a table, and for a legend as well"


@pytest.fixture(scope="module")
def browser():
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for argument in QUIET.split():
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    driver.set_page_load_timeout(30)
    driver.set_script_timeout(30)
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """The pages of a run and of a tuning that never were, and of real runs of three methods with three seeds each."""
    root = tmp_path_factory.mktemp("pages")
    names = [LONG, "</script><img src=x onerror=alert(1)>", "south"]
    run = write_run(root / "run", names=names, details={"knowledge": 0.1}, confusion=True, level=0.8)
    verdicts = [Verdict(name, "accuracy", 40, 0.5, 0.6, 0.1, 0.0, 0.2, "joining helps", 0.01) for name in names]
    write_verdicts(run, verdicts, "local")
    for method in METHODS:
        for seed in range(SEEDS):
            graft.run(method, out=root / "sweep" / f"{method}-{seed}", seed=seed, **REAL)
    comparison = Comparison(find_runs([root / "sweep"]))
    return {
        "run": write_report(run),
        "sweep": write_comparison_report(comparison, root / "sweep"),
        "tuning": write_tuning_report(write_tuning(root / "tuning")),
    }


def show(browser, page, width=1300, theme="light"):
    """Opens a page, and returns when its figures are drawn."""
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    scheme = {"features": [{"name": "prefers-color-scheme", "value": theme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", scheme)
    browser.get(page.as_uri())
    until(browser, "return document.documentElement.dataset.figures === 'drawn'")


def until(browser, script, seconds=20):
    """Returns when a script returns something true; the last that it returned is part of the failure."""
    end = time.monotonic() + seconds
    while not (value := browser.execute_script(script)):
        assert time.monotonic() < end, f"{script}: {value}"
        time.sleep(0.05)
    return value


CLIPPED = """
const wide = (element) => element.closest(".wide, pre, .chart svg, .panels svg, [hidden], details:not([open])");
return [...document.querySelectorAll("body *")]
  .filter((element) => !wide(element) && element.getClientRects().length)
  .filter((element) => {
    const box = element.getBoundingClientRect();
    return box.right > arguments[0] + 1 || box.left < -1;
  })
  .map((element) => `${element.tagName}.${element.className}: ${element.textContent.slice(0, 40)}`);
"""
DRAWN_OUTSIDE = """
return [...document.querySelectorAll(".chart svg")].filter((svg) => {
  const box = svg.getBoundingClientRect(), place = svg.closest(".vega").getBoundingClientRect();
  const texts = [...svg.querySelectorAll("text")].map((text) => text.getBoundingClientRect()).filter((r) => r.width);
  return box.right > place.right + 1 || texts.some((r) => r.right > place.right + 2 || r.left < place.left - 2);
}).map((svg) => svg.closest("figure").querySelector("figcaption").textContent);
"""


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["run", "sweep", "tuning"])
def test_nothing_is_clipped_and_nothing_scrolls_sideways(browser, pages, name, width):
    show(browser, pages[name], width)
    assert browser.execute_script("return document.documentElement.scrollWidth") == width
    assert browser.execute_script(CLIPPED, width) == []
    assert browser.execute_script(DRAWN_OUTSIDE) == []
    messages = [entry["message"] for entry in browser.get_log("browser") if str(pages[name]) in entry["message"]]
    assert messages == []


def test_text_that_is_too_wide_would_be_seen(browser, pages):
    show(browser, pages["run"], 360)
    browser.execute_script("document.querySelector('h1').style.width = '500px'")
    assert [entry.split(":")[0] for entry in browser.execute_script(CLIPPED, 360)] == ["H1."]


def test_no_request_leaves_the_page(browser, pages):
    for page in pages.values():
        browser.get_log("performance")
        show(browser, page)
        events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
        asked = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
        assert {url for url in asked if not url.startswith("data:")} <= {page.as_uri()}
        assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0


def test_a_click_on_a_head_sorts_by_numbers(browser, pages):
    show(browser, pages["sweep"])
    rows = "return [...document.querySelector('table').tBodies[0].rows].map((row) => row.cells[0].textContent)"
    scores = "return [...document.querySelector('table').tBodies[0].rows].map((row) => +row.cells[1].dataset.value)"
    assert browser.execute_script(rows) == list(METHODS)
    before = browser.execute_script(scores)
    heads = browser.find_elements("css selector", "table:first-of-type thead button")
    click(browser, heads[1])
    assert browser.execute_script(scores) == sorted(before, reverse=True)
    click(browser, heads[1])
    assert browser.execute_script(scores) == sorted(before)
    assert browser.execute_script("return document.querySelector('th[aria-sort]').ariaSort") == "ascending"
    click(browser, heads[0])
    assert browser.execute_script(rows) == sorted(METHODS)


def click(browser, element):
    browser.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", element)
    element.click()


def lines_in(figure):
    """Returns a script that counts the curves that a figure shows."""
    return f"""return [...document.querySelectorAll("figure.chart")[{figure}].querySelectorAll(".mark-line path")]
      .filter((path) => path.getAttribute("d")).length"""


def test_a_click_on_the_legend_hides_a_curve_and_another_shows_it(browser, pages):
    show(browser, pages["sweep"])
    assert browser.execute_script(lines_in(0)) == 3
    for left in (2, 3):
        (label,) = [
            text
            for text in browser.find_elements("css selector", "figure.chart:first-of-type .role-legend-label text")
            if text.text == METHODS[1]
        ][:1]
        click(browser, label)
        until(browser, lines_in(0).replace("return", f"return {left} === ", 1))


def test_hovering_shows_a_tooltip(browser, pages):
    show(browser, pages["sweep"])
    chart = browser.find_element("css selector", ".chart .vega svg")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", chart)
    webdriver.ActionChains(browser).move_to_element(chart).move_by_offset(5, 5).perform()
    text = until(browser, "return document.querySelector('#vg-tooltip-element.visible')?.textContent")
    assert "round" in text
    assert "test accuracy" in text
    assert any(name in text for name in METHODS), text


def test_hostile_names_do_nothing(browser, pages):
    show(browser, pages["run"])
    assert browser.execute_script("return document.images.length") == 0
    assert "<img src=x" in browser.find_element("css selector", "main").text


def test_the_switch_and_the_system_change_the_colours_of_page_and_figures(browser, pages):
    script = """return [getComputedStyle(document.body).backgroundColor,
      getComputedStyle(document.querySelector(".role-axis-label text")).fill]"""
    show(browser, pages["tuning"], theme="light")
    light = browser.execute_script(script)
    show(browser, pages["tuning"], theme="dark")
    dark = browser.execute_script(script)
    assert not set(light) & set(dark)
    browser.find_element("id", "theme").click()
    until(browser, "return document.documentElement.dataset.figures === 'drawn'")
    assert browser.execute_script(script) == light
    browser.execute_script("localStorage.clear()")


def test_a_confusion_matrix_is_chosen_by_its_client(browser, pages):
    show(browser, pages["run"])
    shown = "return [...document.querySelectorAll('.matrix')].findIndex((matrix) => !matrix.hidden)"
    assert browser.execute_script(shown) == 0
    choice = browser.find_element("css selector", ".confusions select")
    click(browser, choice.find_elements("tag name", "option")[2])
    assert browser.execute_script(shown) == 2


def test_the_picture_in_the_readme_is_this_page(browser, pages, tmp_path):
    """It is made anew of the same runs: `GRAFT_PICTURES=1` puts it in its place. It need not be the same dot by dot, as
    fonts and the last digits of scores differ from machine to machine."""
    show(browser, pages["sweep"], SIZE[0])
    made = PICTURE if os.environ.get("GRAFT_PICTURES") else tmp_path / "report.png"
    made.parent.mkdir(exist_ok=True)
    made.write_bytes(picture_of(browser, *SIZE))
    assert size_of(made) == size_of(PICTURE)
    assert 20_000 < made.stat().st_size < 300_000
    assert PICTURE.stat().st_size < 300_000


def picture_of(browser, width, height):
    clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
    order = {"format": "png", "captureBeyondViewport": True, "clip": clip}
    return base64.b64decode(browser.execute_cdp_cmd("Page.captureScreenshot", order)["data"])


def size_of(png):
    content = png.read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    return int.from_bytes(content[16:20], "big"), int.from_bytes(content[20:24], "big")
