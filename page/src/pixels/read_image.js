// An image file as the array an encoder takes, as repper.data.images.read_image has it.

import { Refused } from "../files/refused.js";
import { greyOf, layOnWhite } from "./colour.js";
import { decodePng, isPng } from "./png.js";
import { squareOf } from "./resize.js";

const THUMB = 144;

/** {pixels: uint8 (size, size, channels), thumb: Blob} of an image file. */
export async function readImage(blob, channels, size) {
  const start = new Uint8Array(await blob.slice(0, 8).arrayBuffer());
  if (isPng(start)) {
    let image = null;
    try {
      image = await decodePng(new Uint8Array(await blob.arrayBuffer()));
    } catch {
      // A damaged file, or a kind this decoder lacks: the browser's own decides.
    }
    if (image) {
      layOnWhite(image.rgba);
      const pixels = fitted(image.rgba, image.width, image.height, channels, size);
      return { pixels, thumb: await thumbOfPixels(image) };
    }
  }
  const bitmap = await bitmapOf(blob);
  try {
    const rgba = rgbaOf(bitmap);
    const pixels = fitted(rgba, bitmap.width, bitmap.height, channels, size);
    return { pixels, thumb: await thumbOfBitmap(bitmap) };
  } finally {
    bitmap.close();
  }
}

/** The central square of an opaque RGBA image, in colour or grey. */
export function fitted(rgba, width, height, channels, size) {
  if (channels === 1) return squareOf(greyOf(rgba), width, height, 1, 1, size);
  return squareOf(rgba, width, height, 4, 3, size);
}

async function bitmapOf(blob) {
  const options = {
    imageOrientation: "from-image",
    colorSpaceConversion: "none",
    premultiplyAlpha: "none",
  };
  try {
    return await createImageBitmap(blob, options);
  } catch {
    throw new Refused("not a picture this browser can read");
  }
}

const contextOf = (canvas) => canvas.getContext("2d", { willReadFrequently: true });

function rgbaOf(bitmap) {
  const canvas = new OffscreenCanvas(bitmap.width, bitmap.height);
  const context = contextOf(canvas);
  context.fillStyle = "#fff";
  context.fillRect(0, 0, bitmap.width, bitmap.height);
  context.drawImage(bitmap, 0, 0);
  return context.getImageData(0, 0, bitmap.width, bitmap.height).data;
}

function thumbOfBitmap(bitmap) {
  const side = Math.min(bitmap.width, bitmap.height);
  const canvas = new OffscreenCanvas(THUMB, THUMB);
  const context = contextOf(canvas);
  context.fillStyle = "#fff";
  context.fillRect(0, 0, THUMB, THUMB);
  context.imageSmoothingQuality = "medium";
  const [left, top] = [(bitmap.width - side) / 2, (bitmap.height - side) / 2];
  context.drawImage(bitmap, left, top, side, side, 0, 0, THUMB, THUMB);
  return canvas.convertToBlob({ type: "image/jpeg", quality: 0.85 });
}

function thumbOfPixels({ rgba, width, height }) {
  const small = squareOf(rgba, width, height, 4, 3, THUMB);
  const data = new Uint8ClampedArray(THUMB * THUMB * 4).fill(255);
  for (let i = 0; i < THUMB * THUMB; i += 1) data.set(small.subarray(3 * i, 3 * i + 3), 4 * i);
  const canvas = new OffscreenCanvas(THUMB, THUMB);
  contextOf(canvas).putImageData(new ImageData(data, THUMB, THUMB), 0, 0);
  return canvas.convertToBlob({ type: "image/jpeg", quality: 0.85 });
}
