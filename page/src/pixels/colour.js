// Pillow's arithmetic for transparency and grey, on RGBA arrays.

/** Lay an image on white, in place (Pillow's alpha_composite). */
export function layOnWhite(rgba) {
  for (let i = 0; i < rgba.length; i += 4) {
    const alpha = rgba[i + 3];
    if (alpha === 255) continue;
    if (alpha === 0) {
      rgba[i] = 255;
      rgba[i + 1] = 255;
      rgba[i + 2] = 255;
    } else {
      // Pillow's coefficients have seven more bits; over opaque white its divisions are exact.
      for (let c = 0; c < 3; c += 1) {
        const sum = (rgba[i + c] * alpha + 255 * (255 - alpha) + 0x80) * 128;
        rgba[i + c] = (((sum >> 8) + sum) >> 8) >> 7;
      }
    }
    rgba[i + 3] = 255;
  }
}

/** Pillow's "L" of an opaque RGBA array: one byte per pixel. */
export function greyOf(rgba) {
  const grey = new Uint8Array(rgba.length / 4);
  for (let i = 0, at = 0; i < grey.length; i += 1, at += 4) {
    grey[i] = (rgba[at] * 19595 + rgba[at + 1] * 38470 + rgba[at + 2] * 7471 + 0x8000) >> 16;
  }
  return grey;
}
