"""The small tables that commands print at the end."""

from typing import Any

from rich.table import Table

_ROWS = (
    ("validation error, dense", "dense_val_error", "{:.2f} %"),
    ("validation error, before tied values", "val_error_soft", "{:.2f} %"),
    ("validation error, clusters frozen", "val_error_hardened", "{:.2f} %"),
    ("validation error, final", "val_error", "{:.2f} %"),
    ("validation error, lost to compression", "lost_val_error", "{:+.2f} points"),
    ("test error, dense", "dense_test_error", "{:.2f} %"),
    ("test error, final", "test_error", "{:.2f} %"),
    ("test error, lost to compression", "lost_test_error", "{:+.2f} points"),
    ("density", "density", "{:.4f}"),
    ("clusters", "num_clusters", "{:,}"),
    ("original bytes", "original_bytes", "{:,}"),
    (".reef bytes", "file_bytes", "{:,}"),
    ("rate, the file", "rate_file", "{:.1f}x"),
    ("rate, the paper's accounting", "rate_paper", "{:.1f}x"),
    ("seconds", "seconds", "{:.0f}"),
)


def facts_table(rows: list[tuple[str, str]]) -> Table:
    """Two columns: what, and how much."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column()
    table.add_column(justify="right")
    for row in rows:
        table.add_row(*row)
    return table


def record_table(record: dict[str, Any]) -> Table:
    """What a run's record says."""
    facts = record | _lost(record)
    known = [(title, facts.get(key), form) for title, key, form in _ROWS]
    if (record.get("settings") or {}).get("begin") == "commit":  # then it was tied already
        known = [(title.replace("dense", "before"), v, form) for title, v, form in known]
    return facts_table(
        [(title, form.format(v)) for title, v, form in known if isinstance(v, int | float)]
    )


def unknown_loss(record: dict[str, Any]) -> bool:
    """Whether something was tied, and there is no dense network to compare it with."""
    return bool(record.get("num_clusters")) and not _lost(record)


def _lost(record: dict[str, Any]) -> dict[str, float]:
    """The increase in error over the dense network, in points; on test data if it is known."""
    for part in ("test_error", "val_error"):
        before, after = record.get(f"dense_{part}"), record.get(part)
        if isinstance(before, int | float) and isinstance(after, int | float):
            return {f"lost_{part}": after - before}
    return {}
