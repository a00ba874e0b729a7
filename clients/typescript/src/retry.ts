import { setTimeout as sleep } from "node:timers/promises";

import { SandboxError } from "./error.js";

/**
 * When to try a call again that failed as `busy` (429) or `unavailable` (503). No other call is tried again, and none after
 * its first event. An exec that was refused with `busy` was not started; one with `unavailable` may have been, if the service
 * stopped meanwhile.
 */
export interface Retry {
    /** How many tries there are, including the first: with 1, the call is not tried again. */
    attempts: number;
    /** The longest wait between two tries, in milliseconds; 5000 by default. If the service asks for more, the call fails. */
    maxDelayMs?: number | undefined;
}

const firstDelayMs = 100;

/** retrying calls once, or as often as retry says. It waits as long as the service asks, or 100 ms, 200 ms and so on. */
export async function retrying<T>(retry: Retry | undefined, signal: AbortSignal | undefined, call: () => Promise<T>): Promise<T> {
    for (let attempt = 1; ; attempt++) {
        try {
            return await call();
        } catch (error) {
            const delay = delayAfter(error, retry, attempt);
            if (delay === undefined) throw error;
            await pause(delay, signal);
        }
    }
}

function delayAfter(error: unknown, retry: Retry | undefined, attempt: number): number | undefined {
    if (retry === undefined || attempt >= retry.attempts) return undefined;
    if (!(error instanceof SandboxError) || !isPassing(error)) return undefined;
    const most = retry.maxDelayMs ?? 5000;
    if (error.retryAfterMs !== undefined) return error.retryAfterMs <= most ? error.retryAfterMs : undefined;
    // Half of it is random, so that many callers that were refused at once do not come back at once.
    return Math.min(most, firstDelayMs * 2 ** (attempt - 1)) * (0.5 + Math.random() / 2);
}

/** What comes after the upgrade to a WebSocket has a kind alone, and what a proxy answers may have a status alone. */
function isPassing({ kind, status }: SandboxError): boolean {
    return kind === "busy" || kind === "unavailable" || status === 429 || status === 503;
}

async function pause(delay: number, signal: AbortSignal | undefined): Promise<void> {
    try {
        await sleep(delay, undefined, signal === undefined ? {} : { signal });
    } catch (error) {
        throw signal?.reason ?? error;
    }
}

/** checkRetry refuses values with which a call would be retried for ever, or silently never. */
export function checkRetry(retry: Retry | undefined): void {
    if (retry === undefined) return;
    if (!Number.isInteger(retry.attempts) || retry.attempts < 1) {
        throw new TypeError(`retry.attempts is ${retry.attempts}: give a whole number from 1`);
    }
    if (retry.maxDelayMs !== undefined && !(retry.maxDelayMs >= 0)) {
        throw new TypeError(`retry.maxDelayMs is ${retry.maxDelayMs}: give milliseconds from 0`);
    }
}
