"""A bare HTTP client for attacks: any bytes out, statuses in, never longer than a time; and a server as its own process."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SECONDS = 60.0  # after which an answer counts as a hang


def request_bytes(body: bytes | str, path: str = "/v1/completions", kind: str = "application/json") -> bytes:
    """Returns a POST request."""
    body = body.encode() if isinstance(body, str) else body
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


class Line:
    """One connection that is kept open where the server keeps it."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.reader: asyncio.StreamReader | None = None
        self.writer: asyncio.StreamWriter | None = None

    async def ask(self, raw: bytes) -> tuple[int, dict[bytes, bytes], bytes]:
        """Returns status, headers and body of a whole request."""
        for _ in range(2):  # a kept connection may have been closed meanwhile
            if self.writer is None:
                self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
            try:
                self.writer.write(raw)
                return await asyncio.wait_for(self._answer(), SECONDS)
            except (asyncio.IncompleteReadError, ConnectionError):
                self.close()
        return 0, {}, b""

    async def _answer(self) -> tuple[int, dict[bytes, bytes], bytes]:
        assert self.reader is not None
        head = await self.reader.readuntil(b"\r\n\r\n")
        first, *lines = head[:-4].split(b"\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines)}
        if headers.get(b"transfer-encoding") == b"chunked":
            parts = []
            while size := int(await self.reader.readuntil(b"\r\n"), 16):
                parts.append((await self.reader.readexactly(size + 2))[:-2])
            await self.reader.readexactly(2)
            body = b"".join(parts)
        else:
            body = await self.reader.readexactly(int(headers.get(b"content-length", b"0")))
        if headers.get(b"connection") == b"close":
            self.close()
        return int(first.split()[1]), headers, body

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()
        self.reader = self.writer = None


async def send_anything(port: int, raw: bytes) -> list[int]:
    """Sends bytes on a connection of their own, says that no more follow, and returns all statuses that came."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(raw)
        writer.write_eof()
        said = await asyncio.wait_for(reader.read(), SECONDS)
    except ConnectionError:
        said = b""
    finally:
        writer.close()
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3})", said)]


@contextmanager
def server_process(folder: Path, *options: str) -> Iterator[tuple[int, subprocess.Popen[str]]]:
    """Runs `loopwright serve` and gives its port. Its stderr is not read after the start: it must not wait for that."""
    command = [sys.executable, "-m", "loopwright", "serve", f"t={folder}", "--port", "0", *options]
    log = folder.parent / "access.jsonl"
    with log.open("w") as out:
        process = subprocess.Popen(
            command, stdout=out, stderr=subprocess.PIPE, text=True, env=os.environ | {"PYTHONFAULTHANDLER": "1"}
        )
    assert process.stderr is not None
    try:
        said, line = [], ""
        while "serving on" not in line:
            line = process.stderr.readline()
            said.append(line)
            assert line, f"the server did not start: {''.join(said)}"
        found = re.search(r"127\.0\.0\.1:(\d+)", line)
        assert found is not None
        yield int(found[1]), process
    finally:
        process.terminate()
        _, rest = process.communicate(timeout=60)
        print(f"the server ended with {process.returncode}: {rest[-3000:].strip()}")


def memory_mib(process: subprocess.Popen[str]) -> float:
    """Returns the resident memory of a process."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024  # type: ignore[index]
