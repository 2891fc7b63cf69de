// Runs beside the page: reads images, runs the encoder, fits heads.

import * as ort from "onnxruntime-web/wasm";

import { fromBase64, inflate } from "./files/bytes.js";
import { Refused } from "./files/refused.js";
import { sha256 } from "./files/sha256.js";
import { stratifiedFolds } from "./learn/folds.js";
import { heldOut } from "./learn/held_out.js";
import { fitLogistic } from "./learn/logistic.js";
import { fitUnknown } from "./learn/unknown.js";
import { readImage } from "./pixels/read_image.js";

const SHARES = [0.1, 0.25, 0.5, 0.75];
const features = new Map(); // by the number of a photo
let encoder = null;
let wanted = 0; // the version of the latest fit that was asked for

/** By the browser, which is fast, or where that is not allowed by ourselves. */
async function checksumOf(bytes) {
  if (!globalThis.crypto?.subtle) return sha256(bytes);
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
  return Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

async function start({ wasm, bytes, checksum, size, channels, width }) {
  if (checksum && (await checksumOf(bytes)) !== checksum) {
    throw new Refused("The encoder in this page is damaged: its contents do not match model.json.");
  }
  if (!encoder) {
    ort.env.wasm.numThreads = 1;
    ort.env.wasm.proxy = false;
    ort.env.wasm.wasmBinary = (await inflate(fromBase64(wasm), "gzip")).buffer;
    ort.env.logLevel = "error";
  }
  let session;
  try {
    session = await ort.InferenceSession.create(bytes, { executionProviders: ["wasm"] });
  } catch (error) {
    throw new Refused(`The encoder cannot be started (${String(error.message).slice(0, 120)}).`);
  }
  encoder = { session, size, channels };
  const found = await encode(new Uint8Array(size * size * channels));
  if (found.length !== width) {
    throw new Refused(`The encoder gives ${found.length} features, but model.json says ${width}.`);
  }
}

let running = Promise.resolve(); // a session takes one image after the other

function encode(pixels) {
  const result = running.then(() => encodeNow(pixels));
  running = result.catch(() => {});
  return result;
}

async function encodeNow(pixels) {
  const { session, size, channels } = encoder;
  const images = new ort.Tensor("uint8", pixels, [1, size, size, channels]);
  const { features: result } = await session.run({ images });
  return Float32Array.from(result.data);
}

async function read({ id, blob }) {
  const { pixels, thumb } = await readImage(blob, encoder.channels, encoder.size);
  const found = await encode(pixels);
  if (id !== undefined) features.set(id, found);
  return { pixels, thumb, features: found, digest: sha256(pixels) };
}

class Outdated extends Error {}

/** Lets other messages in from time to time, and stops a fit that a newer one replaces. */
function breathing(version) {
  let last = performance.now();
  const { port1, port2 } = new MessageChannel();
  return async () => {
    if (version !== wanted) throw new Outdated();
    if (performance.now() - last < 25) return;
    await new Promise((resolve) => {
      port1.onmessage = resolve;
      port2.postMessage(null);
    });
    last = performance.now();
  };
}

/** Fit a head on `groups`, a list of photo numbers per class, and tell each result as it is there. */
async function fit({ version, groups }) {
  wanted = version;
  const rows = groups.flatMap((ids) => ids.map((id) => features.get(id)));
  const labels = groups.flatMap((ids, label) => ids.map(() => label));
  const breathe = breathing(version);
  const tell = (kind, rest) => postMessage({ event: kind, version, ...rest });
  try {
    const began = performance.now();
    const head = await fitLogistic(rows, labels, groups.length, breathe);
    tell("head", { ...head, milliseconds: performance.now() - began });
    const folds = stratifiedFolds(labels, groups.length);
    const measured = folds.folds < 2 ? null : await heldOut(
      rows, labels, groups.length, folds, breathe,
      { start: head, done: (share) => tell("progress", { share: 0.2 + 0.4 * share }) },
    );
    tell("measured", { measured, folds: folds.folds });
    tell("unknown", { unknown: await fitUnknown(rows, labels, groups.length, folds, breathe) });
    const curve = [];
    if (measured && rows.length >= 8) {
      for (const share of SHARES) {
        const one = await heldOut(rows, labels, groups.length, folds, breathe, { start: head, share });
        curve.push({ photos: one.learned, accuracy: one.correct / one.tested });
        tell("progress", { share: 0.75 + (0.25 * curve.length) / SHARES.length });
      }
    }
    if (measured) curve.push({ photos: measured.learned, accuracy: measured.correct / measured.tested });
    tell("curve", { curve });
  } catch (error) {
    if (!(error instanceof Outdated)) throw error;
  }
}

const ANSWERS = {
  start,
  read,
  encode: async ({ pixels }) => ({ features: await encode(pixels) }),
  fit,
};

onmessage = async ({ data: { call, kind, ...rest } }) => {
  try {
    postMessage({ call, result: await ANSWERS[kind](rest) });
  } catch (error) {
    postMessage({ call, refused: error instanceof Refused, error: String(error.message ?? error) });
  }
};
