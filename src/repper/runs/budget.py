"""Privacy settings: the noise for a budget, and the rounds that a budget allows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from repper.basics.errors import RepperError
from repper.basics.seeds import Purpose, stream
from repper.methods.stage import Stage, choose_cohort
from repper.privacy import SERVER, SITE, Privacy
from repper.privacy.accountant import Release, check_delta, noise_for, within
from repper.settings.config import Config

OF_SITES = "sites"
"""The name of the data of a federation, in its server's settings."""


def privacy_of(config: Config) -> Privacy | None:
    """The settings of differential privacy, or None without it.

    Sites of a federation get the seed, from which cohorts follow; a server that sees single updates
    knows whose they are.
    """
    if config.clip is None:
        return None
    at = config.noise_at or SERVER
    known = at == SITE or config.data == OF_SITES
    noise, delta = config.noise or 0.0, config.delta or 0.0
    return Privacy(config.clip, noise, delta, at, known, config.epsilon)


def releases_of(stages: Sequence[Stage], seed: int) -> list[Release]:
    """The releases of all rounds of these stages."""
    found: list[Release] = []
    for stage in stages:
        for _ in range(stage.rounds):
            random = stream(seed, Purpose.COHORT, len(found) + 1)
            cohort = choose_cohort(stage.clients, stage.participation, random)
            found.append(Release(len(stage.clients), cohort))
    return found


def find_noise(config: Config, asked: Sequence[Stage]) -> Config:
    """The settings with the noise that all rounds need, if only an epsilon was given."""
    privacy = privacy_of(config)
    if privacy is None or config.epsilon is None or config.noise is not None:
        return config
    releases = releases_of(asked, config.seed)
    return replace(config, noise=noise_for(config.epsilon, privacy, releases) or None)


def within_budget(config: Config, asked: tuple[Stage, ...]) -> tuple[Stage, ...]:
    """The stages, with as many rounds of the last one as the budget allows."""
    privacy = privacy_of(config)
    if privacy is None or privacy.budget is None or not privacy.noise:
        return asked
    releases = releases_of(asked, config.seed)
    left = within(privacy, privacy.budget, releases)
    if left == len(releases):
        return asked
    last = left - (len(releases) - asked[-1].rounds)
    if last <= 0:
        raise RepperError(
            f"the budget of epsilon {privacy.budget:g} is spent after {left} of {len(releases)} "
            f"rounds{', before the last stage' if len(asked) > 1 else ''}: raise --noise, or leave "
            f"out --noise to have it computed"
        )
    return (*asked[:-1], replace(asked[-1], rounds=last))


def check_clients_hidden(config: Config, asked: Sequence[Stage]) -> None:
    """Refuse settings that mean nothing with --clip, or reveal what the noise hides."""
    if config.delta is not None and any(stage.rounds for stage in asked):
        check_delta(config.delta, len(config.stage1()))
    for name, why in (
        ("max_weight", "with --clip all clients have the same weight"),
        ("validation", "choosing a round by accuracy would reveal what the noise hides"),
    ):
        if getattr(config, name):
            raise RepperError(f"--{name.replace('_', '-')} does not go with --clip: {why}")
