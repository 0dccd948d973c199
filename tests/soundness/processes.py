"""Writes rows as packages and runs them in processes of their own."""

from __future__ import annotations

from pathlib import Path

SECONDS = 1200
"""Enough for half of the rows in one process on a busy machine."""

RUN = Path(__file__).with_name("run_rows.py")


def write(folder, rows, *, changed):
    for name, row in rows.items():
        package = folder / name
        package.mkdir(parents=True, exist_ok=True)
        texts = {"__init__": "", **row.files}
        for file, old, new in row.edits if changed else ():
            assert old in texts[file], (name, old)
            texts[file] = texts[file].replace(old, new, 1)
        for file, text in texts.items():
            (package / f"{file}.py").write_text(text)


def run(surroundings, folder, phase, names, *, cwd=None, processes=2, **environment):
    """A part of the rows in each of the processes."""
    environment.setdefault("PYTHONDONTWRITEBYTECODE", "1")
    workers = [
        surroundings.start(RUN, folder, phase, *part, cwd=cwd, **environment)
        for part in (names[first::processes] for first in range(processes))
        if part
    ]
    results = [worker.result(timeout=SECONDS) for worker in workers]
    return {name: row for result in results for name, row in result.items()}
