"""Write a Hugging Face repository for image classification with transformers.js."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from repper.edge.saved_head import SavedHead
from repper.encoders.encoder import EncoderSpec

CARD = """---
library_name: transformers.js
pipeline_tag: image-classification
---

# {name}

An image classifier of {count} classes: {classes}.
Encoder `{architecture}` ({precision}) with a {kind} head.

    import {{ pipeline }} from "@huggingface/transformers";
    const options = {{ dtype: "{dtype}" }};
    const classify = await pipeline("image-classification", "NAME", options);
    console.log(await classify("photo.jpg"));

Images are cropped to their central square and resized to {size} x {size}.
"""


def write_hub(
    folder: Path, spec: EncoderSpec, head: SavedHead, precision: str, model: bytes
) -> None:
    """Write a repository into an empty folder; `model` maps `pixel_values` to `logits`."""
    (folder / "onnx").mkdir(parents=True)
    file = "model.onnx" if precision == "fp32" else "model_quantized.onnx"
    (folder / "onnx" / file).write_bytes(model)
    for name, content in (
        ("config", config_of(spec, head)),
        ("preprocessor_config", pixels_of(spec)),
    ):
        text = json.dumps(content, indent=2, ensure_ascii=False)
        (folder / f"{name}.json").write_text(text + "\n", encoding="utf-8")
    card = CARD.format(
        name="Image classifier", count=len(head.names), classes=", ".join(head.names),
        architecture=spec.name, precision=precision, kind=head.kind, size=spec.size,
        dtype="fp32" if precision == "fp32" else "q8",
    )  # fmt: skip
    (folder / "README.md").write_text(card, encoding="utf-8")


def config_of(spec: EncoderSpec, head: SavedHead) -> dict[str, Any]:
    """`config.json`. The type says how transformers.js calls the graph, not what is in it."""
    return {
        "model_type": "resnet",
        "architectures": ["ResNetForImageClassification"],
        "num_channels": spec.channels,
        "image_size": spec.size,
        "id2label": {str(place): name for place, name in enumerate(head.names)},
        "label2id": {name: place for place, name in enumerate(head.names)},
    }


def pixels_of(spec: EncoderSpec) -> dict[str, Any]:
    """`preprocessor_config.json` with our pixel normalization: (x / 255 - 0.5) / 0.5."""
    half = [0.5] * spec.channels
    return {
        "image_processor_type": "ViTImageProcessor",
        "do_convert_rgb": spec.channels == 3,
        "do_convert_grayscale": spec.channels == 1,
        "do_resize": True,
        "size": {"shortest_edge": spec.size},
        "resample": 2,
        "do_center_crop": True,
        "crop_size": {"height": spec.size, "width": spec.size},
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": half,
        "image_std": half,
    }
