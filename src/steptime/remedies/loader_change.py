"""A change of the training loader, which the probe finds again in another process by the line that makes it."""

from __future__ import annotations

from steptime.changes import Change, Scalar
from steptime.findings.case import LoaderUse


def loader_change(loader: LoaderUse, arguments: tuple[tuple[str, Scalar], ...], kind: str = "loader") -> Change:
    """A change of that loader: shuffled ones are known to train, others by their line only."""
    site = loader.site
    place = ((("site", f"{site.file}:{site.line}"),)) if site is not None else ()
    return Change(kind, arguments=(*arguments, *place))
