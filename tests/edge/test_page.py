"""The page of `repper play` in a real browser: Chromium, without a window, from a file."""

import base64
import hashlib
import http.server
import io
import json
import re
import shutil
import threading
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw
from safetensors.numpy import load
from sklearn.covariance import LedoitWolf
from sklearn.linear_model import LogisticRegression

from repper.data.images import read_image
from repper.edge import saved_head
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

from .tiny_model import DIGEST, encoder_bytes, random_photos, write_page  # noqa: E402

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


def is_told(page, text):
    """Wait for a message with this text."""
    wait(page, f"document.getElementById('toasts').textContent.includes({json.dumps(text)})")
    return True


def try_photo(page, path):
    before = page.evaluate("repper.tried.count")
    choose(page, "#try-file", str(path))
    wait(page, f"repper.tried.count > {before}")


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
    for size in [
        (1, 1),
        (1, 9),
        (2, 3),
        (33, 17),
        (32, 32),
        (32, 40),
        (31, 100),
        (640, 480),
        (3000, 2000),
    ]:
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
            f"16 bits {name}": encoded(
                Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 251)
            ),
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
    found = [
        np.frombuffer(base64.b64decode(text), np.uint8) for text in page.evaluate(PIXELS, texts)
    ]
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


# Learning.


def test_the_head_is_scikit_learns_and_python_opens_it(opened, folder, tmp_path):
    page = opened()
    add_folder(page, folder / "photos")
    assert counts(page) == [[name, 12] for name in CLASSES]
    head = read_head(save(page, "#save-head"))
    assert (head.kind, head.shape, head.names, head.classes) == (
        "logistic",
        "linear",
        tuple(CLASSES),
        (0, 1, 2),
    )
    head.for_encoder(DIGEST)
    assert head.arrays["scale"].shape == (1,)
    assert not head.arrays["mean"].any()

    _, x, labels = examples(folder / "photos")
    others, unseen, _ = examples(folder / "others")
    theirs = LogisticRegression(C=1.0, tol=1e-8, max_iter=10000).fit(x.astype(np.float64), labels)
    # scikit-learn's rows of weights have the mean zero too: the penalty wants it.
    assert np.abs(head.arrays["weight"] - theirs.coef_).max() < 1e-4
    assert (head.predict(unseen) == theirs.predict(unseen)).mean() > 0.99

    shown = page.evaluate(
        """async (texts) => {
          const found = [];
          for (const text of texts) {
            const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
            const features = await repper.features(new Blob([bytes]));
            found.push([...repper.app.inUse().head.scores(features)]);
          }
          return found;
        }""",
        [base64.b64encode(path.read_bytes()).decode() for path in others],
    )
    assert np.abs(np.array(shown) - head.scores(unseen)).max() < 1e-4


def test_photos_that_come_before_the_encoder_has_started_wait_for_it(opened, folder):
    page = opened()
    page.evaluate(
        """() => {
          repper.app.isReady = false;
          repper.app.starting = new Promise((resolve) => { globalThis.begin = resolve; });
        }"""
    )
    choose(page, "#add-folders", str(folder / "photos"))
    page.wait_for_timeout(100)
    assert page.evaluate("repper.app.photos.size") == 0
    page.evaluate("repper.app.isReady = true, begin()")
    wait(page, "repper.app.history.past.length > 0")
    settle(page)
    assert counts(page) == [[name, 12] for name in CLASSES]


def test_two_classes_have_one_row_of_weights_as_in_scikit_learn(opened, folder):
    page = opened()
    add_folder(page, folder / "photos")
    page.get_by_role("button", name="Delete class fish").click()
    settle(page)
    head = read_head(save(page, "#save-head"))
    _, x, labels = examples(folder / "photos", CLASSES[:2])
    theirs = LogisticRegression(C=1.0, tol=1e-8, max_iter=10000).fit(x.astype(np.float64), labels)
    assert not head.arrays["weight"][0].any()
    assert np.abs(head.arrays["weight"][1] - theirs.coef_[0]).max() < 1e-4
    assert np.abs(head.arrays["bias"] - [0, theirs.intercept_[0]]).max() < 1e-3


def test_the_rule_for_unknown_photos_is_ledoit_and_wolfs(opened, folder):
    page = opened()
    add_folder(page, folder / "photos")
    data = save(page, "#save-unknown").read_bytes()
    found = load(data)
    length = int.from_bytes(data[:8], "little")
    assert json.loads(data[8 : 8 + length])["__metadata__"] == {
        "format": "repper-unknown-1",
        "encoder": DIGEST,
    }
    _, x, labels = examples(folder / "photos")
    x = x.astype(np.float64)
    means = np.stack([x[labels == label].mean(0) for label in range(3)])
    fitted = LedoitWolf(assume_centered=True).fit(x - means[labels])
    covariance = fitted.covariance_ + 1e-6 * np.trace(fitted.covariance_) / x.shape[1] * np.eye(
        x.shape[1]
    )
    assert np.abs(found["means"] - means).max() < 1e-4
    inverse = found["whiten"].astype(np.float64) @ found["whiten"].T
    assert np.allclose(inverse @ covariance, np.eye(x.shape[1]), atol=1e-3)
    distances = np.linalg.norm((x[:, None] - means) @ found["whiten"], axis=-1).min(1)
    # Held-out photos are farther away than those it was fitted on.
    assert distances.max() * 0.8 < found["threshold"][0] < 5 * distances.max()


def test_a_photo_unlike_all_others_is_unknown(opened, folder, tmp_path):
    page = opened()
    add_folder(page, folder / "photos")
    try_photo(page, folder / "others" / "dog" / "dog-000.png")
    assert page.locator("#answer").inner_text() in CLASSES
    assert page.locator("#bars li").count() == 3
    board = np.indices((40, 40)).sum(0) // 4 % 2 * 255
    Image.fromarray(board.astype(np.uint8)).convert("RGB").save(tmp_path / "board.png")
    try_photo(page, tmp_path / "board.png")
    assert page.locator("#answer").inner_text() == "Unknown"
    page.get_by_role("checkbox", name=re.compile("unknown")).uncheck()
    assert page.locator("#answer").inner_text() in CLASSES


def test_held_out_accuracy_and_the_table_of_mistakes_agree(opened, folder):
    page = opened()
    add_folder(page, folder / "photos")
    table = [
        row.locator("td").all_inner_texts() for row in page.locator("#confusion tbody tr").all()
    ]
    numbers = np.array(table, int)
    assert numbers.sum() == 36
    assert (numbers.sum(1) == 12).all()
    assert page.locator("#accuracy").inner_text() == f"{100 * np.trace(numbers) / 36:.0f} %"
    assert np.trace(numbers) / 36 > 0.5
    spoken = page.locator("#chart svg").get_attribute("aria-label")
    assert len(re.findall(r"\d+ % with \d+ photos?", spoken)) == 5


def test_warnings_are_said_in_plain_words(opened, folder, tmp_path):
    page = opened()
    cats, dogs = (sorted((folder / "photos" / name).glob("*")) for name in ("cat", "dog"))
    first, second = (
        page.locator(".class").nth(place).get_by_role("button", name="Add photos")
        for place in (0, 1)
    )
    choose(page, first, [str(path) for path in cats])
    settle(page)
    assert "Only one class has photos" in page.locator("#warnings").inner_text()
    assert page.locator("#answer").inner_text() == "No answer yet"
    choose(page, second, [str(dogs[0])])
    settle(page)
    shown = page.locator("#warnings").inner_text()
    assert "Only one photo: Class 2" in shown
    assert "Class 1 has 12 photos and Class 2 has 1" in shown
    choose(page, second, [str(dogs[0]), str(cats[0])])
    settle(page)
    assert is_told(page, "1 photo skipped: already in this class")
    assert "The same photo is in two classes: cat-000.png" in page.locator("#warnings").inner_text()
    (tmp_path / "text.png").write_text("no picture")
    choose(page, second, [str(tmp_path / "text.png")])
    settle(page)
    assert is_told(page, "1 file could not be read as a picture: text.png")


# Changes.


def test_every_change_can_be_undone_and_redone(opened, folder):
    page = opened()
    stages = [counts(page)]

    def done():
        settle(page)
        stages.append(counts(page))

    page.get_by_role("button", name="Add a class").click()
    done()
    page.keyboard.type("bird")
    page.keyboard.press("Enter")
    done()
    choose(
        page,
        page.get_by_role("button", name="Add photos: bird"),
        [str(folder / "photos/cat/cat-000.png")],
    )
    done()
    choose(page, "#add-folders", str(folder / "photos"))
    wait(page, "repper.app.history.past.length === 4")
    done()
    page.get_by_role("button", name="Remove cat-003.png").click(force=True)
    done()
    page.get_by_role("button", name="Delete class dog").click()
    done()
    assert stages[-1] == [["bird", 1], ["cat", 11], ["fish", 12]]
    for stage in stages[-2::-1]:
        page.locator("#undo").click()
        settle(page)
        assert counts(page) == stage
    assert page.locator("#undo").is_disabled()
    for stage in stages[1:]:
        page.keyboard.press("Control+y")
        settle(page)
        assert counts(page) == stage
    page.keyboard.press("Control+z")
    settle(page)
    assert counts(page) == stages[-2]
    assert page.locator(".class").count() == 4


def test_a_class_name_is_used_once(opened):
    page = opened()
    name = page.get_by_label("Name of class 2")
    name.fill("Class 1")
    name.press("Enter")
    assert is_told(page, "There is already a class named Class 1")
    assert name.input_value() == "Class 2"


DROP = """([selector, type, files]) => {
  const transfer = new DataTransfer();
  for (const [name, text] of files) {
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    transfer.items.add(new File([bytes], name, { type: "image/png" }));
  }
  const target = document.querySelector(selector);
  const event = type === "paste"
    ? new ClipboardEvent("paste", { clipboardData: transfer, bubbles: true, cancelable: true })
    : new DragEvent("drop", { dataTransfer: transfer, bubbles: true, cancelable: true });
  target.dispatchEvent(event);
}"""


def test_photos_are_dropped_and_pasted(opened, folder):
    page = opened()
    photo = folder / "photos" / "cat" / "cat-001.png"
    files = [[photo.name, base64.b64encode(photo.read_bytes()).decode()]]
    page.evaluate(DROP, [".class:nth-child(2)", "drop", files])
    wait(page, "repper.app.photos.size === 1")
    assert counts(page) == [["Class 1", 0], ["Class 2", 1]]
    page.get_by_label("Name of class 1").focus()
    page.evaluate(DROP, [".class:nth-child(1)", "paste", files])
    wait(page, "repper.app.photos.size === 2")
    assert counts(page) == [["Class 1", 1], ["Class 2", 1]]
    settle(page)
    page.locator("#undo").focus()
    page.evaluate(DROP, ["body", "paste", files])
    wait(page, "repper.tried.count === 1")
    assert page.locator("#stage-image").is_visible()
    page.evaluate(DROP, ["footer", "drop", files])
    assert is_told(page, "Drop photos on the class")


def test_the_camera_takes_photos_and_is_answered_live(opened, folder):
    page = opened()
    page.get_by_role("button", name="Use the camera: Class 1").click()
    wait(page, "!document.getElementById('camera-take').disabled")
    page.get_by_role("button", name="Take a photo").click()
    wait(page, "repper.app.photos.size === 1")
    page.wait_for_timeout(400)  # the camera's picture moves
    page.keyboard.press("Enter")
    wait(page, "repper.app.photos.size === 2")
    page.get_by_role("button", name="Done").click()
    add_folder(page, folder / "photos")
    page.locator("#try-camera").click()
    wait(page, "document.querySelectorAll('#bars li').length === 4")
    assert page.locator("#stage-video").is_visible()
    page.locator("#try-camera").click()
    assert not page.locator("#stage-video").is_visible()


def test_without_a_camera_a_sentence_says_so(opened):
    page = opened()
    page.evaluate(
        """() => {
          const refuse = () => Promise.reject(new DOMException("", "NotAllowedError"));
          navigator.mediaDevices.getUserMedia = refuse;
        }"""
    )
    page.get_by_role("button", name="Use the camera: Class 1").click()
    wait(
        page,
        "document.getElementById('camera-hint').textContent.startsWith('The camera was not allowed')",
    )
    assert page.locator("#camera-take").is_disabled()


# Files.


def test_everything_is_saved_and_opened_again(opened, folder, tmp_path):
    page = opened()
    add_folder(page, folder / "photos")
    name = page.get_by_label("Name of class 1")
    name.fill("Kätzchen / ☃ 🐱")
    name.press("Enter")
    archive = tmp_path / "all.zip"
    shutil.copy(save(page, "#save-all"), archive)
    with zipfile.ZipFile(archive) as file:
        assert file.testzip() is None
        model = json.loads(file.read("model.json"))
        file.extractall(tmp_path / "out")
    assert (tmp_path / "out/encoder.onnx").read_bytes() == encoder_bytes()
    head = read_head(tmp_path / "out/head.safetensors")
    assert model["head"] == {
        "file": "head.safetensors",
        "kind": "logistic",
        "digest": head.digest(),
    }
    assert model["classes"] == list(head.names) == ["Kätzchen / ☃ 🐱", "dog", "fish"]
    threshold = load((tmp_path / "out/unknown.safetensors").read_bytes())["threshold"]
    assert model["unknown"]["threshold"] == pytest.approx(float(threshold[0]))
    kept = tmp_path / "out/photos/Kätzchen _ ☃ 🐱/cat-004.png"
    assert kept.read_bytes() == (folder / "photos/cat/cat-004.png").read_bytes()

    other = opened()
    choose(other, "#open", str(archive))
    wait(other, "repper.app.fitted !== null")
    settle(other)
    assert counts(other) == [["Kätzchen / ☃ 🐱", 12], ["dog", 12], ["fish", 12]]
    again = read_head(save(other, "#save-head"))
    assert again.digest() == head.digest()
    photos = tmp_path / "photos.zip"
    shutil.copy(save(other, "#save-photos"), photos)
    with zipfile.ZipFile(photos) as file:
        assert sum(entry.startswith("dog/") for entry in file.namelist()) == 12
    packed = tmp_path / "packed.zip"
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as file:
        for path in sorted((folder / "others").rglob("*.png")):
            file.write(path, path.relative_to(folder))
    choose(other, "#open", str(packed))
    wait(other, "repper.app.state.classes.some((one) => one.name === 'cat')")
    settle(other)
    assert counts(other)[1:] == [["dog", 24], ["fish", 24], ["cat", 12]]


def some_head(encoder=DIGEST, shape="linear", features=64):
    rng = np.random.default_rng(0)
    arrays = {
        "mean": rng.normal(size=features), "scale": rng.uniform(1, 2, features),
        "weight": rng.normal(size=(3, features)), "bias": rng.normal(size=3),
    }  # fmt: skip
    if shape == "mlp":
        arrays |= {
            "hidden_weight": rng.normal(size=(8, features)),
            "hidden_bias": rng.normal(size=8),
        }
        arrays["weight"] = rng.normal(size=(3, 8))
    if shape == "rbf":
        arrays |= {"vectors": rng.normal(size=(8, features)), "gamma": np.array([0.002])}
        arrays["weight"] = rng.normal(size=(3, 8))
    return SavedHead(
        shape, shape, arrays, (4, 0, 7), ("één", "two", "three\n"), encoder, shape == "mlp"
    )


def test_heads_of_python_open_and_answer_at_once(opened, folder, tmp_path):
    page = opened()
    photo = folder / "photos" / "fish" / "fish-002.png"
    try_photo(page, photo)
    for number, shape in enumerate(["linear", "mlp", "rbf"], 1):
        head = some_head(shape=shape)
        head.save(tmp_path / "head.safetensors")
        choose(page, "#open", str(tmp_path / "head.safetensors"))
        wait(page, f"repper.app.history.past.length === {number}")
        page.wait_for_timeout(20)
        scores = head.scores(features_of([photo]))[0]
        shares = np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum()
        shown = [int(text.split()[0]) for text in page.locator("#bars .share").all_inner_texts()]
        assert shown == [round(100 * share) for share in shares]
        assert page.locator("#answer").inner_text().strip() == head.names[scores.argmax()].strip()
        assert read_head(save(page, "#save-head")).digest() == head.digest()


def test_a_page_with_a_head_answers_at_once_and_then_learns_from_photos_only(
    opened, folder, tmp_path
):
    head = some_head()
    head.save(tmp_path / "head.safetensors")
    rule = opened()
    add_folder(rule, folder / "photos")
    unknown = save(rule, "#save-unknown").read_bytes()
    write_page(folder / "with-head.html", (tmp_path / "head.safetensors").read_bytes(), unknown)
    page = opened("with-head.html")
    assert [name.strip() for name, _ in counts(page)] == ["één", "two", "three"]
    assert "opened head" in page.locator("#status-text").inner_text()
    try_photo(page, folder / "photos" / "fish" / "fish-002.png")
    wait(page, "document.querySelectorAll('#bars li').length === 3")
    add = page.locator(".class").first.get_by_role("button", name="Add photos")
    choose(page, add, [str(folder / "photos/cat/cat-000.png")])
    settle(page)
    assert is_told(page, "it learns from your photos only")
    assert page.locator("#bars li").count() == 3  # the opened head still answers
    second = page.locator(".class").nth(1).get_by_role("button", name="Add photos")
    choose(page, second, [str(folder / "photos/dog/dog-000.png")])
    settle(page)
    assert page.locator("#bars li").count() == 2


def test_other_heads_and_damaged_files_are_refused(opened, folder, tmp_path):
    page = opened()

    def refusal(name, data):
        (tmp_path / name).write_bytes(data)
        while page.locator("#toasts button").count():
            page.locator("#toasts button").last.click()
        before = counts(page)
        choose(page, "#open", str(tmp_path / name))
        wait(page, "document.querySelector('#toasts .bad') !== null")
        assert counts(page) == before
        assert page.evaluate("repper.app.state.opened === null")
        return text_of(page)

    some_head("f" * 64).save(tmp_path / "other.safetensors")
    other = (tmp_path / "other.safetensors").read_bytes()
    assert f"fitted on encoder ffffffffffff, not on this page's encoder {DIGEST[:12]}" in refusal(
        "a.safetensors", other
    )
    some_head().save(tmp_path / "good.safetensors")
    good = bytearray((tmp_path / "good.safetensors").read_bytes())
    good[-5] ^= 1
    assert "do not match its digest" in refusal("b.safetensors", bytes(good))
    assert "is damaged" in refusal("c.safetensors", bytes(good[:-9]))
    assert "is damaged" in refusal("d.safetensors", b"hello")
    add_folder(page, folder / "photos")
    archive = bytearray(save(page, "#save-all").read_bytes())
    place = archive.find(encoder_bytes()[:50]) + 600
    archive[place] ^= 1
    page.locator("#undo").click()
    settle(page)
    assert "encoder.onnx in the archive is damaged" in refusal("e.zip", bytes(archive))
    assert "damaged or not a zip" in refusal("f.zip", bytes(archive[: len(archive) // 2]))


def test_an_empty_page_opens_a_whole_model(opened, folder, tmp_path):
    page = opened()
    add_folder(page, folder / "photos")
    shutil.copy(save(page, "#save-all"), tmp_path / "all.zip")
    shutil.copy(Path(saved_head.__file__).parent / "page.html", folder / "empty.html")
    empty = opened("empty.html", ready=False)
    wait(empty, "document.getElementById('status-text').textContent.includes('holds no model')")
    choose(empty, "#open", str(tmp_path / "all.zip"))
    wait(empty, "repper.app.fitted !== null")
    settle(empty)
    assert counts(empty) == [[name, 12] for name in CLASSES]


def test_a_damaged_encoder_is_refused(opened, folder):
    source = (folder / "play.html").read_text()
    place = source.index('"encoder": "') + 2000
    letter = "A" if source[place] != "A" else "B"
    (folder / "damaged.html").write_text(source[:place] + letter + source[place + 1 :])
    page = opened("damaged.html", ready=False)
    wait(page, "document.getElementById('status-text').textContent.includes('is damaged')")


# The page itself.


def test_the_committed_page_is_built_from_these_sources():
    root = Path(__file__).parents[2] / "page"
    files = [path for path in (root / "src").rglob("*") if path.is_file()]
    names = {path.relative_to(root).as_posix(): path for path in files}
    names |= {name: root / name for name in ("build.mjs", "package-lock.json")}
    sha = hashlib.sha256()
    for name in sorted(names):
        sha.update(f"{name}\n".encode() + names[name].read_bytes())
    page = Path(saved_head.__file__).with_name("page.html").read_text(encoding="utf-8")
    assert f'<meta name="sources" content="{sha.hexdigest()}">' in page, "run make page"


def test_it_works_from_an_address_of_this_device(browser, folder):
    """As `repper play` serves it, where a worker has another origin than in a file."""
    data = (folder / "play.html").read_bytes()

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/"
        page = browser.new_page()
        asked = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto(address)
        wait(page, "repper.app.isReady")
        add_folder(page, folder / "photos")
        assert page.locator("#accuracy").inner_text().endswith(" %")
        page.close()
        server.shutdown()
    assert {url for url in asked if not url.startswith("blob:")} <= {address, "data:,"}


def test_nothing_can_leave_the_page(opened):
    page = opened()
    found = page.evaluate(
        """async () => {
          const heard = [];
          addEventListener("securitypolicyviolation", (event) => heard.push(event.effectiveDirective));
          const failed = await fetch("http://127.0.0.1:9/").then(() => false, () => true);
          const image = new Image();
          image.src = "http://127.0.0.1:9/x.png";
          await new Promise((resolve) => { image.onerror = resolve; });
          await new Promise((resolve) => setTimeout(resolve, 50));
          return [failed, heard];
        }"""
    )
    assert found == [True, ["connect-src", "img-src"]]
    opened.troubles[:] = [
        text
        for text in opened.troubles
        if "Content Security Policy" not in text and "127.0.0.1:9" not in text
    ]


def test_licences_are_shown(opened):
    page = opened()
    page.get_by_role("button", name="Licences").click()
    shown = page.locator("#licences").inner_text()
    assert "ONNX Runtime Web 1." in shown
    assert "Permission is hereby granted" in shown
    page.locator("#licences summary").click()
    wait(page, "document.getElementById('notices-text').textContent.length > 100000")


CONTRAST = """() => {
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
  let worst = [99, ""];
  for (const e of document.querySelectorAll("p, h1, h2, h3, td, th, a, code, b, span, li, label, button, input")) {
    if (!e.offsetParent || !e.textContent.trim() || e.disabled) continue;
    const [a, b] = [light(getComputedStyle(e).color), light(behind(e))].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < worst[0]) worst = [ratio, e.outerHTML.slice(0, 80)];
  }
  return worst;
}"""


def test_it_fits_the_screen_and_can_be_read(opened, folder):
    """No sideways scrolling, and a contrast of at least 4.5 between texts and what is behind them."""
    page = opened()
    for filled in (False, True):
        if filled:
            add_folder(page, folder / "photos")
            try_photo(page, folder / "others" / "dog" / "dog-000.png")
        for width in (1280, 390, 320):
            page.set_viewport_size({"width": width, "height": 800})
            for scheme in ("light", "dark"):
                page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
                assert page.evaluate("document.documentElement.scrollWidth") <= width
                worst, where = page.evaluate(CONTRAST)
                assert worst >= 4.5, (width, scheme, where)


def test_it_is_made_for_keyboards_and_screen_readers(opened, folder):
    page = opened()
    add_folder(page, folder / "photos")
    unnamed = page.evaluate(
        """() => [...document.querySelectorAll("button, input:not([hidden]), a, img, progress")]
          .filter((e) => !e.closest("[hidden]"))
          .filter((e) => !(e.textContent.trim() || e.ariaLabel || e.alt || e.labels?.length))
          .map((e) => e.outerHTML)"""
    )
    assert unnamed == []
    assert page.locator("h1").count() == 1
    assert page.locator("table:not(:has(caption))").count() == 0
    page.locator("body").press("Tab")
    reached = set()
    for _ in range(140):
        reached.add(
            page.evaluate(
                "document.activeElement.getAttribute('aria-label') || document.activeElement.textContent || ''"
            )
        )
        page.keyboard.press("Tab")
    for name in (
        "Undo",
        "Open",
        "Add photos: dog",
        "Remove fish-011.png",
        "Delete class cat",
        "Photo",
        "Save everything",
        "Licences",
    ):
        assert name in reached, name
    page.get_by_role("button", name="Remove cat-000.png").focus()
    page.keyboard.press("Enter")
    assert (
        page.evaluate("document.activeElement.getAttribute('aria-label')") == "Remove cat-001.png"
    )
