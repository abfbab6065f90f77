"""What a server's first answer means."""

import socket
import threading
from pathlib import Path

import pytest

from cortex_plane.embedded import postmaster


@pytest.mark.parametrize(
    ("answer", "ready"),
    [
        (b"R\0\0\0\x08\0\0\0\0", True),
        (b"E\0\0\0\x20SFATAL\0C57P03\0Mstarting up\0\0", False),
        (b"E\0\0\0\x20SFATAL\0C53300\0Mtoo many clients\0\0", True),
        (b"", False),
        (b"SSH-2.0-OpenSSH", False),
    ],
)
def test_first_answers(tmp_path: Path, answer: bytes, ready: bool) -> None:
    file = tmp_path / "s"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(file))
        listener.listen()

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                assert b"user\0postgres\0" in connection.recv(1024)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        (tmp_path / "postmaster.pid").write_text("7\n/data\n0\n5432\n/s\n\n1 2\nready   \n")
        assert not postmaster.is_ready(tmp_path, 8, file, 5432)
        assert postmaster.is_ready(tmp_path, 7, file, 5432) is ready
        thread.join()


def test_nobody_there(tmp_path: Path) -> None:
    assert not postmaster.is_ready(tmp_path, 7, tmp_path / "s", 5432)
