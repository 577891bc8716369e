// What digests.c does, with the decoder that is named first: node digests.mjs DECODER LIMIT
// The status of a refused file is 1; of a mistake of ours, 9, and the mistake goes to standard error.
import { readFileSync, writeFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";
import { crc32 } from "node:zlib";

const TYPES =
  "F32 F16 BF16 F64 F8_E4M3 F8_E5M2 F8_E8M0 F8_E4M3FNUZ F8_E5M2FNUZ C64 BOOL U8 I8 U16 I16 U32 I32 U64 I64".split(" ");
const { decode } = await import(pathToFileURL(process.argv[2]));
const limit = Number(process.argv[3]);

// UTF-8, with lone surrogates as three bytes.
const encoded = (name) =>
  Buffer.concat(
    [...name].map((letter) => {
      const code = letter.codePointAt();
      const lone = code >> 11 == 27;
      return lone ? Buffer.from([code >> 12 | 224, code >> 6 & 63 | 128, code & 63 | 128]) : Buffer.from(letter);
    }),
  );

const digest = (tensors) => {
  const told = [0, 0];
  for (const { name, type, shape, bytes } of tensors) {
    const title = encoded(name);
    const head = Buffer.alloc(6);
    head.writeUInt32LE(title.length);
    head[4] = TYPES.indexOf(type);
    head[5] = shape.length;
    const sizes = new Uint8Array(BigUint64Array.from(shape, BigInt).buffer);
    told[0] += crc32(Buffer.concat([head, title, sizes, bytes])); // in any order
    told[1] += bytes.length + title.length + 8 * shape.length;
  }
  return told;
};

const read = (file) => {
  const start = process.cpuUsage().user;
  let tensors = [];
  let status = 0;
  try {
    tensors = decode(file, limit);
  } catch (error) {
    status = error.message == "not a valid .reef file" || error instanceof URIError ? 1 : 9;
    if (status == 9) console.error(error);
  }
  const microseconds = process.cpuUsage().user - start;
  const [crc, bytes] = digest(tensors);
  return [status, crc, microseconds, bytes];
};

for await (const path of createInterface({ input: process.stdin })) {
  const input = readFileSync(path);
  const told = [];
  for (let at = 0; at < input.length; ) {
    const length = input.readUInt32LE(at);
    told.push(...read(new Uint8Array(input.subarray(at + 4, at + 4 + length))));
    at += 4 + length;
  }
  writeFileSync(path + ".out", new Uint8Array(Uint32Array.from(told).buffer));
  console.log("done");
}
