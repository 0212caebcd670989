"""Tables as JSON, and the long frame of all numbers as CSV."""

import json
from collections.abc import Iterable, Sequence

from harness.analysis import reference
from harness.analysis.results import long_frame
from harness.spec import Result, printable
from harness.tables.layout import PARAMETERS, Table


def as_json(tables: Sequence[Table]) -> str:
    """Means, intervals and the paper's numbers, unrounded."""
    data = [
        {
            "table": table.kind,
            "protocol": table.protocol,
            "backbone": table.backbone,
            "caption": table.caption,
            "rows": [
                {
                    "label": row.label,
                    "section": row.section,
                    "notes": row.notes,
                    "cells": [
                        {
                            "dataset": column.dataset,
                            "column": column.name,
                            "text": cell.text,
                            "mean": cell.mean,
                            "half_width": cell.half,
                            "interval_over": cell.over or None,
                            "seeds": len(cell.values),
                            "values": cell.values,
                            "ids": cell.ids,
                            "best": cell.best,
                            "not_significantly_different": cell.tied,
                            "published": float(cell.published) / 100 if cell.published else None,
                        }
                        for column, cell in zip(table.columns, row.cells, strict=True)
                    ],
                }
                for row in table.rows
            ],
        }
        for table in tables
    ]
    return json.dumps(data, indent=1, ensure_ascii=False) + "\n"


def csv(results: Iterable[Result], metrics: Sequence[str] = (), *, published: bool = True) -> str:
    """One row per number: ours of every run, then the paper's as printed; all of them fractions."""
    import pandas as pd

    ours = long_frame(results)
    ours.insert(0, "source", "measured")
    datasets = set(ours["dataset"])
    rows = [
        {
            "source": reference.paper()["cite"],
            "title": reference.title_of(number.method),
            "dataset": number.dataset,
            "loss": number.loss,
            "metric": number.metric,
            "value": number.value if number.metric == PARAMETERS else number.value / 100,
        }
        for number in reference.published()
        if published and number.dataset in datasets and number.value is not None and number.table != "text"
    ]
    long = pd.concat([ours, pd.DataFrame(rows)]) if rows else ours
    return printable(long[long["metric"].isin(metrics or long["metric"])].to_csv(index=False))
