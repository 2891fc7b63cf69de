"""What a node does with a message: the same work as a client of any other engine."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from repper.basics.errors import RepperError
from repper.basics.registry import mistake_in_own_code
from repper.engines.client import Clients
from repper.engines.engine import one_thread
from repper.flower import wire
from repper.flower.site import TellableError

log = logging.getLogger("repper")

Handler = Callable[[Message, Context], Message]


def client_app(clients_of: Callable[[], Clients]) -> ClientApp:
    """The nodes of a simulation. `clients_of` gives the clients in the process that is asked."""
    app = ClientApp()

    @app.train("fit")
    @answering
    def fit(message: Message, context: Context) -> Message:
        return fitted(clients_of(), message)

    @app.evaluate("personalize")
    @answering
    def personalize(message: Message, context: Context) -> Message:
        return personalized(clients_of(), message)

    return app


def answering(handler: Handler) -> Handler:
    """Wrap a handler: one thread, and a sentence instead of an exception as its answer.

    What a site says to a server names nothing of its own: the whole sentence is in the site's log.
    """

    def answer(message: Message, context: Context) -> Message:
        try:
            with one_thread():
                return handler(message, context)
        except Exception as error:
            at_home = "home" in context.node_config
            known = str(error) if isinstance(error, RepperError) else mistake_in_own_code(error)
            if not at_home and known is None:
                raise
            problem = known or ""
            if at_home and not isinstance(error, TellableError):
                log.error("%s", error, exc_info=not isinstance(error, RepperError))
                problem = "it could not do what it was asked to: the error is in its own log"
            return wire.said({"problem": problem}, message)

    return answer


def fitted(clients: Clients, message: Message) -> Message:
    """The answer of the client that a message asks to train."""
    told = wire.told_in(message)
    clients.receive(wire.received_in(message), told["stage"])
    return wire.update_reply(clients.fit(told["client"], told["round"]), message, clients.wire)


def personalized(clients: Clients, message: Message) -> Message:
    """The whole result of a client, for a simulation."""
    told = wire.told_in(message)
    clients.receive(wire.received_in(message), told["stage"])
    save_to = Path(told["save_to"]) if told["save_to"] else None
    [one] = clients.personalize([told["client"]], told["round"], save_to)
    return wire.said({"personal": wire.personal_text(one)}, message)
