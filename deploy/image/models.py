"""Builds an image of models with buildah, for image volumes of Kubernetes: `make model-image MODEL=FOLDER`.

The image has target/ and draft/ at its root and no program. Each file is a layer, so that nodes pull files side by side
and keep those that a new revision leaves as they are. The same files make the same digest, whenever they are built.
"""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from completion_server.engine.revisions import folder_revision

_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)


@click.command()
@click.option("--target", type=_FOLDER, required=True, help="Folder of the target model.")
@click.option("--draft", type=_FOLDER, help="Folder of the draft model.")
@click.option("--tag", default="completion-models", help="Name of the image in buildah's storage.")
@click.option("--weights-at", default="", metavar="URL", help="Where the target's weights are, if not in its folder.")
@click.option("--storage", type=click.Path(path_type=Path), help="buildah's storage; by default the user's own.")
def main(*, target: Path, draft: Path | None, tag: str, weights_at: str, storage: Path | None) -> None:
    """Build an image and print its name, the models' revisions and how to push it."""
    models = {"target": target} | ({"draft": draft} if draft else {})
    try:
        copies = [each for name, folder in models.items() for each in _copies(name, folder)]
        revisions = {name: folder_revision(folder) for name, folder in models.items()}
        revisions["target"] = folder_revision(target, weights_at)
        _build(models, [*copies, *_labels(revisions)], tag, storage)
    except (OSError, ValueError) as error:
        click.echo(f"model-image: {error}", err=True)
        sys.exit(2)
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)  # buildah has said why
    for name, revision in revisions.items():
        click.echo(f"{name}: revision {revision}")
    click.echo(f"built: {tag}\npush:  buildah push --digestfile digest.txt {tag} docker://REGISTRY/completion-models")


def _copies(name: str, folder: Path) -> Iterator[str]:
    """Yield the instruction for each file of a model.

    Raises:
        ValueError: it is no model folder, or a file is a link, which would lead nowhere in the image.

    """
    if not (folder / "config.json").exists():
        raise ValueError(f"{name}: {folder} holds no config.json, so it is no model folder")
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or path.is_dir():
            continue
        if path.is_symlink():
            raise ValueError(f"{name}: {path} is a link; copy the folder with cp -rL, or hf download --local-dir")
        yield f'COPY --from={name} --chown=0:0 --chmod=0444 ["{path.name}", "/{name}/{path.name}"]'


def _labels(revisions: dict[str, str]) -> Iterator[str]:
    found = {
        "org.opencontainers.image.title": "completion-models",
        "org.opencontainers.image.description": "Models of a completion server, for an image volume",
        "org.opencontainers.image.revision": revisions["target"],
        **{f"completion.{name}.revision": revision for name, revision in revisions.items()},
    }
    yield from (f'LABEL {key}="{value}"' for key, value in found.items())


def _build(models: dict[str, Path], instructions: list[str], tag: str, storage: Path | None) -> None:
    """Build the image.

    Raises:
        OSError: there is no buildah.
        CalledProcessError: it failed.

    """
    buildah = shutil.which("buildah")
    if buildah is None:
        raise FileNotFoundError("buildah not found; on Debian: apt-get install buildah")
    options = [f"--build-context={name}={folder.resolve()}" for name, folder in models.items()]
    # All times are that of the epoch, and the version of buildah is left out: they would change the digest.
    options += ["--layers", "--timestamp=0", "--identity-label=false", "--format=oci", f"--tag={tag}"]
    with TemporaryDirectory() as context:
        recipe = Path(context, "Containerfile")
        recipe.write_text("\n".join(("FROM scratch", *instructions, "")), encoding="utf-8")
        places = [f"--root={storage / 'storage'}", f"--runroot={storage / 'run'}"] if storage else []
        subprocess.run([buildah, *places, "build", *options, f"--file={recipe}", context], check=True)


if __name__ == "__main__":
    main()
