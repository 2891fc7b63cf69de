"""A method's network: its parameters by name, and which are shared or private."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast, final

import torch
from torch import Tensor, nn

from repper.basics.errors import RepperError
from repper.basics.names import is_encoder, is_weight, named_parts
from repper.basics.params import Params, params_of, select
from repper.encoders.encoder import Encoder, EncoderSpec
from repper.methods.method import Method
from repper.methods.stage import Stage


@final
class Network(nn.Module):
    """The modules of a method: `encoder.*`, its top, and personal copies: `personal.*`."""

    def __init__(
        self, method: Method, encoder: Encoder, top: Mapping[str, nn.Module], copies: Iterable[str]
    ) -> None:
        super().__init__()
        self._method = method
        self._top = tuple(top)
        self._copies = tuple(copies)
        self.frozen: tuple[str, ...] = ()
        """What the names of parameters begin with that no phase moves."""
        self.encoder = encoder
        for name, layer in top.items():
            self.add_module(name, layer)
        for name in self._copies:
            own = Network(method, copy.deepcopy(encoder), copy.deepcopy(dict(top)), ())
            self.add_module(name, own)

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """The features of images as `r`, and the outputs of each module by its name."""
        return self.of_features(self.encoder(images))

    def of_features(self, r: Tensor) -> dict[str, Tensor]:
        """`forward` for given features."""
        parts = {name: self.get_submodule(name) for name in self._top}
        return {"r": r, **self._method.outputs(parts, r)}

    def copy_named(self, name: str) -> Network:
        """The copy of this name; without a name, the shared network."""
        return cast(Network, self.get_submodule(name))

    def freeze(self, until: str) -> None:
        """Freeze the encoder's layers before the part of this name."""
        first = self.encoder.parts[until]
        places = ("", *(f"{name}." for name in self._copies))
        self.frozen = tuple(f"{at}encoder.body.{i}." for at in places for i in range(first))

    @property
    def own(self) -> Network:
        """The network that a client predicts with."""
        return self.copy_named(self._method.answers_with)

    @property
    def classifier(self) -> tuple[Tensor, Tensor] | None:
        """The linear layer on features that this network predicts with, if it has one."""
        return self._method.classifier(params_of(self))


def build_network(
    method: Method, spec: EncoderSpec, classes: int, seed: int, freeze_until: str | None = None
) -> Network:
    """The method's network with initial values from `seed`, frozen before a part of the encoder."""
    encoder = spec.build(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed + 1)
        top = method.top(encoder.features, classes)
    network = Network(method, encoder, top, method.copies)
    if freeze_until is not None:
        if freeze_until not in encoder.parts:
            has = ", ".join(encoder.parts) or "none"
            raise RepperError(
                f"--freeze-until {freeze_until}: encoder {spec.name!r} has no such part; it has "
                f"{has}"
            )
        network.freeze(freeze_until)
    return network


@dataclass(frozen=True)
class Holds:
    """Which parameters of a stage are shared, given, private or never trained.

    `shared` travel both ways. `given` come from an earlier stage, or are frozen, and only go to
    clients. `private` are trained and kept by each client. `still` stay as they were drawn: no
    phase moves them.
    """

    shared: frozenset[str]
    given: frozenset[str]
    private: frozenset[str]
    still: frozenset[str]
    keeps_private: bool
    own_encoders: bool
    copies: tuple[str, ...] = ()
    """What the names of parameters of the network's copies begin with."""

    @classmethod
    def of(
        cls,
        method: Method,
        network: Network,
        local_norm: bool,
        before: Collection[str] = (),
        kept: Collection[str] = (),
    ) -> Holds:
        """Sort the parameters of a stage, where earlier stages have trained `before`.

        And each client those that it has `kept` since.
        """
        names = {n for n in params_of(network) if not n.startswith(network.frozen)}
        frozen = {n for n in params_of(network) if n.startswith(network.frozen) and is_encoder(n)}
        norms = _norm_names(network) if local_norm or method.local_norm else frozenset()
        shared = frozenset(n for n in names if _travels(method, n) and n not in norms)
        earlier = frozenset(n for n in before if n in names and n not in shared | norms)
        given = earlier | frozen
        private = frozenset(
            n for n in names - shared - given
            if method.private(n) or (n in norms and method.moves(n))
        )  # fmt: skip
        copies = tuple(f"{name}." for name in method.copies)
        beside = method.begin(select(params_of(network), shared.__contains__))[1]
        still = {n for n in names - shared - given - private if not n.startswith(copies)}
        return cls(
            shared, given, private, frozenset(still),
            keeps_private=bool(private or beside),
            own_encoders=any(is_encoder(n) for n in {*private, *kept} - shared - given)
            or bool(method.answers_with),
            copies=copies,
        )  # fmt: skip

    @property
    def keeps_own(self) -> bool:
        """Whether clients have private parameters."""
        return self.keeps_private or bool(self.still)


def _travels(method: Method, name: str) -> bool:
    """The method's answer for a parameter; reports a forgotten `return` in own code."""
    if (answer := method.shared(name)) not in (True, False):
        raise RepperError(
            f"shared of {type(method).__name__} must return True or False, got {answer!r}"
        )
    return answer


def _norm_names(network: Network) -> frozenset[str]:
    """The names of weights and statistics of the encoder's normalization layers."""
    kinds = (nn.BatchNorm2d, nn.GroupNorm)
    return frozenset(
        f"{prefix}.{name}"
        for prefix, module in network.named_modules()
        if isinstance(module, kinds) and is_encoder(f"{prefix}.")
        for name, value in module.state_dict().items()
        if value.is_floating_point()
    )


def holdings(
    stages: Sequence[Stage], networks: Sequence[Network], local_norm: bool
) -> tuple[Holds, ...]:
    """The `Holds` of each stage of a run."""
    found: list[Holds] = []
    for stage, network in zip(stages, networks, strict=True):
        before = {name for holds in found for name in holds.shared}
        kept = {name for holds in found for name in holds.private}
        found.append(Holds.of(stage.method, network, local_norm, before, kept))
    return tuple(found)


def first_received(method: Method, network: Network, holds: Holds) -> Params:
    """The parameters that the server sends in a stage's first round."""
    params = params_of(network)
    weights = select(params, holds.shared.__contains__)
    beside = named_parts(method.begin(weights)[0])
    return select(params, holds.given.__contains__) | weights | beside


def first_kept(method: Method, network: Network, holds: Holds) -> Params:
    """The initial private parameters of a client; copies start as the received model."""
    params = params_of(network)
    own = {n for n in holds.private if not n.startswith(holds.copies)}
    kept = method.begin(select(params, holds.shared.__contains__))[1]
    return select(params, lambda n: n in own or n in holds.still) | kept


def to_send(received: Params, holds: Holds) -> Params:
    """The received parameters that clients send back: shared weights, and parts."""
    return select(received, lambda n: n in holds.shared or not is_weight(n))
