/** The EXIF orientation (1 to 8) in a TIFF block; 1 where there is none. */
export function orientationOf(tiff) {
  if (tiff.length < 14) return 1;
  const view = new DataView(tiff.buffer, tiff.byteOffset, tiff.byteLength);
  const little = view.getUint16(0) === 0x4949;
  const at = view.getUint32(4, little);
  if (at + 2 > tiff.length) return 1;
  const count = view.getUint16(at, little);
  for (let i = 0; i < count; i += 1) {
    const entry = at + 2 + 12 * i;
    if (entry + 12 > tiff.length) return 1;
    if (view.getUint16(entry, little) === 0x0112) {
      const value = view.getUint16(entry + 8, little);
      return value >= 1 && value <= 8 ? value : 1;
    }
  }
  return 1;
}

/** An RGBA image turned and mirrored as its orientation says: {rgba, width, height}. */
export function turned(rgba, width, height, orientation) {
  if (orientation === 1) return { rgba, width, height };
  const swaps = orientation >= 5;
  const [newWidth, newHeight] = swaps ? [height, width] : [width, height];
  const from = new Uint32Array(rgba.buffer, rgba.byteOffset, width * height);
  const to = new Uint32Array(width * height);
  const right = width - 1;
  const bottom = height - 1;
  const source = {
    2: (x, y) => [right - x, y],
    3: (x, y) => [right - x, bottom - y],
    4: (x, y) => [x, bottom - y],
    5: (x, y) => [y, x],
    6: (x, y) => [y, bottom - x],
    7: (x, y) => [right - y, bottom - x],
    8: (x, y) => [right - y, x],
  }[orientation];
  for (let y = 0; y < newHeight; y += 1) {
    for (let x = 0; x < newWidth; x += 1) {
      const [fromX, fromY] = source(x, y);
      to[y * newWidth + x] = from[fromY * width + fromX];
    }
  }
  return { rgba: new Uint8Array(to.buffer), width: newWidth, height: newHeight };
}
