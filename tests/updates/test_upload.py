"""Updates at half the bytes: what clients send is rounded, on every engine alike."""

import repper as api

SETTINGS = {
    "clients": 4, "rounds": 2, "epochs": 1, "width": 0.25, "participation": 0.5, "knn": 0,
}  # fmt: skip


def test_half_the_bytes_go_up_and_every_engine_rounds_alike(tmp_path):
    full = api.run("digits", engine="serial", out=tmp_path / "full", **SETTINGS)
    half, pool = (
        api.run("digits", engine=engine, upload="float16", out=tmp_path / engine, **SETTINGS)
        for engine in ("serial", "pool")
    )
    assert half.result["encoder_digest"] == pool.result["encoder_digest"]
    assert half.result["encoder_digest"] != full.result["encoder_digest"]
    for record, whole in zip(half.rounds(), full.rounds(), strict=True):
        assert record["bytes_up"] == whole["bytes_up"] / 2
        assert record["bytes_down"] == whole["bytes_down"] == whole["bytes_up"]
