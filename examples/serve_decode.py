"""Serve tokens of a language model over HTTP, and be warm soon after a restart.

    python serve_decode.py 8000
    curl localhost:8000/health
    curl -N 'localhost:8000/generate?prompt=hello&tokens=8'

Started by a systemd socket (LISTEN_FDS), it loses no connection that waits during a restart.
"""

import asyncio
import contextlib
import json
import os
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import parse_qs, urlsplit

from decode_worker import LONGEST, answer, health, warm_up

worker = ThreadPoolExecutor(1)  # computes one token at a time, for all requests in turn


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.closing(writer):
        url = urlsplit((await reader.readuntil(b"\r\n\r\n")).split()[1].decode())
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
        if url.path == "/health":
            writer.write(json.dumps(health).encode())
        else:
            asked = parse_qs(url.query)
            texts = answer(asked["prompt"][0], min(int(asked["tokens"][0]), LONGEST // 2))
            run = asyncio.get_running_loop().run_in_executor
            while (text := await run(worker, next, texts, None)) is not None:
                writer.write(json.dumps(text).encode() + b"\n")
                await writer.drain()


async def main() -> None:
    if os.environ.get("LISTEN_FDS"):
        listening = socket.socket(fileno=3)
    else:
        listening = socket.create_server(("localhost", int(sys.argv[1])))
    worker.submit(warm_up)  # requests that come meanwhile wait for it
    async with await asyncio.start_server(serve, sock=listening) as server:
        await server.serve_forever()


asyncio.run(main())
