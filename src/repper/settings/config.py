"""Settings as one frozen value, from flags, a TOML file or Python, checked in one place.

The settings of every run are the fields of `Config`. Methods, heads, server rules and attacks own
theirs: a `Config` takes them by the same flat names (`mu=0.1`) and hands them on. This file needs
no PyTorch, so that `repper run --help` is quick, and nothing below the plan of a run imports it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from repper.basics.client_list import clients_in, normal
from repper.basics.errors import RepperError, unknown
from repper.basics.options import Option, check_kind, checked, options_of, setting
from repper.basics.registry import absolute_reference, is_reference, short_reference, source_digest
from repper.data import DATASETS
from repper.data.dataset import LARGEST
from repper.data.shift import SHIFTS
from repper.encoders import ENCODERS, NORMS, PIXELS, WIDEST
from repper.engines import ENGINES
from repper.heads import HEAD_SETTINGS, HEADS
from repper.heads.personalize import (
    FINETUNE,
    KEEP,
    personalizer_names,
)
from repper.methods import METHODS, Method
from repper.privacy import NOISE_AT
from repper.server import RULES, Rule
from repper.settings.things import (
    KINDS_OF_THINGS,
    MAY_BE_OWN,
    PRIVACY,
    STAGE1,
    STAGE2,
    flat_options,
    owned_options,
    reference_of,
    taken,
)
from repper.updates.attacks import ATTACKS, Attack

TRACKERS = ("tensorboard", "mlflow")
"""Programs that show a run while it goes on."""


def _data(default: Any, help: str, **limits: Any) -> Any:
    return setting(default, help, group="data", **limits)


def _stage1(default: Any, help: str, **limits: Any) -> Any:
    return setting(default, help, group=STAGE1, **limits)


def _stage2(default: Any, help: str, **limits: Any) -> Any:
    return setting(default, help, group=STAGE2, **limits)


def _privacy(help: str, **limits: Any) -> Any:
    return setting(None, help, group=PRIVACY, **limits)


def _how(default: Any, help: str, **limits: Any) -> Any:
    return setting(default, help, group="how to run", **limits)


@dataclass(frozen=True, init=False)
class Config:
    """Every setting of a run. A setting's flag and TOML key is its name with `-` for `_`.

    Settings that a method, a head, a server rule or an attack owns are given like the others, and
    are in `own`. `method`, `server`, `attack`, `personalize` and `encoder` are names, references to
    things of the user's own such as `my_file.py:MyMethod`, or values: `FedProx(mu=0.1)`.
    """

    data: str = _data(
        "digits",
        f"data set: {', '.join(DATASETS)}, a folder of images, or your own file.py:function",
    )
    data_dir: str | None = _data(
        None, "folder of data sets (default: REPPER_DATA, else ~/.cache/repper)"
    )
    download: bool = _data(False, "download the data set if it is missing")
    image_size: int | None = _data(
        None,
        "image side in pixels; images are resized to it (default: the data set's size, 32 for a "
        "folder)",
        least=1,
        most=LARGEST,
    )
    train_images: int | None = _data(
        None, "use only N training images, a fixed stratified subset (default: all)", least=1
    )
    test_share: float = _data(
        0.2,
        "share of the images held out as the test set, if a folder has no test/",
        above=0,
        most=0.9,
    )
    skip_unreadable: bool = _data(False, "leave out images that cannot be read")
    partition: str = _data(
        "dirichlet",
        "how images are divided among clients: dirichlet, iid, shards, folders (one subfolder per "
        "client), or a manifest (.json)",
    )
    clients: int = _data(20, "number of clients", least=1)
    alpha: float = _data(
        0.5, "Dirichlet concentration: a smaller alpha gives more skewed clients", above=0
    )
    classes_per_client: int = _data(
        2, "number of classes per client, for --partition shards", least=1
    )
    shift: str = _data(
        "none",
        "feature shift between clients: each client's images have their own rotation, contrast or "
        "colour",
        choices=SHIFTS,
    )
    min_train: int = _data(10, "minimum number of training images per client", least=2)
    min_test: int = _data(1, "minimum number of test images per client", least=0)

    method: str = _stage1(
        "repper",
        "federated learning method",
        choices=lambda: METHODS,
        takes_own=True,
    )
    server: str = _stage1(
        "mean",
        "server rule, which combines a round's updates into the next model",
        choices=lambda: RULES,
        takes_own=True,
    )
    max_weight: float | None = _stage1(
        None,
        "maximum weight of one client in a round's mean, as a share (default: no limit)",
        above=0,
        most=1,
    )
    max_growth: float | None = _stage1(
        None,
        "refuse updates with a value more than N times the largest one sent to the client "
        "(default: no limit; 30 in a federation)",
        least=1,
    )
    attack: str | None = _stage1(
        None,
        "attack by hostile clients, to measure its effect; only honest clients are scored "
        "(default: none)",
        choices=lambda: ATTACKS,
        takes_own=True,
    )
    encoder: str = _stage1(
        "small",
        "encoder architecture",
        choices=lambda: ENCODERS,
        takes_own=True,
    )
    width: float = _stage1(
        1.0, "factor on the number of channels of the encoder", above=0, most=WIDEST
    )
    norm: str = _stage1("batch", "normalization layers of the encoder", choices=NORMS)
    bn: str = _stage1(
        "average",
        "normalization layers are averaged with the encoder, or stay local to each client",
        choices=("average", "local"),
    )
    augment: str = _stage1(
        "medium", "strength of the augmentation", choices=("none", "weak", "medium", "strong")
    )
    participation: float = _stage1(
        0.2, "share of the clients in a round (C in the paper)", above=0, most=1
    )
    stage1_clients: str | None = _stage1(
        None, "clients that take part in stage 1: a number or a list such as 0,3,7 (default: all)"
    )
    rounds: int = _stage1(30, "number of rounds; 0 leaves the encoder untrained", least=0)
    epochs: int = _stage1(5, "local epochs in a round (E in the paper)", least=1)
    batch: int = _stage1(64, "batch size", least=2)
    lr: float = _stage1(3e-3, "learning rate of Adam", above=0, most=1e6)
    lr_decay: float = _stage1(
        1.0,
        "learning rate schedule: multiply by this factor every --lr-decay-every rounds",
        above=0,
        most=1,
    )
    lr_decay_every: int = _stage1(
        50, "rounds between two steps of the learning rate schedule", least=1
    )
    weight_decay: float = _stage1(1e-4, "L2 weight decay", least=0, most=1e6)
    compile: bool = _stage1(
        False,
        "compile the training step: slow to start, then faster; changes the last digits of results",
    )
    precision: str = _stage1(
        "float32",
        "number format of the network's computation (weights stay float32); auto: bfloat16 if the "
        "hardware supports it",
        choices=("float32", "bfloat16", "auto"),
    )
    upload: str = _stage1(
        "float32",
        "number format of the updates that clients send; float16 halves the bytes and rounds the "
        "values",
        choices=("float32", "float16"),
    )
    init: str | None = _stage1(
        None,
        "initial weights of the encoder: a run folder, its encoder.safetensors, or a ResNet-18 or "
        "-34 of torchvision or timm (.safetensors or .pth)",
    )
    pixels: str | None = _stage1(
        None,
        "pixel normalization: half (-1 to 1), or imagenet (ImageNet's mean and deviation) "
        "(default: as --init was trained, else half)",
        choices=lambda: PIXELS,
    )
    freeze_until: str | None = _stage1(
        None,
        "freeze a ResNet before this part, layer1 to layer4, and train the rest",
        choices=("layer1", "layer2", "layer3", "layer4"),
    )
    init_clients: str = _stage1(
        "new",
        "new: new clients start from the --init run; same: the same clients keep their own "
        "encoders",
        choices=("new", "same"),
    )

    personalize: str | None = _stage2(
        None,
        "how each client gets its head after the last round (default: the method's own choice)",
        choices=personalizer_names,
        takes_own=True,
    )
    personalize_clients: int | None = _stage2(
        None, "fit heads for a random sample of N clients (default: all clients)", least=1
    )
    head_input: str = _stage2(
        "r",
        "input features of a new head: r, or z (r normalized to length one)",
        choices=("r", "z"),
    )
    head_curve: int = _stage2(
        0,
        "evaluate heads every N epochs while they are trained, for curves.parquet; 0: never",
        least=0,
    )

    clip: float | None = _privacy(
        "clip each client's update to this L2 norm, and add Gaussian noise",
        above=0,
        most=1e6,
    )
    noise: float | None = _privacy(
        "noise multiplier: standard deviation of the noise on the sum of a round's updates, in "
        "units of --clip; 0: clip only (default: computed from --epsilon)",
        least=0,
        most=1e6,
    )
    noise_at: str | None = _privacy(
        "where noise is added: by the server to the sum, or by each site to its own update "
        "(default: server)",
        choices=NOISE_AT,
    )
    epsilon: float | None = _privacy(
        "privacy budget of a client over all rounds: sets the noise, or with --noise ends "
        "training when it is spent",
        above=0,
        most=1000,
    )
    delta: float | None = _privacy(
        "delta of differential privacy: probability that the bound of --epsilon fails; below 1 / "
        "clients",
        above=0,
        most=0.5,
    )

    evaluate_every: int = _how(
        0,
        "evaluate personal heads every N rounds, for accuracy over rounds; 0: only at the end",
        least=0,
    )
    validation: float = _how(
        0.0,
        "share of each client's training images held out as a validation set, to choose the "
        "best round",
        least=0,
        most=0.9,
    )
    knn: int = _how(
        1000,
        "number of images in the k-NN evaluation of the encoder after each round; 0: none",
        least=0,
    )
    seed: int = _how(0, "random seed", least=0)
    engine: str = _how(
        "pool",
        "where clients run: in this process (serial), in several processes (pool), in Flower's "
        "simulation (flower)",
        choices=lambda: ENGINES,
    )
    workers: int = _how(
        0, "number of processes of --engine pool; 0: one per core", least=0, most=1024
    )
    device: str = _how("auto", "device for PyTorch: auto, cpu, cuda, cuda:N or mps")
    track: str | None = _how(
        None,
        f"also log to {' or '.join(TRACKERS)}, on this disk; to both with a comma between",
    )
    out: str | None = _how(
        None, "folder to write to (default: a name made from the settings, in runs/)"
    )

    overrides: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    """Settings of single clients, from `[clients.N]` tables of a TOML file: `personalize`."""

    own: Mapping[str, Any] = field(default_factory=dict)
    """Settings that methods, heads, server rules and attacks own, as far as they were given."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """Digests of the source of what is the user's own, by setting; a plan fills them in."""
    values: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Things of the user's own that were given as values, by setting."""

    def __init__(self, **given: Any) -> None:
        for name in ("own", "values"):
            check_kind(name, given.get(name, {}), Mapping, "a table of settings")
        own, values = dict(given.pop("own", {})), dict(given.pop("values", {}))
        for name, registry in KINDS_OF_THINGS.items():
            if given.get(name) is not None and not isinstance(given[name], str):
                given[name], own_of_it, value = taken(name, given[name], registry)
                values |= {name: value} if value is not None else {}
                for flat, of_value in own_of_it.items():
                    if given.setdefault(flat, of_value) != of_value:
                        raise RepperError(
                            f"{flat} is given twice: as a setting of {name}, and as a separate "
                            f"setting"
                        )
        for f in dataclasses.fields(self):
            if f.name not in ("own", "values"):
                made = f.default_factory() if callable(f.default_factory) else f.default
                object.__setattr__(self, f.name, given.pop(f.name, made))
        self._check_names(given)
        own |= given
        current = {n: v for n, v in values.items() if getattr(self, n) == reference_of(n, v)}
        object.__setattr__(self, "values", current)
        object.__setattr__(self, "own", {n: v for n, v in own.items() if v is not None})
        self._check()

    def _check(self) -> None:
        for name in ("overrides", "own", "sources", "values"):
            check_kind(name, getattr(self, name), Mapping, "a table of settings")
        for name, option in GENERAL.items():
            object.__setattr__(self, name, option.check(getattr(self, name)))
        for name in KINDS_OF_THINGS:
            if is_reference(reference := getattr(self, name)):
                object.__setattr__(self, name, absolute_reference(reference))
        own = {
            name: OPTIONS[name].check(value) if name in OPTIONS else value
            for name, value in self.own.items()
        }
        object.__setattr__(self, "own", own)
        for name in ("out", "init", "partition"):
            if (path := getattr(self, name)) is not None and path.startswith("~"):
                # Unlike that of Path, it leaves `~unknown-user` unchanged.
                object.__setattr__(self, name, os.path.expanduser(path))  # noqa: PTH111
        object.__setattr__(self, "stage1_clients", normal(self.stage1_clients))
        for name in self.trackers:
            if name not in TRACKERS:
                raise unknown("program in --track", name, TRACKERS)
        if self.validation and not self.evaluate_every:
            raise RepperError(
                "--validation needs --evaluate-every N, because it chooses among the evaluated "
                "rounds"
            )
        if self.init_clients == "same" and self.init is None:
            raise RepperError(
                "--init-clients same needs --init RUN, the run that the clients took part in"
            )
        self._check_privacy()
        for client, settings in self.overrides.items():
            checked("a client in overrides", client, int, least=0)
            check_kind(f"overrides of client {client}", settings, Mapping, "a table of settings")
            for key, value in settings.items():
                if key != "personalize":
                    raise unknown(f"key in [clients.{client}]", key, ["personalize"])
                if value not in personalizer_names():
                    raise unknown(f"personalize in [clients.{client}]", value, personalizer_names())

    def _check_privacy(self) -> None:
        names = ("clip", "noise", "noise_at", "epsilon", "delta")
        given = [name for name in names if getattr(self, name) is not None]
        if not given:
            return
        if self.clip is None:
            raise RepperError(
                f"--{_key(given[0])} needs --clip, the largest L2 norm of a client's update: the "
                f"noise is in units of it"
            )
        if self.noise is None and self.epsilon is None:
            raise RepperError("--clip needs --noise, or --epsilon to compute the noise")
        if self.noise == 0 and self.epsilon is not None:
            raise RepperError(
                "--noise 0 gives no privacy, so it has no epsilon: leave out --noise or --epsilon"
            )
        if self.noise != 0 and self.delta is None:
            raise RepperError(
                "--epsilon and --noise need --delta, the probability that the privacy bound "
                "fails: well below 1 / clients"
            )

    @property
    def trackers(self) -> tuple[str, ...]:
        """The programs that show this run, by name."""
        names = [name.strip() for name in (self.track or "").split(",")]
        return tuple(dict.fromkeys(name for name in names if name))

    @property
    def is_hidden(self) -> bool:
        """Whether differential privacy is on: updates are clipped, and noise is added."""
        return self.clip is not None

    def _check_names(self, given: Mapping[str, Any]) -> None:
        """Refuse unknown settings; settings of the user's own code are checked by the plan."""
        if not any(is_reference(getattr(self, name)) for name in KINDS_OF_THINGS):
            for name in given:
                if name not in OPTIONS:
                    raise unknown("setting", name, OPTIONS)

    def setting(self, name: str) -> Any:
        """The value of any setting, by name; None if its owner's setting was not given."""
        return getattr(self, name) if name in GENERAL else self.own.get(name)

    def references(self) -> list[str]:
        """The user's own code in this run: references by setting."""
        given = {name: getattr(self, name) for name in MAY_BE_OWN}
        return [value for value in given.values() if is_reference(value)]

    def known_to_own(self) -> dict[str, Option]:
        """Load the user's own code of this run, and return its settings by their flat names."""
        found: dict[str, Option] = {}
        for name in KINDS_OF_THINGS:
            if is_reference(reference := getattr(self, name)) and name not in self.values:
                found |= options_of_own(name, reference)
        return found

    def resolved(self) -> Config:
        """The same settings with all defaults filled in.

        And with the digests of the source of what is the user's own.
        """
        found = {}
        for name, registry in KINDS_OF_THINGS.items():
            if is_reference(reference := getattr(self, name)):
                value: Any = self.values.get(name) or registry[reference]
                kind = value if isinstance(value, type) or name == "encoder" else type(value)
                found[name] = source_digest(kind)
        used = {name: value for name, value in self.in_use().items() if value is not None}
        return replace(self, own={**self.own, **used}, sources=found)

    def stage1(self) -> tuple[int, ...]:
        """The clients that may take part in stage 1."""
        if self.stage1_clients is None:
            return tuple(range(self.clients))
        return clients_in(self.stage1_clients, self.clients, "--stage1-clients")

    def build_method(self) -> Method:
        if "method" in self.values:
            return cast(Method, self.values["method"])
        kind = METHODS[self.method]
        return kind(**self.own_of(kind, "method"))

    def build_rule(self) -> Rule:
        """Build the server rule."""
        if "server" in self.values:
            return cast(Rule, self.values["server"])
        kind = RULES[self.server]
        return kind(**self.own_of(kind, "server"))

    def build_attack(self) -> Attack | None:
        """Build the attack of hostile clients; None without one."""
        if "attack" in self.values:
            return cast(Attack, self.values["attack"])
        if self.attack is None:
            return None
        kind = ATTACKS[self.attack]
        known = flat_options(kind, "attack")
        # Checked by their flags' names: the fields have shorter ones.
        return kind(**{o.name: o.check(self.own[n]) for n, o in known.items() if n in self.own})

    def personalize_as(self, client: int | None = None) -> str:
        """The name of the personalizer of a client; without a client, of all clients by default."""
        own = self.overrides.get(client, {}).get("personalize") if client is not None else None
        return own or self.personalize or self.build_method().personalize

    def own_of(self, kind: type, name: str) -> dict[str, Any]:
        """The given settings of a class, by its own field names."""
        flat = flat_options(kind, name)
        return {option.name: self.own[key] for key, option in flat.items() if key in self.own}

    def in_use(self) -> dict[str, Any]:
        """The settings that the method, server rule, attack and heads of this run own.

        By their flat names, with their defaults where they were not given.
        """
        found: dict[str, Any] = {}
        things: dict[str, Any] = {"method": self.build_method(), "server": self.build_rule()}
        if (attack := self.build_attack()) is not None:
            things["attack"] = attack
        for name, value in things.items():
            flat = flat_options(type(value), name)
            found |= {key: getattr(value, option.name) for key, option in flat.items()}
        return found | self._heads_in_use()

    def _heads_in_use(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for kind in {self.personalize_as(client) for client in (None, *self.overrides)}:
            if kind == KEEP:
                continue
            if kind == self.personalize and "personalize" in self.values:
                value = self.values["personalize"]
                given = value.get_params() if hasattr(value, "get_params") else vars(value)
                found |= {f"head_{key}": one for key, one in given.items() if key != "random_state"}
                continue
            of = "linear" if kind == FINETUNE else kind
            settings = HEAD_SETTINGS[of] if of in HEAD_SETTINGS else HEADS[of]
            flat = flat_options(settings, "personalize")
            found |= {key: self.own.get(key, option.default) for key, option in flat.items()}
        return found

    def to_toml(self) -> dict[str, Any]:
        """The tables of a TOML file from which `read_config` builds this value again."""
        tables = {
            option.key: value
            for name, option in GENERAL.items()
            if (value := getattr(self, name)) is not None
        }
        of_method = flat_options(type(self.build_method()), "method") if self.own else {}
        others = {n: value for n, value in self.own.items() if n not in of_method}
        tables |= {_key(n): value for n, value in others.items() if n in OPTIONS}
        if strange := {n: value for n, value in others.items() if n not in OPTIONS}:
            tables["own"] = strange
        if own := {_key(of_method[n].name): v for n, v in self.own.items() if n in of_method}:
            tables["method"] = {"name": tables.pop("method"), **own}
        if self.sources:
            tables["sources"] = dict(self.sources)
        if self.overrides:
            tables["clients"] = self._clients_table()
        return tables

    def identity(self) -> dict[str, Any]:
        """The settings that determine a result: a run can be resumed only with equal ones.

        More rounds continue a run; where and on how many processes it runs changes no bit of it.
        """
        free = ("rounds", *CHANGES_NOTHING)
        settings = {
            option.key: self.shown(name)
            for name, option in GENERAL.items()
            if name not in free and getattr(self, name) is not None
        }
        used = self.in_use()
        settings |= {_key(name): value for name, value in used.items() if value is not None}
        settings |= {f"source of {name}": found for name, found in self.sources.items()}
        return settings | ({"clients": self._clients_table()} if self.overrides else {})

    def in_common(self, but: Collection[str]) -> dict[str, Any]:
        """The settings, except those in `but`, that determine the results of several runs."""
        free = (*CHANGES_NOTHING, *but)
        general = {o.key: getattr(self, n) for n, o in GENERAL.items() if n not in free}
        own = {_key(name): value for name, value in self.own.items()}
        return {key: value for key, value in (general | own).items() if value is not None}

    def shown(self, name: str) -> Any:
        """The value of a setting for display: a reference to own code without its folder."""
        value = self.setting(name)
        return short_reference(value) if name in MAY_BE_OWN and is_reference(value) else value

    def _clients_table(self) -> dict[str, Any]:
        personal = {str(client): dict(s) for client, s in sorted(self.overrides.items())}
        return {"count": self.clients, **personal}

    def training(self) -> dict[str, Any]:
        """The settings that determine the training of stage 1, if no heads are tested in it."""
        heads = {option.key for option in OPTIONS.values() if option.group == STAGE2}
        heads |= {*map(_key, self._heads_in_use()), "source of personalize"}
        settings = replace(self, overrides={}).identity()
        return {key: value for key, value in settings.items() if key not in heads}

    def name(self) -> str:
        """A folder name for this run; equal settings give equal names."""
        text = json.dumps(self.identity() | {"rounds": self.rounds}, sort_keys=True)
        short = hashlib.sha256(text.encode()).hexdigest()[:8]
        data = self.shown("data")
        if data not in DATASETS and not is_reference(data):
            data = Path(data).expanduser().resolve().name
        last = self.shown("personalize") if self.personalize else None
        names = [data, self.shown("method"), last, short]
        return "-".join(name.replace(":", "-") for name in names if name)


def options_of_own(name: str, reference: str) -> dict[str, Option]:
    """The settings of the user's own class, by the names of their flags."""
    kind: Any = KINDS_OF_THINGS[name][reference]
    if not isinstance(kind, type):
        return {}
    flat = flat_options(kind, name)
    if clash := sorted(set(flat) & set(GENERAL)):
        raise RepperError(
            f"{reference} has a field {clash[0]}, but {clash[0]} is a setting of every run: "
            f"rename the field"
        )
    return flat


def check_known(common: Config, runs: Iterable[Config]) -> None:
    """Refuse settings that no run has, and attack settings if no run has an attack."""
    listed = list(runs)
    known = set(OPTIONS).union(*(run.known_to_own() for run in listed))
    for name in common.own:
        if name not in known:
            raise unknown("setting", name, known)
    idle = [name for name in ATTACK_SETTINGS if name in common.own]
    if idle and all(run.attack is None for run in listed):
        raise RepperError(
            f"--{OPTIONS[idle[0]].key} needs --attack NAME (known: {', '.join(ATTACKS)})"
        )


def _key(name: str) -> str:
    """The TOML key of a setting."""
    return name.replace("_", "-")


GENERAL = options_of(Config)
"""Settings of every run, by name."""
OPTIONS = GENERAL | dict(owned_options())
"""Those, and the settings that our methods, server rules, attacks and heads own."""
ATTACK_SETTINGS = tuple(name for name in OPTIONS if {*OPTIONS[name].owners} & {*ATTACKS})
"""Settings that attacks own."""
CHANGES_NOTHING = ("engine", "workers", "out", "data_dir", "download", "track")
"""Settings that no result depends on."""
JOIN_SETTINGS = tuple(
    name
    for name, option in OPTIONS.items()
    if option.group not in (STAGE1, PRIVACY) and name not in ("evaluate_every", "validation", "knn")
)
"""What clients can say who join a run; the rest is the run's."""
