"""Hostile clients: what each attack sends, whom it leaves alone, and what a run says of it."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

import repper as api
from conftest import make_dataset
from repper.basics.errors import RepperError
from repper.basics.params import digest
from repper.data.partition import read_partition
from repper.engines.pool import PoolEngine
from repper.engines.private import PrivateStore
from repper.engines.serial import SerialEngine
from repper.report import write_report
from repper.runs.attacked import said_of
from repper.runs.compare import rows_of
from repper.runs.plan import plan
from repper.settings.config import Config
from repper.updates.attacks import (
    ATTACKS,
    Attack,
    Backdoor,
    LabelFlip,
    Noise,
    Scale,
    SignFlip,
    choose_hostile,
)

W, VARIANCE = "encoder.0.weight", "encoder.1.running_var"
SMALL = {
    "clients": 10, "participation": 1.0, "rounds": 3, "epochs": 1, "width": 0.25, "knn": 0,
    "alpha": 5.0, "engine": "serial", "method": "fedavg", "batch": 16,
}  # fmt: skip
START = {W: torch.tensor([1.0, 2.0]), VARIANCE: torch.tensor([1.0])}
TRAINED = {W: torch.tensor([1.5, 1.0]), VARIANCE: torch.tensor([3.0])}


def test_a_turned_update_goes_as_far_the_other_way_and_no_variance_below_zero():
    sent = SignFlip(strength=10)(TRAINED, START, 0)
    assert sent[W].tolist() == [1 - 10 * 0.5, 2 + 10 * 1.0]
    assert sent[VARIANCE].tolist() == [0.0]  # 1 - 10 * 2 would be refused at sight


def test_a_scaled_update_goes_farther_the_same_way():
    sent = Scale(strength=4)(TRAINED, START, 0)
    assert sent[W].tolist() == [1 + 4 * 0.5, 2 - 4 * 1.0]
    assert sent[VARIANCE].tolist() == [9.0]


def test_noise_is_as_long_as_asked_and_knows_nothing_of_the_update():
    random = torch.Generator().manual_seed(1)
    start = {W: torch.zeros(10_000), "head.bias": torch.ones(3)}
    move = 0.3 * torch.randn(10_000, generator=random)
    trained = {W: move, "head.bias": torch.ones(3)}
    sent = Noise(strength=5)(trained, start, 7)
    assert float(sent[W].norm() / move.norm()) == pytest.approx(5, rel=0.05)
    assert abs(float(torch.corrcoef(torch.stack([sent[W], move]))[0, 1])) < 0.05
    assert torch.equal(sent["head.bias"], torch.ones(3))  # nothing has moved there
    assert torch.equal(sent[W], Noise(strength=5)(trained, start, 7)[W])
    assert not torch.equal(sent[W], Noise(strength=5)(trained, start, 8)[W])


def test_false_labels_are_other_labels_for_the_share_asked_for():
    images, labels = torch.zeros(100, 1, 8, 8), torch.arange(100) % 5
    _, flipped = LabelFlip().poison(images, labels, 5, 3)
    assert (flipped != labels).all()
    assert set(flipped.tolist()) == set(range(5))
    # Not one class for another: RepPer's loss, which compares labels, would not notice.
    assert len(set(flipped[labels == 0].tolist())) > 1
    _, some = LabelFlip(strength=0.3).poison(images, labels, 5, 3)
    assert int((some != labels).sum()) == 30


def test_a_backdoor_marks_a_share_of_the_images_and_gives_them_its_class():
    images = torch.randint(0, 200, (40, 3, 32, 32), dtype=torch.uint8)
    labels = torch.arange(40) % 4 + 1
    shown, given = Backdoor(strength=0.25, target=0).poison(images, labels, 5, 1)
    marked = (shown != images).flatten(1).any(1)
    assert int(marked.sum()) == 10
    assert (given[marked] == 0).all()
    assert torch.equal(given[~marked], labels[~marked])
    assert (shown[marked][:, :, 25:30, 25:30] == 255).all()
    changed = (shown != images).any(0).any(0)
    assert int(changed.sum()) == 25  # five by five pixels
    assert shown.dtype == torch.uint8


def test_who_attacks_is_drawn_from_the_seed_and_the_number_is_rounded_up():
    one, same, other = (choose_hostile(SignFlip(), range(20), seed) for seed in (1, 1, 2))
    assert len(one.clients) == 4
    assert one == same != other
    assert len(choose_hostile(SignFlip(attackers=0.21), range(10), 0).clients) == 3
    assert set(choose_hostile(Noise(attackers=0.5), (3, 5, 7, 9), 0).clients) <= {3, 5, 7, 9}
    # The draw does not depend on the attack: rows of a comparison have the same honest clients.
    assert choose_hostile(Noise(), range(20), 1).clients == one.clients


def updates(planned, engine=SerialEngine):
    if planned.work.private and not planned.work.private.exists():
        planned.folder.mkdir()
        PrivateStore(planned.work.private).begin(planned.first_kept())
    with engine(planned.work, planned.dealt.data, 2) as fleet:
        received = planned.enter(0).received
        return received, {u.client: u for u in fleet.fit(received, range(4), 1)}


@pytest.mark.parametrize("method", ["repper", "scaffold"])
def test_honest_clients_send_what_they_would_send_without_attackers(method, tmp_path):
    config = Config(
        method=method, clients=4, rounds=1, epochs=1, width=0.25, participation=1.0, batch=8,
        device="cpu", out=str(tmp_path / "run"),
    )  # fmt: skip
    data = make_dataset()
    received, usual = updates(plan(config, data))
    for name in ATTACKS:
        planned = plan(replace(config, attack=name, out=str(tmp_path / name)), data)
        [hostile] = planned.work.hostile.clients
        _, found = updates(planned)
        for client, update in found.items():
            same = digest(update.sent) == digest(usual[client].sent)
            assert same == (client != hostile), (name, client)
            assert update.examples == usual[client].examples
        if name == "sign-flip":
            for key, sent in found[hostile].sent.items():
                turned = received[key] - 10 * (usual[hostile].sent[key] - received[key])
                if key.endswith("running_var"):
                    turned = turned.clamp(min=0)
                assert torch.equal(sent, turned), key


def test_attacks_are_the_same_to_the_bit_in_a_pool(tmp_path):
    data = make_dataset()
    for name in ("backdoor", "noise"):  # those that draw the most
        config = Config(
            method="fedrep", clients=4, rounds=1, epochs=1, width=0.25, participation=1.0, batch=8,
            attack=name, upload="float16", device="cpu", out=str(tmp_path / name),
        )  # fmt: skip
        planned = plan(config, data)
        (_, one), (_, other) = updates(planned), updates(planned, PoolEngine)
        assert [digest(one[c].sent) for c in range(4)] == [digest(other[c].sent) for c in range(4)]


@pytest.fixture(scope="module")
def found(digits, tmp_path_factory):
    folder = tmp_path_factory.mktemp("attacks")
    asked = {
        "usual": {},
        "mean": {"attack": "sign-flip"},
        "geometric": {"attack": "sign-flip", "server": "geometric"},
        "backdoor": {"attack": "backdoor", "attackers": 0.3, "attack_target": 3, "rounds": 6},
    }
    return {
        name: api.run(digits, **{**SMALL, **own}, out=folder / name) for name, own in asked.items()
    }


def test_turned_updates_ruin_the_mean_and_not_a_robust_rule(found):
    usual, mean, robust = (found[name].accuracy["mean"] for name in ("usual", "mean", "geometric"))
    assert mean < 20 < 50 < robust
    assert robust > 0.9 * usual


def test_only_honest_clients_have_heads_and_scores(found):
    run = found["mean"]
    attack = run.result["attack"]
    assert attack == {"name": "sign-flip", "clients": attack["clients"], "honest": 8}
    assert len(attack["clients"]) == 2
    honest = [client for client in range(10) if client not in attack["clients"]]
    assert [score.client for score in run.scores()] == honest
    assert run.accuracy["mean"] == pytest.approx(np.mean([s.accuracy for s in run.scores()]))
    assert len(list((run.folder / "heads").iterdir())) == 8
    with pytest.raises(RepperError, match=f"client {attack['clients'][0]} has no head: it attacks"):
        run.classifier(attack["clients"][0])
    assert said_of(run.result) == (
        "2 of 10 clients attack (sign-flip); scores are those of the 8 honest ones."
    )
    assert "attack" not in found["usual"].result
    assert said_of(found["usual"].result) == ""


def test_the_backdoor_of_a_result_is_what_the_saved_heads_say(found, digits):
    run, target = found["backdoor"], 3
    attack = run.result["attack"]
    assert attack["target"] == "3"
    assert attack["success"] > 25 > 10 > attack["without_mark"]
    rows = read_partition(run.folder / "partition.json", digits).test
    shares = []
    for client in range(10):
        own = rows[client][digits.test.labels[rows[client]] != target]
        if client not in attack["clients"] and len(own):
            images = Backdoor().mark(torch.from_numpy(digits.test.images[own])).numpy()
            shares.append(100 * np.mean(np.array(run.predict(client, images)) == "3"))
    assert attack["success"] == pytest.approx(np.mean(shares))
    assert said_of(run.result).endswith("% without.")


def test_an_attack_is_part_of_what_a_run_is(found, digits):
    run = found["mean"]
    assert run.config.attack == "sign-flip"
    assert run.config.own["attackers"] == 0.2
    assert run.config.own["attack_strength"] == 10.0
    assert api.run(digits, **SMALL, attack="sign-flip", out=run.folder, resume=True).result
    with pytest.raises(RepperError, match="attack-strength"):
        api.run(digits, **SMALL, attack="sign-flip", attack_strength=2, out=run.folder, resume=True)
    usual, attacked = Config(**SMALL), Config(**SMALL, attack="noise")
    assert usual.name() != attacked.name()
    assert "attack" not in usual.identity()


def test_rows_have_attacks_of_their_own(digits, tmp_path):
    rows = "fedavg+keep,fedavg[attack=backdoor server=median]+keep,fedavg[attack=noise]+keep"
    given = {k: v for k, v in SMALL.items() if k != "method"} | {"rounds": 1}
    comparison = api.compare(rows, digits, **given, attackers=0.3, out=tmp_path / "c")
    names = [line.row for line in comparison.lines]
    assert names[1] == "fedavg[server=median attack=backdoor]+keep"
    assert [row.name for row in rows_of(",".join(names))] == names
    runs = comparison.runs()
    assert "attackers" not in runs[names[0]][0].config.own
    hostile = [runs[name][0].result["attack"]["clients"] for name in names[1:]]
    assert hostile[0] == hostile[1]
    assert len(hostile[0]) == 3
    assert comparison.lines[1].backdoor == runs[names[1]][0].result["attack"]["success"]
    assert comparison.lines[0].backdoor is comparison.lines[2].backdoor is None
    assert "scores are those of the honest clients" in comparison.caption()


def test_newcomers_of_an_attacked_run_are_not_attacked(found, tmp_path):
    joined = api.join(found["mean"], clients=3, head_epochs=1, out=tmp_path / "joined")
    assert "attack" not in joined.result
    assert len(joined.scores()) == 3


MISTAKES = [
    ({"attackers": 0.2}, "--attackers needs --attack"),
    ({"attack_strength": 2.0}, "--attack-strength needs --attack"),
    ({"attack": "sign-flip", "attackers": 0}, "--attackers must be above 0, got 0"),
    ({"attack": "sign-flip", "attackers": 1.5}, "--attackers must be at most 1, got 1.5"),
    ({"attack": "sign-flip", "attackers": 0.91}, "makes all 10 clients of stage 1 hostile"),
    ({"attack": "sign"}, "unknown attack 'sign', did you mean 'sign-flip'"),
    ({"attack": "label-flip", "attack_strength": 2}, "--attack-strength must be at most 1, got 2"),
    ({"attack": "backdoor", "attack_target": 10}, "--attack-target must be one of the classes"),
    ({"attack": "noise", "method": "central"}, "central has all images in one place"),
    ({"attack": "noise", "method": "local"}, "Local sends nothing"),
    ({"attack": "noise", "rounds": 0}, "--attack needs rounds"),
    ({"attack": "noise", "server": "krum", "hostile": 0.4}, "Krum needs at least 11 clients"),
]


@pytest.mark.parametrize(("own", "said"), MISTAKES, ids=lambda value: str(value))
def test_mistakes_are_one_sentence_before_anything_is_written(own, said, digits, tmp_path):
    with pytest.raises(RepperError, match=said):
        api.run(digits, **{**SMALL, **own}, out=tmp_path / "run")
    assert not list(tmp_path.iterdir())


def test_a_comparison_without_an_attack_takes_no_attackers(digits, tmp_path):
    given = {k: v for k, v in SMALL.items() if k != "method"}
    with pytest.raises(RepperError, match="--attackers needs --attack"):
        api.compare("fedavg", digits, **given, attackers=0.3, out=tmp_path / "c")
    assert not list(tmp_path.iterdir())


@dataclass(frozen=True)
class Silent(Attack):
    """Sends back what it got."""

    def __call__(self, params, received, seed):
        return {name: received[name] for name in params}


def test_an_attack_of_the_users_own_works_as_a_value(digits, tmp_path):
    given = {**SMALL, "rounds": 1}
    run = api.run(digits, **given, attack=Silent(attackers=0.9), out=tmp_path / "silent")
    assert len(run.result["attack"]["clients"]) == 9
    assert run.result["attack"]["name"].endswith("Silent")


def test_the_report_of_an_attacked_run_says_so(found, tmp_path):
    """Its clients with scores are not the first ones."""
    write_report([found["mean"].folder], tmp_path / "page.html", tsne=False)
    assert "2 of 10 clients attack (sign-flip)" in (tmp_path / "page.html").read_text()
