"""The page in a real Chromium: it opens, draws, sorts, filters, opens its seeds, in light and dark, wide and narrow."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from akegnn import report
from akegnn.experiments import EXPERIMENTS
from small import fit
from test_report import NASTY, large_store, made_up, store  # noqa: F401

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
if BROWSER is None:
    pytest.skip("no Chromium is installed: the page is not looked at", allow_module_level=True)
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: the page is not looked at")


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    root = hasattr(os, "geteuid") and os.geteuid() == 0
    with playwright.sync_playwright() as p:
        browser = p.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"] if root else [])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def run_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    return report.write(fit("digits", baseline=True, seeds=2).save(folder / "run"), folder / "page.html")


@pytest.fixture(scope="module")
def store_page(store: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: F811
    experiment, path = store
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(EXPERIMENTS, "made-up", experiment)
        return report.write(path, tmp_path_factory.mktemp("page") / "page.html")


class Opened:
    """A page in the browser, and everything it complained of."""

    def __init__(self, chromium: Any, path: Path, width: int = 1280, scheme: str = "light") -> None:
        self.page = chromium.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.page.set_default_timeout(20_000)
        self.complaints: list[str] = []
        self.page.on("console", lambda m: self.complaints.append(m.text) if m.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda e: self.complaints.append(str(e)))
        self.page.on("request", lambda r: self.complaints.append(r.url) if r.url.startswith("http") else None)
        self.page.goto(path.as_uri())
        self.ready()

    def ready(self) -> None:
        """Every chart is drawn."""
        self.page.wait_for_selector("html[data-ready=yes]", state="attached")

    def __enter__(self) -> Any:
        return self.page

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.page.close()
        if kind is None:
            assert self.complaints == []


def column(page: Any, number: int, section: str = "made-up") -> list[str]:
    return page.locator(f"#{section} tbody tr:not(.open) > :nth-child({number})").all_inner_texts()


def drawn_in(page: Any, colours: str) -> int:
    return page.locator(f".plot[data-drawn={colours}]").count()


@pytest.mark.parametrize("which", ["run", "store"])
def test_it_opens_without_a_complaint_and_draws_every_chart(which, chromium, run_page, store_page):
    with Opened(chromium, {"run": run_page, "store": store_page}[which]) as page:
        plots = page.locator(".plot")
        assert plots.count() == {"run": 13, "store": 3}[which]
        for plot in plots.all():
            assert plot.locator("svg.marks").count() == 1
            assert plot.locator("svg path, svg rect").count() > 3
            box = plot.locator("svg.marks").bounding_box()
            assert box["width"] > 200
            assert box["height"] > 50
            assert plot.get_attribute("aria-label") or plot.locator("svg [aria-label]").count() > 0
        assert page.title() != "owned", "a name did not become a script"


def test_sorting(chromium, store_page):
    with Opened(chromium, store_page) as page:
        head = page.locator("#made-up thead th").nth(3)
        for order, reverse in (("descending", True), ("ascending", False)):
            head.locator("button").click()
            assert head.get_attribute("aria-sort") == order
            scores = [float(text.split(" ")[0]) for text in column(page, 4)]
            assert scores == sorted(scores, reverse=reverse)
        page.locator("#made-up thead th").nth(2).locator("button").click()
        assert head.get_attribute("aria-sort") is None
        lines = column(page, 3)
        assert (lines[0], lines[-1]) == ("after exchange", "FT")


def test_what_is_missing_comes_last_either_way(chromium, store_page):
    with Opened(chromium, store_page) as page:
        press = page.locator("#made-up thead button", has_text="difference")
        for _ in range(2):
            press.click()
            assert [line for line, shown in zip(column(page, 3), column(page, 6), strict=True) if not shown] == [
                "base"
            ] * 2
            assert column(page, 3)[-2:] == ["base"] * 2


def test_filtering(chromium, store_page):
    with Opened(chromium, store_page) as page:
        whole = len(column(page, 1))
        page.locator("#made-up input").fill("10 AKE")
        assert column(page, 1) == ["10 bins"]
        assert column(page, 3) == ["AKE"]
        assert page.locator("#made-up output").inner_text() == f"1 of {whole} lines"
        page.locator("#made-up input").fill("")
        page.locator("#made-up select").last.select_option("ensemble")
        assert column(page, 3) == ["ensemble"] * 2
        page.locator("#made-up select").last.select_option("")
        assert len(column(page, 1)) == whole
        page.locator("#made-up input").fill("nothing of this name")
        assert column(page, 1) == []


def test_a_cell_opens_its_seeds_and_closes_them(chromium, store_page):
    with Opened(chromium, store_page) as page:
        cell = page.locator("#made-up .seeds", has_text="±").nth(1)
        assert cell.get_attribute("aria-expanded") == "false"
        cell.click()
        opened = page.locator("#made-up tr.open")
        points = opened.locator("svg .mark-symbol path")
        points.first.wait_for()
        assert points.count() == 4, "two seeds of the line, two of the base"
        assert cell.get_attribute("aria-expanded") == "true"
        assert page.locator(f"[id='{cell.get_attribute('aria-controls')}']").count() == 1
        opened.locator("summary", has_text="Data").click()
        opened.locator(".scroll tbody tr").first.wait_for()
        assert opened.locator(".scroll tbody tr").count() == 4
        page.locator("#made-up thead button").first.click()
        assert opened.count() == 1, "it stays open when rows change places"
        cell.click()
        assert opened.count() == 0


def test_the_keyboard_is_enough(chromium, store_page):
    with Opened(chromium, store_page) as page:
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "main"
        page.locator("#made-up thead button").first.focus()
        page.keyboard.press("Enter")
        assert page.locator("#made-up thead th").first.get_attribute("aria-sort") == "ascending"
        page.locator("#made-up .seeds").first.focus()
        page.keyboard.press("Space")
        assert page.locator("#made-up tr.open").count() == 1
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_a_layer_is_chosen(chromium, run_page):
    with Opened(chromium, run_page) as page:
        heat = page.locator("figure[data-chart=exchange-0]")
        assert heat.locator("svg .mark-rect.role-mark path").count() == 16 * 16
        page.get_by_role("combobox", name="Layer").select_option("convs.1")
        page.wait_for_function(
            "document.querySelectorAll('figure[data-chart=exchange-0] .mark-rect.role-mark path').length == 100"
        )
        heat.locator("summary", has_text="Data").click()
        heat.locator("tbody tr").first.wait_for()
        assert heat.locator("tbody tr").count() == 100


def brightness(page: Any, script: str) -> float:
    """From 0, black, to 1, white."""
    red, green, blue = page.evaluate(f"({script}).match(/[\\d.]+/g).slice(0, 3).map(Number)")
    return float(red + green + blue) / 765


BACK, INK = ("getComputedStyle(document.body).backgroundColor", "getComputedStyle(document.body).color")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_systems_colours_and_the_other_ones(scheme, chromium, run_page):
    other = {"light": "dark", "dark": "light"}[scheme]
    opened = Opened(chromium, run_page, scheme=scheme)
    with opened as page:
        for colours in (scheme, other):
            opened.ready()
            assert drawn_in(page, colours) == page.locator(".plot").count()
            back, ink = brightness(page, BACK), brightness(page, INK)
            assert (back > 0.8 > 0.3 > ink) if colours == "light" else (back < 0.3 < 0.8 < ink)
            label = "getComputedStyle(document.querySelector('.plot svg .role-axis-label text')).fill"
            assert abs(brightness(page, label) - back) > 0.3, "labels can be read"
            page.evaluate("document.documentElement.dataset.ready = 'no'")
            page.get_by_role("button", name="Switch to").click()


@pytest.mark.parametrize("which", ["run", "store"])
def test_a_phone(which, chromium, run_page, store_page):
    with Opened(chromium, {"run": run_page, "store": store_page}[which], width=390) as page:
        if which == "store":
            page.locator("#made-up .seeds").first.click()
            page.locator("#made-up tr.open svg.marks").wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        for plot in page.locator(".plot svg.marks").all():
            box = plot.bounding_box()
            assert box["x"] >= 0
            assert box["x"] + box["width"] <= 390
        assert page.evaluate("parseFloat(getComputedStyle(document.querySelector('section p, .lead')).fontSize)") >= 15


def test_on_paper(chromium, store_page):
    with Opened(chromium, store_page, scheme="dark") as page:
        page.emulate_media(media="print")
        assert not page.locator("nav").is_visible()
        assert not page.locator("#made-up input").is_visible()
        assert page.locator("#made-up table").is_visible()
        assert brightness(page, BACK) == 1


def test_a_large_table_comes_in_pieces(chromium, tmp_path):
    large_store(tmp_path / "store", places=50, seeds=3, lines=4)
    with Opened(chromium, report.write(tmp_path / "store", tmp_path / "page.html")) as page:
        assert len(column(page, 1, "other")) == 60
        page.get_by_role("button", name="Show 60 more").click()
        assert len(column(page, 1, "other")) == 120
        assert "are drawn; filter to see others" in page.locator("#other figcaption").first.inner_text()
        page.locator("#other input").fill("dataset 24")
        assert len(column(page, 1, "other")) == 8
