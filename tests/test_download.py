"""A known corpus is downloaded once and checked, or one line says which file to put where."""

from __future__ import annotations

import hashlib
import http.server
import os
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from octlm.config import DataConfig
from octlm.corpus.download import TINYSHAKESPEARE, TINYSTORIES, Remote, open_remote, whole_file
from tests.corpora import one_line, texts


class Server(http.server.BaseHTTPRequestHandler):
    content = b""
    ranges = True
    stop_after: int | None = None
    asked: list[str | None] = []  # noqa: RUF012

    def do_GET(self) -> None:
        asked = self.headers.get("Range")
        self.asked.append(asked)
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and self.ranges else 0
        body = self.content[start:]
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: self.stop_after])

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def remote(monkeypatch: pytest.MonkeyPatch) -> Iterator[Remote]:
    monkeypatch.setenv("no_proxy", "*")
    Server.content, Server.ranges, Server.stop_after, Server.asked = (
        os.urandom(5000).hex().encode(),
        True,
        None,
        [],
    )
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    url = f"http://127.0.0.1:{server.server_address[1]}/x"
    yield Remote(
        "tiny",
        url,
        "tiny.txt",
        len(Server.content),
        hashlib.sha256(Server.content).hexdigest(),
        "CC0",
        whole_file,
    )
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_corpus_is_downloaded_once_and_checked(remote: Remote, tmp_path: Path) -> None:
    data = DataConfig(source="tinyshakespeare", cache_dir=str(tmp_path))
    for _ in range(2):
        source = open_remote(remote, data)
        assert texts(source) == [Server.content.decode()]
    assert Server.asked == [None]
    assert source.facts == {"file_sha256": remote.sha256, "known_file": True, "url": remote.url}
    assert source.licence == "CC0"
    path = tmp_path / "downloads" / "tiny.txt"
    path.write_bytes(b"?" + Server.content[1:])  # one byte differs, the size does not
    with pytest.raises(ValueError, match="delete it") as error:
        open_remote(remote, data)
    assert str(path) in one_line(error)


@pytest.mark.parametrize("ranges", [True, False])
def test_an_interrupted_download_goes_on(remote: Remote, tmp_path: Path, ranges: bool) -> None:
    data = DataConfig(source="tinyshakespeare", cache_dir=str(tmp_path))
    Server.stop_after, Server.ranges = 3000, ranges
    with pytest.raises(ValueError, match="cannot download") as error:
        open_remote(remote, data)
    assert str(tmp_path / "downloads" / "tiny.txt") in one_line(error)
    assert not (tmp_path / "downloads" / "tiny.txt").exists()
    Server.stop_after = None
    assert texts(open_remote(remote, data)) == [Server.content.decode()]
    assert Server.asked == [None, "bytes=3000-"]


def test_a_wrong_download_is_refused_and_not_kept(remote: Remote, tmp_path: Path) -> None:
    data = DataConfig(source="tinyshakespeare", cache_dir=str(tmp_path))
    shorter = replace(remote, size=9999, sha256=hashlib.sha256(Server.content[:9999]).hexdigest())
    for other in (replace(remote, sha256="0" * 64), shorter):
        with pytest.raises(ValueError, match="sha256") as error:
            open_remote(other, data)
        assert other.url in one_line(error)
        assert [path.name for path in (tmp_path / "downloads").iterdir()] == ["tiny.txt.lock"]


def test_f1_without_a_network_one_line_says_which_file_to_put_where(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/x"  # bound, but nobody listens
        for known in (TINYSHAKESPEARE, TINYSTORIES):
            with pytest.raises(ValueError, match="cannot download") as error:
                open_remote(replace(known, url=url), DataConfig(source="tinystories", cache_dir=str(tmp_path)))
            message = one_line(error)
            for part in (tmp_path / "downloads" / known.filename, url, known.sha256, "data.path=FILE"):
                assert str(part) in message
