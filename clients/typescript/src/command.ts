// Puts the arguments of execs, attached execs and processes into the contract's form.

import { base64 } from "./bytes.js";
import type { CallOptions } from "./transport.js";
import type { Schemas } from "./types.js";

/** Environment variables; numbers and booleans are converted to text, and undefined values are left out. */
export type Variables = Record<string, string | number | boolean | undefined>;

/** A command line for a shell, or a program with its arguments. */
export type ShellOrProgram = { command: string; argv?: never } | { argv: string[]; command?: never };

type Given = "command" | "argv" | "env" | "stdin" | "stdinEncoding";

/** The contract's Exec, with stdin as a text or bytes. */
export type CommandArgs = Omit<Schemas["Exec"], Given> & ShellOrProgram & { env?: Variables; stdin?: string | Uint8Array };

/** `signal` ends the command with all that it started. */
export type ExecArgs = CommandArgs & CallOptions;

/** The contract's StartProcess. */
export type ProcessStartArgs = Omit<Schemas["StartProcess"], Given> & ShellOrProgram & { env?: Variables } & CallOptions;

/** split separates what goes to the service from the client's own options. */
export function split<Args extends CallOptions>(args: Args): { options: CallOptions; body: Omit<Args, keyof CallOptions> } {
    const { signal, retry, ...body } = args;
    return { options: { signal, retry }, body };
}

/** wire puts an exec's or a process's arguments into the contract's form. */
export function wire(args: { env?: Variables; stdin?: string | Uint8Array }): Record<string, unknown> {
    const { env, stdin, ...rest } = args;
    const body: Record<string, unknown> = { ...rest };
    if (env !== undefined) {
        const given = Object.entries(env).filter(([, value]) => value !== undefined);
        body["env"] = Object.fromEntries(given.map(([name, value]) => [name, String(value)]));
    }
    if (typeof stdin === "string") body["stdin"] = stdin;
    else if (stdin !== undefined) Object.assign(body, { stdin: base64(stdin), stdinEncoding: "base64" });
    return body;
}
