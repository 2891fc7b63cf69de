from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import tomli_w

from repper.basics.errors import RepperError
from repper.heads import HEAD_SETTINGS
from repper.heads.personalize import Features, HeadInputs
from repper.methods import METHODS
from repper.runs.build import build_personalizers, build_stages, check_clients
from repper.server import RULES
from repper.settings.config import GENERAL, OPTIONS, Config, flat_options
from repper.settings.config_file import read_config
from repper.updates.attacks import ATTACKS

OWNED = [
    flat_options(registry[owner], kind)
    for kind, registry in (
        ("method", METHODS), ("server", RULES), ("attack", ATTACKS), ("personalize", HEAD_SETTINGS),
    )
    for owner in registry
]  # fmt: skip
"""The settings of every method, server rule, attack and head."""


def from_toml(tmp_path, text):
    path = tmp_path / "run.toml"
    path.write_text(text)
    return Config(**read_config(path))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"alpha": 0.0}, "--alpha must be above 0, got 0"),
        ({"alpha": float("nan")}, "--alpha must be a finite number, got nan"),
        ({"alpha": float("inf")}, "--alpha must be a finite number, got inf"),
        ({"participation": 0.0}, "--participation must be above 0, got 0"),
        ({"participation": 1.5}, "--participation must be at most 1, got 1.5"),
        ({"rounds": -1}, "--rounds must be at least 0, got -1"),
        ({"clients": 0}, "--clients must be at least 1, got 0"),
        ({"batch": 1}, "--batch must be at least 2, got 1"),
        ({"temperature": 0.0}, "--temperature must be at least 1e-06, got 0"),
        ({"lr": -1.0}, "--lr must be above 0, got -1"),
        ({"seed": -1}, "--seed must be at least 0, got -1"),
        ({"rounds": 1.5}, "--rounds must be a whole number, got 1.5"),
        ({"rounds": True}, "--rounds must be a whole number, got True"),
        ({"alpha": "0.5"}, "--alpha must be a number, got '0.5'"),
        ({"method": "fedavgg"}, "unknown method 'fedavgg', did you mean 'fedavg'"),
        ({"encoder": "resnet50"}, "unknown encoder 'resnet50', did you mean 'resnet"),
        ({"personalize": "lineal"}, "unknown personalize 'lineal', did you mean 'linear'"),
        ({"norm": "layer"}, r"unknown norm 'layer' \(known: batch, group\)"),
        ({"validation": 0.1}, "--validation needs --evaluate-every N"),
    ],
)
def test_impossible_settings_are_refused(settings, message):
    with pytest.raises(RepperError, match=message):
        Config(**settings)


@pytest.mark.parametrize(
    ("text", "clients", "expected"),
    [("3", 5, (0, 1, 2)), ("4,0,2", 5, (0, 2, 4)), ("1,", 5, (1,)), (None, 2, (0, 1))],
)
def test_stage1_clients_are_a_count_or_a_list(text, clients, expected):
    assert Config(stage1_clients=text, clients=clients).stage1() == expected


@pytest.mark.parametrize("text", ["0", "6", "5,1", "x", "1,x", ","])
def test_stage1_clients_that_do_not_exist_are_refused(text):
    with pytest.raises(RepperError, match="--stage1-clients"):
        check_clients(Config(stage1_clients=text, clients=5))


def test_the_same_clients_are_the_same_setting_however_written(tmp_path):
    listed = from_toml(tmp_path, "stage1-clients = [7, 0, 3]")
    for text in ("0,3,7", "7, 3,0,", "0,3,3,7"):
        assert Config(stage1_clients=text).identity() == listed.identity()
    assert Config(stage1_clients="3").stage1() == (0, 1, 2)
    assert from_toml(tmp_path, "stage1-clients = [3]").stage1() == (3,)


def test_a_tilde_is_the_home_folder(monkeypatch):
    monkeypatch.setenv("HOME", "/home/anna")
    config = Config(out="~/runs/a", init="~/b", partition="~/p.json", data="digits")
    assert (config.out, config.init) == ("/home/anna/runs/a", "/home/anna/b")
    assert config.partition == "/home/anna/p.json"
    assert Config(out="~nobody-here/x").out == "~nobody-here/x"


def test_what_local_and_central_stand_for_is_exact():
    config = Config(method="central", clients=20, participation=0.65, rounds=100)
    [stage] = build_stages(config)
    assert int(65 * stage.stands_for) == 100  # 13 of 20 clients: with floats 99.99


def test_toml_sets_what_flags_set(tmp_path):
    config = from_toml(
        tmp_path,
        'data = "digits"\nalpha = 1\nhead-epochs = 7\nlr_decay = 0.5\nstage1-clients = [0, 3]',
    )
    assert (config.alpha, config.setting("head_epochs"), config.lr_decay) == (1.0, 7, 0.5)
    assert config.stage1() == (0, 3)


def test_single_clients_can_have_their_own_head(tmp_path):
    config = from_toml(tmp_path, '[clients]\ncount = 9\n[clients.7]\npersonalize = "svm"')
    assert config.clients == 9
    assert config.personalize_as(7) == "svm"
    assert config.personalize_as(6) == "linear"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("alhpa = 1", "unknown setting 'alhpa', did you mean 'alpha'"),
        ("rounds = 'ten'", "--rounds must be a whole number, got 'ten'"),
        ("rounds = ", "is not a TOML file"),
        ("rounds = 1" + 5000 * "0", "is not a TOML file"),
        ("alpha = 1" + 400 * "0", r"run.toml: --alpha must be a number, got 1000"),
        ("workers = 1" + 400 * "0", "--workers must be at most 1024, got 1000"),
        ("head-lr = 1\nhead_lr = 2", "head-lr is given twice"),
        ("[clients.07]\npersonalize = 'svm'", "got '07'"),
        ('out = "a\\u0000b"', "--out contains characters that are not text"),
        ("[clients.7]\npersonalise = 'svm'", "did you mean 'personalize'"),
        ("[clients.7]\npersonalize = 'tree'", r"unknown personalize in \[clients.7\] 'tree'"),
        ("[clients]\nseven = 1", "got 'seven'"),
    ],
)
def test_mistakes_in_toml_are_named(tmp_path, text, message):
    with pytest.raises(RepperError, match=message):
        from_toml(tmp_path, text)


def test_a_switch_is_true_or_false(tmp_path):
    assert Config().skip_unreadable is False
    assert from_toml(tmp_path, "skip-unreadable = true").skip_unreadable is True
    assert from_toml(tmp_path, "skip-unreadable = false").skip_unreadable is False
    for wrong in ("1", "'true'", "0.0"):
        with pytest.raises(RepperError, match="--skip-unreadable must be true or false, got"):
            from_toml(tmp_path, f"skip-unreadable = {wrong}")


@pytest.mark.parametrize(
    ("data", "start"),
    [("my/photos", "photos-repper-"), ("~/x", "x-repper-"), ("../photos/", "photos-repper-")],
)
def test_a_run_on_a_folder_is_named_after_it(data, start):
    assert Config(data=data).name().startswith(start)


def test_numbers_of_numpy_are_numbers():
    config = Config(rounds=np.int64(3), alpha=np.float32(0.5), lr=1)
    assert (config.rounds, config.alpha, config.lr) == (3, 0.5, 1.0)
    assert {type(config.rounds), type(config.alpha), type(config.lr)} == {int, float}


def test_own_settings_of_a_client_that_does_not_exist_are_refused(tmp_path):
    config = from_toml(tmp_path, '[clients]\ncount = 5\n[clients.7]\npersonalize = "svm"')
    with pytest.raises(RepperError, match=r"\[clients.7\]: clients are numbered 0 to 4"):
        check_clients(config)


def test_written_settings_are_read_back(tmp_path):
    config = Config(
        clients=9,
        alpha=0.1,
        head_epochs=3,
        stage1_clients="1,",
        overrides={7: {"personalize": "svm"}},
    )
    assert from_toml(tmp_path, tomli_w.dumps(config.to_toml())) == config
    assert from_toml(tmp_path, tomli_w.dumps(Config().to_toml())) == Config()
    owned = Config(method="fedprox", mu=0.5, server="fedadam", server_lr=0.1, head_c=2.0)
    written = tomli_w.dumps(owned.to_toml())
    assert '[method]\nname = "fedprox"\nmu = 0.5\n' in written
    assert from_toml(tmp_path, written) == owned


def test_where_a_run_runs_is_not_part_of_what_it_is():
    base = Config().identity()
    assert Config(engine="serial", workers=3, rounds=99, out="x", data_dir="y").identity() == base
    assert Config(download=True).identity() == base
    assert Config(image_size=16).identity() != base
    assert Config(seed=1).identity() != base
    assert Config(overrides={1: {"personalize": "svm"}}).identity() != base


@pytest.mark.parametrize("name", OPTIONS)
def test_every_default_is_a_value_of_its_own_flag(name):
    owned = [own[name].default for own in OWNED if name in own]
    assert bool(owned) == (name not in GENERAL)
    for default in owned or [getattr(Config(), name)]:
        assert default is None or OPTIONS[name].parse(str(default)) == default


def head_of(config):
    """The settings of the head that client 0 begins with."""
    features = Features(np.zeros((4, 2), np.float32), np.array([0, 1, 0, 1]), "encoder")
    trained = np.zeros((2, 2), np.float32), np.zeros(2, np.float32)
    head = build_personalizers(config).of(0).begin(HeadInputs(features, trained, seed=0))
    return head.get_params()


def test_a_personalizer_gets_the_settings_of_its_kind():
    config = Config(head_epochs=3, head_c=2.0, svm_kernel="rbf", head_hidden=9)
    settings = {
        kind: head_of(replace(config, personalize=kind))
        for kind in ("linear", "mlp", "svm", "logistic")
    }
    assert config.personalize_as(0) == "linear"
    assert settings["linear"]["epochs"] == settings["mlp"]["epochs"] == 3
    assert settings["mlp"]["hidden"] == 9
    usual = {"c": 2.0, "choose_c": False, "scale": False}
    assert settings["svm"] == usual | {"kernel": "rbf"}
    assert settings["logistic"] == usual
    for kind in ("svm", "logistic"):
        assert head_of(Config(personalize=kind, head_choose_c=True))["choose_c"] is True
    for kind in ("linear", "mlp", "svm", "logistic"):
        assert head_of(Config(personalize=kind, head_scale=True))["scale"] is True


def test_trained_heads_get_the_settings_of_heads():
    given = {"epochs": 3, "lr": 0.2, "batch": 7, "optimizer": "sgd", "weight_decay": 0.5}
    config = Config(**{f"head_{name}": value for name, value in given.items()})
    for kind in ("linear", "finetune"):
        settings = head_of(replace(config, personalize=kind))
        beside = {name: settings.pop(name) for name in settings.keys() - given.keys()}
        assert settings == given
        assert beside.keys() - {"start"} == {"scale", "random_state"}
        assert beside["scale"] is False


@pytest.mark.parametrize("method", METHODS)
def test_only_these_settings_may_change(method):
    """All others decide a result: to go on with others, or to reuse it, would be wrong."""
    free = {"data-dir", "download", "engine", "out", "rounds", "track", "workers"}
    for server, head in product(RULES, HEAD_SETTINGS):
        every = Config(
            data_dir="x", image_size=8, train_images=50, stage1_clients="3", fedrep_head_epochs=1,
            init="i", pixels="half", freeze_until="layer1", personalize=head, head_epochs=1, out="o",
            method=method, server=server, personalize_clients=2, max_weight=0.5, max_growth=9,
            clip=1.0, noise=1.0, track="mlflow", noise_at="site", epsilon=2.0, delta=0.01, attack="noise",
        )  # fmt: skip
        owned = {
            *flat_options(METHODS[method], "method"),
            *flat_options(RULES[server], "server"),
            *flat_options(ATTACKS["noise"], "attack"),
            *flat_options(HEAD_SETTINGS[head], "personalize"),
        }
        keys = {OPTIONS[name].key for name in (*GENERAL, *owned)}
        assert every.identity().keys() == keys - free
        of_heads = {key for key in keys if key.startswith(("head-", "common-"))}
        of_heads |= {"personalize", "personalize-clients"}
        of_heads |= {"svm-kernel"} & keys
        assert every.identity().keys() - every.training().keys() == of_heads
