// Python's json.dumps writes ASCII only, and a space after commas and colons; digests depend on it.

const escaped = (text) =>
  JSON.stringify(text).replace(
    /[\u007f-\uffff]/g,
    (letter) => `\\u${letter.charCodeAt(0).toString(16).padStart(4, "0")}`,
  );

/** Strings, integers, lists, and objects with sorted keys, as json.dumps(value, sort_keys=True). */
export function pythonJson(value) {
  if (typeof value === "string") return escaped(value);
  if (Array.isArray(value)) return `[${value.map(pythonJson).join(", ")}]`;
  if (value !== null && typeof value === "object") {
    const keys = Object.keys(value).sort();
    return `{${keys.map((key) => `${escaped(key)}: ${pythonJson(value[key])}`).join(", ")}}`;
  }
  return JSON.stringify(value);
}
