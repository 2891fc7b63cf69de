"""The page of `repper play` in a real browser: Chromium, without a window, from a file."""

import base64
import io
import json
import re
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw
from safetensors.numpy import load
from sklearn.covariance import LedoitWolf
from sklearn.linear_model import LogisticRegression

from repper.datasets.images import read_image
from repper.edge.saved_head import SavedHead, read_head

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream",
]  # fmt: skip

if CHROMIUM is None:
    pytest.skip("there is no chromium: the page is not tested in it", allow_module_level=True)
sync_api = pytest.importorskip("playwright.sync_api")
pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

from tiny_model import DIGEST, encoder_bytes, random_photos, write_page  # noqa: E402

CLASSES = ["cat", "dog", "fish"]


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as play:
        chromium = play.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The page for colour and for grey, and photos of three classes."""
    folder = tmp_path_factory.mktemp("play")
    write_page(folder / "play.html")
    write_page(folder / "grey.html", channels=1)
    random_photos(folder / "photos", CLASSES)
    random_photos(folder / "others", CLASSES, seed=1)
    return folder


@pytest.fixture
def opened(browser, folder):
    """Open a page; whatever it complains of, or asks for, makes the test fail."""
    pages, troubles = [], []

    def open_page(name="play.html", width=1280, height=800, dark=False, ready=True):
        page = browser.new_page(
            viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light"
        )
        address = (folder / name).as_uri()

        def asked(url):
            if url != address and not url.startswith(("data:", "blob:")):
                troubles.append(url)

        page.on("console", lambda message: troubles.append(message.text))
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("request", lambda request: asked(request.url))
        page.goto(address)
        if ready:
            wait(page, "repper.app.isReady")
        pages.append(page)
        return page

    open_page.troubles = troubles
    yield open_page
    for page in pages:
        page.close()
    assert troubles == []


def wait(page, condition, seconds=20):
    """Until a JavaScript expression is true; the page's policy forbids Playwright's own way."""
    for _ in range(int(seconds * 50)):
        if page.evaluate(condition):
            return
        page.wait_for_timeout(20)
    raise AssertionError(f"still not: {condition}")


def choose(page, button, files):
    with page.expect_file_chooser() as chooser:
        page.locator(button).click() if isinstance(button, str) else button.click()
    chooser.value.set_files(files)


def settle(page):
    """Wait until all photos are read and learned, and shown."""
    page.wait_for_timeout(20)
    wait(page, "!repper.app.reading && repper.app.fitting === null")
    page.wait_for_timeout(20)


def add_folder(page, path):
    choose(page, "#add-folders", str(path))
    wait(page, "repper.app.history.past.length > 0")
    settle(page)


def save(page, button):
    with page.expect_download() as download:
        page.click(button)
    return Path(download.value.path())


def text_of(page):
    return page.locator("#toasts").inner_text()


def counts(page):
    return page.evaluate("repper.app.state.classes.map((one) => [one.name, one.photos.length])")


def features_of(paths, size=32, channels=3):
    session = onnxruntime.InferenceSession(encoder_bytes(size, channels))
    images = np.stack([read_image(path, channels, size).transpose(1, 2, 0) for path in paths])
    return session.run(None, {"images": images})[0]


def examples(folder, classes=CLASSES):
    """Photos in the order the page learns from, their features and labels."""
    paths = [sorted((folder / name).glob("*.*")) for name in classes]
    labels = np.repeat(np.arange(len(classes)), [len(some) for some in paths])
    flat = [path for some in paths for path in some]
    return flat, features_of(flat), labels


# Pixels.


def picture(width, height, seed=0):
    """Shapes with sharp edges, and some noise."""
    rng = np.random.default_rng(seed)
    image = Image.new("RGB", (width, height), (30, 140, 220))
    draw = ImageDraw.Draw(image)
    for _ in range(12):
        a, b = sorted(rng.integers(0, width, 2)), sorted(rng.integers(0, height, 2))
        colour = tuple(int(c) for c in rng.integers(0, 256, 3))
        draw.ellipse((a[0], b[0], a[1], b[1]), fill=colour)
    if width * height < 1e6:
        noise = rng.integers(-40, 40, (height, width, 3))
        image = Image.fromarray(np.clip(np.asarray(image) + noise, 0, 255).astype(np.uint8))
    return image


def veil(image):
    """An alpha channel with all values from clear to opaque."""
    alpha = np.linspace(0, 256, image.width * image.height, endpoint=False).astype(np.uint8)
    return Image.fromarray(alpha.reshape(image.height, image.width))


def encoded(image, kind="PNG", **options):
    data = io.BytesIO()
    image.save(data, kind, **options)
    return data.getvalue()


def png_files():
    small, large = picture(33, 17), picture(200, 150, 1)
    exif = Image.Exif()
    files = {}
    for size in [(1, 1), (1, 9), (2, 3), (33, 17), (32, 32), (32, 40), (31, 100), (640, 480), (3000, 2000)]:
        files[f"rgb {size}"] = encoded(picture(*size, seed=size[0]))
    for name, image in {"33": small, "200": large}.items():
        clear = image.copy()
        clear.putalpha(veil(image))
        grey_clear = image.convert("LA")
        grey_clear.putalpha(veil(image))
        palette = image.quantize(40)
        files |= {
            f"rgba {name}": encoded(clear),
            f"grey with alpha {name}": encoded(grey_clear),
            f"grey {name}": encoded(image.convert("L")),
            f"palette {name}": encoded(palette),
            f"palette with a clear colour {name}": encoded(palette, transparency=3),
            f"palette with alphas {name}": encoded(palette, transparency=bytes(range(0, 240, 6))),
            f"palette of 4 bits {name}": encoded(image.quantize(12)),
            f"one bit {name}": encoded(image.convert("1")),
            f"rgb with a clear colour {name}": encoded(image, transparency=(30, 140, 220)),
            f"grey with a clear colour {name}": encoded(image.convert("L"), transparency=130),
            f"16 bits {name}": encoded(Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 251)),
        }
    for turn in range(1, 9):
        exif[0x0112] = turn
        files[f"turned {turn}"] = encoded(small, exif=exif)
    files["with a profile and gamma"] = encoded(large, icc_profile=profile())
    return files


def profile():
    from PIL import ImageCms

    return ImageCms.ImageCmsProfile(ImageCms.createProfile("LAB")).tobytes()


PIXELS = """async (texts) => {
  const found = [];
  for (const text of texts) {
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    found.push(btoa(String.fromCharCode(...await repper.pixels(new Blob([bytes])))));
  }
  return found;
}"""


def browser_pixels(page, files, channels, size=32):
    texts = [base64.b64encode(data).decode() for data in files]
    found = [np.frombuffer(base64.b64decode(text), np.uint8) for text in page.evaluate(PIXELS, texts)]
    return [array.reshape(size, size, channels).transpose(2, 0, 1) for array in found]


@pytest.mark.parametrize(("name", "channels"), [("play.html", 3), ("grey.html", 1)])
def test_pngs_are_the_pixels_that_python_sees(opened, tmp_path, name, channels):
    files = png_files()
    found = browser_pixels(opened(name), list(files.values()), channels)
    different = {}
    for (label, data), array in zip(files.items(), found, strict=True):
        (tmp_path / "image.png").write_bytes(data)
        expected = read_image(tmp_path / "image.png", channels, 32)
        largest = np.abs(expected.astype(int) - array).max()
        if largest:
            different[label] = int(largest)
    assert different == {}


def test_other_formats_are_nearly_the_pixels_that_python_sees(opened, tmp_path):
    exif = Image.Exif()
    image, files = picture(300, 200, 3), {}
    for turn in (1, 3, 6, 8):
        exif[0x0112] = turn
        files[f"jpeg {turn}"] = encoded(image, "JPEG", quality=90, exif=exif)
    files["grey jpeg"] = encoded(image.convert("L"), "JPEG")
    files["gif"] = encoded(image.quantize(64), "GIF", transparency=2)
    files["webp"] = encoded(image, "WEBP", lossless=True)
    files["bmp"] = encoded(image, "BMP")
    clear = image.copy()
    clear.putalpha(veil(image))
    files["webp with alpha"] = encoded(clear, "WEBP", lossless=True, exact=True)
    found = browser_pixels(opened(), list(files.values()), 3)
    different = {}
    for (label, data), array in zip(files.items(), found, strict=True):
        (tmp_path / "image").write_bytes(data)
        expected = read_image(tmp_path / "image", 3, 32)
        different[label] = int(np.abs(expected.astype(int) - array).max())
    # Half-transparent pixels go through the browser's premultiplied canvas; JPEG decoders round.
    assert max(different.values()) <= 1, different
    assert all(different[label] == 0 for label in ("gif", "webp", "bmp")), different
