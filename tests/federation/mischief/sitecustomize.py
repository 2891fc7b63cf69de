"""Loaded by every Python process of a site in these tests, because its folder is on PYTHONPATH.

`MISCHIEF` names a folder of the test. All that the node sends is written to `sent` there. Each line
of `todo` spoils one update: `nan`, `shape`, `float`, `count`, `junk`, or `hang` for as long as it is
there; `hang 2` hangs in round 2.
"""

import importlib.abc
import importlib.machinery
import os
import sys
import time
from pathlib import Path

FOLDER = Path(os.environ["MISCHIEF"])


def spoil_updates(wire):
    import torch
    from flwr.supercore.inflatable.inflatable_object import add_header_to_object_body

    from repper.engines.engine import Update

    honest = wire.update_reply

    def spoilt(update, asked, kind):
        todo = FOLDER / "todo"
        what, _, rest = todo.read_text().partition("\n") if todo.exists() else ("", "", "")
        what, _, number = what.partition(" ")
        if number and int(number) != wire.told_in(asked)["round"]:
            return honest(update, asked, kind)
        sent, examples = dict(update.sent), update.examples
        name = min(sent)
        if what == "hang":
            (FOLDER / "hanging").touch()
            while todo.exists():
                time.sleep(0.2)
        elif what:
            todo.write_text(rest)
        if what == "nan":
            sent[name] = torch.full_like(sent[name], float("nan"))
        elif what == "shape":
            sent[name] = torch.zeros(7, 7)
        elif what == "count":
            examples += 1
        elif what == "float":
            examples = 2.5
        reply = honest(Update(update.client, sent, examples, update.loss), asked, kind)
        if what == "junk":
            [record] = reply.content.array_records.values()
            array = next(iter(record.values()))
            array.deflate = lambda: add_header_to_object_body(b"junk", array)
        return reply

    wire.update_reply = spoilt


def record_requests(module):
    client = module.FleetHttpClient
    send = client._unary_unary

    def recorded(self, *, request, **others):
        with (FOLDER / "sent").open("ab") as file:
            file.write(request.SerializeToString())
        return send(self, request=request, **others)

    client._unary_unary = recorded


CHANGES = {
    "repper.flower.wire": spoil_updates,
    "flwr.supernode.fleet_http_client": record_requests,
}


class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name not in CHANGES:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            CHANGES[name](module)

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, Finder())
