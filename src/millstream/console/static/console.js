/* What makes the pages quicker for those who have a script: swap a part, follow a stream, go on searching, keys.
   Nothing here is needed: every link and every form works without it. Text that comes from a cluster only ever enters a
   page as HTML that the console's own templates escaped; the policy "part" is the one place where it does. */
"use strict";

const parts = window.trustedTypes
  ? window.trustedTypes.createPolicy("part", { createHTML: (text) => text })
  : { createHTML: (text) => text };
const read = (text) => new DOMParser().parseFromString(parts.createHTML(text), "text/html");
const $ = (selector, root = document) => root.querySelector(selector);

/* Swap: the page is fetched, and its <main> takes the place of this one. */
let underway = null;
async function load(address, { push = true, only = null } = {}) {
  if (!only) {
    underway?.abort();
    underway = new AbortController();
  }
  let answer;
  try {
    answer = await fetch(address, { signal: only ? undefined : underway.signal, headers: { "X-Swap": "1" } });
  } catch (error) {
    if (error.name !== "AbortError" && !only) location.assign(address);
    return;
  }
  if (!(answer.headers.get("Content-Type") || "").startsWith("text/html")) return;
  const page = read(await answer.text());
  if (only) {
    if (!answer.ok) return;
    for (const part of document.querySelectorAll(only)) {
      const fresh = part.id && page.getElementById(part.id);
      if (fresh && !part.contains(document.activeElement)) part.replaceWith(document.adoptNode(fresh));
    }
    return;
  }
  const main = $("main", page);
  if (!main || !$(".side", page)) return location.assign(answer.url);
  if (push) history.pushState({}, "", answer.url);
  document.title = page.title;
  const focus = document.activeElement?.id;
  $("main").replaceWith(document.adoptNode(main));
  const nav = $(".side .places"), next = $(".side .places", page);
  if (nav && next) nav.replaceWith(document.adoptNode(next));
  const kept = focus && document.getElementById(focus);
  if (kept) {
    kept.focus({ preventScroll: true });
    if (kept.setSelectionRange && kept.type === "search") kept.setSelectionRange(kept.value.length, kept.value.length);
  } else if (push) scrollTo(0, 0);
  begin();
}

const plain = (event) => !(event.metaKey || event.ctrlKey || event.shiftKey || event.altKey || event.button);
document.addEventListener("click", (event) => {
  const link = event.target.closest?.("a[href]");
  if (!link || !plain(event) || link.target || link.hasAttribute("download") || link.dataset.search !== undefined) return;
  if (link.dataset.whole !== undefined) return;
  if (new URL(link.href).origin !== location.origin || link.getAttribute("href").startsWith("#")) return;
  event.preventDefault();
  load(link.href);
});
document.addEventListener("submit", (event) => {
  const form = event.target;
  if (form.method !== "get" || event.submitter?.hasAttribute("formaction")) return;
  event.preventDefault();
  const address = new URL(form.action);
  const filled = [...new FormData(form)].filter(([, value]) => value !== "");
  address.search = new URLSearchParams(filled);
  load(address);
});
addEventListener("popstate", () => load(location.href, { push: false }));

/* A search field filters as one types. */
let typing;
document.addEventListener("input", (event) => {
  if (event.target.type !== "search" || !event.target.form) return;
  clearTimeout(typing);
  typing = setTimeout(() => event.target.form.requestSubmit(), 250);
});

/* Parts that are asked for again every few seconds, while somebody can see them. */
let every;
function refresh() {
  clearInterval(every);
  const part = $("[data-every]");
  if (!part) return;
  every = setInterval(() => {
    if (!document.hidden) load(location.href, { push: false, only: "[data-every]" });
  }, 1000 * Number(part.dataset.every));
}

/* Live: rows of a stream of server-sent events, newest first. */
const LIVE_ROWS = 200;
let stream = null;
function silence() {
  stream?.close();
  stream = null;
}
function live() {
  silence();
  const button = $("[data-live]");
  if (!button) return;
  button.hidden = false;
  const state = $("#live-state"), list = $("#messages");
  button.addEventListener("click", () => {
    if (stream) {
      silence();
      button.textContent = "Live";
      state.textContent = "Stopped.";
      return;
    }
    let count = 0;
    button.textContent = "Stop";
    state.textContent = "Waiting for new messages …";
    stream = new EventSource(button.dataset.live);
    stream.addEventListener("message", (event) => {
      const row = document.adoptNode($(".message", read(event.data)));
      row.classList.add("fresh");
      $(".head", list).after(row);
      $("#nothing")?.remove();
      list.hidden = false;
      count += 1;
      state.textContent = `${count} new`;
      while (list.querySelectorAll(".message").length > LIVE_ROWS) list.lastElementChild.remove();
    });
    stream.addEventListener("skipped", (event) => {
      if (Number(event.data)) state.textContent = `${count} new, ${event.data} more were too fast to show`;
    });
    const over = (words) => {
      silence();
      button.textContent = "Live";
      state.textContent = words;
    };
    stream.addEventListener("failed", (event) => over(event.data));
    stream.addEventListener("end", () => over("Ended after ten minutes."));
    stream.onerror = () => { if (stream?.readyState === EventSource.CLOSED) over("The live view cannot begin now."); };
  });
}

/* Search on: step after step until something fills the page, the end, or Stop. */
let searching = false;
function search() {
  searching = false;
  const link = $("a[data-search]");
  if (!link) return;
  link.addEventListener("click", async (event) => {
    if (!plain(event)) return;
    event.preventDefault();
    if (searching) {
      searching = false;
      return;
    }
    searching = true;
    const words = link.textContent, list = $("#messages"), state = $("#search-state");
    let address = link.href, scanned = Number(link.dataset.scanned || 0), found = 0;
    link.textContent = "Stop";
    while (searching && address && found < 500) {
      let page;
      try {
        page = read(await (await fetch(address)).text());
      } catch {
        state.textContent = "The console does not answer.";
        break;
      }
      if (!link.isConnected) return;
      for (const row of page.querySelectorAll("#messages .message")) {
        list.append(document.adoptNode(row));
        list.hidden = false;
        found += 1;
      }
      const next = $("a[data-search]", page);
      scanned += Number(($("#step", page) || { dataset: {} }).dataset.scanned || 0);
      if (found) $("#nothing")?.remove();
      state.textContent = `${scanned.toLocaleString("en")} searched, ${found} more found`;
      address = next?.href;
    }
    searching = false;
    if (address) {
      link.href = address;
      link.dataset.scanned = scanned;
      link.textContent = words;
    } else {
      link.remove();
      state.textContent += "; that is all";
    }
  });
}

/* Keys: / searches, g and a letter go to a page, j and k walk rows, ? says so. */
let chord = 0;
document.addEventListener("keydown", (event) => {
  if (event.metaKey || event.ctrlKey || event.altKey) return;
  const field = event.target.closest?.("input, select, textarea");
  if (field) {
    if (event.key === "Escape") field.blur();
    return;
  }
  if (Date.now() - chord < 1200) {
    chord = 0;
    const link = $(`.side a[data-key="${CSS.escape(event.key)}"]`);
    if (link) link.click();
    return;
  }
  const rows = [...document.querySelectorAll("tbody td.name a, .message > summary")];
  const at = rows.indexOf(document.activeElement);
  if (event.key === "g") chord = Date.now();
  else if (event.key === "/") {
    const search = $("main input[type=search], main input[name=filter]");
    if (search) { event.preventDefault(); search.focus(); search.select(); }
  } else if (event.key === "j") rows[Math.min(at + 1, rows.length - 1)]?.focus();
  else if (event.key === "k") rows[Math.max(at - 1, 0)]?.focus();
  else if (event.key === "?") $("#keys")?.showModal();
});

function begin() {
  $(".side .places [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
  refresh();
  live();
  search();
}
begin();
