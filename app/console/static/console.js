// What a page does beyond plain forms: answers while one types, progress that moves, copying. All of it may be missing.
"use strict";

const PAUSE_MS = 180;
const POLL_MS = 400;
const token = document.querySelector("meta[name=csrf-token]")?.content;

async function fragment(path, options = {}) {
  const headers = { "X-Fragment": "1", ...(token && { "X-CSRF-Token": token }) };
  const answer = await fetch(path, { ...options, headers, credentials: "same-origin" });
  if (answer.status === 401) location.reload(); // the session has ended: the page itself leads to the sign-in
  return answer.text();
}

function answerWhileTyping(form) {
  const target = document.getElementById(form.dataset.target);
  let waiting, asking;
  form.addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(ask, PAUSE_MS);
  });
  for (const button of form.querySelectorAll("[data-quiet]")) button.hidden = true;
  if ("atOnce" in form.dataset) ask();

  async function ask() {
    asking?.abort();
    asking = new AbortController();
    const { signal } = asking;
    target.setAttribute("aria-busy", "true");
    try {
      const said = new URLSearchParams(new FormData(form));
      const html = await fragment(form.dataset.live, { method: "POST", body: said, signal });
      const open = [...target.querySelectorAll("details[open]")].map((each) => each.querySelector("pre")?.id);
      target.innerHTML = html;
      for (const id of open) target.querySelector(`#${CSS.escape(id)}`)?.closest("details").setAttribute("open", "");
      enliven(target);
    } catch (error) {
      if (error.name !== "AbortError") target.textContent = "The service does not answer just now.";
    } finally {
      if (!signal.aborted) target.removeAttribute("aria-busy");
    }
  }
}

async function follow(element) {
  await new Promise((resolve) => setTimeout(resolve, POLL_MS));
  try {
    const page = new DOMParser().parseFromString(await fragment(element.dataset.poll), "text/html");
    const next = page.getElementById(element.id);
    if (!next) return;
    element.replaceWith(next);
    enliven(next.parentElement);
  } catch {
    follow(element); // away for a moment: the run goes on all the same
  }
}

async function copy(button) {
  const source = document.getElementById(button.dataset.copy);
  try {
    await navigator.clipboard.writeText(source.textContent);
    button.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(source);
    button.textContent = "Selected";
  }
  setTimeout(() => (button.textContent = "Copy"), 1500);
}

function showWhatFits(select) {
  const form = select.form;
  const show = () => {
    for (const part of form.querySelectorAll(`[data-for*="${select.dataset.shows}:"]`)) {
      part.hidden = !part.dataset.for.split(" ").includes(`${select.dataset.shows}:${select.value}`);
    }
  };
  select.addEventListener("change", show);
  show();
}

function enliven(root) {
  for (const button of root.querySelectorAll("[data-copy][hidden]")) {
    button.hidden = false;
    button.addEventListener("click", () => copy(button));
  }
  for (const element of root.querySelectorAll("[data-poll]")) {
    if (!element.followed) {
      element.followed = true;
      follow(element);
    }
  }
}

for (const form of document.querySelectorAll("form[data-live]")) answerWhileTyping(form);
for (const select of document.querySelectorAll("select[data-shows]")) showWhatFits(select);
for (const form of document.querySelectorAll("form[data-submits]")) {
  form.addEventListener("change", (event) => event.target.matches("select") && form.requestSubmit());
}
for (const form of document.querySelectorAll("form[data-busy]")) {
  form.addEventListener("submit", () => form.classList.add("busy-now"));
}
enliven(document);
// on a phone the pages stand in one row, wider than the screen
document.querySelector("nav [aria-current]")?.scrollIntoView({ inline: "center", block: "nearest" });
