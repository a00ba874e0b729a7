// Stories need a service: e2e/typescript_test.go starts one, with gVisor and an internet of the tests' own, and
// says in the environment where it is.

import { randomBytes } from "node:crypto";
import type { TestContext } from "node:test";

import { Client, Sandbox, SandboxError, type ClientOptions, type OpenArgs } from "../../src/index.js";

export function setting(name: string): string {
    const value = process.env[name];
    if (!value) throw new Error(`${name} is not set: run these tests by \`go test ./e2e -run TestTypeScript\``);
    return value;
}

export function connect(t: TestContext, options: ClientOptions = { socketPath: setting("SANDBOX_SOCKET") }): Client {
    const client = new Client(options);
    t.after(() => client.close());
    return client;
}

/** alone is a sandbox of a user that no other story has. What still runs of it at the end is stopped. */
export async function alone(t: TestContext, args: Partial<OpenArgs> = {}): Promise<Sandbox> {
    const userId = "ts-" + randomBytes(4).toString("hex");
    const client = new Client({ socketPath: setting("SANDBOX_SOCKET") });
    const box = await Sandbox.open(client, { id: userId, userId, ...args });
    t.after(async () => {
        await box.processStopAll();
        client.close();
    });
    return box;
}

/** kindOf is what a call fails with. */
export async function kindOf(call: Promise<unknown>): Promise<string> {
    return await call.then(
        () => "no failure",
        (error: unknown) => (error instanceof SandboxError ? error.kind : String(error)),
    );
}

export const workspace = ["@workspace"];
