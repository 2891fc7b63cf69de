import { find, make } from "./dom.js";

const SHOWN = 9000; // milliseconds

/** A short message; `action` is [label, function]. Bad news stay until they are closed. */
export function toast(text, { bad = false, action = null } = {}) {
  const list = find("toasts");
  const close = () => item.remove();
  const item = make("div", { className: bad ? "toast bad" : "toast" }, make("span", {}, text));
  if (action) {
    const [label, run] = action;
    const button = make("button", { type: "button", onclick: () => { close(); run(); } }, label);
    item.append(button);
  }
  item.append(make("button", { type: "button", "aria-label": "Close this message", onclick: close }, "×"));
  list.append(item);
  while (list.children.length > 3) list.firstElementChild.remove();
  if (!bad) setTimeout(close, SHOWN);
  return item;
}
