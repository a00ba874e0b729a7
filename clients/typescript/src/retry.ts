import { setTimeout as sleep } from "node:timers/promises";

import { SandboxError } from "./error.js";

/**
 * When to try a call again that was answered with `busy` (429) or `unavailable` (503), and with nothing else.
 * An exec that was refused with `busy` has not been started; one with `unavailable` may have been, when the
 * service stopped meanwhile.
 */
export interface Retry {
    /** How many tries there are, with the first. 1 is none but that. */
    attempts: number;
    /** How long to wait between two at most, in milliseconds; 5000 by default. A service that asks for more is not tried again. */
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
    if (!(error instanceof SandboxError) || (error.status !== 429 && error.status !== 503)) return undefined;
    const most = retry.maxDelayMs ?? 5000;
    if (error.retryAfterMs !== undefined) return error.retryAfterMs <= most ? error.retryAfterMs : undefined;
    // Half of it is chance, so that many who were refused at once do not come back at once.
    return Math.min(most, firstDelayMs * 2 ** (attempt - 1)) * (0.5 + Math.random() / 2);
}

async function pause(delay: number, signal: AbortSignal | undefined): Promise<void> {
    try {
        await sleep(delay, undefined, signal === undefined ? {} : { signal });
    } catch (error) {
        throw signal?.reason ?? error;
    }
}

/** checkRetry refuses what would retry for ever, or never and in silence. */
export function checkRetry(retry: Retry | undefined): void {
    if (retry === undefined) return;
    if (!Number.isInteger(retry.attempts) || retry.attempts < 1) {
        throw new TypeError(`retry.attempts is ${retry.attempts}: give a whole number from 1`);
    }
    if (retry.maxDelayMs !== undefined && !(retry.maxDelayMs >= 0)) {
        throw new TypeError(`retry.maxDelayMs is ${retry.maxDelayMs}: give milliseconds from 0`);
    }
}
