"""Downloads the jars of Java peers with PySpark's Ivy, once, into the cache that all homes share.

Dependencies are resolved by the modules' POMs, so the requested versions pin all others.
"""

import subprocess
import tempfile
from pathlib import Path

from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings
from lakehouse_stack.downloads.download import ivy_program

Module = tuple[str, str, str]  # organisation, name, version


def jars(settings: Settings, folder: str, wanted: tuple[Module, ...], transitive: bool = True) -> Path:
    """The folder with the modules' jars and, if `transitive`, their dependencies; raises LakehouseError."""
    target = settings.cache / "peers" / folder
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as name:
        work = Path(name)
        more = f'conf="default" transitive="{str(transitive).lower()}"'
        dependencies = "".join(f'<dependency org="{o}" name="{n}" rev="{v}" {more}/>' for o, n, v in wanted)
        (work / "ivy.xml").write_text(
            '<ivy-module version="2.0"><info organisation="lakehouse" module="peers"/><configurations>'
            f'<conf name="default"/></configurations><dependencies>{dependencies}</dependencies></ivy-module>'
        )
        (work / "ivysettings.xml").write_text(
            '<ivysettings><settings defaultResolver="public"/><resolvers>'
            '<ibiblio name="public" m2compatible="true"/></resolvers></ivysettings>'
        )
        pattern = f"{work}/jars/[artifact]-[revision](-[classifier]).[ext]"
        done = subprocess.run(
            [*ivy_program(work), "-types", "jar", "bundle", "-retrieve", pattern], capture_output=True, text=True
        )
        if done.returncode:
            raise LakehouseError(f"{folder} could not be downloaded: {done.stdout.strip()[-300:]}")
        (work / "jars").rename(target)
    return target
