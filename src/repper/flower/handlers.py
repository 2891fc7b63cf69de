"""What a node does when it is asked: the same work as a client of any other engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from repper.engines.client import Clients
from repper.engines.engine import one_thread
from repper.errors import RepperError
from repper.flower import wire

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
    """A handler on one thread that answers with a sentence where it cannot do what it was asked."""

    def answer(message: Message, context: Context) -> Message:
        try:
            with one_thread():
                return handler(message, context)
        except RepperError as error:
            return wire.said({"problem": str(error)}, message)

    return answer


def fitted(clients: Clients, message: Message) -> Message:
    """The answer of the client that a message asks to train."""
    told = wire.told_in(message)
    clients.receive(wire.shared_in(message))
    return wire.update_reply(clients.fit(told["client"], told["round"]), message, clients.upload)


def personalized(clients: Clients, message: Message) -> Message:
    """The whole result of a client, for a simulation."""
    told = wire.told_in(message)
    clients.receive(wire.shared_in(message))
    save_to = Path(told["save_to"]) if told["save_to"] else None
    [one] = clients.personalize([told["client"]], told["round"], save_to)
    return wire.said({"personal": wire.personal_text(one)}, message)
