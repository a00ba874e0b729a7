// Client of daycare-sandbox: what a caller uses in place of its own Sandbox class.

export { Client, type ClientOptions, type CredentialArgs, type DecisionArgs } from "./client.js";
export { Sandbox } from "./sandbox.js";
export type { ExecIdArgs, ExplainArgs, LookArgs, MkdirArgs, MoveArgs, OpenArgs, PathArgs, RemoveArgs } from "./sandbox.js";
export { Attached, type AttachArgs, type ReattachArgs } from "./attach.js";
export { SandboxError, type ErrorKind, type Limit } from "./error.js";
export type { Path } from "./bytes.js";
export type { ExecArgs, ProcessStartArgs, Variables } from "./command.js";
export type { ExecCallArgs, ExecEvent, ExecResult, ExitEvent, OnOutput, OtherEvent, OutputEvent } from "./exec.js";
export type { Download, DownloadArgs, PackArgs, Packed, ReadArgs, ReadBinary, ReadImage, ReadResult, ReadText, UnpackArgs, UploadArgs, UploadBody, WriteArgs } from "./files.js";
export type { ProcessArgs, ProcessLog, ProcessLogArgs, ProcessLogEvent, ProcessStopArgs, ProcessWaitArgs } from "./processes.js";
export type { Tls } from "./address.js";
export type { Retry } from "./retry.js";
export type { CallOptions } from "./transport.js";
export type * from "./types.js";
