# /// script
# requires-python = ">=3.11"
# dependencies = ["datatrove==0.10.1", "click==8.5.1", "orjson==3.13.0", "pyarrow==26.0.1", "regex==2026.11.15",
#                 "tokenizers==0.23.3", "xxhash==3.8.2"]
# ///
"""Free Parquet files of code from copies and near copies, on one machine or on Slurm: for more than fits one process.

datatrove's MinHash in four stages; a stage that was interrupted goes on with the tasks that are not done. Files are
near copies from a similarity of about 0.72 on (14 buckets of 8 hashes over runs of five words); of each group one
stays. All columns are kept, so `draft-model corpus --parquet ... --deduplicated` reads what is left. It needs none of
this project's packages: `uv run` installs those above, and so does `pip install` of the same list.

Example:
    uv run deploy/corpus/deduplicate.py --data stack/python --text-key content --out stack-unique
    uv run deploy/corpus/deduplicate.py --data s3://code/python --out s3://code/unique --slurm cpu --tasks 500
"""

import re
from typing import Any

import click
from datatrove.executor import LocalPipelineExecutor, SlurmPipelineExecutor
from datatrove.pipeline.base import PipelineStep
from datatrove.pipeline.dedup import MinhashDedupBuckets, MinhashDedupCluster, MinhashDedupFilter, MinhashDedupSignature
from datatrove.pipeline.dedup.minhash import MinhashConfig
from datatrove.pipeline.readers import ParquetReader
from datatrove.pipeline.writers import ParquetWriter
from datatrove.utils.word_tokenizers import WordTokenizer

RUN_WORDS = 5
NUM_BUCKETS, HASHES_A_BUCKET = 14, 8
_WORD = re.compile(r"\w+")


class CodeWords(WordTokenizer):
    """Names, keywords and numbers, as `draft-model corpus` compares them; datatrove's own are for prose."""

    def word_tokenize(self, text: str) -> list[str]:
        """The words of a text; of a short one so many blanks more that it has one run."""
        words = _WORD.findall(text)
        return words + [""] * (RUN_WORDS - len(words))

    def sent_tokenize(self, text: str) -> list[str]:
        """Lines."""
        return text.splitlines()

    def span_tokenize(self, text: str) -> list[tuple[int, int]]:
        """Where the words are."""
        return [match.span() for match in _WORD.finditer(text)]


@click.command()
@click.option("--data", required=True, metavar="FOLDER", help="Parquet files, on a disk that all tasks see, or s3://.")
@click.option("--out", required=True, metavar="FOLDER", help="For the same files without near copies, and the work.")
@click.option("--text-key", default="text", show_default=True, help="The column with the code.")
@click.option("--tasks", type=click.IntRange(min=1), default=8, show_default=True, help="Shares of the files.")
@click.option("--workers", type=int, default=-1, help="At the same time.  [default: all tasks]")
@click.option("--slurm", default=None, metavar="PARTITION", help="Run on this partition instead of here.")
@click.option("--time", "limit", default="24:00:00", show_default=True, help="Of a Slurm job.")
def main(*, data: str, out: str, text_key: str, tasks: int, workers: int, slurm: str | None, limit: str) -> None:
    """Free Parquet files of code from copies and near copies: datatrove's MinHash, here or on Slurm."""
    config = MinhashConfig(RUN_WORDS, NUM_BUCKETS, HASHES_A_BUCKET)
    reader = ParquetReader(data, text_key=text_key, glob_pattern="*.parquet")
    stages: list[tuple[str, int, list[PipelineStep]]] = [
        ("signatures", tasks, [reader, MinhashDedupSignature(f"{out}/work/signatures", config, CodeWords())]),
        ("buckets", NUM_BUCKETS, [MinhashDedupBuckets(f"{out}/work/signatures", f"{out}/work/buckets", config=config)]),
        ("clusters", 1, [MinhashDedupCluster(f"{out}/work/buckets", f"{out}/work/remove", config)]),
        (
            "filter",
            tasks,  # As many as read them: a task drops by the place of a file in its share.
            [reader, MinhashDedupFilter(f"{out}/work/remove"), ParquetWriter(f"{out}/data", expand_metadata=True)],
        ),
    ]
    before: Any = None
    for name, num_tasks, pipeline in stages:
        logs = f"{out}/work/logs/{name}"
        if slurm:
            before = SlurmPipelineExecutor(
                pipeline, num_tasks, limit, slurm, workers=workers, job_name=name, logging_dir=logs, depends=before
            )
        else:
            before = LocalPipelineExecutor(pipeline, num_tasks, workers, logging_dir=logs, depends=before)
    before.run()
    where = f"in {out}/data" if slurm is None else f"will be in {out}/data when Slurm is done"
    click.echo(f"what is left {where}; read it with `draft-model corpus --parquet ... --deduplicated`")


if __name__ == "__main__":
    main()
