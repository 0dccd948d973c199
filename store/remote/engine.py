"""Talks to an engine (S3, Redis, ...) through OpenDAL, from one thread of its own.

Every request has a time limit and can be given up: a thread that is stuck in a request would keep a
call waiting, or the process from ending. OpenDAL is imported at the first request.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, TypeVar

from npugx_cache.config import remote_credentials
from npugx_cache.counters import PROCESS, asked_remote
from npugx_cache.interpreter.forks import survive_forks

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Coroutine

    from npugx_cache.config.remote_address import RemoteAddress

T = TypeVar("T")
_REQUEST = 10.0  # seconds for one request of a fetch or of a write-back, without its retries
_STOP = 2.0
_MAX_NAMES = 1024
_PART = 1 << 18  # bytes of one read of a stream
_WHOLE_VALUES = frozenset({"redis"})
"""The engines that answer a read of a stream with the whole value, however long it is."""
_MAX_WORDS = 200
# An answer of these kinds comes again, however often one asks.
_LASTING = ("ConfigInvalid", "PermissionDenied", "Unsupported")
_TAKEN = ("AlreadyExists", "ConditionNotMatch")
_TOO_MUCH, _SHORTER = "TooMuch", "RangeNotSatisfied"
_UNTRUSTED = "invalid peer certificate"
_TRUST = "if it is right, let SSL_CERT_FILE name a file with its authority's certificate"
_FORKED = (
    "this process was forked from one that had asked the remote tier; OpenDAL's threads do not "
    "exist here"
)
_started_by: list[int] = []
"""The process that first made a request. OpenDAL's threads are in no child of it."""


class Fault(Exception):  # caught inside this package; users never see it
    """A request failed. `lasting`: the same request will fail again."""

    def __init__(self, reason: str, *, kind: str = "") -> None:
        super().__init__(reason)
        self.kind = kind
        self.lasting = kind in _LASTING

    @property
    def outcome(self) -> str:
        """What came of the request, as one of `counters.REMOTE_OUTCOMES`."""
        if self.is_absent:
            return "absent"
        if self.is_taken:
            return "taken"
        if self.kind == "PermissionDenied":
            return "denied"
        late = self.kind == "TimeoutError" or "timeout reached" in str(self)
        return "timeout" if late else "failed"

    @property
    def is_absent(self) -> bool:
        return self.kind == "NotFound"

    @property
    def is_taken(self) -> bool:
        return self.kind in _TAKEN

    @property
    def is_too_much(self) -> bool:
        """Whether the object was not read because others had used up what may be read."""
        return self.kind == _TOO_MUCH


class _Allowance:
    """How many bytes may still be read."""

    __slots__ = ("left",)

    def __init__(self, left: int) -> None:
        self.left = left

    def take(self, count: int) -> None:
        """Take bytes before they are asked for; raises `Fault` if there are not so many left."""
        if count > self.left:
            raise Fault("more bytes than are read for one lookup", kind=_TOO_MUCH)
        self.left -= count


class Engine:
    """One engine, as a few operations on named objects; each raises `Fault`."""

    def __init__(self, address: RemoteAddress) -> None:
        self._address = address
        self._starting = threading.RLock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped = False
        self._operator: Any = None
        self._creating: Any = None
        self._asked: weakref.WeakSet[asyncio.Future[Any]] = weakref.WeakSet()
        """What OpenDAL's threads still refer to."""
        survive_forks(self, "_starting")

    def obstacle(self) -> str | None:
        """Why this process can't ask the engine at all, or None. Starts what asks it."""
        if _started_by and _started_by[0] != os.getpid():
            return _FORKED
        with self._starting:
            if self._stopped:
                return "the process ends"
            return None if self._loop is not None else self._start()

    @property
    def lists(self) -> bool:
        return bool(self._operator.capability().list)

    @property
    def creates(self) -> bool:
        """Whether of several hosts that create an object at the same time one is told so."""
        return bool(self._creating.capability().write_with_if_not_exists)

    def names(self, folder: str) -> list[str]:
        """The names in a folder, at most 1024."""
        return self._ask(_count_request("list", self._names(folder)))

    def read(self, path: str, limit: int) -> bytes:
        """The first bytes of an object: a wrong object must not fill the memory."""
        return self._ask(_count_request("read", self._read(path, limit, _Allowance(limit))))

    def read_all(self, wanted: list[tuple[str, int]], together: int) -> list[bytes | Fault]:
        """The first bytes of several objects at the same time, each with its limit.

        No more than `together` bytes are read of all; a `Fault` stands for an object beyond that.
        """
        found = self._ask(self._read_all(wanted, _Allowance(together)))
        return [_fault(each) if isinstance(each, Exception) else each for each in found]

    def size(self, path: str) -> int | None:
        """How many bytes an object has; None if there is none."""
        try:
            return int(self._ask(_count_request("stat", self._stat(path))))
        except Fault as fault:
            if fault.is_absent:
                return None
            raise

    def write(self, path: str, data: bytes) -> None:
        self._ask(_count_request("write", self._write(path, data)))

    def create(self, path: str, data: bytes) -> bool:
        """Write an object unless there is one; tell whether it was written.

        Until that is done, others may read an object that is shorter.
        """
        try:
            self._ask(_count_request("create", self._create(path, data)))
        except Fault as fault:
            if fault.is_taken:
                return False
            raise
        return True

    def delete(self, path: str) -> None:
        self._ask(_count_request("delete", self._delete(path)))

    def stop(self) -> None:
        """Give up all requests: an answer to an interpreter that ends would crash the process.

        OpenDAL's threads take note of it somewhat later, and then drop what they refer to.
        """
        loop, self._loop, self._stopped = self._loop, None, True
        if loop is None or _started_by != [os.getpid()]:
            return
        loop.call_soon_threadsafe(_cancel_all, loop)
        ends = time.monotonic() + _STOP
        while len(self._asked) and time.monotonic() < ends:
            time.sleep(0.01)
        loop.call_soon_threadsafe(loop.stop)

    def _start(self) -> str | None:
        try:
            import asyncio

            import opendal
            from opendal.layers import RetryLayer, TimeoutLayer
        except ImportError as error:
            return f"OpenDAL can't be imported ({error}): pip install 'npugx_cache[remote]'"
        options = {**dict(self._address.options), **remote_credentials(self._address.engine)}
        limit = TimeoutLayer(timeout=_REQUEST, io_timeout=_REQUEST)
        again = RetryLayer(max_times=3, factor=3.0, jitter=True, min_delay=0.01, max_delay=1.0)
        # A file that is written beside and renamed is nobody's alone: of several hosts that create
        # it at the same time, each would be told that the file is its own.
        in_place = {name: value for name, value in options.items() if name != "atomic_write_dir"}
        ways = [options] if in_place == options else [options, in_place]
        try:
            made = [
                opendal.AsyncOperator(self._address.engine, **each).layer(limit).layer(again)
                for each in ways
            ]
        except Exception as error:  # noqa: BLE001 - OpenDAL's errors have no common class
            return str(_fault(error))
        self._operator, self._creating = made[0], made[-1]
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, name="npugx-cache-remote", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the interpreter ends, or there are too many threads
            return f"no thread can be started: {error}"
        self._loop = loop
        _started_by[:] = [os.getpid()]
        return None

    def _ask(self, request: Coroutine[Any, Any, T]) -> T:
        import asyncio

        loop = self._loop
        if loop is None:
            request.close()
            raise Fault("the process ends")
        asked = asyncio.run_coroutine_threadsafe(request, loop)
        try:
            return asked.result(2 * _REQUEST)
        except TimeoutError:
            asked.cancel()
            raise Fault(f"no answer in {2 * _REQUEST:.0f} s", kind="TimeoutError") from None
        except Exception as error:  # noqa: BLE001 - as above
            raise _fault(error) from None

    async def _note_and_await(self, asked: asyncio.Future[T]) -> T:
        self._asked.add(asked)
        return await asked

    async def _names(self, folder: str) -> list[str]:
        found: list[str] = []
        entries = await self._note_and_await(self._operator.list(folder))
        while len(found) < _MAX_NAMES:
            try:
                entry = await self._note_and_await(entries.__anext__())
            except StopAsyncIteration:
                break
            found.append(str(entry.path).removeprefix(folder))
        return found

    async def _read(self, path: str, limit: int, allowance: _Allowance) -> bytes:
        if self._address.engine in _WHOLE_VALUES:
            return await self._read_value(path, limit, allowance)
        parts: list[bytes] = []
        stream = await self._note_and_await(self._operator.open(path, "rb"))
        while limit > 0:
            asked = min(limit, _PART)
            allowance.take(asked)
            part = bytes(await self._note_and_await(stream.read(asked)))
            allowance.left += asked - len(part)
            if not part:
                break
            parts.append(part)
            PROCESS.add("remote_bytes_read", len(part))
            limit -= len(part)
        await self._note_and_await(stream.close())
        return b"".join(parts)

    async def _read_value(self, path: str, limit: int, allowance: _Allowance) -> bytes:
        """Read a value of which the engine tells the length first, and gives a range."""
        while True:
            size = min(await self._stat(path), limit)
            if not size:  # there is no range in an empty value
                return b""
            allowance.take(size)
            try:
                data = bytes(
                    await self._note_and_await(self._operator.read(path, offset=0, size=size))
                )
            except Exception as error:
                if _fault(error).kind != _SHORTER:
                    raise
                # It was written again meanwhile; a value can't shrink for ever.
                allowance.left, limit = allowance.left + size, size - 1
            else:
                PROCESS.add("remote_bytes_read", len(data))
                return data

    async def _read_all(
        self, wanted: list[tuple[str, int]], allowance: _Allowance
    ) -> list[bytes | Exception]:
        import asyncio

        asked = (
            asyncio.wait_for(_count_request("read", self._read(*each, allowance)), _REQUEST)
            for each in wanted
        )
        found = await asyncio.gather(*asked, return_exceptions=True)
        return [each if isinstance(each, (bytes, Exception)) else OSError("lost") for each in found]

    async def _stat(self, path: str) -> int:
        found = await self._note_and_await(self._operator.stat(path))
        return int(found.content_length)

    async def _write(self, path: str, data: bytes) -> None:
        await self._note_and_await(self._operator.write(path, data))
        PROCESS.add("remote_bytes_written", len(data))

    async def _create(self, path: str, data: bytes) -> None:
        await self._note_and_await(self._creating.write(path, data, if_not_exists=True))
        PROCESS.add("remote_bytes_written", len(data))

    async def _delete(self, path: str) -> None:
        await self._note_and_await(self._operator.delete(path))


async def _count_request(operation: str, request: Coroutine[Any, Any, T]) -> T:
    """Make a request, and count what came of it."""
    started = time.monotonic()
    outcome = "timeout"  # also of a request that is given up
    try:
        answer = await request
        outcome = "ok"
    except Exception as error:
        outcome = _fault(error).outcome
        raise
    finally:
        asked_remote(operation, outcome, time.monotonic() - started)
    return answer


def _cancel_all(loop: asyncio.AbstractEventLoop) -> None:
    import asyncio

    for task in asyncio.all_tasks(loop):
        task.cancel()


def _fault(error: Exception) -> Fault:
    """OpenDAL's error in one line. The rest of its text has addresses, headers and backtraces."""
    if isinstance(error, Fault):
        return error
    text = str(error) or type(error).__name__
    kind = text.partition(" ")[0]
    first = text.partition("\n")[0]
    what = first.partition(" => ")[2] or first
    source = text.partition("ource:")[2].strip().partition("\n")[0]
    words = f"{what}: {source}" if source and source not in what else what
    if _UNTRUSTED in text:
        cause = text.partition(_UNTRUSTED)[2].partition("\n")[0].strip(": ")
        kind = "ConfigInvalid"
        words = f"the certificate of the endpoint is not trusted ({cause}); {_TRUST}"
    # A server has chosen some of the words, and a terminal may show them.
    shown = "".join(each if each.isprintable() else "?" for each in words)
    return Fault(f"{kind}: {shown}"[:_MAX_WORDS], kind=kind)
