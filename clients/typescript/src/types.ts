// Names for the contract's types. `npm run generate` makes contract.ts from api/openapi.yaml.

import type { components } from "./contract.js";

export type Schemas = components["schemas"];

/** What a caller registers for an agent. */
export type Registration = Schemas["Registration"];
/** A sandbox as the service knows it. */
export type Registered = Schemas["Sandbox"];
export type Permissions = Schemas["Permissions"];
export type Mount = Schemas["Mount"];

/** What removeUser has removed. */
export type RemovedUser = Schemas["RemovedUser"];

/** A credential without its value. */
export type Credential = Schemas["Credential"];

export type Health = Schemas["Health"];
export type Container = Schemas["Container"];
export type Explanation = Schemas["Explanation"];

export type Entry = Schemas["Entry"];
export type Listing = Schemas["Listing"];
export type WriteResult = Schemas["Written"];
export type UnpackResult = Schemas["Unpacked"];

/** An exec with `detachOnDisconnect`. */
export type DetachedExec = Schemas["DetachedExec"];

export type Process = Schemas["Process"];
export type AllProcesses = Schemas["AllProcesses"];
export type WaitedProcess = Schemas["WaitedProcess"];
export type StartedProcess = Schemas["StartedProcess"];

export type Decision = Schemas["Decision"];
export type DecisionList = Schemas["DecisionList"];
export type ContainerList = Schemas["ContainerList"];
export type DecisionEvent = Schemas["DecisionEvent"];
/** What a command tried to reach and did not. */
export type Refusal = Schemas["Refusal"];
/** What else a result says beside the output. */
export type Hint = Schemas["Hint"];
