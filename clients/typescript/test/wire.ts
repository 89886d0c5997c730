/** A server that answers each connection with given bytes, and requests to it. */

import { createServer, type Socket } from "node:net";
import type { AddressInfo } from "node:net";
import { type ConnectionOptions, Toolscout, ToolscoutError } from "../src/index.js";

export interface Received {
  head: string;
  body: string;
}

/** The connection ends without an answer. */
export const DROPPED = "";
/** The connection stays open without an answer. */
export const SILENT = null;
export type Script = (string | null)[];

export function httpResponse(status: string, body = "", headers: Record<string, string> = {}): string {
  const lines = Object.entries(headers).map(([name, value]) => `${name}: ${value}\r\n`);
  return `HTTP/1.1 ${status}\r\nConnection: close\r\n${lines.join("")}\r\n${body}`;
}

export function jsonResponse(body: unknown, status = "200 OK", headers: Record<string, string> = {}): string {
  return httpResponse(status, JSON.stringify(body), { "Content-Type": "application/json", ...headers });
}

export function problemResponse(status: string, code: string, members: object = {}, retryAfter?: string): string {
  const headers: Record<string, string> = retryAfter === undefined ? {} : { "Retry-After": retryAfter };
  return jsonResponse({ code, detail: "a sentence", request_id: "r1", ...members }, status, headers);
}

export class WireServer {
  readonly received: Received[] = [];
  readonly #server = createServer((socket) => this.#serve(socket));
  readonly #sockets = new Set<Socket>();
  readonly #script: Script;
  #waiting: (() => void)[] = [];

  constructor(script: Script) {
    this.#script = [...script];
  }

  async start(): Promise<string> {
    await new Promise<void>((resolve) => this.#server.listen(0, "127.0.0.1", resolve));
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  async stop(): Promise<void> {
    for (const socket of this.#sockets) {
      socket.destroy();
    }
    await new Promise((resolve) => this.#server.close(resolve));
  }

  /** Wait for the next request. */
  nextRequest(): Promise<void> {
    return new Promise((resolve) => this.#waiting.push(resolve));
  }

  #serve(socket: Socket): void {
    this.#sockets.add(socket);
    socket.on("close", () => this.#sockets.delete(socket));
    socket.on("error", () => socket.destroy());
    let text = "";
    socket.on("data", (data) => {
      text += data.toString();
      const [head = "", ...rest] = text.split("\r\n\r\n");
      const body = rest.join("\r\n\r\n");
      const length = Number(/content-length: (\d+)/i.exec(head)?.[1] ?? 0);
      if (!text.includes("\r\n\r\n") || Buffer.byteLength(body) < length) {
        return;
      }
      this.received.push({ head, body });
      const answer = this.#script.shift();
      if (answer === undefined) {
        socket.end(problemResponse("500 Internal Server Error", "unexpected_request"));
      } else if (answer !== SILENT) {
        socket.end(answer);
      }
      this.#waiting.splice(0).forEach((resolve) => resolve());
    });
  }
}

type Operation<T> = (client: Toolscout, server: WireServer) => Promise<T>;

/** Run an operation against scripted answers. Return its result or its error, and what the server received. */
export async function runAgainst<T>(
  script: Script,
  operation: Operation<T>,
  options: Partial<ConnectionOptions> = {},
): Promise<{ outcome: T | ToolscoutError; received: Received[] }> {
  const server = new WireServer(script);
  const url = await server.start();
  try {
    const outcome = await operation(new Toolscout({ url, key: "a-key", ...options }), server);
    return { outcome, received: server.received };
  } catch (error) {
    if (!(error instanceof ToolscoutError)) {
      throw error;
    }
    return { outcome: error, received: server.received };
  } finally {
    await server.stop();
  }
}
