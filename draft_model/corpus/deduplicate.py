# /// script
# requires-python = ">=3.11"
# dependencies = ["datatrove[s3]==0.10.1", "click==8.5.1", "orjson==3.13.0", "pyarrow==26.0.1", "regex==2026.11.15",
#                 "tokenizers==0.23.3", "xxhash==3.8.2"]
# ///
"""Removes copies and near copies from Parquet files of code that do not fit one process, here or on Slurm.

datatrove's MinHash in four stages; after an interruption a stage continues with its unfinished tasks. Files are near
copies from a similarity of about 0.72 on (14 buckets of 8 hashes over runs of five words); of each group one
stays. The columns stay, so `draft-model corpus --parquet ... --deduplicated` reads the remaining rows. The script needs
none of this project's packages: `uv run` installs those above, and so does `pip install` of the same list.

Example:
    uv run draft_model/corpus/deduplicate.py --data stack/python --text-key content --out stack-unique
    uv run draft_model/corpus/deduplicate.py --data s3://code/python --out s3://code/unique --slurm cpu --tasks 500
"""

from typing import Any

import click
from datatrove.executor import LocalPipelineExecutor, SlurmPipelineExecutor
from datatrove.pipeline.base import PipelineStep
from datatrove.pipeline.dedup import MinhashDedupBuckets, MinhashDedupCluster, MinhashDedupFilter, MinhashDedupSignature
from datatrove.pipeline.dedup.minhash import MinhashConfig
from datatrove.pipeline.readers import ParquetReader
from datatrove.pipeline.writers import ParquetWriter
from datatrove.utils.text import TextNormConfig
from datatrove.utils.word_tokenizers import WordTokenizer
from pyarrow import Schema  # type: ignore[import-untyped]
from pyarrow.parquet import read_schema  # type: ignore[import-untyped]

RUN_WORDS = 5
NUM_BUCKETS, HASHES_A_BUCKET = 14, 8
AS_IT_IS = TextNormConfig(
    lowercase=False, norm_whitespace=False, remove_punctuation=False, norm_unicode_diacritics=False, norm_numbers=False
)


class CodeWords(WordTokenizer):  # type: ignore[misc]
    """Names, keywords and numbers, as `draft-model corpus` compares them; datatrove's own words are those of prose.

    Slurm's tasks unpickle it where this module is not: it must not use anything outside of itself.
    """

    run_words = RUN_WORDS

    def word_tokenize(self, text: str) -> list[str]:
        """The words of a text; a short text is padded with empty words to one run."""
        import re

        words = re.findall(r"\w+", text)
        return words + [""] * (self.run_words - len(words))

    def sent_tokenize(self, text: str) -> list[str]:
        """Lines."""
        return text.splitlines()

    def span_tokenize(self, text: str) -> list[tuple[int, int]]:
        """The offsets of the words."""
        import re

        return [match.span() for match in re.finditer(r"\w+", text)]


def schema_of(reader: ParquetReader, text_key: str) -> Schema:
    """The columns of the first file, which all files must have; the column with the code is renamed to `text`."""
    files = reader.data_folder.list_files(glob_pattern="*.parquet", recursive=True)
    if not files:
        raise click.ClickException(f"no Parquet files in {reader.data_folder.path}")
    with reader.data_folder.open(files[0], "rb") as file:
        schema: Schema = read_schema(file)
    if text_key not in schema.names:
        raise click.ClickException(f"{files[0]} has no column {text_key}: {', '.join(schema.names)}; see --text-key")
    return schema.set(schema.get_field_index(text_key), schema.field(text_key).with_name("text"))


@click.command()
@click.option("--data", required=True, metavar="FOLDER", help="Parquet files, on a disk that all tasks see, or s3://.")
@click.option(
    "--out", required=True, metavar="FOLDER", help="For the remaining rows, and the intermediate data of the stages."
)
@click.option("--text-key", default="text", show_default=True, help="The column with the code.")
@click.option("--tasks", type=click.IntRange(min=1), default=8, show_default=True, help="Shares of the files.")
@click.option("--workers", type=int, default=-1, help="At the same time.  [default: all tasks]")
@click.option("--slurm", default=None, metavar="PARTITION", help="Run on this partition instead of here.")
@click.option(
    "--memory-gb",
    type=click.IntRange(min=1),
    default=4,
    show_default=True,
    help="Of a Slurm task; finding the groups, one task, takes ten times as much.",
)
@click.option("--time", "limit", default="24:00:00", show_default=True, help="Of a Slurm job.")
def main(
    *, data: str, out: str, text_key: str, tasks: int, workers: int, slurm: str | None, memory_gb: int, limit: str
) -> None:  # fmt: skip
    """Remove copies and near copies from Parquet files of code: datatrove's MinHash, here or on Slurm."""
    config = MinhashConfig(RUN_WORDS, NUM_BUCKETS, HASHES_A_BUCKET, norm_config=AS_IT_IS)
    reader = ParquetReader(data, text_key=text_key, glob_pattern="*.parquet")
    # With the schema datatrove adds no columns, such as a file_path, which would be read as the path of the code; and a
    # column whose first values are missing keeps its type.
    writer = ParquetWriter(f"{out}/data", expand_metadata=True, schema=schema_of(reader, text_key))
    stages: list[tuple[str, int, list[PipelineStep]]] = [
        ("signatures", tasks, [reader, MinhashDedupSignature(f"{out}/stages/signatures", config, CodeWords())]),
        (
            "buckets",
            NUM_BUCKETS,
            [MinhashDedupBuckets(f"{out}/stages/signatures", f"{out}/stages/buckets", config=config)],
        ),
        ("clusters", 1, [MinhashDedupCluster(f"{out}/stages/buckets", f"{out}/stages/remove", config)]),
        (
            "filter",
            tasks,  # As many as read them: a task drops files by their position in its share.
            [reader, MinhashDedupFilter(f"{out}/stages/remove"), writer],
        ),
    ]
    before: Any = None
    for name, num_tasks, pipeline in stages:
        logs = f"{out}/stages/logs/{name}"
        if slurm:
            before = SlurmPipelineExecutor(
                pipeline, num_tasks, limit, slurm, workers=workers, job_name=name, logging_dir=logs, depends=before,
                mem_per_cpu_gb=memory_gb * (10 if name == "clusters" else 1),
            )  # fmt: skip
        else:
            before = LocalPipelineExecutor(pipeline, num_tasks, workers, logging_dir=logs, depends=before)
    before.run()
    where = f"are in {out}/data" if slurm is None else f"will be in {out}/data when Slurm is done"
    click.echo(f"the remaining rows {where}; read them with `draft-model corpus --parquet ... --deduplicated`")


if __name__ == "__main__":
    main()
