import dataclasses
import functools
import os
import signal
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from repper.basics.errors import RepperError
from repper.basics.names import is_encoder, is_head
from repper.basics.params import digest, load_params, params_of, select
from repper.basics.seeds import Purpose, stream
from repper.data.batches import batches
from repper.data.partition import Partition, split
from repper.edge import read_head
from repper.encoders.encoder import extract
from repper.engines import ENGINES
from repper.engines.client import Clients
from repper.engines.pool import PoolEngine
from repper.engines.private import PrivateStore
from repper.engines.serial import SerialEngine
from repper.engines.trainer import TrainingInputs
from repper.heads import HEADS
from repper.heads.scores import knn_accuracy
from repper.methods import METHODS
from repper.methods.method import Phase
from repper.methods.network import build_network
from repper.runs.plan import plan
from repper.settings.config import Config

HERE = ("serial", "pool")
"""Engines that need no other program; tests/flower has Flower's."""


def partition_for(data, clients=4, seed=0):
    return split(data, clients=clients, alpha=1.0, seed=seed)


def work_for(data, private=None, **settings):
    """The work of a run with these settings, and what its server sends first."""
    config = Config(
        **{"clients": 4, "epochs": 2, "batch": 32, "width": 0.25, "device": "cpu", **settings}
    )
    planned = plan(config, data, partition_for(data, config.clients, config.seed))
    private = private if planned.keeps_own else None
    if private:
        PrivateStore(private).begin(planned.first_kept())
    return dataclasses.replace(planned.work, private=private), planned.enter(0).received


def test_features_of_large_images_are_taken_a_few_at_once():
    seen = []

    class Watched(torch.nn.Module):
        def forward(self, images):
            seen.append(len(images))
            return images.mean((1, 2, 3))[:, None]

    for size, expected in ((8, [12]), (32, [12]), (224, [10, 2]), (1024, [1] * 12)):
        images = torch.arange(12, dtype=torch.uint8).reshape(-1, 1, 1, 1).expand(12, 1, size, size)
        seen.clear()
        assert extract(Watched(), images).argsort(0).flatten().tolist() == list(range(12))
        assert seen == expected


def everything(engine, shared, clients, folder=None):
    """All that an engine answers in a round and in stage 2, in client order."""
    updates = sorted(engine.fit(shared, clients, 1), key=lambda u: u.client)
    personal = sorted(engine.personalize(shared, clients, 1, folder), key=lambda p: p.client)
    return {
        "updates": [(u.client, digest(u.sent), u.examples, u.loss) for u in updates],
        "heads": [(p.client, p.head_digest, p.test.correct.tolist()) for p in personal],
        "private": [p.private_digest for p in personal],
        "knn": engine.probe(shared),
    }


@pytest.fixture(scope="module")
def by_serial(digits, tmp_path_factory):
    """What the serial engine answers, by method; each is asked once."""

    @functools.cache
    def answers(name):
        work, shared = work_for(digits, tmp_path_factory.mktemp(name) / "private", method=name)
        with SerialEngine(work, digits, 0) as engine:
            return everything(engine, shared, range(4))

    return answers


@pytest.mark.parametrize(
    ("workers", "name"), [(1, "repper"), (3, "repper"), *((2, n) for n in METHODS if n != "repper")]
)
def test_the_pool_gives_the_serial_numbers_to_the_bit(digits, by_serial, tmp_path, name, workers):
    work, shared = work_for(digits, tmp_path / "private", method=name)
    with PoolEngine(work, digits, workers) as engine:
        assert everything(engine, shared, range(4)) == by_serial(name)
        # A second time, and another round: nothing is left over from the first.
        assert everything(engine, shared, range(4)) == by_serial(name)
        later = [u.loss for u in engine.fit(shared, [0], 2)]
    assert later != [by_serial(name)["updates"][0][3]]


@pytest.mark.parametrize("name", HERE)
def test_what_a_client_does_does_not_depend_on_who_else_is_asked(digits, by_serial, name):
    work, shared = work_for(digits, method="repper")
    with ENGINES[name](work, digits, 2) as engine:
        [update] = engine.fit(shared, [2], 1)
    expected = by_serial("repper")["updates"][2]
    assert (2, digest(update.sent), update.examples, update.loss) == expected


@pytest.mark.parametrize("name", HERE)
def test_every_kind_of_head_is_kept_on_the_clients_side(digits, tmp_path, name):
    kinds = dict(enumerate([*HEADS, "linear"][1:]))
    overrides = {client: {"personalize": kind} for client, kind in kinds.items()}
    work, shared = work_for(digits, overrides=overrides)
    with ENGINES[name](work, digits, 2) as engine:
        personal = list(engine.personalize(shared, range(4), 1, tmp_path))
    for one in personal:
        head = read_head(tmp_path / f"{one.client}.safetensors")
        assert head.kind == kinds[one.client] == one.test.personalize
        assert head.digest() == one.head_digest
        assert head.encoder == digest(select(shared, is_encoder))
        assert one.validation is None


def test_an_update_holds_weights_examples_and_loss_only(digits):
    work, shared = work_for(digits)
    with SerialEngine(work, digits, 0) as engine:
        [update] = engine.fit(shared, [1], 1)
    assert set(vars(update)) == {"client", "sent", "examples", "loss"}
    assert update.sent.keys() == shared.keys()
    assert update.examples == len(work.partition.train[1])
    assert digest(update.sent) != digest(shared)


def test_training_moves_the_given_parameters_not_the_servers_copy(digits):
    work, shared = work_for(digits)
    before = digest(shared)
    with SerialEngine(work, digits, 0) as engine:
        list(engine.fit(shared, [0, 1], 1))
    assert digest(shared) == before


def test_one_step_of_fedavg_is_adam_on_cross_entropy(digits):
    """One epoch, one batch, no augmentation: the update can be written down."""
    work, shared = work_for(
        digits, method="fedavg", epochs=1, batch=4096, augment="none", norm="group"
    )
    clients = Clients.of(work, digits)
    clients.receive(shared)
    update = clients.fit(0, 1)

    network = build_network(work.stages[0].method, work.spec, 10, seed=0)
    load_params(network, shared)
    rows = work.partition.train[0]
    images = torch.from_numpy(digits.train.images[rows]).float() / 127.5 - 1
    labels = torch.from_numpy(digits.train.labels[rows])
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3, weight_decay=1e-4)
    loss = torch.nn.functional.cross_entropy(network(images)["head"], labels)
    loss.backward()
    optimizer.step()
    assert update.loss == pytest.approx(float(loss.detach()), rel=1e-4)
    for name, value in network.state_dict().items():
        # Adam's first step is the sign of the gradient: a gradient near zero may round either way.
        different = (update.sent[name] - value).abs() > 1e-5
        assert float(different.float().mean()) < 0.01, name
    assert digest(update.sent) != digest(shared)


def test_the_learning_rate_decays_by_rounds(digits):
    def moved(number, **settings):
        work, shared = work_for(digits, method="fedavg", epochs=1, batch=4096, **settings)
        clients = Clients.of(work, digits)
        clients.receive(shared)
        update = clients.fit(0, number)
        return float((update.sent["head.weight"] - shared["head.weight"]).abs().max())

    decay = {"lr": 1e-3, "lr_decay": 0.1, "lr_decay_every": 5}
    assert moved(1, **decay) == pytest.approx(1e-3, rel=0.05)
    assert moved(5, **decay) == pytest.approx(1e-3, rel=0.05)
    assert moved(6, **decay) == pytest.approx(1e-4, rel=0.05)
    assert moved(11, **decay) == pytest.approx(1e-5, rel=0.05)


def test_validation_images_are_never_trained_on_or_tested(digits):
    work, _ = work_for(digits, validation=0.2, evaluate_every=1)
    for client, held in enumerate(partition_for(digits).train):
        rows, kept = work.train_rows(client), work.partition.held_out[client]
        assert len(kept) == round(0.2 * len(held))
        assert sorted([*rows, *kept]) == held.tolist()


def test_clients_with_the_same_images_still_draw_their_own_randomness(digits):
    work, shared = work_for(digits, personalize="mlp")
    rows = work.partition
    twins = Partition((rows.train[0],) * 4, (rows.test[0],) * 4)
    work = dataclasses.replace(work, partition=twins)
    with SerialEngine(work, digits, 0) as engine:
        updates = {digest(update.sent) for update in engine.fit(shared, range(4), 1)}
        heads = {one.head_digest for one in engine.personalize(shared, range(4), 1, None)}
    assert len(updates) == len(heads) == 4


def test_validation_images_do_not_count_as_examples(digits):
    work, shared = work_for(digits, validation=0.2, evaluate_every=1)
    with SerialEngine(work, digits, 0) as engine:
        for update in engine.fit(shared, range(4), 1):
            held = len(partition_for(digits).train[update.client])
            assert update.examples == held - round(0.2 * held)


def test_validation_scores_come_from_the_kept_images(digits):
    work, shared = work_for(digits, validation=0.2, evaluate_every=1)
    with SerialEngine(work, digits, 0) as engine:
        for one in engine.personalize(shared, range(4), 1, None):
            held = len(partition_for(digits).train[one.client])
            kept = round(0.2 * held)
            assert one.validation.tested.sum() == kept
            assert one.test.train.sum() == held - kept


def test_the_encoder_learns_from_views_but_heads_see_plain_images(digits):
    plain, augmented = (work_for(digits, augment=level) for level in ("none", "strong"))
    with SerialEngine(plain[0], digits, 0) as one, SerialEngine(augmented[0], digits, 0) as other:
        shared = plain[1]
        heads = [[p.head_digest for p in e.personalize(shared, [0], 1, None)] for e in (one, other)]
        updates = [[digest(u.sent) for u in e.fit(shared, [0], 1)] for e in (one, other)]
    assert heads[0] == heads[1]
    assert updates[0] != updates[1]


def test_a_dead_worker_is_reported_in_one_sentence(digits):
    work, shared = work_for(digits, epochs=2000)
    smaller = min((0, 1), key=lambda client: len(work.partition.train[client]))  # goes second
    with PoolEngine(work, digits, 2) as engine:
        victim = engine._workers[1].process
        updates = engine.fit(shared, [0, 1], 7)
        threading.Timer(1.0, os.kill, (victim.pid, signal.SIGKILL)).start()
        with pytest.raises(
            RepperError,
            match=r"^repper worker 1 died \(signal SIGKILL\) while training "
            rf"client {smaller} in round 7, perhaps for lack of memory: run the same command with --resume",
        ):
            next(updates)
        assert engine._workers == []
    assert not victim.is_alive()


def test_a_worker_that_fails_passes_its_error_on(digits):
    work, shared = work_for(digits)
    with PoolEngine(work, digits, 1) as engine, pytest.raises(RepperError, match="cannot write"):
        list(engine.personalize(shared, [0], 1, Path("/proc/nowhere")))


def test_engines_give_their_threads_back(digits):
    before = torch.get_num_threads()
    work, shared = work_for(digits)
    with SerialEngine(work, digits, 0) as engine:
        assert torch.get_num_threads() == 1
        engine.probe(shared)
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(
    ("count", "size", "sizes"),
    [(10, 4, [4, 4, 2]), (9, 4, [4, 5]), (4, 4, [4]), (5, 4, [5]), (1, 4, [1]), (3, 256, [3])],
)
def test_batches_cover_all_rows_and_none_is_a_single_image(count, size, sizes):
    parts = list(batches(count, size, torch.Generator().manual_seed(0)))
    assert [len(part) for part in parts] == sizes
    assert sorted(torch.cat(parts).tolist()) == list(range(count))


def test_the_probe_tells_a_trained_encoder_from_an_untrained_one(digits):
    work, shared = work_for(digits, knn=400)
    with SerialEngine(work, digits, 0) as engine:
        before = engine.probe(shared)
        for number in (1, 2):
            [update] = engine.fit(shared, [0], number)
            shared = update.sent
        assert engine.probe(shared) > before
    work, shared = work_for(digits, knn=0)
    with SerialEngine(work, digits, 0) as engine:
        assert engine.probe(shared) is None


def test_clients_learn_their_own_classes_only(digits):
    work, shared = work_for(digits)
    with SerialEngine(work, digits, 0) as engine:
        [one] = engine.personalize(shared, [3], 1, None)
    held = np.bincount(digits.train.labels[work.partition.train[3]], minlength=10)
    assert one.test.train.tolist() == held.tolist()


def train_one_phase(data, phase, **settings):
    """Run a phase as client 0 and return the mean loss, and the parameters before and after."""
    work, shared = work_for(data, **settings)
    clients = Clients.of(work, data)
    clients.receive(shared)
    network, trainer = clients._at.network, clients._at.trainer
    load_params(network, shared)
    images, labels = clients._pick(clients._train_split, work.train_rows(0))
    counts = torch.bincount(labels, minlength=10).float()
    features = functools.partial(clients._looked_at, 0, images)
    inputs = TrainingInputs(images, labels, shared, {}, counts, features)
    loss, _ = trainer.train(phase, inputs, 1e-3, torch.Generator().manual_seed(0))
    return loss, shared, params_of(network), len(labels)


def test_weight_decay_is_a_part_of_adams_gradient(digits):
    """Its first step is then one of lr against the sign of every weight; AdamW's is smaller."""
    still = Phase(is_encoder, 1, lambda seen: 0 * seen.outputs["r"].sum())
    _, before, after, _ = train_one_phase(digits, still, weight_decay=0.1, batch=4096)
    name = "encoder.body.0.0.weight"
    expected = before[name] - 1e-3 * before[name].sign()
    assert torch.allclose(after[name], expected, atol=1e-5)


@pytest.mark.parametrize("augment", ["none", "strong"])
def test_two_views_of_the_same_images_stand_in_the_same_order(digits, augment):
    shown = []

    def loss(seen):
        outputs = seen.outputs["r"]
        shown.append((outputs.detach().clone(), seen.labels.clone()))
        return outputs.sum()

    phase = Phase(is_encoder, 2, loss, views=2)
    _, _, _, count = train_one_phase(digits, phase, augment=augment, batch=32, norm="group")
    assert sum(len(labels) for _, labels in shown) == 2 * 2 * count
    assert {len(labels) for _, labels in shown[:-2]} >= {64}
    for outputs, labels in shown:
        half = len(labels) // 2
        assert torch.equal(labels[:half], labels[half:])
        apart = (outputs[:half] - outputs[half:]).abs().amax(1)
        # Every image has two views of its own, not one view twice.
        assert (apart < 1e-5).all() if augment == "none" else (apart > 1e-5).all()


def test_a_phase_moves_what_it_names_and_reports_its_mean_loss(digits):
    def loss(seen):
        outputs = seen.outputs["head"]
        return 3.0 + 0 * outputs.sum() + outputs.square().mean() - outputs.square().mean().detach()

    mean, before, after, _ = train_one_phase(
        digits, Phase(is_head, 3, loss), method="fedavg", batch=32
    )
    assert mean == pytest.approx(3.0)
    for name, value in after.items():
        if "running" not in name:
            assert torch.equal(value, before[name]) == is_encoder(name), name


def test_the_probe_is_nearest_neighbours_of_training_images_for_test_images(digits):
    work, shared = work_for(digits, encoder="pixels", rounds=0, knn=300)
    with SerialEngine(work, digits, 0) as engine:
        found = engine.probe(shared)
    random = stream(0, Purpose.PROBE)
    rows = [random.permutation(len(s))[:n] for s, n in ((digits.train, 300), (digits.test, 150))]
    flat = [
        s.images[r].reshape(len(r), -1) / 127.5 - 1
        for s, r in zip((digits.train, digits.test), rows, strict=True)
    ]
    labels = digits.train.labels[rows[0]], digits.test.labels[rows[1]]
    assert found == pytest.approx(knn_accuracy(flat[0], labels[0], flat[1], labels[1]), abs=0.7)


def test_the_death_of_an_idle_worker_is_noticed_too(digits):
    work, shared = work_for(digits, epochs=2000)
    with PoolEngine(work, digits, 2) as engine:
        threading.Timer(1.0, os.kill, (engine._workers[1].process.pid, signal.SIGKILL)).start()
        with pytest.raises(RepperError, match="worker 1 died .* while waiting for work"):
            list(engine.fit(shared, [0], 1))


def test_the_pool_never_runs_far_ahead_of_the_slowest_client(digits):
    """So that the server never holds many updates: client 0 is a hundred times larger."""
    work, shared = work_for(digits, clients=32)
    rows = np.arange(1430)
    sizes = (rows[:1120], *rows[1120:].reshape(31, 10))
    work = dataclasses.replace(work, partition=Partition(sizes, work.partition.test))
    with PoolEngine(work, digits, 2) as engine:
        arrived = [update.client for update in engine.fit(shared, range(32), 1)]
    assert sorted(arrived) == list(range(32))
    assert arrived.index(0) <= 8


def test_the_largest_client_goes_first(digits):
    work, shared = work_for(digits, clients=8, epochs=1)
    held = np.split(np.arange(8 * 9 // 2 * 10), np.cumsum(np.arange(1, 8) * 10))
    assert [len(rows) for rows in held] == [10, 20, 30, 40, 50, 60, 70, 80]
    work = dataclasses.replace(work, partition=Partition(tuple(held), work.partition.test))
    with PoolEngine(work, digits, 1) as engine:
        arrived = [update.client for update in engine.fit(shared, range(8), 1)]
    assert arrived == [3, 2, 1, 0, 7, 6, 5, 4]  # four places ahead at most


def test_heads_take_z_if_asked(digits, tmp_path):
    arrays = {}
    for kind in ("r", "z"):
        work, shared = work_for(digits, head_input=kind, head_scale=True)
        (tmp_path / kind).mkdir()
        with SerialEngine(work, digits, 0) as engine:
            list(engine.personalize(shared, [0], 1, tmp_path / kind))
        head = read_head(tmp_path / kind / "0.safetensors")
        assert head.unit_input == (kind == "z")
        arrays[kind] = head.arrays["mean"]
    # The mean of vectors of length one is shorter than one.
    assert 0.5 < np.linalg.norm(arrays["z"]) < 1
    assert not np.allclose(arrays["r"], arrays["z"], rtol=0.01)
