"use client";

import { useChat } from "@ai-sdk/react";
import { type DynamicToolUIPart, lastAssistantMessageIsCompleteWithApprovalResponses } from "ai";
import { type FormEvent, type ReactNode, useState } from "react";

export default function Chat(): ReactNode {
  const [text, setText] = useState("");
  const { messages, sendMessage, addToolApprovalResponse, error } = useChat({
    sendAutomaticallyWhen: lastAssistantMessageIsCompleteWithApprovalResponses,
  });
  const submit = (event: FormEvent): void => {
    event.preventDefault();
    void sendMessage({ text });
    setText("");
  };
  return (
    <main>
      {messages.map((message) => (
        <section key={message.id}>
          <strong>{message.role}</strong>
          {message.parts.map((part, index) => {
            if (part.type === "text") {
              return <p key={index}>{part.text}</p>;
            }
            return part.type === "dynamic-tool" ? (
              <ToolCall
                key={index}
                part={part}
                decide={(id, approved) => void addToolApprovalResponse({ id, approved })}
              />
            ) : null;
          })}
        </section>
      ))}
      {error && <p role="alert">Something went wrong. Try again.</p>}
      <form onSubmit={submit}>
        <input
          aria-label="Message"
          value={text}
          onChange={(event) => setText(event.target.value)}
          placeholder="what time is it in Tokyo?"
        />
        <button disabled={text === ""}>Send</button>
      </form>
    </main>
  );
}

function ToolCall({
  part,
  decide,
}: {
  part: DynamicToolUIPart;
  decide: (approvalId: string, approved: boolean) => void;
}): ReactNode {
  const name = <code>{part.toolName}</code>;
  switch (part.state) {
    case "approval-requested":
      return (
        <p>
          Run {name} with <code>{JSON.stringify(part.input)}</code>? It may delete or overwrite something.{" "}
          <button onClick={() => decide(part.approval.id, true)}>Run</button>{" "}
          <button onClick={() => decide(part.approval.id, false)}>Do not run</button>
        </p>
      );
    case "output-available": {
      const url = findSignInUrl(part.output);
      return url === null ? <p>{name} has run.</p> : <p>{name} needs you to <a href={url}>sign in</a> first.</p>;
    }
    case "output-denied":
      return <p>{name} was not run.</p>;
    case "output-error":
      return <p>{name} failed: {part.errorText}</p>;
    default:
      return <p>{name} …</p>;
  }
}

/** Only a web address becomes a link: what a tool returns is not to be trusted. */
function findSignInUrl(output: unknown): string | null {
  const url = (output as { signInRequired?: { url?: unknown } } | null)?.signInRequired?.url;
  return typeof url === "string" && /^https?:\/\//.test(url) ? url : null;
}
