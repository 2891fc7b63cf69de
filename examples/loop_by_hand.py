"""A round loop by hand: the parts that `repper run` is made of, without a run folder.

python examples/loop_by_hand.py
"""

from fractions import Fraction

import repper
from repper.encoders.encoder import EncoderSpec
from repper.engines.serial import SerialEngine
from repper.engines.task import Work
from repper.heads import HEADS
from repper.heads.personalize import FitHead, Personalizers
from repper.methods import Stage, Training
from repper.methods.fedavg import FedProx
from repper.server import RULES
from repper.server.round_loop import begin_anew, federate


def main(rounds: int = 5) -> float:
    data = repper.load("digits")
    partition = repper.split(data, clients=8, alpha=0.5, seed=0)
    training = Training(epochs=2, batch=64, augment="weak")
    stage = Stage(FedProx(mu=0.1), rounds, Fraction(1, 2), training, clients=tuple(range(8)))
    work = Work(
        stages=(stage,),
        spec=EncoderSpec("small", data.channels, data.size),
        partition=partition,
        personalizers=Personalizers(FitHead(HEADS["logistic"])),
        classes=data.classes,
    )
    rule = RULES["fedavgm"](server_momentum=0.5)
    with SerialEngine(work, data, workers=1) as engine:
        served = begin_anew(work, rule, seed=0)
        for done in federate(engine, served, stage, seed=0, rule=rule):
            served = done.served
            print(f"round {done.number}: clients {done.cohort}, loss {done.loss:.3f}")
        used = served.used(rule)
        scores = [one.test.accuracy for one in engine.personalize(used, range(8), rounds, None)]
    mean = sum(scores) / len(scores)
    print(f"mean accuracy of the clients' own heads: {mean:.1f} %")
    return mean


if __name__ == "__main__":
    main()
