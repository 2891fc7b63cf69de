// Sorting by a click on a heading, and showing some methods only. Without it the page still reads.
"use strict";
const value = (cell) => {
  const key = cell.dataset.sort ?? cell.textContent.trim();
  const number = Number(key);
  return key === "-inf" ? -Infinity : Number.isNaN(number) ? key : number;
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
  const said = filter.querySelector("output");
  filter.addEventListener("change", () => {
    const boxes = [...filter.querySelectorAll("input")];
    const shown = boxes.filter((box) => box.checked).map((box) => box.value);
    for (const part of filter.closest("section").querySelectorAll("[data-label]")) {
      // A curve of a whole method is shown with any row of it.
      const label = part.dataset.label;
      part.toggleAttribute("hidden", !shown.some((row) => row === label || row.startsWith(`${label}+`)));
    }
    said.textContent = `${shown.length} of ${boxes.length} are shown`;
  });
}
// What is folded is printed too.
for (const [event, open] of [["beforeprint", true], ["afterprint", false]]) {
  addEventListener(event, () => {
    for (const fold of document.querySelectorAll(open ? "details:not([open])" : "details[data-opened]")) {
      fold.open = open;
      fold.toggleAttribute("data-opened", open);
    }
  });
}
// A drawing that scrolls, as on a phone, can be scrolled by keys too.
const reach = () => {
  for (const frame of document.querySelectorAll("figure .scroll:not([role])")) {
    frame.toggleAttribute("tabindex", frame.scrollWidth > frame.clientWidth);
    if (frame.hasAttribute("tabindex")) frame.tabIndex = 0;
  }
};
addEventListener("resize", reach);
reach();
