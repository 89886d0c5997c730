"""How `toolscout reload` finds running services."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from app.cli.running_services import announce_service, find_services

HOLD = """
import sys
from pathlib import Path
from app.cli.running_services import announce_service
with announce_service(Path(sys.argv[1])) as service:
    print(service.pid, flush=True)
    sys.stdin.read()
"""


def test_a_service_is_found_while_it_runs_however_it_ends(tmp_path: Path) -> None:
    for end in ("close", "kill"):
        with subprocess.Popen(
            [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            assert int(process.stdout.readline()) == process.pid
            assert [service.pid for service in find_services(tmp_path)] == [process.pid]
            if end == "kill":
                process.kill()
            process.stdin.close()
            process.wait(60)
        assert find_services(tmp_path) == []
        assert list((tmp_path / "run").iterdir()) == []


def test_processes_of_other_hosts_are_left_alone(tmp_path: Path) -> None:
    with announce_service(tmp_path) as service:
        assert service is not None
        own = service.lock_file
        foreign = own.with_name(own.name.replace(socket.gethostname(), "another-host", 1))
        foreign.touch()
        foreign.with_name("another-host-x.lock").touch()
        assert find_services(tmp_path) == [service]
        assert foreign.exists()


def test_a_result_is_read_once_it_is_written(tmp_path: Path) -> None:
    with announce_service(tmp_path) as service:
        assert service is not None
        assert service.read_result() is None
        service.write_result({"changed": ["A"]})
        assert service.read_result() == {"changed": ["A"]}


def test_a_data_folder_that_cannot_be_written_to_is_no_obstacle(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    (tmp_path / "run").touch()
    with announce_service(tmp_path) as service:
        assert service is None
    assert "`toolscout reload` cannot find this process" in caplog.text


def test_nothing_runs_in_a_folder_that_does_not_exist(tmp_path: Path) -> None:
    assert find_services(tmp_path / "missing") == []
