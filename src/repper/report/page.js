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
// What is wider than its frame, as on a phone, fades out where there is more, and says so; drawings in such a
// frame can be scrolled by keys too, as tables always can.
const frames = [...document.querySelectorAll(".scroll")];
const hints = new Map();
const look = (frame) => {
  const left = frame.scrollLeft > 1;
  const right = frame.scrollLeft + frame.clientWidth < frame.scrollWidth - 1;
  frame.classList.toggle("more-left", left);
  frame.classList.toggle("more-right", right);
  hints.get(frame).hidden = !left && !right;
  if (!frame.hasAttribute("role")) {
    if (left || right) frame.tabIndex = 0;
    else frame.removeAttribute("tabindex");
  }
};
for (const frame of frames) {
  const hint = document.createElement("p");
  hint.className = "note hint";
  hint.ariaHidden = "true";
  hint.textContent = "\u2194 wider than the page: scroll sideways";
  frame.before(hint);
  hints.set(frame, hint);
  frame.addEventListener("scroll", () => look(frame), { passive: true });
}
const lookAtAll = () => frames.forEach(look);
addEventListener("resize", lookAtAll);
document.addEventListener("toggle", lookAtAll, true);
document.addEventListener("change", lookAtAll);
lookAtAll();
