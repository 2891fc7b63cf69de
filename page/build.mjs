// Builds the page of `repper play`: one HTML file with its scripts, ONNX Runtime and licences inside.
// The same sources and packages give the same bytes.
//
//     node build.mjs [FILE]

import { createHash } from "node:crypto";
import { readFileSync, readdirSync, writeFileSync } from "node:fs";
import { dirname, join, relative, sep } from "node:path";
import { fileURLToPath } from "node:url";

import { build } from "esbuild";
import { gzipSync } from "fflate";

const here = dirname(fileURLToPath(import.meta.url));
const out = process.argv[2] ?? join(here, "..", "src", "repper", "edge", "page.html");
const text = (...path) => readFileSync(join(here, ...path), "utf8");
const packages = join("node_modules", "onnxruntime-web");

async function bundle(entry) {
  const result = await build({
    absWorkingDir: here,
    bundle: true,
    charset: "ascii",
    // A worker has no module address: ONNX Runtime takes its own from here, and then fetches nothing.
    define: { "import.meta.url": "self.location.href" },
    entryPoints: [join("src", entry)],
    format: "iife",
    legalComments: "inline",
    logOverride: { "empty-import-meta": "silent" },
    minify: true,
    target: "es2022",
    write: false,
  });
  const code = result.outputFiles[0].text.trim();
  if (/<!--|<\/?script/i.test(code)) throw new Error(`${entry} would end the script it is put into`);
  return code;
}

// fflate instead of Node's zlib: every version of Node gives the same bytes.
const packed = (bytes) => Buffer.from(gzipSync(bytes, { level: 9, mtime: 0 })).toString("base64");
const hash = (code) => `'sha256-${createHash("sha256").update(code).digest("base64")}'`;
const escaped = (plain) => plain.replaceAll("&", "&amp;").replaceAll("<", "&lt;");

/** One hash of all sources: a test compares it with the files, without building. */
function sourcesHash() {
  const found = readdirSync(join(here, "src"), { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => relative(here, join(entry.parentPath, entry.name)).split(sep).join("/"));
  const sum = createHash("sha256");
  for (const name of [...found, "build.mjs", "package-lock.json"].sort()) {
    sum.update(`${name}\n`).update(readFileSync(join(here, ...name.split("/"))));
  }
  return sum.digest("hex");
}

const [script, worker] = await Promise.all([bundle("main.js"), bundle("worker.js")]);
const style = text("src", "style.css").trim();
const { version } = JSON.parse(text(packages, "package.json"));

const policy = [
  "default-src 'none'",
  "connect-src 'none'",
  `script-src ${hash(script)} 'wasm-unsafe-eval'`,
  "worker-src blob:",
  `style-src ${hash(style)}`,
  "img-src blob: data:",
  "media-src blob: mediastream:",
  "form-action 'none'",
  "base-uri 'none'",
].join("; ");

const parts = {
  POLICY: policy,
  SOURCES: sourcesHash(),
  STYLE: style,
  WASM: packed(readFileSync(join(here, packages, "dist", "ort-wasm-simd-threaded.wasm"))),
  WORKER: worker,
  SCRIPT: script,
  // The package names its licence (MIT) but has no file of it: these are the project's own.
  VERSION: version,
  LICENCE: escaped(text("licences", "onnxruntime.txt").trim()),
  NOTICES: packed(readFileSync(join(here, "licences", "onnxruntime-third-party.txt"))),
};

let page = text("src", "index.html");
for (const [name, value] of Object.entries(parts)) {
  const mark = `{{${name}}}`;
  if (page.split(mark).length !== 2) throw new Error(`index.html needs ${mark} exactly once`);
  page = page.replace(mark, () => value);
}
const placeholder = '<script id="model" type="application/json">null</script>';
if (page.split(placeholder).length !== 2) throw new Error("the place of the model must be there once");
writeFileSync(out, page);
console.log(`${(page.length / 1e6).toFixed(2)} MB`);
