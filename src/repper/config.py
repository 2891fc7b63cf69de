"""Settings: one frozen value, from flags, a TOML file or Python, checked in one place.

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

from repper.attacks import ATTACKS, Attack
from repper.client_list import clients_in, normal
from repper.datasets import DATASETS
from repper.datasets.dataset import LARGEST
from repper.encoders import ENCODERS, NORMS, PIXELS, WIDEST
from repper.engines import ENGINES
from repper.errors import RepperError, unknown
from repper.heads import HEAD_SETTINGS, HEADS
from repper.methods import METHODS, Method
from repper.options import Option, check_kind, checked, options_of, setting
from repper.personalize import (
    FINETUNE,
    KEEP,
    personalizer_names,
)
from repper.privacy import NOISE_AT
from repper.registry import absolute_reference, is_reference, short_reference, source_digest
from repper.rules import RULES, Rule
from repper.shift import SHIFTS
from repper.things import (
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
        f"data set: {', '.join(DATASETS)}, a folder of images, or file.py:function of your own",
    )
    data_dir: str | None = _data(
        None, "folder of data sets (default: REPPER_DATA, else ~/.cache/repper)"
    )
    download: bool = _data(False, "fetch the data set into its folder if it is not there")
    image_size: int | None = _data(
        None,
        "side in pixels that images are resized to (default: a data set's own, 32 for a folder)",
        least=1,
        most=LARGEST,
    )
    train_images: int | None = _data(
        None, "use only so many training images, a fixed part of each class", least=1
    )
    test_share: float = _data(
        0.2, "share of the images to test on, where a folder has no test/", above=0, most=0.9
    )
    skip_unreadable: bool = _data(False, "leave out images that cannot be read")
    partition: str = _data(
        "dirichlet",
        "how clients differ: dirichlet, iid, shards, folders (one per client, in a folder of "
        "images), or a manifest (.json)",
    )
    clients: int = _data(20, "number of clients", least=1)
    alpha: float = _data(0.5, "Dirichlet concentration: smaller is more skewed", above=0)
    classes_per_client: int = _data(2, "classes each client holds, for shards", least=1)
    shift: str = _data(
        "none",
        "how clients' images differ besides: each client has its own rotation, contrast or colour",
        choices=SHIFTS,
    )
    min_train: int = _data(10, "least training images a client may have", least=2)
    min_test: int = _data(1, "least test images a client may have", least=0)

    method: str = _stage1(
        "repper",
        "federated method",
        choices=lambda: METHODS,
        takes_own=True,
    )
    server: str = _stage1(
        "mean",
        "what the server makes of a round's updates",
        choices=lambda: RULES,
        takes_own=True,
    )
    max_weight: float | None = _stage1(
        None, "largest share of one client in a round's mean (default: no limit)", above=0, most=1
    )
    max_growth: float | None = _stage1(
        None,
        "refuse updates with a value more than N times the largest one sent to the client "
        "(default: no limit; 30 in a federation)",
        least=1,
    )
    attack: str | None = _stage1(
        None,
        "what hostile clients do, to measure what it costs; scores are those of the others",
        choices=lambda: ATTACKS,
        takes_own=True,
    )
    encoder: str = _stage1(
        "small",
        "encoder",
        choices=lambda: ENCODERS,
        takes_own=True,
    )
    width: float = _stage1(1.0, "factor on the encoder's channels", above=0, most=WIDEST)
    norm: str = _stage1("batch", "normalization in the encoder", choices=NORMS)
    bn: str = _stage1(
        "average",
        "normalization layers: averaged with the encoder, or local, each client's own",
        choices=("average", "local"),
    )
    augment: str = _stage1(
        "medium", "strength of the random views", choices=("none", "weak", "medium", "strong")
    )
    participation: float = _stage1(
        0.2, "share of the clients in a round (the paper's C)", above=0, most=1
    )
    stage1_clients: str | None = _stage1(
        None, "clients in stage 1: a count or a list such as 0,3,7 (default: all)"
    )
    rounds: int = _stage1(30, "rounds; 0 leaves the encoder untrained", least=0)
    epochs: int = _stage1(5, "local epochs in a round (the paper's E)", least=1)
    batch: int = _stage1(64, "images in a batch", least=2)
    lr: float = _stage1(3e-3, "learning rate of Adam", above=0, most=1e6)
    lr_decay: float = _stage1(
        1.0, "factor on the learning rate every --lr-decay-every rounds", above=0, most=1
    )
    lr_decay_every: int = _stage1(50, "rounds between two steps of --lr-decay", least=1)
    weight_decay: float = _stage1(1e-4, "L2 weight decay", least=0, most=1e6)
    compile: bool = _stage1(
        False, "compile the training step first: slow to start, then faster (other last digits)"
    )
    precision: str = _stage1(
        "float32",
        "numbers the network computes with (weights stay float32); auto: bfloat16 where the "
        "hardware multiplies it",
        choices=("float32", "bfloat16", "auto"),
    )
    upload: str = _stage1(
        "float32",
        "numbers that clients send; float16 takes half the bytes and rounds",
        choices=("float32", "float16"),
    )
    init: str | None = _stage1(
        None,
        "start from this encoder: a run folder, its encoder.safetensors, or a ResNet-18 or -34 as "
        "torchvision and timm save it (.safetensors or .pth)",
    )
    pixels: str | None = _stage1(
        None,
        "what pixels become before the encoder: half (-1 to 1), or imagenet (less its mean, over "
        "its deviation; default: what --init was trained with, else half)",
        choices=lambda: PIXELS,
    )
    freeze_until: str | None = _stage1(
        None,
        "train a ResNet only from this part on, layer1 to layer4; what is before stays as it is",
        choices=("layer1", "layer2", "layer3", "layer4"),
    )
    init_clients: str = _stage1(
        "new",
        "whether clients are new to the --init run, or the same, with encoders of their own",
        choices=("new", "same"),
    )

    personalize: str | None = _stage2(
        None,
        "what a client does last (default: the method's own choice)",
        choices=personalizer_names,
        takes_own=True,
    )
    personalize_clients: int | None = _stage2(
        None, "fit heads of only so many clients, drawn at random (default: of all)", least=1
    )
    head_input: str = _stage2(
        "r", "features a new head takes: r, or z (r at length one)", choices=("r", "z")
    )
    head_curve: int = _stage2(
        0, "test trained heads after every N-th epoch, for curves.parquet; 0: never", least=0
    )

    clip: float | None = _privacy(
        "shorten each client's update to this length, and hide it in Gaussian noise",
        above=0,
        most=1e6,
    )
    noise: float | None = _privacy(
        "standard deviation of the noise in units of --clip, on the sum of a round's updates; 0: "
        "shorten only (default: found for --epsilon)",
        least=0,
        most=1e6,
    )
    noise_at: str | None = _privacy(
        "who adds the noise: the server to the sum, or each site to its own update "
        "(default: server)",
        choices=NOISE_AT,
    )
    epsilon: float | None = _privacy(
        "privacy budget of a client over all rounds: the noise is found for it, and training ends "
        "when it is spent",
        above=0,
        most=1000,
    )
    delta: float | None = _privacy(
        "probability with which the bound of --epsilon may fail: below 1 / clients",
        above=0,
        most=0.5,
    )

    evaluate_every: int = _how(
        0,
        "run stage 2 every N rounds too, to draw accuracy over rounds; 0: only at the end",
        least=0,
    )
    validation: float = _how(
        0.0, "share of each client's training images kept to choose the round by", least=0, most=0.9
    )
    knn: int = _how(
        1000, "images in the k-NN check of the encoder after each round; 0: none", least=0
    )
    seed: int = _how(0, "seed of every random choice", least=0)
    engine: str = _how(
        "pool",
        "where clients run: this process (serial), several (pool), Flower's simulation (flower)",
        choices=lambda: ENGINES,
    )
    workers: int = _how(0, "processes of the pool; 0: one per core", least=0, most=1024)
    device: str = _how("auto", "auto, cpu, cuda, cuda:N or mps")
    track: str | None = _how(
        None,
        f"also log to {' or '.join(TRACKERS)}, on this disk; to both with a comma between",
    )
    out: str | None = _how(
        None, "folder to write to (default: runs/ and a name made from the settings)"
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
                        raise RepperError(f"{flat} is given twice: in {name}, and for itself")
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
                "--validation chooses among evaluated rounds: give --evaluate-every N too"
            )
        if self.init_clients == "same" and self.init is None:
            raise RepperError(
                "--init-clients same needs the run whose clients they are: --init RUN"
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
                f"--{_key(given[0])} needs --clip, the most that a client's update may change: the "
                f"noise is in units of it"
            )
        if self.noise is None and self.epsilon is None:
            raise RepperError("--clip needs the noise too: --noise, or --epsilon to find it")
        if self.noise == 0 and self.epsilon is not None:
            raise RepperError("--noise 0 has no epsilon: leave out one of them")
        if self.noise != 0 and self.delta is None:
            raise RepperError(
                "--epsilon and --noise need --delta, the probability with which the bound may "
                "fail: well below 1 / clients"
            )

    @property
    def trackers(self) -> tuple[str, ...]:
        """The programs that show this run, by name."""
        names = [name.strip() for name in (self.track or "").split(",")]
        return tuple(dict.fromkeys(name for name in names if name))

    @property
    def is_hidden(self) -> bool:
        """Whether updates are shortened, and hidden in noise."""
        return self.clip is not None

    def _check_names(self, given: Mapping[str, Any]) -> None:
        """Refuse settings that nothing has; the user's own things are loaded by the plan."""
        if not any(is_reference(getattr(self, name)) for name in KINDS_OF_THINGS):
            for name in given:
                if name not in OPTIONS:
                    raise unknown("setting", name, OPTIONS)

    def setting(self, name: str) -> Any:
        """The value of any setting; None for one that was not given to its owner."""
        return getattr(self, name) if name in GENERAL else self.own.get(name)

    def references(self) -> list[str]:
        """What of this run is the user's own, as it is named."""
        given = {name: getattr(self, name) for name in MAY_BE_OWN}
        return [value for value in given.values() if is_reference(value)]

    def known_to_own(self) -> dict[str, Option]:
        """Load what is the user's own of this run; the settings it owns, by their flat names."""
        found: dict[str, Option] = {}
        for name in KINDS_OF_THINGS:
            if is_reference(reference := getattr(self, name)) and name not in self.values:
                found |= options_of_own(name, reference)
        return found

    def resolved(self) -> Config:
        """The same settings with all defaults of what this run uses.

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
        """What the server makes of a round's updates."""
        if "server" in self.values:
            return cast(Rule, self.values["server"])
        kind = RULES[self.server]
        return kind(**self.own_of(kind, "server"))

    def build_attack(self) -> Attack | None:
        """What hostile clients do, if there are any."""
        if "attack" in self.values:
            return cast(Attack, self.values["attack"])
        if self.attack is None:
            return None
        kind = ATTACKS[self.attack]
        known = flat_options(kind, "attack")
        # Checked by their flags' names: the fields have shorter ones.
        return kind(**{o.name: o.check(self.own[n]) for n, o in known.items() if n in self.own})

    def personalize_as(self, client: int | None = None) -> str:
        """The name of what this client does last; without one, of what they do in general."""
        own = self.overrides.get(client, {}).get("personalize") if client is not None else None
        return own or self.personalize or self.build_method().personalize

    def own_of(self, kind: type, name: str) -> dict[str, Any]:
        """The settings that were given of those a class owns, by its own names for them."""
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
        """This value as the tables of a TOML file, from which `read_config` makes it again."""
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
        """The settings that decide a result: a run is resumed only with the same ones.

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
        """The settings that decide the results of runs which differ in some."""
        free = (*CHANGES_NOTHING, *but)
        general = {o.key: getattr(self, n) for n, o in GENERAL.items() if n not in free}
        own = {_key(name): value for name, value in self.own.items()}
        return {key: value for key, value in (general | own).items() if value is not None}

    def shown(self, name: str) -> Any:
        """A setting as people see it: of the user's own, without the folder of its file."""
        value = self.setting(name)
        return short_reference(value) if name in MAY_BE_OWN and is_reference(value) else value

    def _clients_table(self) -> dict[str, Any]:
        personal = {str(client): dict(s) for client, s in sorted(self.overrides.items())}
        return {"count": self.clients, **personal}

    def training(self) -> dict[str, Any]:
        """The settings that decide what stage 1 trains, where no heads are tested on the way."""
        heads = {option.key for option in OPTIONS.values() if option.group == STAGE2}
        heads |= {*map(_key, self._heads_in_use()), "source of personalize"}
        settings = replace(self, overrides={}).identity()
        return {key: value for key, value in settings.items() if key not in heads}

    def name(self) -> str:
        """A folder name for this run: the same settings have the same name."""
        text = json.dumps(self.identity() | {"rounds": self.rounds}, sort_keys=True)
        short = hashlib.sha256(text.encode()).hexdigest()[:8]
        data = self.shown("data")
        if data not in DATASETS and not is_reference(data):
            data = Path(data).expanduser().resolve().name
        last = self.shown("personalize") if self.personalize else None
        names = [data, self.shown("method"), last, short]
        return "-".join(name.replace(":", "-") for name in names if name)


def options_of_own(name: str, reference: str) -> dict[str, Option]:
    """The settings that a thing of the user's own has, by the names that flags have for them."""
    kind: Any = KINDS_OF_THINGS[name][reference]
    if not isinstance(kind, type):
        return {}
    flat = flat_options(kind, name)
    if clash := sorted(set(flat) & set(GENERAL)):
        raise RepperError(f"{reference} has a field {clash[0]}, which every run has: rename it")
    return flat


def check_known(common: Config, runs: Iterable[Config]) -> None:
    """Refuse settings that none of the runs knows, and those of an attack if none is attacked."""
    listed = list(runs)
    known = set(OPTIONS).union(*(run.known_to_own() for run in listed))
    for name in common.own:
        if name not in known:
            raise unknown("setting", name, known)
    idle = [name for name in ATTACK_SETTINGS if name in common.own]
    if idle and all(run.attack is None for run in listed):
        raise RepperError(
            f"--{OPTIONS[idle[0]].key} needs --attack: what are these clients to do? "
            f"(known: {', '.join(ATTACKS)})"
        )


def _key(name: str) -> str:
    """The TOML key of a setting that something owns."""
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
