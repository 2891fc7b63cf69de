// Archives of a model and of photos: a model folder in a zip, with the photos as photos/<class>/<name>.

import { decodeText } from "./bytes.js";
import { Refused } from "./refused.js";
import { readZip } from "./zip.js";

const TYPES = { jpg: "image/jpeg", jpeg: "image/jpeg", jfif: "image/jpeg", png: "image/png", webp: "image/webp", gif: "image/gif", bmp: "image/bmp", avif: "image/avif", heic: "image/heic", tif: "image/tiff", tiff: "image/tiff" };
const LARGEST_PHOTO = 512e6; // bytes

const ending = (name) => name.split(".").pop().toLowerCase();

/** A name that is a file name everywhere. */
export function fileName(name) {
  const plain = name.replace(/[\\/:*?"<>|\u0000-\u001f\u007f]/g, "_").replace(/^\.+/, "_").replace(/[. ]+$/, "");
  return plain || "_";
}

function unique(name, taken) {
  const dot = name.lastIndexOf(".");
  const [stem, rest] = dot > 0 ? [name.slice(0, dot), name.slice(dot)] : [name, ""];
  let result = name;
  for (let number = 2; taken.has(result.toLowerCase()); number += 1) result = `${stem}-${number}${rest}`;
  taken.add(result.toLowerCase());
  return result;
}

/** Entries <before><class>/<name> of the photos, and the classes whose folder has another name. */
export function photoEntries(classes, photos, before = "") {
  const folders = new Set();
  const renamed = {};
  const entries = classes.filter((one) => one.photos.length).flatMap((one) => {
    const folder = unique(fileName(one.name), folders);
    if (folder !== one.name) renamed[folder] = one.name;
    const names = new Set();
    return one.photos.map((id) => {
      const { name, blob } = photos.get(id);
      return { name: `${before}${folder}/${unique(fileName(name), names)}`, blob };
    });
  });
  return { entries, renamed };
}

/** What a zip holds: {model, encoder, head, unknown} (bytes or null) and photos [{name, files}]. */
export async function openArchive(blob) {
  const files = await readZip(blob);
  const place = files.find(({ name }) => name.split("/").pop() === "model.json");
  const root = place ? place.name.slice(0, -"model.json".length) : "";
  const read = async (name) => {
    const file = files.find((one) => one.name === root + name);
    return file ? file.read() : null;
  };
  let model = null;
  if (place) {
    try {
      model = JSON.parse(decodeText(await place.read()));
    } catch {
      throw new Refused("model.json in the archive is damaged.");
    }
    if (model?.format !== "repper-model-1") throw new Refused("The archive is not of this version of repper.");
  }
  const groups = new Map();
  for (const one of files) {
    const parts = one.name.split("/");
    const type = TYPES[ending(one.name)];
    if (!type || parts.length < 2 || parts.some((part) => part.startsWith(".") || part === "__MACOSX")) continue;
    if (one.size > LARGEST_PHOTO) throw new Refused(`${one.name} in the archive is too large.`);
    const folder = parts.at(-2);
    const name = typeof model?.folders?.[folder] === "string" ? model.folders[folder] : folder;
    if (!groups.has(name)) groups.set(name, []);
    groups.get(name).push(async () => new File([await one.read()], parts.at(-1), { type }));
  }
  const photos = [...groups].map(([name, list]) => ({ name, files: list }));
  if (!model && photos.length === 0) {
    throw new Refused("The archive holds neither a model nor photos in folders named after their classes.");
  }
  return {
    model,
    encoder: model ? await read(model.encoder?.file ?? "encoder.onnx") : null,
    head: model?.head ? await read(model.head.file ?? "head.safetensors") : null,
    unknown: model?.unknown ? await read(model.unknown.file ?? "unknown.safetensors") : null,
    photos,
  };
}
