import { once } from "node:events";
import type http from "node:http";
import { Readable } from "node:stream";

import { base64, decode, escapePath, named, type Path } from "./bytes.js";
import { unreadable } from "./error.js";
import { query } from "./query.js";
import type { CallOptions, Feed, Transport } from "./transport.js";
import type { Schemas, UnpackResult, WriteResult } from "./types.js";

export type ReadArgs = Omit<Schemas["Read"], "path" | "pathBase64"> & { path: Path } & CallOptions;
export type WriteArgs = Omit<Schemas["Write"], "path" | "pathBase64" | "content" | "encoding"> & { path: Path; content: string | Uint8Array } & CallOptions;

interface Found {
    /** The size of the file. */
    bytes: number;
    /** The file on the host. */
    resolvedPath: string;
    /** The file as an agent names it. */
    displayPath: string;
}

export interface ReadText extends Found {
    type: "text";
    content: string;
    totalLines: number;
    outputLines: number;
    truncated: boolean;
    truncatedBy: "lines" | "bytes" | null;
    /** How to read on where the text was cut. */
    next?: { offset: number; skipBytes: number };
    /** Says so to an agent. */
    notice?: string;
}

export interface ReadImage extends Found {
    type: "image";
    content: Buffer;
    mimeType: string;
}

export interface ReadBinary extends Found {
    type: "binary";
    content: Buffer;
    /** Of bytes that say that they are a text: utf-16le, utf-16be, utf-32le or utf-32be. */
    encoding?: string;
}

/** A file's content: a text, or the bytes of a picture or of any file. */
export type ReadResult = ReadText | ReadImage | ReadBinary;

/** readResult turns the contract's answer to a read into a ReadResult. */
export function readResult(answer: Schemas["ReadResult"]): ReadResult {
    switch (answer.type) {
        case "text":
            return answer as ReadText;
        case "image":
        case "binary":
            return { ...answer, content: decode(answer.content, "base64") } as ReadImage | ReadBinary;
        default:
            throw unreadable(`a file of the type ${JSON.stringify(answer["type"])}`);
    }
}

/** writeBody returns a write in the contract's form. */
export function writeBody({ path, content, ...rest }: Omit<WriteArgs, keyof CallOptions>): unknown {
    const text = typeof content === "string" ? { content } : { content: base64(content), encoding: "base64" };
    return { ...named("path", path), ...text, ...rest };
}

/** The source of an upload's bytes. */
export type UploadBody = string | Uint8Array | AsyncIterable<string | Uint8Array>;

export interface UploadArgs {
    path: Path;
    /** A stream is read as fast as the service takes it. */
    body: UploadBody;
    /** Fails if the file exists. */
    exclusive?: boolean;
    /** If the path ends with a symbolic link, write to what it leads to. */
    follow?: boolean;
    /** The permission bits, in octal, of a file that does not replace another; "0644" by default. */
    mode?: string;
    signal?: AbortSignal | undefined;
}

export async function upload(transport: Transport, path: string, args: UploadArgs): Promise<WriteResult> {
    const { exclusive, follow, mode } = args;
    return await put<WriteResult>(transport, path, "application/octet-stream", args, { exclusive, follow, mode });
}

interface PutArgs {
    path: Path;
    body: UploadBody;
    signal?: AbortSignal | undefined;
}

/** put sends a body to a path of a sandbox. */
async function put<Answer>(transport: Transport, path: string, media: string, args: PutArgs, options: Parameters<typeof query>[0]): Promise<Answer> {
    const to = path + "?path=" + escapePath(args.path) + query(options).replace("?", "&");
    const bytes = typeof args.body === "string" || args.body instanceof Uint8Array ? Buffer.byteLength(args.body) : undefined;
    const headers = {
        "content-type": media,
        ...(bytes === undefined ? {} : { "content-length": bytes }),
        ...(bytes === 0 ? {} : { expect: "100-continue" }), // a service never asks for a body that is known to be empty
    };
    try {
        return await transport.upload<Answer>({ method: "PUT", path: to, headers }, feeding(args.body), args.signal);
    } finally {
        if (args.body instanceof Readable) args.body.destroy();
    }
}

/** feeding returns a Feed that writes the body into a request, and waits whenever the request is full. */
function feeding(body: UploadBody): Feed {
    return async (request) => {
        if (typeof body === "string" || body instanceof Uint8Array) {
            request.end(body);
            return;
        }
        const closing = new Promise((resolve) => request.once("close", resolve));
        for await (const part of body) {
            if (request.destroyed) return;
            if (!request.write(part)) await Promise.race([once(request, "drain"), closing]);
        }
        request.end();
    };
}

export interface DownloadArgs extends CallOptions {
    path: Path;
    /** If the path ends with a symbolic link, send what it leads to. */
    follow?: boolean;
    /** The first byte, from 0. */
    start?: number;
    /** The last byte; the file's last by default. */
    end?: number;
}

/** A file that is being downloaded. */
export interface Download {
    /** Read it to its end, or destroy it: it holds a connection. A connection that breaks is an error of the stream. */
    body: Readable;
    /** How many bytes the body has. */
    bytes: number;
    /** How many bytes the file has. */
    totalBytes: number;
    lastModified: Date;
}

export async function download(transport: Transport, path: string, args: DownloadArgs): Promise<Download> {
    const headers = range(args);
    const from = path + "?path=" + escapePath(args.path) + query({ follow: args.follow }).replace("?", "&");
    const response = await transport.open({ method: "GET", path: from, headers }, args);
    const body = streamed(transport, response, args.signal);
    const bytes = Number(response.headers["content-length"]);
    const total = /\/(\d+)$/.exec(response.headers["content-range"] ?? "");
    return { body, bytes, totalBytes: total === null ? bytes : Number(total[1]), lastModified: new Date(response.headers["last-modified"] ?? Number.NaN) };
}

function range({ start, end }: DownloadArgs): http.OutgoingHttpHeaders {
    for (const [name, value] of Object.entries({ start, end })) {
        if (value !== undefined && !(Number.isSafeInteger(value) && value >= 0)) {
            throw new TypeError(`${name} is ${value}: give a whole number of bytes from 0`);
        }
    }
    return start === undefined && end === undefined ? {} : { range: `bytes=${start ?? 0}-${end ?? ""}` };
}

export interface UnpackArgs {
    /** The directory; it is made if it is missing. */
    path: Path;
    /** A tar archive: directories, files and symbolic links. */
    body: UploadBody;
    /** If the path ends with a symbolic link, write to what it leads to. */
    follow?: boolean;
    signal?: AbortSignal | undefined;
}

export async function unpack(transport: Transport, path: string, args: UnpackArgs): Promise<UnpackResult> {
    return await put<UnpackResult>(transport, path, "application/x-tar", args, { follow: args.follow });
}

export interface PackArgs extends CallOptions {
    path: Path;
    /** If the path ends with a symbolic link, send what it leads to. */
    follow?: boolean;
}

/** A directory that is being sent as a tar archive. Its names are the sandbox's to choose: check them before making files of them. */
export interface Packed {
    /** Read it to its end, or destroy it: it holds a connection. An archive that is cut short is an error of the stream. */
    body: Readable;
}

export async function pack(transport: Transport, path: string, args: PackArgs): Promise<Packed> {
    const from = path + "?path=" + escapePath(args.path) + query({ follow: args.follow }).replace("?", "&");
    const response = await transport.open({ method: "GET", path: from }, args);
    return { body: streamed(transport, response, args.signal) };
}

/** streamed returns a response's body, which ends with the response. */
function streamed(transport: Transport, response: http.IncomingMessage, signal: AbortSignal | undefined): Readable {
    const body = Readable.from(transport.chunks(response, signal), { objectMode: false });
    body.once("close", () => response.destroy());
    return body;
}
