// Files from a chooser, a drop or the clipboard, each with the folders it lies in.

import { find } from "./dom.js";

const PICTURE = /\.(jpe?g|jfif|png|webp|gif|bmp|avif|heic|heif|tiff?|ico)$/i;

export const isPicture = ({ file }) => file.type.startsWith("image/") || PICTURE.test(file.name);
const isHidden = ({ path }) => path.split("/").some((part) => part.startsWith(".") || part === "__MACOSX");

/** Ask for files: [{file, path}]; empty if the person closes the window. */
export function choose({ multiple = false, folder = false, accept = "" }) {
  const input = find("pick");
  input.value = "";
  input.multiple = multiple;
  input.webkitdirectory = folder;
  input.accept = accept;
  return new Promise((resolve) => {
    input.oncancel = () => resolve([]);
    input.onchange = () =>
      resolve(sorted([...input.files].map((file) => ({ file, path: file.webkitRelativePath || file.name }))));
    input.click();
  });
}

/** The files of a drop, those in folders too. Call it at once: a drop's data does not last. */
export function dropped(transfer) {
  const items = [...transfer.items].filter((item) => item.kind === "file");
  const found = items.map((item) => {
    const file = item.getAsFile();
    // Chromium reads folders of a page from a file only by handles, others only by entries.
    if (item.getAsFileSystemHandle) {
      return item.getAsFileSystemHandle().then((handle) => (handle ? fromHandle(handle, "") : plain(file)), () => plain(file));
    }
    const entry = item.webkitGetAsEntry?.();
    return entry?.isDirectory ? fromEntry(entry, "") : plain(file);
  });
  return Promise.all(found).then((lists) => sorted(lists.flat()));
}

const plain = (file) => (file ? [{ file, path: file.name }] : []);

async function fromHandle(handle, above) {
  if (handle.kind === "file") {
    const file = await handle.getFile();
    return [{ file, path: above + file.name }];
  }
  const lists = [];
  for await (const child of handle.values()) lists.push(await fromHandle(child, `${above}${handle.name}/`));
  return lists.flat();
}

async function fromEntry(entry, above) {
  if (entry.isFile) {
    const file = await new Promise((resolve, reject) => entry.file(resolve, reject));
    return [{ file, path: above + file.name }];
  }
  const reader = entry.createReader();
  const lists = [];
  for (;;) {
    const some = await new Promise((resolve, reject) => reader.readEntries(resolve, reject));
    if (some.length === 0) return lists.flat();
    for (const child of some) lists.push(await fromEntry(child, `${above}${entry.name}/`));
  }
}

const sorted = (files) =>
  files
    .filter((one) => !isHidden(one))
    .sort((a, b) => a.path.localeCompare(b.path, "en", { numeric: true }));

/** Whether pictures lie in several folders, or below one: each folder is then a class. */
export function isFolderOfClasses(files) {
  const folders = new Set(files.filter(isPicture).map(({ path }) => path.split("/").slice(0, -1).join("/")));
  return folders.size > 1 || [...folders].some((folder) => folder.includes("/"));
}

/** Pictures by the folder they lie in: [{name, files}]. */
export function byFolder(files) {
  const groups = new Map();
  for (const one of files.filter(isPicture)) {
    const name = one.path.split("/").at(-2);
    if (name === undefined) continue;
    if (!groups.has(name)) groups.set(name, []);
    groups.get(name).push(one.file);
  }
  return [...groups].map(([name, list]) => ({ name, files: list }));
}
