"""A reproduction as a chapter of a report."""

from __future__ import annotations

from pathlib import Path

from repper.paper.findings import Reproduction
from repper.report.chapter import Chapter
from repper.report.content import subject_of_comparison


def chapter_of(folder: Path) -> Chapter:
    """Read what is finished of a reproduction, its tables first, then every comparison."""
    found = Reproduction.open(folder)
    return Chapter(
        name=folder.resolve().name,
        title=found.experiment.title,
        command=found.command,
        notes=(f"{found.chance.capitalize()}.", *found.notes()),
        tables=tuple(found.tables()),
        pictures=tuple(found.figures()),
        subjects=tuple(
            subject_of_comparison(result.comparison.folder, result.panel.name)
            for result in found.panels
            if result.comparison
        ),
    )
