import { arrange, counted, drawn, find, make, percent, say } from "./dom.js";

/** Warnings about the photos, in plain words. */
export function warningsOf(state, copies) {
  const filled = state.classes.filter((one) => one.photos.length > 0);
  const found = [];
  if (filled.length === 0) return found;
  if (filled.length < 2) found.push("Only one class has photos. It needs at least two classes to tell apart.");
  const single = filled.filter((one) => one.photos.length === 1);
  if (single.length) {
    const names = single.map((one) => one.name).join(", ");
    found.push(`Only one photo: ${names}. A class with one photo cannot be tested; add more.`);
  }
  const few = filled.filter((one) => one.photos.length > 1 && one.photos.length < 5);
  if (filled.length >= 2 && few.length) {
    found.push(`Fewer than five photos: ${few.map((one) => one.name).join(", ")}. The accuracy below is a rough guess.`);
  }
  const counts = filled.map((one) => one.photos.length);
  const [least, most] = [Math.min(...counts), Math.max(...counts)];
  if (filled.length >= 2 && most >= 5 * least && most >= 10) {
    const large = filled[counts.indexOf(most)].name;
    const small = filled[counts.indexOf(least)].name;
    found.push(`${large} has ${most} photos and ${small} has ${least}. It will lean towards ${large}; add photos of ${small}.`);
  }
  if (copies.length) found.push(`The same photo is in two classes: ${copies.slice(0, 3).join(", ")}. Remove it from one.`);
  return found;
}

export function showWarnings(warnings) {
  const list = find("warnings");
  const old = [...list.children].map((item) => item.textContent);
  if (old.join("\n") === warnings.join("\n")) return;
  arrange(list, warnings.map((text) => make("li", {}, text)));
}

/** `result` is {names, measured, folds, curve}, or null; `waiting` says why there is none. */
export function showQuality(result, waiting) {
  const measured = result?.measured;
  find("quality-more").hidden = !measured;
  if (!measured) {
    say(find("accuracy"), "–");
    say(find("accuracy-note"), waiting);
    return;
  }
  const { correct, tested, confusion } = measured;
  const largest = Math.max(...confusion.map((row) => row.reduce((a, b) => a + b, 0)));
  say(find("accuracy"), percent(correct / tested));
  say(
    find("accuracy-note"),
    `${correct} of ${counted(tested, "photo")} right, each one while it was held out. ` +
      `Always answering the largest class gives ${percent(largest / tested)}.`,
  );
  drawConfusion(result.names, confusion);
  drawCurve(result.curve ?? []);
}

function drawConfusion(names, confusion) {
  const head = make("tr", {}, make("th", { scope: "col" }, "Class"));
  names.forEach((name) => head.append(make("th", { scope: "col", title: name }, name)));
  const rows = names.map((name, row) => {
    const line = make("tr", {}, make("th", { scope: "row", title: name }, name));
    confusion[row].forEach((count, column) => {
      const kind = count === 0 ? "none" : row === column ? "hit" : "miss";
      line.append(make("td", { className: kind }, String(count)));
    });
    return line;
  });
  find("confusion").replaceChildren(
    make("caption", {}, "Rows: what the photos are. Columns: what it answers."),
    make("thead", {}, head),
    make("tbody", {}, ...rows),
  );
}

/** Accuracy on held-out photos over the number of photos that were learned from. */
function drawCurve(curve) {
  const [width, height, left, right, top, bottom] = [400, 150, 44, 14, 10, 36];
  const chart = find("chart");
  if (curve.length === 0) {
    chart.replaceChildren(make("p", { className: "note" }, "Measuring…"));
    return;
  }
  const most = Math.max(...curve.map((point) => point.photos));
  const x = (photos) => left + ((width - left - right) * photos) / most;
  const y = (share) => top + (height - top - bottom) * (1 - share);
  const spoken = curve.map((point) => `${percent(point.accuracy)} with ${counted(point.photos, "photo")}`).join(", ");
  const svg = drawn("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Held-out accuracy: ${spoken}` });
  for (const share of [0, 0.5, 1]) {
    svg.append(
      drawn("line", { class: "grid", x1: left, x2: width - right, y1: y(share), y2: y(share) }),
      drawn("text", { x: left - 6, y: y(share) + 4, "text-anchor": "end" }, percent(share)),
    );
  }
  let lastLabel = -Infinity;
  for (const { photos } of curve) {
    if (x(photos) - lastLabel < 30) continue;
    lastLabel = x(photos);
    svg.append(drawn("text", { x: x(photos), y: height - 20, "text-anchor": "middle" }, String(photos)));
  }
  svg.append(drawn("text", { x: (left + width - right) / 2, y: height - 4, "text-anchor": "middle" }, "photos it learned from"));
  const line = curve.map((point, i) => `${i ? "L" : "M"}${x(point.photos).toFixed(1)} ${y(point.accuracy).toFixed(1)}`);
  svg.append(drawn("path", { class: "line", d: line.join("") }));
  for (const point of curve) svg.append(drawn("circle", { class: "dot", cx: x(point.photos), cy: y(point.accuracy), r: 3.5 }));
  chart.replaceChildren(svg);
}
