import { isUtf8 } from "node:buffer";

/** A path: relative to the working directory, absolute, or from the home as ~/…. As bytes, it need not be UTF-8. */
export type Path = string | Uint8Array;

/** decode turns a string of the contract, with its encoding, back into bytes. */
export function decode(text: string, encoding: "base64" | undefined): Buffer {
    return Buffer.from(text, encoding === "base64" ? "base64" : "utf8");
}

export function base64(data: Uint8Array): string {
    return buffer(data).toString("base64");
}

/** named returns a path under key, or as base64 under `${key}Base64` if it is not UTF-8. */
export function named<Key extends string>(key: Key, path: Path): Record<string, string> {
    if (typeof path === "string") return { [key]: path };
    return isUtf8(path) ? { [key]: buffer(path).toString() } : { [`${key}Base64`]: base64(path) };
}

/** escapePath percent-encodes a path for a query. */
export function escapePath(path: Path): string {
    if (typeof path === "string") return encodeURIComponent(path);
    return buffer(path).toString("hex").replace(/../g, "%$&");
}

function buffer(data: Uint8Array): Buffer {
    return Buffer.from(data.buffer, data.byteOffset, data.byteLength);
}
