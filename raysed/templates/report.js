"use strict";

// A click on a column's head sorts the table: numbers, durations and sizes by value, others as text.
const UNITS = { h: 3600, min: 60, s: 1, GB: 1000, MB: 1 };

function valueOf(text) {
  if (text === "-" || text === "") return null;
  const parts = [...text.matchAll(/([\d.]+) (h|min|s|GB|MB)\b/g)];
  if (parts.length) return parts.reduce((sum, [, number, unit]) => sum + Number(number) * UNITS[unit], 0);
  const number = /^[-+]?[\d,]*\.?\d+(?=$|\s|%)/.exec(text);
  return number ? Number(number[0].replaceAll(",", "")) : text;
}

function compare(a, b) {
  if (typeof a === "number" && typeof b === "number") return a - b;
  return String(a).localeCompare(String(b), "en", { numeric: true });
}

function sortBy(head) {
  const table = head.closest("table"), body = table.tBodies[0], column = head.cellIndex;
  const lines = [...body.rows].map(line => [valueOf(line.cells[column].textContent), line]);
  const known = lines.filter(([value]) => value !== null), unknown = lines.filter(([value]) => value === null);
  const before = head.getAttribute("aria-sort"), areNumbers = known.every(([value]) => typeof value === "number");
  const falls = before ? before === "ascending" : areNumbers; // the largest number comes first
  known.sort(([a], [b]) => falls ? compare(b, a) : compare(a, b));
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", falls ? "descending" : "ascending");
  body.append(...[...known, ...unknown].map(([, line]) => line));
}

for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => sortBy(button.closest("th")));
}

// A click on one number of a finding also marks the rows of its other numbers.
for (const link of document.querySelectorAll(".numbers a")) {
  link.addEventListener("click", () => {
    for (const line of document.querySelectorAll("tr.beside")) line.classList.remove("beside");
    for (const other of link.parentElement.querySelectorAll("a")) {
      document.getElementById(other.hash.slice(1)).classList.add("beside");
    }
  });
}
