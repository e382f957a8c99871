// The shapes on the wire and in `/demo.json`, for the type checker alone: nothing here is served or run.

import type { Tagged } from "./codec.js";

/** A value of the model (WIRE-301). */
export type Value =
  | null
  | undefined
  | boolean
  | number
  | string
  | bigint
  | symbol
  | Uint8Array
  | Tagged
  | Value[]
  | ObjectValue;
export interface ObjectValue {
  [key: string]: Value;
}
/** A parsed JSON text, before its tags are read. */
export type Json = null | boolean | number | string | Json[] | { [key: string]: Json };

export type Scope = "space" | "user" | "session";

/** The address of an event stream; `scope` absent means `space`. */
export type StreamAddress = { id: string; path: string[]; scope?: Scope };

/** One watched document (WIRE-751). */
export type Watch = {
  id: string;
  kind: "graph";
  query: { roots: { id: string; scope?: Scope; selector: { path: string[]; schema?: Value } }[] };
};

/** A document or its absence, as a frame carries it (WIRE-752). */
export interface Upsert {
  branch: string;
  id: string;
  scope: string;
  scopeKey?: string;
  seq: number;
  doc?: ObjectValue;
  deleted?: true;
  coverClass?: string;
}
export interface Remove {
  branch: string;
  id: string;
  scope: string;
  scopeKey?: string;
}
export interface Sync {
  toSeq: number;
  caughtUpLocalSeq?: number;
  upserts: Upsert[];
  removes: Remove[];
}

/** An error as the server names it (WIRE-766). */
export interface WireError {
  name: string;
  message: string;
  retriable?: boolean;
  retryAfterSeq?: number;
  precondition?: string;
}

/** What the server tells the page about the demo space. */
export interface Demo {
  space: string;
  piece: string;
  audience: string;
  docs: { options: string; tally: string; myVote: string; draft: string };
  streams: { addOption: StreamAddress; vote: StreamAddress; type: StreamAddress };
}
export type StreamName = keyof Demo["streams"];

/** Time, as much of it as the page uses; tests drive their own. */
export interface Clock {
  /** Milliseconds since the epoch. */
  now(): number;
  after(milliseconds: number, run: () => void): unknown;
  cancel(timer: unknown): void;
}
