"""The columns of a table to attack without a data set."""

from __future__ import annotations

from fedpriv.attacks.core.columns import CategoryColumn, NumberColumn, RowEncoding

EXAMPLE = RowEncoding(
    (
        NumberColumn("age", 47.0, 16.0),
        NumberColumn("weight", 75.0, 14.0),
        NumberColumn("visits", 3.0, 2.5),
        NumberColumn("creatinine", 1.1, 0.4, gaps=True),
        CategoryColumn("sex", ("f", "m")),
        CategoryColumn("smoker", ("never", "former", "current")),
        CategoryColumn("admission", ("emergency", "elective", "transfer", "birth")),
        CategoryColumn("ward", tuple("abcdefgh")),
        CategoryColumn("diagnosis", tuple(f"D{number:02}" for number in range(12))),
    )
)
"""The columns of a small table of patients: numbers, of which one is missing now and then, and categories of 2 to 12 levels."""
