"""Serve tokens of a language model over HTTP, and be warm soon after a restart.

    python serve_decode.py 8000
    curl -N 'localhost:8000/generate?prompt=hello&tokens=8'

A second argument is the address to listen on; a socket of systemd (LISTEN_FDS) needs neither.
After SIGTERM the server ends as soon as it has answered what it was asked.
"""

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import parse_qs, urlsplit

from decode_worker import LONGEST, answer, health, warm_up

worker = ThreadPoolExecutor(1)  # computes one token at a time, for all requests in turn


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.closing(writer):
        url = urlsplit((await reader.readuntil(b"\r\n\r\n")).split()[1].decode())
        ready = url.path != "/health" or health["state"] == "warm"
        status = b"200 OK" if ready else b"503 Service Unavailable"
        writer.write(b"HTTP/1.1 %b\r\nConnection: close\r\n\r\n" % status)
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
    ended = asyncio.Event()
    # Without a handler, SIGTERM would not end a process with the number 1, as in a container.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    if os.environ.get("LISTEN_FDS"):
        listening = socket.socket(fileno=3)
    else:
        port, host = [*sys.argv[1:], "localhost"][:2]
        listening = socket.create_server((host, int(port)))
    worker.submit(warm_up)  # requests that come meanwhile wait for it
    server = await asyncio.start_server(serve, sock=listening)
    await ended.wait()
    server.close()
    if answering := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.wait(answering, timeout=20)


asyncio.run(main())
