"""A slow line: `python relay.py SECONDS` passes on port 8443 to the server's, each way so much later."""

import asyncio
import sys

DELAY = float(sys.argv[1])


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    loop = asyncio.get_running_loop()
    last = loop.time()
    try:
        while data := await reader.read(1 << 16):
            # In order: nothing is sent before what came earlier.
            last = max(last, loop.time() + DELAY)
            await asyncio.sleep(last - loop.time())
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


async def join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        others = await asyncio.open_connection("10.77.0.1", 8443)
    except OSError:
        writer.close()
        return
    await asyncio.gather(pump(reader, others[1]), pump(others[0], writer))


async def main() -> None:
    server = await asyncio.start_server(join, "0.0.0.0", 8443)
    sys.stdout.write("passing on\n")
    sys.stdout.flush()
    await server.serve_forever()


asyncio.run(main())
