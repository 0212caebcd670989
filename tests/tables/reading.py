"""What a table says at a place."""

from harness.tables.layout import Cell, Table


def columns(table: Table) -> list[str]:
    return [column.name for column in table.columns]


def cell(table: Table, row: int, metric: str = "R@1") -> Cell:
    return table.rows[row].cells[columns(table).index(metric)]
