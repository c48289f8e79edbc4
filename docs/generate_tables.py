"""Writes the tables of figures of README.md and docs/ from benchmarks/NAME.json by the template benchmarks/NAME.j2.

`make docs` runs it. A page names the table in a comment, and the generated text ends at the next one:

    <!-- table: capacity -->
    ...
    <!-- end of table -->

A template `capacity-short.j2` shows the figures of `capacity.json`, too. It is Jinja2 with the names of the document's
figures (all of them are in `figures`), the filter `n`, which rounds, and `ci`, which adds a figure's 95% interval:
`{{ "editors_short" | ci }}`.
"""

import json
import re
import sys
from datetime import datetime
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

ROOT = Path(__file__).parents[1]
BENCHMARKS = ROOT / "benchmarks"
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
_TABLE = re.compile(r"(<!-- table: ([\w-]+) -->\n).*?(<!-- end of table -->\n)", re.DOTALL)


def generate(page: str, benchmarks: Path = BENCHMARKS) -> str:
    """Return a page with its tables written anew.

    Raises:
        FileNotFoundError: a benchmark was not recorded.
        jinja2.TemplateError: a template is missing or names a figure that is not there.

    """
    return _TABLE.sub(lambda found: f"{found[1]}\n{_table(found[2], benchmarks)}\n{found[3]}", page)


def _table(name: str, benchmarks: Path) -> str:
    document = json.loads((benchmarks / f"{name.partition('-')[0]}.json").read_text(encoding="utf-8"))

    def with_interval(figure: str, digits: int = 2) -> str:
        low, high = document["intervals"][figure]
        return f"{shown(document['figures'][figure], digits)} ({shown(low, digits)} to {shown(high, digits)})"

    environment = Environment(loader=FileSystemLoader(benchmarks), undefined=StrictUndefined, trim_blocks=True)
    environment.filters |= {"ci": with_interval, "n": shown}
    template = environment.get_template(f"{name}.j2")
    taken = datetime.fromisoformat(document["date"]).strftime("%d %B %Y").lstrip("0")
    source = f"`make bench-{document['benchmark']}`, {taken}, commit {document['commit'][:7]}, {document['processor']}."
    text = template.render(document["figures"], figures=document["figures"])
    lines = [line.rstrip() for line in text.strip().splitlines()]
    return "\n".join([*lines, "", source, ""])


def shown(value: float | None, digits: int = 2) -> str:
    """Return a number with as many significant digits, and all digits before the point; "-" for none."""
    if value is None:
        return "-"
    before = len(str(int(abs(value)))) if abs(value) >= 1 else 0
    if before >= digits:
        return f"{value:,.0f}"
    return f"{value:.{digits - before}f}" if before else f"{value:.{digits}g}"


def main() -> None:
    """Write the pages, and say which changed."""
    for path in PAGES:
        old = path.read_text(encoding="utf-8")
        new = generate(old)
        if new != old:
            path.write_text(new, encoding="utf-8")
            sys.stdout.write(f"{path.name}: written\n")


if __name__ == "__main__":
    main()
