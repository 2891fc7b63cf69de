"""What stands between training and sending, and between the mean and its use."""

from dataclasses import dataclass, replace

import pytest
import torch

from conftest import make_dataset
from repper.basics.params import digest
from repper.engines.pool import PoolEngine
from repper.engines.serial import SerialEngine
from repper.runs.plan import plan
from repper.server.round_loop import federate
from repper.settings.config import Config
from repper.updates.transforms import Float16, Transform


@dataclass(frozen=True)
class Clip(Transform):
    """How far an update may go, and noise that is drawn from the seed it gets."""

    length: float = 0.1
    noise: float = 0.0

    def __call__(self, params, received, seed):
        random = torch.Generator().manual_seed(seed)
        moved = {name: tensor - received[name] for name, tensor in params.items()}
        size = torch.stack([m.square().sum() for m in moved.values()]).sum().sqrt()
        share = min(1.0, self.length / float(size))
        return {
            name: received[name] + share * move
            + self.noise * torch.randn(move.shape, generator=random)
            for name, move in moved.items()
        }  # fmt: skip


def far(a, b):
    return float(torch.stack([(a[n] - b[n]).square().sum() for n in a]).sum().sqrt())


@pytest.fixture
def planned(tmp_path):
    config = Config(
        method="fedavg", clients=4, rounds=2, epochs=1, width=0.25, participation=1.0, batch=8,
        device="cpu", out=str(tmp_path / "run"),
    )  # fmt: skip
    return plan(config, make_dataset())


def with_transforms(planned, **transforms):
    return replace(planned, work=replace(planned.work, **transforms))


def run(planned, engine=SerialEngine):
    work = planned.work
    with engine(work, planned.dealt.data, 2) as fleet:
        served = planned.enter(0)
        rounds = federate(fleet, served, work.stages[0], seed=0, settling=work.settling)
        return served, list(rounds)


def test_updates_are_changed_before_they_leave_a_client(planned):
    clipped = with_transforms(planned, sending=(Clip(length=0.1),))
    with SerialEngine(clipped.work, clipped.dealt.data, 1) as engine:
        served = clipped.enter(0)
        sent = [update.sent for update in engine.fit(served.received, range(4), 1)]
    assert [far(one, served.shared) for one in sent] == pytest.approx([0.1] * 4, rel=1e-3)


def test_they_are_applied_in_order(planned):
    both = with_transforms(planned, sending=(Clip(length=0.1), Float16()))
    with SerialEngine(both.work, both.dealt.data, 1) as engine:
        [update] = engine.fit(both.enter(0).received, [0], 1)
    assert all(torch.equal(t, t.half().float()) for t in update.sent.values())
    assert far(update.sent, both.enter(0).shared) == pytest.approx(0.1, rel=0.2)


def test_the_mean_is_changed_before_it_is_used(planned):
    served, rounds = run(with_transforms(planned, settling=(Clip(length=0.05),)))
    assert far(rounds[0].shared, served.shared) == pytest.approx(0.05, rel=1e-3)
    assert far(rounds[1].shared, rounds[0].shared) == pytest.approx(0.05, rel=1e-3)


def test_noise_depends_on_round_and_client_and_not_on_the_engine(planned):
    noisy = with_transforms(
        planned, sending=(Clip(noise=0.01),), settling=(Clip(length=9.0, noise=0.01),)
    )
    _, serial = run(noisy)
    _, pool = run(noisy, PoolEngine)
    assert [digest(r.shared) for r in serial] == [digest(r.shared) for r in pool]
    with SerialEngine(noisy.work, noisy.dealt.data, 1) as engine:
        shared = noisy.enter(0).received
        drawn = [u.sent["head.bias"] - shared["head.bias"] for u in engine.fit(shared, [0, 1], 1)]
        later = [u.sent["head.bias"] - shared["head.bias"] for u in engine.fit(shared, [0], 2)]
    assert not torch.allclose(drawn[0], drawn[1], atol=1e-3)
    assert not torch.allclose(drawn[0], later[0], atol=1e-3)
