"""Differential privacy in a federation, where sites know the seed of the run."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

pytest.importorskip("flwr")

import repper as api
from repper.basics.documents import read_json
from repper.basics.errors import RepperError
from repper.flower.allowed import check_allowed
from repper.flower.server import Federation, run_federation
from repper.privacy.accountant import Release, epsilon
from repper.privacy.gaussian import key_of_seed
from repper.runs.budget import privacy_of

from .nodes import CLASSES, CONFIG, Home

HIDDEN = replace(CONFIG, method="fedavg", norm="group", clip=1.0, noise=8.0, delta=0.1)


def run(folder, images, config, tell=lambda kind, **event: None, **how):
    nodes = how.pop("nodes", None) or Home(folder / "sites", images)
    federation = Federation(config, folder / "run", (), CLASSES, **how)
    return run_federation(federation, nodes, tell)


def releases(path):
    return read_json(path)["releases"]


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_server_hides_sites_by_a_secret_of_its_own(tmp_path, image_folders):
    result = run(tmp_path, image_folders, HIDDEN)
    key = (tmp_path / "run" / "noise.key").read_bytes()
    assert key != key_of_seed(HIDDEN.seed)
    assert (
        run(tmp_path / "other", image_folders, HIDDEN)["encoder_digest"] != result["encoder_digest"]
    )
    # Sites know the seed, so who takes part in a round is no secret, and being drawn hides nobody.
    assert result["privacy"]["known_cohorts"]
    privacy = privacy_of(replace(HIDDEN, data="sites"))
    assert result["privacy"]["epsilon"] == epsilon(privacy, [Release(2, (0, 1))] * 2)
    assert not list((tmp_path / "sites").rglob("noise.key"))


@pytest.mark.parametrize("where", ["server", "site"])
def test_with_the_key_of_the_seed_it_is_the_serial_run(tmp_path, image_folders, monkeypatch, where):
    for place in ("server", "site"):
        monkeypatch.setattr(f"repper.flower.{place}.secret_key", lambda path: key_of_seed(0))
    config = replace(HIDDEN, noise_at=where)
    names = (
        "rounds", "epochs", "width", "participation", "image_size", "knn", "method", "personalize",
        "norm", "clip", "noise", "noise_at", "delta",
    )  # fmt: skip
    given = {name: getattr(config, name) for name in names}
    serial = api.run(
        str(image_folders), partition="folders", engine="serial", out=tmp_path / "serial", **given
    )
    assert run(tmp_path, image_folders, config)["encoder_digest"] == serial.result["encoder_digest"]


def test_a_round_that_is_repeated_is_the_same_release(tmp_path, image_folders):
    def tell(kind, **event):
        if kind == "round" and event["round"] == 1:
            (tmp_path / "run" / "checkpoint" / "last.safetensors").unlink()
            raise KeyboardInterrupt

    nodes = Home(tmp_path / "sites", image_folders)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, image_folders, HIDDEN, tell, nodes=nodes)
    before = releases(tmp_path / "run" / "privacy.json")
    assert [line["round"] for line in before] == [1]
    result = run(tmp_path, image_folders, HIDDEN, nodes=nodes, resume=True)
    assert releases(tmp_path / "run" / "privacy.json")[:1] == before
    assert result["privacy"]["repeated"] == []


def test_sites_hide_themselves_and_keep_a_ledger_of_their_own(tmp_path, image_folders):
    config = replace(HIDDEN, noise_at="site")
    result = run(tmp_path, image_folders, config)
    keys = {path.read_bytes() for path in (tmp_path / "sites").rglob("noise.key")}
    assert len(keys) == 2
    assert not (tmp_path / "run" / "noise.key").exists()
    ledgers = sorted((tmp_path / "sites").rglob("privacy.json"))
    assert len(ledgers) == 2
    for ledger in ledgers:
        assert [line["round"] for line in releases(ledger)] == [1, 2]
        assert releases(ledger)[-1]["epsilon"] == result["privacy"]["epsilon"]
    assert all(line["loss"] is None for line in lines(tmp_path / "run" / "rounds.jsonl"))


def test_a_site_that_answers_otherwise_when_asked_again_spends_again(tmp_path, image_folders):
    """Its key was lost, so that its update is hidden by other noise."""
    config = replace(HIDDEN, noise_at="site", rounds=1)
    nodes = Home(tmp_path / "sites", image_folders)
    honest = nodes.answers[0]

    def twice(message):
        answer = honest(message)
        for path in (tmp_path / "sites" / "site0").glob("noise.key"):
            path.unlink()
        return honest(message) if answer is not None else None

    nodes.answers[0] = twice
    run(tmp_path, image_folders, config, nodes=nodes)
    [ledger] = (tmp_path / "sites" / "site0").rglob("privacy.json")
    spent = [line["epsilon"] for line in releases(ledger)]
    assert [line["round"] for line in releases(ledger)] == [1, 1]
    assert spent[1] > spent[0]


def test_a_robust_rule_or_a_second_vector_is_refused_before_sites_are_asked(
    tmp_path, image_folders
):
    with pytest.raises(RepperError, match="compares single updates"):
        run(tmp_path, image_folders, replace(HIDDEN, server="median"))
    with pytest.raises(RepperError, match="send 'control' beside"):
        run(tmp_path, image_folders, replace(HIDDEN, method="scaffold"))


def test_a_site_takes_these_settings_but_no_budget():
    check_allowed({"clip": 1.0, "noise": 1.0, "noise_at": "site", "delta": 0.1})
    with pytest.raises(RepperError, match="does not let a server set epsilon"):
        check_allowed({"epsilon": 1.0})
