"""Rules of third parties, through the entry point group "steptime.rules".

One law: what a plugin gets wrong is said in words at load, and costs nobody their diagnosis.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points

from steptime.findings.rule import Rule

GROUP = "steptime.rules"
_IMPORT_ERRORS = (
    ImportError,
    AttributeError,
    LookupError,
    NameError,
    OSError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
)


def plugin_rules(
    taken: Iterable[Rule], found: Iterable[EntryPoint] | None = None
) -> tuple[tuple[Rule, ...], tuple[tuple[str, str], ...]]:
    """Rules of plugins, and (entry point's name, what is missing) for each one that cannot be used.

    taken: rules whose codes and names are in use. found: entry points to load, by default those installed.
    """
    codes = {rule.code: rule.name for rule in taken}
    rules: list[Rule] = []
    problems: list[tuple[str, str]] = []
    for entry in entry_points(group=GROUP) if found is None else found:
        try:
            loaded = entry.load()
        except _IMPORT_ERRORS as error:
            problems.append((entry.name, f"{entry.value} cannot be imported: {type(error).__name__}: {error}"))
            continue
        problem = _problem(entry, loaded, codes)
        if problem or not isinstance(loaded, Rule):
            problems.append((entry.name, problem))
        else:
            codes[loaded.code] = loaded.name
            rules.append(loaded)
    return tuple(rules), tuple(problems)


def _problem(entry: EntryPoint, loaded: object, codes: dict[str, str]) -> str:
    """What is wrong with a loaded entry point, "" when nothing is."""
    if not isinstance(loaded, Rule):
        return f"{entry.value} is a {type(loaded).__name__}, not a rule: decorate it with steptime.findings.rule.rule"
    if loaded.code in codes:
        return f"{entry.value} has the code {loaded.code}, which {codes[loaded.code]} has already: take another"
    if loaded.name in codes.values():
        return f"{entry.value} has the name {loaded.name}, which another rule has already: take another"
    return ""
