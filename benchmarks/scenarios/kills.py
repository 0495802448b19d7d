"""`kill -9` of each process of `lakehouse dev`: seconds until it is back, a sale arrives, and somebody is told.

Each process is killed twice: once as it is, and once while nothing may start it again, until the alert is there.
"""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import psutil
import psycopg

from benchmarks.bench import Bench, Measurement, Results
from benchmarks.probe import load_recorded
from benchmarks.processes import children, dagster, lakehouse, running, servers
from benchmarks.samples import SALE, load_samples
from lakehouse.catalog.open import newest_data_snapshots, open_catalog
from lakehouse.errors import LakehouseError
from lakehouse.settings import load_settings
from tests.listeners import Webhook, webhook

T = TypeVar("T")
FACT = ("marts", "fct_transactions")
VICTIMS = ("follower", "JVM", "worker", "trino", "daemon", "code server", "step")
STAYS_DEAD = ("follower", "JVM", "worker", "trino", "daemon", "code server")  # if nobody starts it again
TELLS = {
    "follower": "follower",
    "JVM": "follower",
    "trino": "server",
    "daemon": "daemon",
    "worker": "worker",
    "code server": "code",
    "step": "run",
}
LONGEST, UNTOLD, STEP = 600.0, 200.0, "load_retail"
RUN = (
    "SELECT split_part(value, ':', 2)::int FROM run_tags JOIN runs USING (run_id)"
    " WHERE pipeline_name = %s AND status = 'STARTED' AND key = '.dagster/lakehouse_worker'"
)
ENDED = "SELECT count(*) FROM runs WHERE pipeline_name = %s AND status = 'FAILURE'"


@dataclass
class Site:
    """The running processes, and what hears of them."""

    dev: psutil.Process
    hook: Webhook

    def find(self, victim: str) -> psutil.Process | None:
        """The process; None while there is none."""
        found = children(self.dev) | servers(load_settings())
        if victim == "JVM":
            inner = found["follower"].children(recursive=True) if "follower" in found else []
            return next((process for process in inner if process.name() == "java"), None)
        if victim == "step":
            pid = ask_dagster(RUN, STEP)
            return psutil.Process(pid) if pid else None
        return found.get(victim)

    @contextmanager
    def unattended(self) -> Iterator[None]:
        """Nothing is started again meanwhile."""
        keepers = [self.dev, *(p for name, p in children(self.dev).items() if name == "keeper")]
        for process in keepers:
            process.suspend()
        try:
            yield
        finally:
            for process in keepers:
                process.resume()


def kills(bench: Bench) -> Results:
    """Retail under `lakehouse dev`; the lake is compared with the source after each kill, every row at the end."""
    results, busy = Results(), dict[str, float]()
    with webhook() as hook:
        os.environ["LAKEHOUSE_ALERTS__WEBHOOK"] = hook.url
        load_samples()
        with running("dev") as dev, load_recorded(busy):
            site = Site(dev, hook)
            arrives(sell())
            for victim in VICTIMS:
                results[victim] = killed(site, victim)
                print(victim, results[victim].runs, results[victim].notes, flush=True)
        lakehouse("reconcile", "retail", "--views")
    results[VICTIMS[0]].notes["machine"] = busy
    return results


def killed(site: Site, victim: str) -> Measurement:
    """Seconds from the kill until a sale of that moment is in its fact, and the notes of both kills."""
    found = Measurement("s", does=f"from kill -9 of the {victim} until a sale of that moment is in its fact")
    if victim == "step":
        dagster("job", "launch", "-w", "workspace.yaml", "-j", STEP)
    before = wait_for(lambda: site.find(victim))
    failed = ask_dagster(ENDED, STEP)
    begun, sales = kill(before), sell()
    if victim == "step":
        found.notes["known to have failed, s"] = since(begun, lambda: ask_dagster(ENDED, STEP) > failed)
    else:
        found.notes["started again, s"] = since(begun, lambda: is_another(site.find(victim), before))
    arrives(sales)
    found.add(time.monotonic() - begun)
    if victim in STAYS_DEAD:
        found.notes |= told(site, victim)
    return found


def told(site: Site, victim: str) -> dict[str, float | str]:
    """Kills it while nothing starts it again: seconds to the alert, and from its restart to the message of the end."""
    wait_for(lambda: not is_open(site.hook, victim))
    seen = len(site.hook.posted)
    with site.unattended():
        begun, sales = kill(wait_for(lambda: site.find(victim))), sell()
        alert = since(begun, lambda: alerts(site.hook, victim, seen), UNTOLD)
    begun = time.monotonic()
    if alert is None:
        arrives(sales)
        return {"told, s": f"nothing in {UNTOLD:.0f} s"}
    keys = {str(message["key"]) for message in alerts(site.hook, victim, seen)}
    over = since(begun, lambda: not is_open(site.hook, victim))
    arrives(sales)
    return {"told, s": alert, "as": ", ".join(sorted(keys)), "over, s after the restart": over or "never"}


def alerts(hook: Webhook, victim: str, seen: int) -> list[dict[str, object]]:
    """The messages that something began, about the victim's kind."""
    wanted = TELLS.get(victim)
    begun = [message for message in hook.posted[seen:] if message["state"] == "began"]
    return [message for message in begun if wanted is None or message["kind"] == wanted]


def is_open(hook: Webhook, victim: str) -> bool:
    """Whether an alert about the victim's kind is not over."""
    newest = {message["key"]: message for message in hook.posted if message["kind"] == TELLS.get(victim)}
    return any(message["state"] == "began" for message in newest.values())


def kill(victim: psutil.Process) -> float:
    """Kills it; the moment."""
    victim.send_signal(signal.SIGKILL)
    return time.monotonic()


def is_another(found: psutil.Process | None, before: psutil.Process) -> bool:
    """Whether the process was started again."""
    return found is not None and found.pid != before.pid


def sell() -> int:
    """One sale; the number of sales with it."""
    owner = load_settings().source("retail").owner_url
    assert owner is not None
    with psycopg.connect(owner.get_secret_value(), autocommit=True) as source:
        source.execute(SALE)
        row = source.execute("SELECT count(*) FROM transactions").fetchone()
    assert row is not None
    return int(row[0])


def arrives(sales: int) -> None:
    """Waits until the fact has so many rows."""
    wait_for(lambda: facts() >= sales)


def facts() -> int:
    """Rows of the fact; 0 while the catalog is down."""
    catalog = open_catalog(load_settings())
    try:
        found = newest_data_snapshots(catalog, [FACT]).get(".".join(FACT))
    finally:
        catalog.close()
    return found.total_rows if found else 0


def since(begun: float, condition: Callable[[], object], longest: float = LONGEST) -> float | None:
    """Seconds until the condition holds; None if it does not in time."""
    while not condition():
        if time.monotonic() - begun > longest:
            return None
        time.sleep(0.2)
    return round(time.monotonic() - begun, 1)


def wait_for(condition: Callable[[], T | None]) -> T:
    """What the condition gives, once it gives something."""
    begun = time.monotonic()
    while not (found := condition()):
        if time.monotonic() - begun > LONGEST:
            raise LakehouseError(f"it did not happen within {LONGEST:.0f} s")
        time.sleep(0.2)
    return found


def ask_dagster(query: str, job: str) -> int:
    """The first value of a query on Dagster's database; 0 without one."""
    url = load_settings().dagster.storage_url
    assert url is not None
    with psycopg.connect(url.get_secret_value()) as connection:
        row = connection.execute(query, (job,)).fetchone()
    return int(row[0]) if row else 0
