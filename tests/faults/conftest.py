"""A checkout whose sweep has no fault, and the check of one that has."""

from __future__ import annotations

import socketserver
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread

import pytest

from tests.faults.checkout import STAGE, Checkout
from tests.faults.faults import Fault
from tests.faults.recovery import file_system, outcome_of


class Outside(socketserver.TCPServer):
    """A proxy to the outside world, which it does not reach.

    Attributes:
        asked: the first line of every request.
    """

    def __init__(self) -> None:
        self.asked: list[bytes] = []
        super().__init__(("127.0.0.1", 0), _Refusal)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Refusal(socketserver.StreamRequestHandler):
    server: Outside

    def handle(self) -> None:
        self.server.asked.append(self.rfile.readline())


@pytest.fixture(scope="session")
def outside() -> Iterator[Outside]:
    with Outside() as proxy:
        Thread(target=proxy.serve_forever, daemon=True).start()
        yield proxy
        proxy.shutdown()


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """Before its sweep."""
    return Checkout.make(tmp_path_factory.mktemp("prepared") / "checkout")


@pytest.fixture(scope="session")
def whole(prepared: Checkout, outside: Outside, tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """After its sweep, which reaches the outside world through a proxy."""
    checkout = prepared.copy(tmp_path_factory.mktemp("whole") / "checkout")
    assert checkout.run(HTTPS_PROXY=outside.address) == 0, checkout.output
    return checkout


@pytest.fixture
def assert_recovers(prepared: Checkout, whole: Checkout, tmp_path: Path) -> Callable[[Fault], None]:
    """Checks that a sweep with a fault loses nothing and ends with the same bits as one without."""

    def check(fault: Fault) -> None:
        root = tmp_path / "checkout"
        try:
            with file_system(root, fault.megabytes):
                checkout = prepared.copy(root)
                if not fault.dvc:
                    checkout.sweep = STAGE
                outcome = outcome_of(fault, whole, checkout)
        except PermissionError as error:
            pytest.skip(str(error))
        assert not outcome.lost, outcome.output
        assert (outcome.repeated, outcome.survived) == (fault.repeated, fault.survived)
        for line in fault.says:
            assert line in outcome.output
        assert "Traceback" not in outcome.output

    return check
