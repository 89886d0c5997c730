// Progressive enhancement: results while typing, live progress, copy buttons. Every page works without this script.
"use strict";

const TYPING_PAUSE_MS = 180;
const POLL_MS = 400;
const csrfToken = document.querySelector("meta[name=csrf-token]")?.content;

async function fetchFragment(path, options = {}) {
  const headers = { "X-Fragment": "1", ...(csrfToken && { "X-CSRF-Token": csrfToken }) };
  const response = await fetch(path, { ...options, headers, credentials: "same-origin" });
  if (response.status === 401) location.reload(); // the session has expired: reloading leads to the sign-in page
  return response.text();
}

function updateWhileTyping(form) {
  const target = document.getElementById(form.dataset.target);
  let timer, controller;
  form.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(update, TYPING_PAUSE_MS);
  });
  for (const element of form.querySelectorAll("[data-without-script]")) element.hidden = true;
  if ("immediate" in form.dataset) update();

  async function update() {
    controller?.abort();
    controller = new AbortController();
    const { signal } = controller;
    target.setAttribute("aria-busy", "true");
    try {
      const body = new URLSearchParams(new FormData(form));
      const html = await fetchFragment(form.dataset.live, { method: "POST", body, signal });
      const openIds = [...target.querySelectorAll("details[open]")].map((details) => details.querySelector("pre")?.id);
      target.innerHTML = html;
      for (const id of openIds) target.querySelector(`#${CSS.escape(id)}`)?.closest("details").setAttribute("open", "");
      addBehavior(target);
    } catch (error) {
      if (error.name !== "AbortError") target.textContent = "Toolscout does not respond. Try again in a moment.";
    } finally {
      if (!signal.aborted) target.removeAttribute("aria-busy");
    }
  }
}

async function poll(element) {
  await new Promise((resolve) => setTimeout(resolve, POLL_MS));
  try {
    const page = new DOMParser().parseFromString(await fetchFragment(element.dataset.poll), "text/html");
    const next = page.getElementById(element.id);
    if (!next) return;
    element.replaceWith(next);
    addBehavior(next.parentElement);
  } catch {
    poll(element); // the network failed: the run goes on meanwhile
  }
}

async function copyText(button) {
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

function toggleFields(select) {
  const name = select.dataset.toggles;
  const toggle = () => {
    for (const field of select.form.querySelectorAll(`[data-shown-for*="${name}:"]`)) {
      field.hidden = !field.dataset.shownFor.split(" ").includes(`${name}:${select.value}`);
    }
  };
  select.addEventListener("change", toggle);
  toggle();
}

function addBehavior(root) {
  for (const button of root.querySelectorAll("[data-copy][hidden]")) {
    button.hidden = false;
    button.addEventListener("click", () => copyText(button));
  }
  for (const element of root.querySelectorAll("[data-poll]")) {
    if (!element.isPolled) {
      element.isPolled = true;
      poll(element);
    }
  }
}

for (const form of document.querySelectorAll("form[data-live]")) updateWhileTyping(form);
for (const select of document.querySelectorAll("select[data-toggles]")) toggleFields(select);
for (const form of document.querySelectorAll("form[data-submit-on-change]")) {
  form.addEventListener("change", (event) => event.target.matches("select") && form.requestSubmit());
}
for (const form of document.querySelectorAll("form[data-shows-progress]")) {
  form.addEventListener("submit", () => form.classList.add("submitting"));
}
addBehavior(document);
// on a phone the navigation is one row, wider than the screen
document.querySelector("nav [aria-current]")?.scrollIntoView({ inline: "center", block: "nearest" });
