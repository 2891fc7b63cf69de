"""One export, one photo, one label: wherever the photo is classified."""

from __future__ import annotations

import http.server
import json
import shutil
import subprocess
import tarfile
import threading
from contextlib import contextmanager

import numpy as np
import pytest
from PIL import Image

import repper as api
from repper.cli import main
from repper.data.images import read_image
from repper.edge.onnx_file import CLASSIFIER_FORMAT, read_notes, verified
from repper.export.measure import outputs_of, session
from repper.personal.model import Model

from .tiny_model import random_photos

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
if CHROMIUM is None:
    pytest.skip("there is no chromium", allow_module_level=True)
sync_api = pytest.importorskip("playwright.sync_api")

CLIENT = 1
TRANSFORMERS = "@huggingface/transformers@4.3.1"
RUNTIME = "onnxruntime-web@1.31.0-dev.20260914-8d85527a0"
"""The one that this version of transformers.js was built with: it fetches its wasm from there."""
WASM = "ort-wasm-simd-threaded.asyncify"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A client's classifier of photos in colour, in every form that it can be exported in."""
    folder = tmp_path_factory.mktemp("everywhere")
    random_photos(folder / "photos", count=30)
    run = api.run(
        str(folder / "photos"), out=folder / "run", clients=2, partition="iid", rounds=1,
        epochs=1, participation=1.0, width=0.25, personalize="linear", engine="serial",
    )  # fmt: skip
    arguments = [
        "export",
        run.folder,
        "--client",
        CLIENT,
        "--no-measure",
        "--out",
        folder / "model",
    ]
    more = ["--one-file", folder / "one.onnx", "--hub", folder / "hub"]
    assert main(list(map(str, [*arguments, *more]))) == 0
    assert main(["play", str(folder / "model"), "--html", str(folder / "page.html")]) == 0
    return folder


@pytest.fixture(scope="module")
def photos(made):
    """PNGs as large as the encoder's images; larger ones; and JPEGs, one of them turned by EXIF."""
    folder, found = made / "asked", {"own size": [], "larger": []}
    random_photos(folder / "32", count=5, size=32, seed=7)
    found["own size"] = sorted((folder / "32").glob("*/*.png"))
    random_photos(folder / "150", count=3, size=150, seed=8)
    found["larger"] = sorted((folder / "150").glob("*/*.png"))
    exif = Image.Exif()
    exif[0x0112] = 6
    for path in found["larger"][::4]:
        with Image.open(path) as image:
            image.crop((0, 0, 150, 99)).save(path.with_suffix(".jpg"), quality=95, exif=exif)
        found["larger"].append(path.with_suffix(".jpg"))
    return found


@contextmanager
def page_of_browser():
    with sync_api.sync_playwright() as play:
        flags = ["--headless", "--no-sandbox", "--disable-gpu"]
        chromium = play.chromium.launch(executable_path=CHROMIUM, args=flags)
        try:
            yield chromium.new_page()
        finally:
            chromium.close()


def on_command_line(made, photos, capsys):
    capsys.readouterr()
    arguments = ["predict", made / "model", *photos, "--top", 3, "--json"]
    assert main(list(map(str, arguments))) == 0
    return [row["chances"] for row in json.loads(capsys.readouterr().out)["predictions"]]


def test_every_way_but_hugging_face_gives_the_same_answers(made, photos, capsys):
    paths = [*photos["own size"], *photos["larger"]]
    wanted = on_command_line(made, paths, capsys)
    labels = [max(chances, key=chances.get) for chances in wanted]
    assert len(set(labels)) == 3

    assert [answer.name for answer in Model.open(made / "model").predict(paths)] == labels
    images = np.stack([read_image(path, 3, 32) for path in paths])
    assert api.open_run(made / "run").predict(CLIENT, images) == labels
    data = verified(made / "one.onnx", CLASSIFIER_FORMAT)
    names = json.loads(read_notes(data)["repper.classes"])
    chances = outputs_of(session(data), images)
    assert [names[place] for place in chances.argmax(1)] == labels

    with page_of_browser() as page:
        page.goto((made / "page.html").as_uri())
        for _ in range(1000):
            if page.evaluate("globalThis.repper?.app.isReady"):
                break
            page.wait_for_timeout(20)
        for path, expected in zip(paths, wanted, strict=True):
            before = page.evaluate("repper.tried.count")
            with page.expect_file_chooser() as chooser:
                page.click("#try-file")
            chooser.value.set_files(str(path))
            for _ in range(1000):
                if page.evaluate("repper.tried.count") > before:
                    break
                page.wait_for_timeout(20)
            page.wait_for_timeout(20)
            assert page.locator("#answer").inner_text() == max(expected, key=expected.get)
            shown = [
                int(text.split()[0]) for text in page.locator("#bars .share").all_inner_texts()
            ]
            assert max(shown) == pytest.approx(100 * max(expected.values()), abs=1)


IN_BROWSER = """async (count) => {
  const { pipeline, env } = await import("/transformers.min.js");
  Object.assign(env, { allowRemoteModels: false, allowLocalModels: true, localModelPath: "/models/" });
  Object.assign(env.backends.onnx.wasm, { wasmPaths: `${location.origin}/`, numThreads: 1 });
  const classify = await pipeline("image-classification", "hub", { dtype: "fp32", device: "wasm" });
  const found = [];
  for (let number = 0; number < count; number += 1) {
    const answer = await classify(`/photos/${number}`, { top_k: 3 });
    found.push(Object.fromEntries(answer.map(({ label, score }) => [label, score])));
  }
  return found;
}"""


@pytest.fixture(scope="module")
def transformers(tmp_path_factory):
    """A folder with transformers.js and its runtime, from npm."""
    folder = tmp_path_factory.mktemp("npm")
    if shutil.which("npm") is None:
        pytest.skip("there is no npm to fetch transformers.js with")
    wanted = {
        TRANSFORMERS: ["transformers.min.js"],
        RUNTIME: [f"{WASM}.mjs", f"{WASM}.wasm"],
    }
    for package, names in wanted.items():
        done = subprocess.run(
            ["npm", "pack", "--silent", package],
            cwd=folder, capture_output=True, text=True, check=False, timeout=300,
        )  # fmt: skip
        if done.returncode:
            pytest.skip("npm finds no registry: transformers.js is not tested")
        with tarfile.open(folder / done.stdout.strip()) as file:
            for name in names:
                content = file.extractfile(f"package/dist/{name}")
                assert content is not None
                (folder / name).write_bytes(content.read())
    return folder


@contextmanager
def served(transformers, made, photos):
    """All that transformers.js asks for, on this machine."""
    kinds = {".js": "text/javascript", ".mjs": "text/javascript", ".wasm": "application/wasm"}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            first, _, rest = self.path.lstrip("/").partition("/")
            roots = {"models": made, "photos": None}
            path = photos[int(rest)] if first == "photos" else roots.get(first, transformers) / (
                rest or first or "none"
            )  # fmt: skip
            content = path.read_bytes() if path.is_file() else b""
            self.send_response(200 if content or not first else 404)
            self.send_header("Content-Type", kinds.get(path.suffix, "text/html"))
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def test_transformers_js_gives_the_same_answers_in_a_browser(made, photos, transformers, capsys):
    """Photos of the encoder's size: others are resized by the browser's canvas there."""
    paths = photos["own size"]
    wanted = on_command_line(made, paths, capsys)
    with served(transformers, made, paths) as address, page_of_browser() as page:
        page.goto(address)
        found = page.evaluate(IN_BROWSER, len(paths))
    for mine, theirs in zip(wanted, found, strict=True):
        assert max(theirs, key=theirs.get) == max(mine, key=mine.get)
        assert theirs == pytest.approx(mine, abs=1e-5)
