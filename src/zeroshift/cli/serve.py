"""`zeroshift serve`: run the streaming service, check or copy its store, and manage its keys."""

from __future__ import annotations

import gc
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from zeroshift.cli import _encoder_options as options
from zeroshift.cli._help import HelpCommand, HelpGroup
from zeroshift.cli.console import console, print_json
from zeroshift.installation import install_command

if TYPE_CHECKING:
    from zeroshift.serve.server import Server

__all__ = ["backup", "demo", "keys", "serve"]

serve = typer.Typer(
    name="serve",
    cls=HelpGroup,
    help="Run a service whose classifiers adapt to streams of samples, and that loses and repeats none of them.",
    add_completion=False,
    invoke_without_command=True,
)
keys = typer.Typer(
    name="keys",
    cls=HelpGroup,
    help="API keys of a store.",
    no_args_is_help=True,
    add_completion=False,
)
serve.add_typer(keys, name="keys")

LOOPBACK = ("127.0.0.1", "localhost", "::1")
LIMITS_PANEL = "Limits"

Store = Annotated[str, typer.Option("--store", metavar="FOLDER", help="A folder, or postgresql://...")]


@serve.callback()
def run(
    ctx: typer.Context,
    store: Annotated[
        str | None,
        typer.Option("--store", metavar="FOLDER", help="Where everything is stored: a folder, or postgresql://..."),
    ] = None,
    check: Annotated[
        str | None,
        typer.Option("--check", metavar="FOLDER", help="Check the log and the snapshots of a store, and exit."),
    ] = None,
    encoder: Annotated[
        str | None,
        typer.Option("--encoder", metavar="ENCODER", help="Encoder for images and class names.", show_default="none"),
    ] = None,
    method: Annotated[
        str, typer.Option("--method", metavar="METHOD", help="Method of streams that name none.")
    ] = "anchored_mixture_online",
    host: Annotated[str, typer.Option("--host", metavar="NAME", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", metavar="N", help="0 takes a free one.", min=0, max=65535)] = 8000,
    no_auth: Annotated[
        bool, typer.Option("--no-auth", help="Without API keys; only on 127.0.0.1, localhost or ::1.")
    ] = False,
    standby: Annotated[
        bool, typer.Option("--standby", help="Wait until the service that uses the store ends, then take over.")
    ] = False,
    device: Annotated[
        str,
        typer.Option("--device", metavar="DEVICE", help="Of the encoder.", rich_help_panel=options.MODEL_PANEL),
    ] = "auto",
    max_batch: Annotated[
        int,
        typer.Option(
            metavar="N", help="Images encoded together.", min=1, max=4096, rich_help_panel=options.MODEL_PANEL
        ),
    ] = 32,
    max_wait: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", help="Wait this long for more images.", min=0, max=10,
            rich_help_panel=options.MODEL_PANEL,
        ),
    ] = 0.005,
    max_body: Annotated[
        int, typer.Option(metavar="N", help="Megabytes of a request.", min=1, rich_help_panel=LIMITS_PANEL)
    ] = 64,
    max_queue: Annotated[
        int, typer.Option(metavar="N", help="Samples of a stream that may wait.", min=1, rich_help_panel=LIMITS_PANEL)
    ] = 4096,
    max_streams: Annotated[
        int, typer.Option(metavar="N", help="Number of streams.", min=1, rich_help_panel=LIMITS_PANEL)
    ] = 1000,
    rate: Annotated[
        float,
        typer.Option(
            metavar="N", help="Requests per second and key; 0 does not limit them.", min=0,
            rich_help_panel=LIMITS_PANEL,
        ),
    ] = 0.0,
    json: Annotated[bool, typer.Option("--json", help="Print JSON (with --check).")] = False,
) -> None:  # fmt: skip
    """Run a service whose classifiers adapt to streams of samples, and that loses and repeats none of them.

    SIGINT and SIGTERM end it in order: waiting samples are answered and snapshots stored. See docs/serve.md.

    For example: zeroshift serve --store streams --no-auth

    For example: zeroshift serve --store postgresql://localhost/streams --encoder openai/clip-vit-base-patch16

    For example: zeroshift serve --check streams
    """
    if ctx.invoked_subcommand is not None:
        return
    _require_serve()
    from zeroshift.serve.service import Limits

    if check is not None:
        _check(check, json)
        return
    if store is None:
        raise ValueError("--store is missing: where the service keeps its data. Fix: such as --store streams.")
    if no_auth and host not in LOOPBACK:
        raise ValueError(
            f"--no-auth is for this machine only, and --host is {host}. "
            "Fix: leave out --host, or make keys with `zeroshift serve keys add`."
        )
    limits = Limits(body_bytes=max_body * 10**6, queued_samples=max_queue, streams=max_streams, rate=rate)
    _run(
        store, encoder, device, host, port, limits, standby=standby,
        settings={"method": method, "auth": not no_auth, "max_batch": max_batch, "max_wait": max_wait},
    )  # fmt: skip


def _require_serve() -> None:
    try:
        import fastapi
        import prometheus_client
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise ImportError(
            f"the service needs {error.name}, which is not installed. Fix: {install_command('serve')}."
        ) from error
    assert fastapi
    assert prometheus_client


def _run(
    location: str,
    encoder: str | None,
    device: str,
    host: str,
    port: int,
    limits: Any,
    *,
    standby: bool,
    settings: dict[str, Any],
) -> None:
    from zeroshift import methods
    from zeroshift.serve.server import configure_log, make_server
    from zeroshift.serve.service import Service
    from zeroshift.serve.store import open_store

    methods.get(settings["method"])
    human = console(stderr=True)
    opened = open_store(location, wait=standby)
    loaded = None
    if encoder is not None:
        from zeroshift.encode import load_encoder

        with human.status(f"loading {encoder}"):
            loaded = load_encoder(encoder, device=device)
    configure_log()
    server = make_server(lambda: Service(opened, encoder=loaded, limits=limits, **settings), host=host, port=port,
                         limits=limits)  # fmt: skip

    def announce() -> None:
        human.print(f"zeroshift serves {location} at {server.address}", soft_wrap=True)
        if not settings["auth"]:
            human.print("Without API keys: every program on this machine may use it.", style="yellow", soft_wrap=True)
        elif not opened.access_keys():
            hint = f"zeroshift serve keys add --store {location} --scope admin"
            human.print(f"No API keys yet: `{hint}` makes one.", style="yellow", soft_wrap=True)

    _serve(server, announce, host, port)


def _serve(server: Server, when_started: Callable[[], None], host: str, port: int) -> None:
    """Serve until SIGINT or SIGTERM; `when_started` runs in a thread as soon as requests are answered."""
    from threadpoolctl import threadpool_limits

    def wait() -> None:
        while not server.started:
            if server.should_exit:
                return
            time.sleep(0.02)
        when_started()

    threading.Thread(target=wait, daemon=True).start()
    # Every answer is hundreds of small objects without cycles: the garbage collector looks at them less often, and
    # never again at what was imported.
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000)
    # A thread that computes lets the event loop run after this time, not 5 ms: a request changes threads several times.
    sys.setswitchinterval(0.0005)
    # The threads of a BLAS wait for each other: on a busy machine, or with several streams, most of the time.
    with threadpool_limits(1, user_api="blas"), suppress(SystemExit):  # how uvicorn says that it could not start
        server.run()
    if not server.started:
        raise ValueError(f"the service could not start at {host}:{port}. Fix: see the log above, or another --port.")


def _check(location: str, json: bool) -> None:
    from zeroshift.serve.records import is_canary
    from zeroshift.serve.store import open_store

    store = open_store(location, read_only=True)
    try:
        streams = [one for one in store.streams()[0] if not is_canary(one.id)]
        problems = list(store.check())
    finally:
        store.close()
    if json:
        print_json({"streams": len(streams), "samples": sum(one.seq for one in streams), "problems": problems})
    else:
        out = console()
        for problem in problems:
            out.print(problem, style="red", soft_wrap=True, markup=False)
        total = sum(one.seq for one in streams)
        verdict = f"{len(problems)} problems" if problems else "no problem"
        out.print(f"{len(streams)} streams, {total} samples: {verdict}")
    if problems:
        raise typer.Exit(1)


@serve.command(cls=HelpCommand)
def demo(
    store: Annotated[
        str | None,
        typer.Option("--store", metavar="FOLDER", help="Keep the data here and continue from it.", show_default="none"),
    ] = None,
    port: Annotated[int, typer.Option("--port", metavar="N", help="0 takes a free one.", min=0, max=65535)] = 8000,
) -> None:
    """Run a service whose streams feed themselves with bundled features, and show its dashboard.

    It prints the address of the dashboard. Ctrl-C ends it. Without --store, its data is deleted then.

    For example: zeroshift serve demo
    """
    _require_serve()
    from zeroshift.serve.demo import STREAMS, Feeder
    from zeroshift.serve.server import configure_log, make_server
    from zeroshift.serve.service import Limits, Service
    from zeroshift.serve.store import open_store

    human, limits = console(stderr=True), Limits()
    feeders: list[Feeder] = []
    configure_log("warning")
    with tempfile.TemporaryDirectory(prefix="zeroshift-") as temporary:
        opened = open_store(store or temporary)
        host = "127.0.0.1"
        server = make_server(lambda: Service(opened, limits=limits, auth=False), host=host, port=port, limits=limits)

        def feed() -> None:
            human.print(f"The dashboard is at {server.address}/\n", soft_wrap=True, style="bold")
            for stream in STREAMS:
                human.print(f"  {stream.name:22}{stream.about}", soft_wrap=True)
                feeders.append(Feeder(stream, server.address, lambda: server.should_exit))
            human.print("\nWithout API keys: every program on this machine may use it. Ctrl-C ends it.", soft_wrap=True)

        _serve(server, feed, host, port)
        for feeder in feeders:
            feeder.join()
            if feeder.error is not None:
                human.print(f"{feeder.name} ended early: {feeder.error}", style="yellow", soft_wrap=True)
    human.print(f"ended; the data is in {store}" if store else "ended; the data is deleted", soft_wrap=True)


@serve.command(cls=HelpCommand)
def backup(
    store: Store,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="A new folder.")],
) -> None:
    """Copy a store in a folder to another folder, also while a service uses it.

    The copy is the store at one moment. For PostgreSQL, use pg_dump.

    For example: zeroshift serve backup --store streams --out streams-backup
    """
    from zeroshift.serve.sqlite import SqliteStore
    from zeroshift.serve.store import open_store

    opened = open_store(store, read_only=True)
    try:
        if not isinstance(opened, SqliteStore):
            raise ValueError("--store is a PostgreSQL database. Fix: pg_dump copies it.")
        copied = opened.backup(out)
    finally:
        opened.close()
    console().print(f"{copied['streams']} streams and {copied['snapshots']} snapshots copied to {out}", soft_wrap=True)


def _open_for_keys(location: str) -> Any:
    """The store without owning it; made if it does not exist."""
    from zeroshift.serve.store import open_store

    if "://" not in location and not (Path(location) / "store.sqlite").exists():
        open_store(location).close()
    return open_store(location, read_only=True)


@keys.command("add", cls=HelpCommand)
def add(
    store: Store,
    scope: Annotated[
        str, typer.Option("--scope", metavar="read|write|admin", help="What it may do; each includes those before it.")
    ],
    prefix: Annotated[
        str, typer.Option("--prefix", metavar="NAME", help="Only streams whose id starts with this, such as team-a/.")
    ] = "",
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="A note for you.")] = "",
    quota: Annotated[
        str,
        typer.Option(
            "--quota",
            metavar="FIELD=VALUE",
            help="What the streams of its prefix may use: streams, bytes, rows, ...",
            show_default="streams=100,bytes=10GB,listeners=20,replays=1 with a prefix",
        ),
    ] = "",
) -> None:
    """Make an API key and print it once. The store keeps only a hash.

    For example: zeroshift serve keys add --store streams --scope write --prefix team-a/

    For example: zeroshift serve keys add --store streams --scope write --prefix team-b/ --quota bytes=1GB,rows=1000
    """
    from zeroshift.serve.keys import add_key
    from zeroshift.serve.tenants import parse_quota

    given = parse_quota(quota)
    opened = _open_for_keys(store)
    try:
        print(add_key(opened, scope, prefix, name, given))
    finally:
        opened.close()


@keys.command("list", cls=HelpCommand)
def list_all(store: Store, json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """List the API keys of a store, without their secrets.

    For example: zeroshift serve keys list --store streams
    """
    from zeroshift.serve.keys import list_keys

    opened = _open_for_keys(store)
    try:
        found = list_keys(opened)
    finally:
        opened.close()
    if json:
        print_json(found)
        return
    out = console()
    for key in found:
        made = time.strftime("%Y-%m-%d %H:%M", time.localtime(key["created"]))
        quota = ",".join(f"{what}={value}" for what, value in key.get("quota", {}).items())
        about = [key["id"], key["scope"], key["prefix"] or "all streams", made, key["name"], quota]
        shown = (part if part.isprintable() else ascii(part) for part in about if part)
        out.print("  ".join(shown), soft_wrap=True, markup=False)
    if not found:
        out.print("no keys")


@keys.command("remove", cls=HelpCommand)
def remove(
    store: Store, number: Annotated[str, typer.Argument(metavar="NAME", help="Id of the key; see `keys list`.")]
) -> None:
    """Remove an API key. A running service refuses it after two seconds.

    For example: zeroshift serve keys remove --store streams 1f3a9c20
    """
    from zeroshift.serve.keys import remove_key

    opened = _open_for_keys(store)
    try:
        remove_key(opened, number)
    finally:
        opened.close()
    console().print(f"removed {number}")
