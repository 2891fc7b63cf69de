"""A site of a federation: its images, and everything that never leaves its disk.

Everything lies in the site's home folder: its key, `site.toml`, and for every federation it has
been part of a folder `runs/ID` with its private parameters, the encoder and its head. That folder
can be given to `repper predict --run`.
"""

from __future__ import annotations

import json
import logging
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from repper.basics.documents import read_json, write_json
from repper.basics.errors import RepperError, unknown
from repper.basics.files import write_atomically
from repper.basics.hardware import resolve_device
from repper.basics.names import is_encoder
from repper.basics.params import Params, digest, params_of, read_params, save_params, select
from repper.data.dataset import Dataset, Split
from repper.data.image_folder import OtherClassesError, SiteFolder, read_folder
from repper.data.partition import Partition
from repper.encoders.encoder import SHARED, EncoderSpec, save_encoder
from repper.engines.client import Clients
from repper.engines.engine import Personal
from repper.engines.private import PrivateStore
from repper.flower.allowed import MOST, TRAVELS, check_allowed
from repper.heads.personalize import NEED_COMMON
from repper.heads.scores import summarize
from repper.methods.common_head import common_stages
from repper.methods.stage import stage_at
from repper.privacy import SITE
from repper.privacy.accountant import Release
from repper.privacy.ledger import Ledger
from repper.privacy.secret import secret_key
from repper.runs import run_folder
from repper.runs.budget import privacy_of
from repper.runs.plan import Clientele, Plan, initial_networks, make_work, spec_of
from repper.settings.config import Config
from repper.settings.config_file import write_config
from repper.updates.transforms import HideUpdate

log = logging.getLogger("repper")

SETTINGS = "site.toml"
AGREED = "agreed.json"
"""The settings that a site keeps from its first federation: see `Site.agree`."""
GIVEN_FILE = "given.safetensors"
"""The parameters of earlier stages, in a site's folder of a run."""
FEATURES_FILE = "features.safetensors"
"""There, too: the features of its images while the encoder is frozen, for the next message."""
CHANNELS, IMAGE_SIZE = 3, 32
ALONE = "linear"
"""The personalizer of a site that does not share a head where others do."""


class TellableError(RepperError):
    """An error whose text may be sent to the server: it names no file, no folder and no class."""


def travelling(config: Config) -> str:
    """The settings that go with a question, as text."""
    return json.dumps({name: config.setting(name) for name in TRAVELS})


def spec_of_sites(config: Config) -> EncoderSpec:
    """The encoder of a federation, which nobody needs to see an image to know."""
    return spec_of(config, CHANNELS, config.image_size or IMAGE_SIZE)


@dataclass(frozen=True)
class Site:
    """The settings that a site decides for itself."""

    home: Path
    data: str
    share_scores: bool = False
    share_head: bool = True
    """Whether it takes part in the stage of a common head. If not, it fits a head alone."""
    skip_unreadable: bool = False
    device: str = "auto"
    limits: Mapping[str, float] = field(default_factory=dict)
    """This site's own limits on what a server may ask, instead of `allowed.MOST`."""

    def __post_init__(self) -> None:
        for name in self.limits:
            if name not in MOST:
                raise unknown("limit", name, MOST)

    @property
    def name(self) -> str:
        return self.home.name

    def save(self) -> None:
        content = {n: v for n, v in asdict(self).items() if n != "home"}
        write_atomically(self.home / SETTINGS, tomli_w.dumps(content))

    @classmethod
    def open(cls, home: Path) -> Site:
        try:
            return cls(home, **tomllib.loads((home / SETTINGS).read_text()))
        except (OSError, TypeError, ValueError) as error:
            raise RepperError(f"{home} is not the home of a site: {error}") from error

    def part_in(self, told: Mapping[str, Any]) -> Part:
        """This site's part in the federation that a message comes from."""
        try:
            settings = json.loads(told["settings"])
            run, client, classes = str(told["run"]), told["client"], str(told["classes"])
            numbers = (client, *(told.get(name, 0) for name in ("round", "last", "stage")))
            check_allowed(dict(settings))
        except RepperError as error:
            raise TellableError(str(error)) from error
        except (KeyError, TypeError, ValueError) as error:
            raise TellableError("it cannot read the request") from error
        if not re.fullmatch(r"[0-9a-f]{8,64}", run):
            raise TellableError(f"invalid run id in the request: {run!r}")
        if not all(type(number) is int and number >= 0 for number in numbers):
            raise TellableError("invalid client, round or stage number in the request")
        agreed = tuple(classes.split("\n")) if classes else None
        asked = settings | {"classes": len(agreed or ())}
        for name, most in {**MOST, **self.limits}.items():
            if type(asked.get(name)) in (int, float) and asked[name] > most:
                flag = f"--{name.replace('_', '-')}"
                raise TellableError(f"it limits {flag} to {most:g}, got {asked[name]}")
        config = Config(**settings, data=self.data, device=resolve_device(self.device))
        if not self.share_head and config.personalize_as() in NEED_COMMON:
            config = replace(config, overrides={client: {"personalize": ALONE}})
        if client >= config.clients:
            raise TellableError(f"the request names client {client} of {config.clients}")
        self.agree(config.test_share, agreed)
        return Part(self, config, self.home / "runs" / run, client, agreed)

    def agree(self, test_share: float, classes: Sequence[str] | None) -> None:
        """Refuse changes of settings by which a server could learn about this site's images.

        From the number of training images by share of test images follow class counts, and from
        lists of classes that a site takes or refuses, its own classes. So the first ones stay,
        until somebody at the site removes the file.
        """
        path = self.home / AGREED
        known: dict[str, Any] = read_json(path) if path.is_file() else {}
        now: dict[str, Any] = {"test_share": test_share}
        if classes is not None:
            now["classes"] = sorted(set(classes))
        for name, value in now.items():
            if known.get(name, value) != value:
                flag = f"--{name.replace('_', '-')}"
                log.error(
                    "a server asks this site to take part with %s. By comparing the answers, "
                    "the server could find out classes of this site and their counts. To allow the "
                    "change, remove %s; no restart is needed",
                    _change(flag, known[name], value), path,
                )  # fmt: skip
                raise TellableError(
                    f"it was asked with another {flag} before: whoever runs the site can allow the "
                    f"change, its own log says how"
                )
        if not now.keys() <= known.keys():
            write_json(path, known | now)


@dataclass(frozen=True)
class Part:
    """A site's part in one federation, as client number `client`."""

    site: Site
    config: Config
    folder: Path
    client: int
    classes: tuple[str, ...] | None

    @cached_property
    def images(self) -> Dataset:
        try:
            found = read_folder(
                Path(self.site.data).expanduser(),
                image_size=self.config.image_size or IMAGE_SIZE,
                test_share=self.config.test_share,
                skip_unreadable=self.site.skip_unreadable,
                site=SiteFolder(self.site.name, self.classes),
            )
        except OtherClassesError as error:
            log.error("%s", error)
            raise TellableError(
                "it has a class that is not among --classes: its own log says which"
            ) from error
        return replace(found, train=_in_colour(found.train), test=_in_colour(found.test))

    @property
    def examples(self) -> int:
        """The number of its training images, which it declares, and which weights its updates."""
        return len(self.images.train)

    @cached_property
    def plan(self) -> Plan:
        """The federation as this site sees it: one client, under the number it has there."""
        config, images = self.config, self.images
        nobody = np.zeros(0, np.int64)
        train, test = [nobody] * config.clients, [nobody] * config.clients
        train[self.client], test[self.client] = (
            np.arange(self.examples),
            np.arange(len(images.test)),
        )
        partition = Partition(tuple(train), tuple(test))
        work = make_work(config, spec_of_sites(config), partition, images.classes, images.flip)
        # The server knows the seed, so the noise that hides this site from it needs another key.
        sending = tuple(
            replace(one, key=secret_key(self.site.home / run_folder.NOISE_KEY))
            if isinstance(one, HideUpdate)
            else one
            for one in work.sending
        )
        work = replace(work, sending=sending, run=self.folder.name)
        networks, rule = initial_networks(config, work), config.build_rule()
        return Plan(config, self.folder, work, networks, rule, Alone()).in_folder()

    @cached_property
    def clients(self) -> Clients:
        if private := self.plan.work.private:
            store = PrivateStore(private, self.plan.work.run)
            self.folder.mkdir(parents=True, exist_ok=True)
            if not store.begun:
                store.begin(self.plan.first_kept())
        return Clients.of(self.plan.work, self.images, self.folder / FEATURES_FILE)

    def declines(self, stage: int) -> str:
        """Why this site does not take part in a stage, if it does not."""
        common = stage in common_stages(self.plan.work.stages)
        return "it does not share a head" if common and not self.site.share_head else ""

    def whole(self, received: Params, stage: int, expected: str) -> Params:
        """The received parameters, with those of earlier stages, which are sent only once.

        They lie in this site's folder of the run. `expected` is their digest ("": there are none).
        """
        if stage >= len(self.plan.holds):
            raise TellableError(f"this method has no stage {stage}")
        if not expected:
            return received
        names, path = self.plan.holds[stage].given, self.folder / GIVEN_FILE
        if names & received.keys():
            standing = select(received, names.__contains__)
            like = params_of(self.plan.networks[stage])
            fits = {n: t.shape for n, t in standing.items()} == {n: like[n].shape for n in names}
            if digest(standing) != expected or not fits:
                raise TellableError(
                    "the parameters of earlier stages do not have the announced digest"
                )
            self.folder.mkdir(parents=True, exist_ok=True)
            save_params(path, standing, {})
            return received
        try:
            kept, notes = read_params(path)
        except RepperError:
            kept, notes = {}, {}
        if notes.get("digest") != expected:
            raise TellableError("it has lost the parameters of earlier stages")
        return kept | received

    def spend(self, number: int, sent: Params) -> None:
        """Record the privacy budget that an update spends, before it is sent."""
        privacy = privacy_of(self.config)
        if privacy is None or privacy.at != SITE:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        ledger = Ledger(self.folder / run_folder.LEDGER, privacy)
        spent = ledger.add(number, Release(self.config.clients, (self.client,)), digest(sent))
        log.info("round %d: epsilon %.4g of this site's own so far", number, spent)

    def go_back_to(self, last: int) -> None:
        """Go back to this site's state after round `last`, the last that the server counts.

        What it did since was not taken; what it did then must not be lost.
        """
        store = PrivateStore(self.folder / run_folder.PRIVATE, self.folder.name)
        store.forget_after(self.client, last)
        kept = store.path(self.client, last).is_file()
        index, _ = stage_at(self.plan.work.stages, last)
        if last and self.plan.holds[index].keeps_private and not kept:
            raise TellableError(
                f"it has lost its own parameters of round {last}: restore its home folder, or "
                f"begin a new run"
            )

    def personalize(self, received: Params, number: int, stage: int) -> Personal:
        """Fit and test this site's head, and save everything that a prediction needs."""
        self.clients.receive(received, stage)
        heads = self.folder / run_folder.HEADS
        heads.mkdir(parents=True, exist_ok=True)
        [one] = self.clients.personalize([self.client], number, heads)
        encoder, origin = select(received, is_encoder), SHARED
        if any(holds.own_encoders for holds in self.plan.holds):
            store = PrivateStore(self.folder / run_folder.PRIVATE, self.folder.name)
            if own := store.encoder_of(self.client, number):  # it may never have trained one
                encoder, origin = encoder | own, "this site's own"
        save_encoder(self.folder / run_folder.ENCODER, self.plan.work.spec, encoder, origin)
        if one.test is None:
            raise TypeError("a client that is here has a score")
        result = {
            "method": self.config.method,
            "personalize": one.test.personalize,
            "rounds": number,
            "chosen_round": number,
            "accuracy": summarize([one.test]),
            "groups": {},
            "clients": self.config.clients,
            "client": self.client,
            "classes": self.images.classes,
            "digests": {
                run_folder.ENCODER: digest(encoder),
                f"{run_folder.HEADS}/{self.client}.safetensors": one.head_digest,
            },
        }
        (self.folder / FEATURES_FILE).unlink(missing_ok=True)
        write_config(self.folder / run_folder.CONFIG, self.config)
        write_json(self.folder / run_folder.RESULT, result)
        return one


class Alone(Clientele):
    """A site does not know who else takes part, and its server keeps the list."""

    def begin(self, folder: Path) -> None:
        pass

    def check(self, folder: Path) -> None:
        pass


def _change(flag: str, before: Any, now: Any) -> str:
    """How a setting differs from the one that a site has agreed on."""
    if not isinstance(now, list):
        return f"{flag} {now}, before it was {before}"
    found = [("with", {*now} - {*before}), ("without", {*before} - {*now})]
    parts = [f"{how} {_some(sorted(names))}" for how, names in found if names]
    return f"{flag} {' and '.join(parts)}, other than before"


def _some(names: list[str], most: int = 5) -> str:
    more = [f"{len(names) - most} more"] if len(names) > most else []
    return ", ".join([*map(json.dumps, names[:most]), *more])


def _in_colour(split: Split) -> Split:
    """The images with three channels: no site knows whether all other sites have grey images."""
    return replace(split, images=np.repeat(split.images, CHANNELS // split.images.shape[1], axis=1))
