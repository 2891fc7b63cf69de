export function fromBase64(text) {
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i += 1) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

/** Decompress bytes, or a Blob; `format` is "gzip", "deflate" or "deflate-raw". */
export async function inflate(bytes, format) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream(format));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

export const encodeText = (text) => new TextEncoder().encode(text);
export const decodeText = (bytes) => new TextDecoder("utf-8", { fatal: true }).decode(bytes);
