"""An engine that relays nothing: it serves the control protocol with the figures of a made-up shop.

To view the UI without services::

    python -m tests.tui.fake_relay shop &      # options: --state --slow --trouble --extra
    python -m tests.tui.fake_relay shop --attach
"""

import argparse
import asyncio
import dataclasses
import json
import time
from typing import Any

from bwtui.model.history import RelayHistory
from bwtui.model.service_views import LOOKS
from bwtui.relay.process.control import socket_path
from tests.tui import services
from tests.tui.shop import Shop, as_json
from tests.tui.shop_history import history


class Server:
    """Answers requests until it is asked to stop."""

    def __init__(self, shop: Shop) -> None:
        self.shop = shop
        self.stopped = asyncio.Event()

    def answer(self, message: dict[str, Any]) -> Any:
        """Return the data of an answer."""
        now = time.time()
        if message["request"] == "status":
            return self.shop.status(now).to_json()
        if message["request"] == "changes":
            return [as_json(change) for change in self.shop.changes(now, message["after"])]
        if message["request"] == "schemas":
            return [dataclasses.asdict(schema) for schema in self.shop.schemas()]
        if message["request"] == "history":
            kept, after = history(now), message["after"]
            fresh = tuple(second for second in kept.seconds if second.time > after)
            return RelayHistory(fresh, () if after else kept.marks, {}, kept.latency).to_json()
        if message["request"] in LOOKS:
            return dataclasses.asdict(services.look(message["request"], now))
        self.stopped.set()
        return None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one client."""
        while line := await reader.readline():
            data = {"ok": True, "data": self.answer(json.loads(line))}
            writer.write(json.dumps(data).encode() + b"\n")
            await writer.drain()
        writer.close()


async def main(shop: Shop) -> None:
    """Serve until a client asks to stop."""
    path = socket_path(shop.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    server = Server(shop)
    listener = await asyncio.start_unix_server(server.serve, path)
    path.chmod(0o600)
    await server.stopped.wait()
    # The answer to the stop request is sent first.
    await asyncio.sleep(0.2)
    listener.close()
    path.unlink(missing_ok=True)


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", nargs="?", default="shop")
    parser.add_argument("--attach", action="store_true", help="show it instead of being it")
    parser.add_argument("--owned", action="store_true")
    parser.add_argument("--rate", type=float, default=4)
    parser.add_argument("--theme", default="bwtui-dark")
    parser.add_argument("--state", default="streaming")
    parser.add_argument("--slow")
    parser.add_argument("--trouble", action="store_true")
    parser.add_argument("--extra", type=int, default=0)
    parser.add_argument("--age", type=float, default=30)
    return parser.parse_args()


if __name__ == "__main__":
    options = parse()
    if options.attach:
        from bwtui.tui.app import run

        raise SystemExit(run(options.name, owned=options.owned, rate=options.rate, theme=options.theme))
    shop = Shop(
        start=time.time() - options.age,
        state=options.state,
        slow=options.slow,
        trouble=options.trouble,
        extra=options.extra,
        name=options.name,
    )
    asyncio.run(main(shop))
