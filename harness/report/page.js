"use strict";
// Every table can be sorted by a column: the script puts a button into each head, so without it there are none.
const words = new Intl.Collator(undefined, { numeric: true });

// What a row is sorted by; null, as of a dash, comes last in both directions.
function key(row, column, numeric) {
  const cell = row.cells[column];
  const text = cell.textContent.trim();
  if (numeric) return cell.dataset.value === undefined ? null : Number(cell.dataset.value);
  return text === "" || text === "-" ? null : text;
}

function sort(table, column, head, heads) {
  const body = table.tBodies[0];
  const rows = [...body.rows];
  const numeric = rows.some((row) => row.cells[column].dataset.value !== undefined);
  // numbers begin with the largest, as one wants to know the best; words with A; a second click reverses
  const now = head.getAttribute("aria-sort");
  const down = now ? now === "ascending" : numeric;
  const keyed = rows.map((row) => [key(row, column, numeric), row]);
  keyed.sort(([a], [b]) => {
    if (a === null || b === null) return (a === null) - (b === null);
    const order = numeric ? a - b : words.compare(a, b);
    return down ? -order : order;
  });
  for (const other of heads) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", down ? "descending" : "ascending");
  body.append(...keyed.map(([, row]) => row));
}

for (const table of document.querySelectorAll("table")) {
  const heads = [...table.tHead.rows[table.tHead.rows.length - 1].cells];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    button.addEventListener("click", () => sort(table, column, head, heads));
    head.append(button);
  });
}

// A link to a run opens the list of runs, which is closed at first.
function reveal() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  const list = target && target.closest("details");
  if (list) {
    list.open = true;
    target.scrollIntoView({ block: "center" });
  }
}
addEventListener("hashchange", reveal);
reveal();
