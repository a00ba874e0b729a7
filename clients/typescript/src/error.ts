import type { components } from "./contract.js";

/**
 * The class of a failure. The contract's kinds are the service's answer; the others are the client's own:
 *
 * - `unreachable`: no service answered, and nothing has been started.
 * - `lost`: the connection broke before the answer was complete; whether the call was carried out is not known.
 * - `closed`: the client was closed.
 * - `unreadable`: what answered does not speak this contract.
 */
export type ErrorKind = components["schemas"]["Kind"] | "unreachable" | "lost" | "closed" | "unreadable";

/** A quota of the service, by its key in the settings. */
export type Limit = NonNullable<components["schemas"]["Error"]["limit"]>;

/** The parts of a SandboxError. */
export interface Fault {
    kind: ErrorKind;
    message: string;
    limit?: Limit | undefined;
    status?: number | undefined;
    requestId?: string | undefined;
    retryAfterMs?: number | undefined;
    cause?: unknown;
}

/** A refusal or failure. The message is for people and says what to do; kind is for programs. */
export class SandboxError extends Error {
    readonly kind: ErrorKind;
    /** The quota that is used up, if a call is refused because of one. */
    readonly limit?: Limit;
    /** The HTTP status, or 0 when there was no answer or it came in a stream. */
    readonly status: number;
    /** The call's id in the service's log, if the service has sent it. */
    readonly requestId?: string;
    /** How long to wait before another try, if the service has said so. */
    readonly retryAfterMs?: number;

    constructor(fault: Fault) {
        super(fault.message, fault.cause === undefined ? {} : { cause: fault.cause });
        this.name = "SandboxError";
        this.kind = fault.kind;
        if (fault.limit !== undefined) this.limit = fault.limit;
        this.status = fault.status ?? 0;
        if (fault.requestId !== undefined) this.requestId = fault.requestId;
        if (fault.retryAfterMs !== undefined) this.retryAfterMs = fault.retryAfterMs;
    }
}

/** told makes a SandboxError from an error that came in a stream. */
export function told(error: components["schemas"]["Error"] | undefined): SandboxError {
    if (error === undefined) return unreadable("the stream has an error event without an error");
    return new SandboxError({ ...error, status: 0 });
}

export function unreadable(what: string, status?: number): SandboxError {
    return new SandboxError({ kind: "unreadable", message: `cannot read the service's answer: ${what}`, status });
}

export function closed(): SandboxError {
    return new SandboxError({ kind: "closed", message: "the client was closed: make a new one for further calls" });
}

/** parsed reads JSON that the service has sent. */
export function parsed<Value>(text: Buffer): Value {
    try {
        return JSON.parse(text.toString()) as Value;
    } catch (error) {
        throw unreadable((error as Error).message);
    }
}
