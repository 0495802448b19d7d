"""`make hunt SECONDS=3600 VERSION=16 SEED=7`: hunts as long as one likes; the exit status says whether it found."""

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from lakehouse.settings import load_settings
from tests.clusters import NEWEST
from tests.hunt.history import dump, load
from tests.hunt.hunting import Size, Tally, hunt, site
from tests.hunt.scripts import replay_world
from tests.hunt.shrink import Case
from tests.hunt.world import Site


def main() -> int:
    """Starts a stack in a home of its own unless LAKEHOUSE_TEST_HOME names one to keep."""
    given = _arguments()
    kept = os.environ.get("LAKEHOUSE_TEST_HOME")
    home = Path(kept or tempfile.mkdtemp(prefix="lakehouse-hunt-"))
    home.chmod(0o755)
    os.environ |= {"LAKEHOUSE_HOME": str(home), "LAKEHOUSE_CONFIG": os.devnull}
    from lakehouse_stack.control.start_stop import down, up

    up(load_settings())
    try:
        with site(load_settings(), given.version) as here:
            return _replay(here, given.replay) if given.replay else _hunt(here, given)
    finally:
        if not kept:
            down(load_settings())
            shutil.rmtree(home, ignore_errors=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.hunt", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600, help="how long to hunt")
    parser.add_argument("--version", default=NEWEST, help="Postgres of the source: 15, 16, 17 or 18")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31), help="of the first world")
    parser.add_argument("--cases", type=int, default=Size.cases, help="histories in a world")
    parser.add_argument("--looks", type=int, default=Size.looks, help="looks at a world")
    parser.add_argument("--without", default="", help="kinds of moves to leave out, by commas")
    parser.add_argument("--results", type=Path, help="file that gets a line of JSON for each finding")
    parser.add_argument("--replay", type=Path, help="play the findings of such a file again")
    return parser.parse_args()


def _hunt(here: Site, given: argparse.Namespace) -> int:
    def keep(case: Case, seed: int, new: bool) -> None:
        if new:
            _show(case, seed)
        if given.results:
            line = {"seed": seed, "version": given.version, "new": new, "finding": asdict(case.finding),
                    "moves": sorted(case.moves), "case": dump(case.history, case.looks)}  # fmt: skip
            with given.results.open("a") as file:
                file.write(json.dumps(line) + "\n")

    without = frozenset(filter(None, given.without.split(",")))
    tally = hunt(here, given.seconds, given.seed, Size(given.cases, given.looks), without, _say, keep)
    _sum_up(tally)
    return 1 if tally.cases or tally.untold else 0


def _replay(here: Site, file: Path) -> int:
    found = 0
    for line in map(json.loads, file.read_text().splitlines()):
        if line["new"] and line["case"]:
            history, looks = load(line["case"])
            played = replay_world(here, [history], looks)
            found += bool(played.findings)
            _say(f"{sorted(line['moves'])}: {[(f.kind, f.text[:300]) for f in played.findings] or 'right'}")
    return 1 if found else 0


def _show(case: Case, seed: int) -> None:
    _say(f"\n== {case.finding.kind}, seed {seed}, {'live' if case.live else 'peeks'}: {case.finding.text[:1500]}")
    if case.looks:
        _say(case.history.as_sql(case.looks))


def _sum_up(tally: Tally) -> None:
    _say("\nout of the cuts:")
    for reason, count in tally.reasons.most_common(40):
        _say(f"{count:6} {reason}")
    _say("moves: " + ", ".join(f"{kind} {count}" for kind, count in tally.moves.most_common()))
    _say(str(tally))


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
