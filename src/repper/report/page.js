// Sorting by a click on a heading, and showing some methods only. Without it the page still reads.
"use strict";
const value = (cell) => {
  const key = cell.dataset.sort ?? cell.textContent.trim();
  const number = Number(key);
  return key === "-Infinity" || key === "-inf" ? -Infinity : Number.isNaN(number) ? key : number;
};
for (const table of document.querySelectorAll("table.sortable")) {
  const headings = [...table.tHead.rows[0].cells];
  headings.forEach((heading, column) => {
    heading.querySelector("button")?.addEventListener("click", () => {
      const down = heading.getAttribute("aria-sort") !== "descending";
      for (const other of headings) {
        if (other.hasAttribute("aria-sort")) other.setAttribute("aria-sort", "none");
      }
      heading.setAttribute("aria-sort", down ? "descending" : "ascending");
      const rows = [...table.tBodies[0].rows];
      rows.sort((a, b) => {
        const [x, y] = [value(a.cells[column]), value(b.cells[column])];
        const order = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y));
        return down ? -order : order;
      });
      table.tBodies[0].append(...rows);
    });
  });
}
for (const filter of document.querySelectorAll("fieldset.filter")) {
  filter.addEventListener("change", () => {
    const shown = new Set([...filter.querySelectorAll("input:checked")].map((box) => box.value));
    for (const row of filter.closest("section").querySelectorAll("tr[data-label]")) {
      row.hidden = !shown.has(row.dataset.label);
    }
  });
}
