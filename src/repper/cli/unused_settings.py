"""Notes about settings that were given but have no effect in a run."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from repper.cli.show import tell
from repper.heads import HEADS
from repper.heads.personalize import FINETUNE
from repper.settings.config import OPTIONS, Config


def say_what_is_idle(given: Collection[str], runs: Sequence[Config]) -> None:
    """Print a note on stderr for each given setting that none of the runs uses."""
    for sentence in idle(given, runs):
        tell(f"note: {sentence}")


def idle(given: Collection[str], runs: Sequence[Config]) -> Iterator[str]:
    """A sentence about every setting that is not at its default and that none of the runs uses."""
    here = {f"--partition {run.partition}" for run in runs}
    here |= {str(thing) for run in runs for thing in (run.method, run.server, run.attack)}
    own = {name for run in runs for name in run.known_to_own()}
    here |= {run.personalize_as(client) for run in runs for client in (None, *run.overrides)}
    for name, users in _users().items():
        setting = OPTIONS[name]
        if (
            name not in given
            or name in own
            or runs[0].setting(name) == setting.default
            or here & {*users}
        ):
            continue
        *most, last = users
        whose = f"{', '.join(most)} and {last}" if most else last
        heads = " heads" if last in (*HEADS, FINETUNE) else ""
        yield f"--{setting.key} has no effect here: it is for {whose}{heads}"


def _users() -> dict[str, list[str]]:
    """The methods, heads or partitions that use a setting; settings of all runs are not listed."""
    users = {"alpha": ["--partition dirichlet"], "classes_per_client": ["--partition shards"]}
    for name, option in OPTIONS.items():
        if option.owners:
            users[name] = list(option.owners)
            # To tune a head is to train a linear one further, on features as they are.
            if "linear" in option.owners and name != "head_scale":
                users[name].append(FINETUNE)
    return users | {"head_input": [*HEADS], "head_curve": users["head_epochs"]}
