"""Write the lock (`make lock`): resolve the roots below, and compute size and sha256 of every file."""

import hashlib
import json
import tempfile
from dataclasses import asdict
from pathlib import Path

from bwtui.console import say
from bwtui.packages import artifacts, ivy
from bwtui.packages.lockfile import LOCK_NAME, Artifact

KAFKA = ("org.apache.kafka", "kafka_2.13", "4.3.0")
LOGGING = ("org.apache.logging.log4j", "log4j-slf4j-impl", "2.25.4")
REGISTRY = ("io.apicurio", "apicurio-registry-app", "3.3.3")
POSTGRES = ("14.18.0", "15.13.0", "16.10.0", "17.11.0", "18.6.0")
#: The artifact's platform, and the first major version published for it.
PLATFORMS = (("linux-amd64", 14), ("linux-arm64v8", 16), ("darwin-amd64", 14), ("darwin-arm64v8", 16))

# "!!" occurs in no coordinate, so the file name can be split again.
_PATTERN = "[conf]/[organisation]!![module]!![revision]!!(-[classifier])!![ext]"


def _postgres_roots() -> list[tuple[str, str, str]]:
    return [
        (f"postgres-{rev.split('.')[0]}-{platform}", f"embedded-postgres-binaries-{platform}", rev)
        for platform, first in PLATFORMS
        for rev in POSTGRES
        if int(rev.split(".")[0]) >= first
    ]


def _module() -> str:
    roots = _postgres_roots()
    org, name, rev = KAFKA
    dependencies = [f'<dependency org="{org}" name="{name}" rev="{rev}" conf="kafka->default"/>']
    # Without a logging binding Kafka writes no log at all.
    dependencies.append(ivy.dependency(*LOGGING, conf="kafka"))
    dependencies.append(ivy.dependency(*REGISTRY, conf="registry", ext="tar.gz", classifier="all"))
    dependencies += [ivy.dependency("io.zonky.test.postgres", name, rev, conf) for conf, name, rev in roots]
    return ivy.module(["kafka", "registry", *(root[0] for root in roots)], dependencies)


def _artifact(path: Path) -> Artifact:
    org, name, rev, classifier, ext = path.name.split("!!")
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return Artifact(org, name, rev, ext, digest, path.stat().st_size, classifier.removeprefix("-"))


def main() -> None:
    """Fetch everything into a temporary folder and write the lock next to this module."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        ivy.retrieve(
            _module(), f"{out}/{_PATTERN}", artifacts.cache_folder() / "relock", lambda _: None, poms=True
        )
        lock = {
            group.name: [asdict(_artifact(path)) for path in sorted(group.iterdir())]
            for group in sorted(out.iterdir())
        }
    Path(__file__).with_name(LOCK_NAME).write_text(json.dumps(lock, indent=1) + "\n")
    say(f"locked {sum(map(len, lock.values()))} files in {len(lock)} groups", err=True)


if __name__ == "__main__":
    main()
