"""What a site lets a server do."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

pytest.importorskip("flwr")


from repper.basics.errors import RepperError
from repper.basics.params import digest, params_of
from repper.encoders.encoder import read_encoder
from repper.engines.private import PrivateStore
from repper.flower.allowed import MOST, TRAVELS
from repper.flower.site import Site, TellableError, travelling
from repper.methods.network import build_network, first_received
from repper.runs.run import Run
from repper.settings.config import OPTIONS

from .nodes import CLASSES, CONFIG, folder_of_site

TOLD = {"settings": travelling(CONFIG), "run": "ab" * 8, "client": 0, "classes": ""}


@pytest.fixture
def site(tmp_path, image_folders):
    (tmp_path / "home").mkdir()
    one = Site(tmp_path / "home", str(image_folders / "site0"))
    one.save()
    return one


def test_a_site_takes_no_path_and_no_device_from_a_server(site):
    assert not {"data", "data_dir", "out", "init", "device", "download", "workers"} & set(TRAVELS)
    for name in ("data", "out", "init", "data_dir", "device", "skip_unreadable"):
        strange = json.dumps({name: "/etc"})
        with pytest.raises(RepperError, match=f"does not let a server set {name}"):
            site.part_in(TOLD | {"settings": strange})
    for run in ("../../elsewhere", "", "AB" * 8, "ab/cd", "a" * 65):
        with pytest.raises(RepperError, match="invalid run id in the request"):
            site.part_in(TOLD | {"run": run})
    for missing in TOLD:
        with pytest.raises(RepperError, match="cannot read the request"):
            site.part_in({name: value for name, value in TOLD.items() if name != missing})

    for wrong, why in (
        ({"client": 2}, "names client 2 of 2"),
        ({"client": -1}, "invalid client, round or stage number"),
        ({"last": "../x"}, "invalid client, round or stage number"),
        ({"stage": -1}, "invalid client, round or stage number"),
        (
            {"settings": travelling(replace(CONFIG, image_size=513))},
            "--image-size to 512, got 513",
        ),
        (
            {"settings": travelling(replace(CONFIG, clients=10**6))},
            "--clients to 10000, got 100",
        ),
        ({"classes": "\n".join(map(str, range(10_001)))}, "--classes to 10000, got 10001"),
    ):
        with pytest.raises(RepperError, match=why):
            site.part_in(TOLD | wrong)


def test_a_site_knows_which_stages_a_method_has(site):
    part = site.part_in(TOLD | {"classes": "\n".join(CLASSES)})
    with pytest.raises(TellableError, match="this method has no stage 1"):
        part.whole({}, 1, "")


def test_a_site_keeps_its_settings_and_others_are_no_site(site, tmp_path):
    assert Site.open(site.home) == site
    with pytest.raises(RepperError, match="is not the home of a site"):
        Site.open(tmp_path)


def test_grey_images_of_a_site_have_three_channels(tmp_path):
    folder = folder_of_site(tmp_path / "grey", range(30), colour=False)
    images = replace(Site(tmp_path, str(folder)).part_in(TOLD)).images
    assert images.train.images.shape[1:] == (3, 8, 8)
    assert (images.train.images[:, 0] == images.train.images[:, 2]).all()


def test_a_site_goes_back_to_where_the_server_left_it(site):
    part = site.part_in(TOLD | {"classes": "\n".join(CLASSES)})
    store = PrivateStore(part.folder / "private")
    part.folder.mkdir(parents=True)
    store.begin({"head.weight": torch.zeros(1)})
    for number in (1, 2):
        store.write(0, number, {"head.weight": torch.full((1,), float(number))}, keep_all=False)
    part.go_back_to(1)
    assert not store.path(0, 2).exists()
    assert store.read(0, 5)["head.weight"] == 1
    with pytest.raises(RepperError, match="lost its own parameters of round 2: restore"):
        part.go_back_to(2)


@pytest.mark.parametrize("method", ["fedper", "ditto", "lg-fedavg", "fedavg"])
@pytest.mark.parametrize("trained", [True, False])
def test_a_site_keeps_the_encoder_of_its_head(site, method, trained):
    """Its own where it has trained one, else the common one: `repper predict` needs both."""
    config = replace(CONFIG, method=method)
    told = {"settings": travelling(config), "classes": "\n".join(CLASSES)}
    part = site.part_in(TOLD | told)
    network = build_network(config.build_method(), part.plan.work.spec, len(CLASSES), seed=3)
    received = first_received(config.build_method(), network, part.plan.holds[0])
    if trained:
        part.clients.receive(received, 0)
        part.clients.fit(0, 1)
    part.personalize(received, 1, 0)
    _, encoder = read_encoder(part.folder)
    own = {n: t for n, t in received.items() if n in encoder and not torch.equal(t, encoder[n])}
    assert bool(own) == (trained and method == "ditto")
    images = part.images.test.images[:3]
    assert len(Run(part.folder).predict(0, images)) == 3


def test_a_site_takes_no_other_parameters_of_an_earlier_stage_than_it_was_told_of(site):
    config = replace(CONFIG, method="repper", personalize="common")
    told = {"settings": travelling(config), "classes": "\n".join(CLASSES)}
    part = site.part_in(TOLD | told)
    network = params_of(part.plan.networks[1])
    given = {name: torch.zeros_like(network[name]) for name in part.plan.holds[1].given}
    with pytest.raises(TellableError, match="do not have the announced digest"):
        part.whole(given, 1, "0" * 64)
    with pytest.raises(TellableError, match="has lost the parameters of earlier stages"):
        part.whole({}, 1, digest(given))
    some = dict([*given.items()][1:])
    flat = {name: tensor.flatten() for name, tensor in given.items()}
    for wrong in (some, flat):
        with pytest.raises(TellableError, match="do not have the announced digest"):
            part.whole(wrong, 1, digest(wrong))
    assert not (part.folder / "given.safetensors").exists()
    assert part.whole(given, 1, digest(given)) == given
    again = part.whole({"common.bias": torch.ones(2)}, 1, digest(given))
    assert again.keys() == {*given, "common.bias"}


@pytest.mark.parametrize("name", [n for n in TRAVELS if OPTIONS[n].kind is int])
def test_what_a_server_asks_of_a_sites_time_and_memory_has_a_limit(site, name):
    """Numbers that cost nothing, or are limited for every run, need none."""
    if name in ("seed", "lr_decay_every", "views"):
        return
    most = MOST[name]
    settings = json.loads(travelling(CONFIG))
    site.part_in(TOLD | {"settings": json.dumps(settings | {name: most})})
    higher = TOLD | {"settings": json.dumps(settings | {name: most + 1})}
    flag = name.replace("_", "-")
    with pytest.raises(TellableError, match=f"it limits --{flag} to {most}, got {most + 1}"):
        site.part_in(higher)
    if name != "image_size":
        site.limits[name] = most + 1
        site.part_in(higher)


def test_the_owner_of_a_site_may_raise_limits(site):
    with (site.home / "site.toml").open("a") as file:
        file.write("epochs = 500\n")
    assert Site.open(site.home).limits == {"epochs": 500}
    told = TOLD | {"settings": travelling(replace(CONFIG, epochs=400))}
    Site.open(site.home).part_in(told)
    with pytest.raises(TellableError, match="--epochs to 100, got 400"):
        site.part_in(told)
    with pytest.raises(RepperError, match="unknown limit 'epoch', did you mean 'epochs'"):
        replace(site, limits={"epoch": 3})


def test_a_site_is_not_asked_with_other_classes_or_test_shares(site, caplog):
    """Its answers to several would tell which classes it has, and how many images of each."""
    other = travelling(replace(CONFIG, test_share=0.3))
    site.part_in(TOLD)
    with pytest.raises(TellableError, match="asked with another --test-share before"):
        site.part_in(TOLD | {"settings": other, "run": "cd" * 8})
    assert "to take part with --test-share 0.3, before it was 0.2. By" in caplog.text
    # No list of classes asks nothing of them; the first one counts, also if it does not fit.
    some = TOLD | {"classes": "cat\ndog"}
    with pytest.raises(TellableError, match="a class that is not among --classes: its own log"):
        _ = site.part_in(some).images
    site.part_in(TOLD)
    site.part_in(TOLD | {"classes": "dog\ncat"})
    for run in ("ab" * 8, "cd" * 8):
        with pytest.raises(TellableError, match="asked with another --classes before") as refused:
            site.part_in(TOLD | {"run": run, "classes": "cat\nbear\nhorse"})
    # What the site's operator is told names classes and a file, what the server is told does not.
    agreed = site.home / "agreed.json"
    assert 'with --classes with "bear", "horse" and without "dog", other than before' in caplog.text
    assert f"remove {agreed}; no restart is needed" in caplog.text
    assert "cat" not in str(refused.value)
    agreed.unlink()
    site.part_in(TOLD | {"settings": other, "classes": "\n".join(CLASSES)})
    with pytest.raises(TellableError):
        site.part_in(TOLD | {"settings": other, "classes": "dog"})
    assert (
        'with "dog" and without "0", "1", "2", "3", "4", 5 more, other than before' in caplog.text
    )


def test_features_of_other_images_or_of_a_damaged_file_are_found_anew(tmp_path, image_folders):
    def features(images):
        part = Site(tmp_path, str(images)).part_in(TOLD | {"classes": "\n".join(CLASSES)})
        return part.clients._looked_at(0, torch.from_numpy(part.images.train.images))

    known = {name: features(image_folders / name) for name in ("site0", "site1")}
    for name in ("site0", "site1", "site1"):
        assert torch.equal(features(image_folders / name), known[name])
    [path] = tmp_path.glob("runs/*/features.safetensors")
    path.write_bytes(path.read_bytes()[:-1])
    assert torch.equal(features(image_folders / "site1"), known["site1"])
