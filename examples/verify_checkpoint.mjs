// Recomputes the CRC-32 of a checkpoint without the plane: Node's standard library and nothing else.
//
//     cortex job checkpoint JOB --json | node examples/verify_checkpoint.mjs -
//     node examples/verify_checkpoint.mjs checkpoint.json
//     node examples/verify_checkpoint.mjs --vectors docs/reference/checkpoint-vectors.json
//
// Exit code 0: the sum fits. 1: it does not. 2: this is not a checkpoint.
// The canonical form is described in docs/reference/checkpoints.md. `JSON.parse` cannot be used for it: it rounds large integers, moves
// keys that look like integers to the front, and gives `__proto__` a meaning.

import { readFileSync } from "node:fs";

const TOKEN = /[ \t\n\r]*(?:([{}[\],:]|true|false|null)|(-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)|("[^"\\\u0000-\u001f]*(?:\\.[^"\\\u0000-\u001f]*)*"))/y;
const [INT_MIN, INT_MAX] = [-(2n ** 63n), 2n ** 64n - 1n];

class NotJson extends Error {}

function* tokens(text) {
  const token = new RegExp(TOKEN);
  const end = text.trimEnd().length;
  for (let at = 0; at < end; at = token.lastIndex) {
    const match = token.exec(text);
    if (match === null) throw new NotJson(`nothing of JSON at character ${at}`);
    yield { mark: match[1], number: match[2], string: match[3] };
  }
}

// A whole number is written in digits as far as 64 bits reach; any other as the shortest decimal that is read as the same double.
function canonicalNumber(token) {
  if (/^-?\d+$/.test(token)) {
    const whole = BigInt(token);
    if (whole >= INT_MIN && whole <= INT_MAX) return String(whole);
  }
  const value = Number(token);
  if (!Number.isFinite(value)) throw new NotJson(`${token} is no double`);
  if (Number.isInteger(value)) {
    const whole = Math.abs(value) < 1e21 ? BigInt(String(value)) : INT_MAX + 1n;
    return whole >= INT_MIN && whole <= INT_MAX ? String(whole) : value.toExponential();
  }
  return Math.abs(value) < 1e-5 ? value.toExponential() : String(value);
}

function canonicalString(token) {
  const text = JSON.parse(token);
  if (!text.isWellFormed()) throw new NotJson("a lone surrogate");
  return JSON.stringify(text);
}

// The canonical text of the next value; `fields` collects those of the outermost object.
function canonicalValue(stream, token, fields = null) {
  if (token.number !== undefined) return canonicalNumber(token.number);
  if (token.string !== undefined) return canonicalString(token.string);
  if (token.mark === "[") {
    const items = [];
    for (let next = take(stream); next.mark !== "]"; next = take(stream)) {
      if (items.length > 0) next = expect(stream, next, ",");
      items.push(canonicalValue(stream, next));
    }
    return `[${items.join(",")}]`;
  }
  if (token.mark === "{") {
    const members = [];
    for (let next = take(stream); next.mark !== "}"; next = take(stream)) {
      if (members.length > 0) next = expect(stream, next, ",");
      if (next.string === undefined) throw new NotJson("a key that is no string");
      const key = canonicalString(next.string);
      members.push([key, Buffer.from(JSON.parse(key)), canonicalValue(stream, expect(stream, take(stream), ":"))]);
    }
    // By the bytes of UTF-8, which is the order of code points; JavaScript's own order is that of UTF-16.
    members.sort((one, other) => Buffer.compare(one[1], other[1]));
    fields?.push(...members.map(([key, , value]) => [JSON.parse(key), key, value]));
    return `{${members.map(([key, , value]) => `${key}:${value}`).join(",")}}`;
  }
  if (["true", "false", "null"].includes(token.mark)) return token.mark;
  throw new NotJson(`${token.mark} is in the wrong place`);
}

function take(stream) {
  const { value, done } = stream.next();
  if (done) throw new NotJson("it is cut off");
  return value;
}

function expect(stream, token, mark) {
  if (token.mark !== mark) throw new NotJson(`${mark} is missing`);
  return take(stream);
}

export function canonical(text, fields = null) {
  const stream = tokens(text);
  const result = canonicalValue(stream, take(stream), fields);
  if (!stream.next().done) throw new NotJson("there is more than one value");
  return result;
}

export function crc32(bytes) {
  let sum = 0xffffffff;
  for (const byte of bytes) {
    sum ^= byte;
    for (let bit = 0; bit < 8; bit += 1) sum = sum & 1 ? (sum >>> 1) ^ 0xedb88320 : sum >>> 1;
  }
  return (sum ^ 0xffffffff) >>> 0;
}

// What a checkpoint says of itself, and the sum over all its fields but `crc32`.
function sums(text) {
  const fields = [];
  canonical(text, fields);
  const stored = fields.find(([name]) => name === "crc32");
  if (stored === undefined) throw new NotJson("there is no field crc32");
  const rest = fields.filter(([name]) => name !== "crc32").map(([, key, value]) => `${key}:${value}`);
  return [stored[2], String(crc32(Buffer.from(`{${rest.join(",")}}`)))];
}

function checkVectors(path) {
  let wrong = 0;
  for (const { name, json, canonical: expected, crc32: sum } of JSON.parse(readFileSync(path, "utf8"))) {
    const form = canonical(json);
    const fits = form === expected && crc32(Buffer.from(form)) === sum;
    console.log(`${fits ? "ok   " : "WRONG"} ${name}${fits ? "" : `: ${form}`}`);
    wrong += fits ? 0 : 1;
  }
  return wrong === 0 ? 0 : 1;
}

function checkCheckpoint(path) {
  const [stored, computed] = sums(readFileSync(path === "-" ? 0 : path, "utf8"));
  console.log(stored === computed ? `crc32 ${stored} fits` : `crc32 ${stored} is stored, ${computed} is computed`);
  return stored === computed ? 0 : 1;
}

const [first, second] = process.argv.slice(2);
try {
  process.exitCode = first === "--vectors" ? checkVectors(second) : checkCheckpoint(first ?? "-");
} catch (error) {
  if (!(error instanceof NotJson)) throw error;
  console.error(`This is not a checkpoint: ${error.message}.`);
  process.exitCode = 2;
}
