/** Answers that are streams of server-sent events, as Toolscout writes them: `progress` events, then one other. */

export const MEDIA_TYPE = "text/event-stream";
/** Toolscout sends something every 15 seconds. */
export const SILENCE_MS = 45_000;

interface ServerEvent {
  name: string;
  data: unknown;
}

/** What the caller's own handler has thrown, which is no failure of the connection. */
export class ProgressHandlerError extends Error {}

export function isEventStream(response: Response): boolean {
  return response.headers.get("Content-Type")?.startsWith(MEDIA_TYPE) ?? false;
}

/**
 * Pass on the data of each `progress` event, and return the last event as the response that the request would have had
 * without a stream. Call `onData` whenever something arrives. Throw if the stream ends before its last event.
 */
export async function takeFinalEvent(
  response: Response,
  onProgress: (data: unknown) => void,
  onData: () => void,
): Promise<Response> {
  for await (const { name, data } of readEvents(response, onData)) {
    if (name !== "progress") {
      const final = Response.json(data, { status: name === "error" ? (data as { status: number }).status : 200 });
      Object.defineProperty(final, "url", { value: response.url });
      return final;
    }
    try {
      onProgress(data);
    } catch (cause) {
      throw new ProgressHandlerError("onProgress has thrown", { cause });
    }
  }
  throw new Error("the stream of events ended early");
}

async function* readEvents(response: Response, onData: () => void): AsyncGenerator<ServerEvent, void, undefined> {
  const decoder = new TextDecoder();
  const reader = response.body?.getReader();
  let pending: string[] = [];
  try {
    for (let read = await reader?.read(); read?.value !== undefined; read = await reader?.read()) {
      onData();
      const text = decoder.decode(read.value, { stream: true });
      pending.push(text);
      if (text.includes("\n")) {
        const blocks = pending.join("").split("\n\n");
        pending = blocks.splice(-1);
        yield* blocks.flatMap(parseEvent);
      }
    }
  } finally {
    await reader?.cancel().catch(() => undefined);
  }
}

/** Return nothing for a comment, which only keeps the connection open. */
function parseEvent(block: string): ServerEvent[] {
  const name = /^event: (.*)$/m.exec(block)?.[1];
  const data = /^data: (.*)$/m.exec(block)?.[1];
  return name === undefined || data === undefined ? [] : [{ name, data: JSON.parse(data) as unknown }];
}

/**
 * Iterate over what `start` reports, and then over its result. To leave the loop early aborts its signal, as `outer`
 * does.
 */
export async function* iterateReports<T>(
  start: (report: (item: T) => void, signal: AbortSignal) => Promise<T>,
  outer: AbortSignal | undefined,
): AsyncGenerator<T, void, undefined> {
  outer?.throwIfAborted();
  const controller = new AbortController();
  const abort = (): void => controller.abort(outer?.reason);
  outer?.addEventListener("abort", abort, { once: true });
  const items: T[] = [];
  let wake = (): void => undefined;
  let isOver = false;
  const add = (item: T): void => {
    items.push(item);
    wake();
  };
  const done = start(add, controller.signal)
    .then(add)
    .finally(() => {
      isOver = true;
      wake();
    });
  done.catch(() => undefined); // it is thrown below, unless the caller has left the loop
  try {
    for (;;) {
      yield* items.splice(0);
      if (items.length === 0 && isOver) {
        return await done;
      }
      if (items.length === 0) {
        await new Promise<void>((resolve) => {
          wake = resolve;
        });
      }
    }
  } finally {
    controller.abort();
    outer?.removeEventListener("abort", abort);
  }
}
