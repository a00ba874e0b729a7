import type http from "node:http";

import type { Target } from "./address.js";
import type { components } from "./contract.js";
import { SandboxError } from "./error.js";

type Failure = components["schemas"]["Failure"];

/** answered returns the error that a response contains. */
export function answered(response: http.IncomingMessage, body: Buffer): SandboxError {
    const status = response.statusCode ?? 0;
    const failure = parseFailure(body);
    if (failure === undefined) {
        return new SandboxError({ kind: "unreadable", status, message: `the service answered ${status} ${response.statusMessage ?? ""} but not in the contract's form: is it sandboxd?` });
    }
    const { kind, message, limit, requestId } = failure.error;
    const header = response.headers["x-request-id"];
    return new SandboxError({
        kind,
        message,
        limit,
        status,
        requestId: requestId ?? (typeof header === "string" ? header : undefined),
        retryAfterMs: retryAfter(response.headers["retry-after"]),
    });
}

function parseFailure(body: Buffer): Failure | undefined {
    try {
        const failure = JSON.parse(body.toString()) as Partial<Failure> | null;
        return typeof failure?.error?.kind === "string" && typeof failure.error.message === "string" ? (failure as Failure) : undefined;
    } catch {
        return undefined;
    }
}

/** retryAfter reads a Retry-After header, which has seconds or a date, and returns milliseconds. */
function retryAfter(header: string | undefined): number | undefined {
    if (header === undefined) return undefined;
    if (/^\d+$/.test(header)) return Number(header) * 1000;
    const date = Date.parse(header);
    return Number.isNaN(date) ? undefined : Math.max(0, date - Date.now());
}

/** broken returns the error of a connection that broke after it was established. */
export function broken(error: Error): SandboxError {
    return new SandboxError({
        kind: "lost",
        message: `the connection to the service was lost (${reason(error)}): whether the call was carried out is not known`,
        cause: error,
    });
}

/** unreachable returns the error of a connection that was never established; it says what to do about it. */
export function unreachable(error: Error, target: Target): SandboxError {
    const remedy = target.isSocket ? socketRemedy(error, target.name) : urlRemedy(error, target.name);
    return new SandboxError({ kind: "unreachable", message: `${remedy} (${reason(error)})`, cause: error });
}

function socketRemedy(error: NodeJS.ErrnoException, path: string): string {
    switch (error.code) {
        case "ENOENT":
            return `there is no socket at ${path}: start sandboxd, or name its socket as socketPath or $SANDBOX_SOCKET`;
        case "ECONNREFUSED":
            return `nobody listens at ${path}: start sandboxd again`;
        case "EACCES":
        case "EPERM":
            return `this process may not open ${path}: run it as the user that sandboxd runs as`;
        default:
            return `no service answers at ${path}: is sandboxd running?`;
    }
}

function urlRemedy(error: NodeJS.ErrnoException, url: string): string {
    const code = error.code ?? "";
    if (/CERT|SIGNATURE|SELF_SIGNED|ALTNAME/.test(code)) {
        return `the certificate of ${url} is not trusted: give the authority that has signed it as tls.ca`;
    }
    if (/SSL|TLS|EPROTO/.test(code)) return `cannot speak TLS with ${url}: does it take http:, or want a client certificate as tls.cert and tls.key?`;
    return `no service answers at ${url}: is sandboxd running, and does it listen there?`;
}

function reason(error: NodeJS.ErrnoException): string {
    return error.code === undefined || error.message.includes(error.code) ? error.message : `${error.code}: ${error.message}`;
}
