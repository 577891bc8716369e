// Reads files with the decoder that is named first: a line of JSON for each, null for one that is refused.
// node decode.mjs DECODER LIMIT < frames, each the length of a file (4 bytes, little endian) and the file
import { createHash } from "node:crypto";
import { readFileSync, writeSync } from "node:fs";
import { pathToFileURL } from "node:url";

const { decode } = await import(pathToFileURL(process.argv[2]));
const limit = Number(process.argv[3]);
const input = readFileSync(0);
const lines = [];
for (let at = 0; at < input.length; ) {
  const length = input.readUInt32LE(at);
  const file = new Uint8Array(input.subarray(at + 4, at + 4 + length));
  at += 4 + length;
  let tensors = null;
  try {
    tensors = decode(file, limit).map(({ name, type, shape, bytes }) => [
      name,
      type,
      shape,
      createHash("sha256").update(bytes).digest("hex"),
    ]);
  } catch (error) {
    const isRefusal = error.message == "not a valid .reef file" || error instanceof URIError;
    if (!isRefusal) tensors = String(error.stack); // a mistake of ours
  }
  lines.push(JSON.stringify(tensors));
}
const out = Buffer.from(lines.join("\n"));
for (let done = 0; done < out.length; ) done += writeSync(1, out, done);
