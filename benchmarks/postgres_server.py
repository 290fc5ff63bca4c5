"""A PostgreSQL server of its own for tests and measurements, from the binaries on this machine."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from free_port import free_port

PROGRAMS = ("initdb", "pg_ctl", "postgres")


def find_binaries() -> Path | None:
    """The folder with the programs of a server: that of Debian's package, or one of PATH."""
    folders = [*sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)]
    found = shutil.which("initdb")
    folders += [Path(found).parent] if found else []
    return next((one for one in folders if all((one / name).exists() for name in PROGRAMS)), None)


class PostgresServer:
    """Starts at once; `address` is for `--store`. It can be stopped and started again. LookupError without binaries."""

    def __init__(self) -> None:
        binaries = find_binaries()
        if binaries is None:
            raise LookupError("PostgreSQL is not installed: initdb, pg_ctl and postgres were not found")
        self._binaries = binaries
        self._as: dict[str, Any] = {}
        # Not in a temporary folder of root's own, which the user of the server may not enter.
        self.folder = Path(tempfile.mkdtemp(prefix="zeroshift-pg-", dir="/tmp" if os.getuid() == 0 else None))
        if os.getuid() == 0:  # the server refuses to run as root
            names = {one.pw_name for one in pwd.getpwall()}
            user = next((one for one in ("postgres", "nobody") if one in names), None)
            if user is None:
                raise LookupError("PostgreSQL does not run as root, and there is no other user")
            self._as = {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []}
            shutil.chown(self.folder, user)
        self.port = free_port()
        self._run("initdb", "-D", str(self.folder / "data"), "-U", "postgres", "-A", "trust", "-E", "UTF8", "-N")
        self.address = f"postgresql://postgres@127.0.0.1:{self.port}/postgres"
        self.start()

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(self._binaries / program), *arguments]
        options: dict[str, Any] = {"cwd": self.folder, **self._as}
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)
        assert done.returncode == 0, done.stdout

    def start(self) -> None:
        options = f"-p {self.port} -k {self.folder} -c listen_addresses=127.0.0.1 -c max_connections=100"
        command = [str(self._binaries / "pg_ctl"), "-D", "data", "-l", "log", "-w", "-t", "300", "-o", options, "start"]
        # Not through `_run`: the server keeps the pipes of whoever starts it.
        done = subprocess.run(command, cwd=self.folder, stdout=subprocess.DEVNULL, check=False, **self._as)
        assert done.returncode == 0, (self.folder / "log").read_text()[-2000:]

    def stop(self, mode: str = "immediate") -> None:
        """`immediate` is as after a crash: what was committed is found in the log of the server."""
        self._run("pg_ctl", "-D", "data", "-m", mode, "-w", "stop")

    def new_database(self) -> str:
        """The address of an empty database."""
        import psycopg

        name = f"test_{time.monotonic_ns()}"
        with psycopg.connect(self.address, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return self.address.rpartition("/")[0] + f"/{name}"

    def end(self) -> None:
        if (self.folder / "data" / "postmaster.pid").exists():
            self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)
