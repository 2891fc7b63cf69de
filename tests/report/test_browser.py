"""The report in a real browser: Chromium, without a window."""

import json
import re
import shutil

import pytest
from PIL import Image

from repper.paper.chapter import chapter_of
from repper.report import write_report

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip

if CHROMIUM is None:
    pytest.skip("there is no chromium: the report is not tested in it", allow_module_level=True)
sync_api = pytest.importorskip("playwright.sync_api")


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as play:
        chromium = play.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def address(reported, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "report.html"
    write_report([reported / "run", reported / "both"], path)
    return path.as_uri()


@pytest.fixture(scope="module")
def reproduced(reported, tmp_path_factory):
    """The page of a table of the paper of which one column was run, with a picture."""
    folder = tmp_path_factory.mktemp("reproduced")
    identity = {"experiment": "table2", "preset": "small", "seeds": 2}
    (folder / "reproduction.json").write_text(json.dumps(identity))
    shutil.copytree(reported / "both", folder / "panels" / "cifar10-alpha-0.5")
    (folder / "figures").mkdir()
    Image.new("RGB", (1600, 500), "white").save(folder / "figures" / "tsne-methods.png")
    write_report([chapter_of(folder)], folder / "report.html", tsne=False)
    return (folder / "report.html").as_uri()


@pytest.fixture
def opened(browser, address):
    """Open the page; whatever it complains of, or asks for, makes the test fail."""
    pages, troubles = [], []

    def open_page(width=1200, height=900, dark=False, address=address):
        def asked(url):
            if url != address and not url.startswith("data:"):
                troubles.append(url)

        page = browser.new_page(
            viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light"
        )
        page.on("console", lambda message: troubles.append(message.text))
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("request", lambda request: asked(request.url))
        page.goto(address)
        pages.append(page)
        return page

    yield open_page
    for page in pages:
        page.close()
    assert troubles == []


def column(page, place):
    rows = page.locator("section:nth-of-type(2) table.sortable").first.locator("tbody tr")
    return [row.locator("th, td").nth(place).inner_text() for row in rows.all()]


def test_headings_sort_both_ways_by_number(opened):
    page = opened()
    button = page.locator("section:nth-of-type(2) button.sort", has_text="accuracy").first
    button.click()
    down = [float(text.split(" ± ")[0]) for text in column(page, 1)]
    assert down == sorted(down, reverse=True)
    button.press("Enter")
    up = [float(text.split(" ± ")[0]) for text in column(page, 1)]
    assert up == sorted(up)
    heading = page.locator("section:nth-of-type(2) th[aria-sort=ascending]")
    assert heading.inner_text().startswith("accuracy")


def test_a_filter_hides_and_shows_rows(opened):
    page = opened()
    rows = page.locator("tr[data-label='fedavg+keep']")
    strip = page.locator("g[data-label='fedavg+keep']").first
    curve = page.locator("g[data-label='fedavg']").first
    key = page.locator(".legend li[data-label='fedavg']").first
    picture, numbers = (page.locator(f"{e}[data-label='fedavg']") for e in ("figure", "tr"))
    assert picture.count() == numbers.count() == 1  # t-SNE, and how well features part classes
    assert rows.count() == 2  # of results, and of costs
    box, other = (
        page.get_by_role("checkbox", name=name) for name in ("fedavg+keep", "fedavg+finetune")
    )
    box.uncheck()
    assert not rows.first.is_visible()
    assert not rows.last.is_visible()
    assert not strip.is_visible()
    assert curve.is_visible()  # another row of the same training is shown
    assert page.locator("tr[data-label='repper+linear']").first.is_visible()
    assert page.locator("fieldset output").inner_text() == "2 of 3 are shown"
    of_training = (curve, key, picture, numbers)
    assert all(part.is_visible() for part in of_training)
    other.uncheck()
    assert not any(part.is_visible() for part in of_training)
    assert page.locator("figure[data-label='repper']").last.is_visible()
    box.check()
    assert rows.first.is_visible()
    assert all(part.is_visible() for part in of_training)


def test_a_table_beside_the_papers_sorts_by_our_numbers(opened, reproduced):
    page = opened(address=reproduced)
    table = page.locator("section").first.locator("table").first
    place = table.locator("thead th").all_inner_texts().index("repper+linear")
    table.locator("thead button").nth(place).click()
    shown = [
        row.locator("th, td").nth(place).inner_text() for row in table.locator("tbody tr").all()
    ]
    assert re.match(r"\d", shown[0])
    assert all(text.startswith("not run") for text in shown[1:])


def test_nothing_is_cut_off_on_paper(opened, reproduced):
    page = opened(width=1032, address=reproduced)  # A4 across, less its margins
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate("document.documentElement.scrollWidth") <= 1032
    assert page.locator("details:not([open])").count() == 0
    wide = page.locator(".scroll").evaluate_all(
        "all => all.map(e => e.scrollWidth - e.clientWidth)"
    )
    assert max(wide) <= 1
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.locator("details:not([open])").count() > 0


@pytest.mark.parametrize("width", [1200, 390], ids=["desktop", "phone"])
def test_a_reproduction_shows_the_paper_and_its_pictures(opened, reproduced, width):
    page = opened(width, address=reproduced)
    first = page.locator("section").first
    assert first.locator("h2").inner_text().startswith("Table 2:")
    line = first.locator("table").first.locator("tbody tr", has_text="cifar10, alpha 0.5")
    assert "(81.04, " in line.inner_text()
    assert line.locator("b").count() == line.locator("u").count() == 1
    assert "not run" in first.locator("table").first.locator("tbody tr").first.inner_text()
    picture = first.get_by_alt_text("tsne methods")
    assert picture.evaluate("image => [image.naturalWidth, image.naturalHeight]") == [1600, 500]
    # What is wider than a phone scrolls in its own frame.
    assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("width", [1200, 390], ids=["desktop", "phone"])
def test_every_figure_is_drawn_and_the_page_does_not_overflow(opened, width):
    page = opened(width)
    figures = page.locator("figure .scroll svg")
    assert figures.count() == 15
    for figure in figures.all():
        assert figure.bounding_box()["height"] > 40
        # Letters keep a size that can be read; a drawing that is too wide for that scrolls.
        scale = figure.evaluate("svg => svg.clientWidth / svg.viewBox.baseVal.width")
        assert scale * 13 >= 9.7
    frames = page.locator("figure .scroll").all()
    assert max(frame.bounding_box()["width"] for frame in frames) <= width
    assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("width", [1200, 390], ids=["desktop", "phone"])
def test_what_scrolls_sideways_says_so_until_its_end(opened, width):
    page = opened(width)
    frames = [f for f in page.locator(".scroll").all() if f.is_visible()]
    wide = [f for f in frames if f.evaluate("f => f.scrollWidth > f.clientWidth + 1")]
    assert bool(wide) == (width == 390)
    shown = [h for h in page.locator(".hint").all() if h.is_visible()]
    assert len(shown) == len(wide)
    for frame in wide:
        assert frame.evaluate("f => f.className") == "scroll more-right"
        assert "gradient" in frame.evaluate("f => getComputedStyle(f).maskImage")
        assert frame.get_attribute("tabindex") == "0"
    if wide:
        wide[0].evaluate("f => { f.scrollLeft = f.scrollWidth }")
        page.locator(".more-left:not(.more-right)").first.wait_for()
    # A window that grows needs no hint any more.
    page.set_viewport_size({"width": 1600, "height": 900})
    page.locator(".more-right, .more-left").first.wait_for(state="detached")
    assert not page.locator(".hint").first.is_visible()


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_marks_and_lines_can_be_seen(opened, dark):
    """Contrast of at least 3 between every mark and the paper (WCAG AA), as it is painted."""
    page = opened(dark=dark)
    found = page.evaluate(
        """() => {
        const numbers = (colour) => colour.match(/[\\d.]+/g).map(Number);
        const light = (rgb) => {
          const [r, g, b] = rgb.map((v) => v / 255)
            .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
          return 0.2126 * r + 0.7152 * g + 0.0722 * b;
        };
        const paper = numbers(getComputedStyle(document.body).backgroundColor);
        const ratio = (e, paint) => {
          const style = getComputedStyle(e);
          let [r, g, b, share = 1] = numbers(style[paint]);
          share *= Number(style[`${paint}Opacity`]);
          for (let up = e; up; up = up.parentElement) share *= Number(getComputedStyle(up).opacity);
          const painted = [r, g, b].map((v, i) => v * share + paper[i] * (1 - share));
          const [a, c] = [light(painted), light(paper)].sort((x, y) => y - x);
          return (a + 0.05) / (c + 0.05);
        };
        const worst = {};
        for (const e of document.querySelectorAll("svg :is(.dot, .mark, .line, .mean)")) {
          const best = Math.max(...["fill", "stroke"]
            .filter((paint) => getComputedStyle(e)[paint] !== "none").map((p) => ratio(e, p)));
          const kind = e.classList[0];
          worst[kind] = Math.min(worst[kind] ?? 99, best);
        }
        return worst;
      }"""
    )
    assert set(found) == {"dot", "mark", "line", "mean"}
    assert min(found.values()) >= 3, found


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_text_can_be_read(opened, dark):
    """Contrast of at least 4.5 between every text and what is behind it (WCAG AA)."""
    page = opened(dark=dark)
    ratio = page.evaluate(
        """() => {
        const light = (rgb) => {
          const [r, g, b] = rgb.match(/[\\d.]+/g).map(Number).slice(0, 3).map((v) => v / 255)
            .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
          return 0.2126 * r + 0.7152 * g + 0.0722 * b;
        };
        const behind = (element) => {
          for (let e = element; e; e = e.parentElement) {
            const colour = getComputedStyle(e).backgroundColor;
            if (!/rgba\\(0, 0, 0, 0\\)|transparent/.test(colour)) return colour;
          }
          return "rgb(255, 255, 255)";
        };
        let worst = 99;
        for (const e of document.querySelectorAll("p, h1, h2, h3, td, th, a, code, summary, b, span, li, label, figcaption")) {
          if (!e.offsetParent || !e.textContent.trim()) continue;
          const [a, b] = [light(getComputedStyle(e).color), light(behind(e))].sort((x, y) => y - x);
          worst = Math.min(worst, (a + 0.05) / (b + 0.05));
        }
        const over = (colour, paper) => {
          const [r, g, b, share = 1] = colour.match(/[\\d.]+/g).map(Number);
          const below = paper.match(/[\\d.]+/g).map(Number);
          return `rgb(${[r, g, b].map((v, i) => v * share + below[i] * (1 - share))})`;
        };
        for (const e of document.querySelectorAll("svg text")) {
          const paper = behind(e);
          const under = e.classList.contains("on-heat") ? over(getComputedStyle(e.previousElementSibling).fill, paper) : paper;
          const [a, b] = [light(getComputedStyle(e).fill), light(under)].sort((x, y) => y - x);
          worst = Math.min(worst, (a + 0.05) / (b + 0.05));
        }
        return worst;
      }"""
    )
    assert ratio >= 4.5
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(255, 255, 255)") is not dark


def test_it_is_made_for_keyboards_and_screen_readers(opened):
    page = opened()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the results"
    assert page.locator("html").get_attribute("lang") == "en"
    assert page.locator("svg[role=img]:not([aria-label])").count() == 0
    assert page.locator("svg:not([role=img]):not([aria-hidden=true])").count() == 0
    spoken = page.locator("svg[role=img]").first.get_attribute("aria-label")
    assert re.search(r"repper\+linear: \d+\.\d\d at round 1, \d+\.\d\d at 2", spoken)
    assert page.locator("table:not(:has(caption))").count() == 0
    assert page.locator("th:empty").count() == 0
    assert "" not in page.locator("th").all_text_contents()
    assert page.locator("th:not([scope])").count() == 0
    assert page.locator("h1").count() == 1
    sections = page.locator("section[aria-labelledby]")
    assert sections.count() == 2
    assert page.locator("figure figcaption").count() == page.locator("figure").count()
