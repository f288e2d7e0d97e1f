// Keeps the page current. Without this script it is complete, and a reload brings what changed.
"use strict";

const live = document.getElementById("live");
const say = (text) => { if (live.textContent !== text) live.textContent = text; };

// A leaf is replaced as a whole.
const leaf = (e) => e.dataset.key !== undefined || !e.firstElementChild ||
  [...e.childNodes].some((n) => n.nodeType === Node.TEXT_NODE && n.data.trim());
const key = (e) => e.dataset.key ?? (e.id || e.tagName);

// update makes old look as fresh. What is the same stays, and keeps focus and selection.
function update(old, fresh) {
  if (old.isEqualNode(fresh)) return;
  if (leaf(old) || leaf(fresh) || !old.cloneNode(false).isEqualNode(fresh.cloneNode(false))) {
    old.replaceWith(fresh);
    return;
  }
  let next = old.firstElementChild;
  for (const child of [...fresh.children]) {
    let same = next;
    while (same && key(same) !== key(child)) same = same.nextElementSibling;
    if (same && same === next) next = next.nextElementSibling;
    else old.insertBefore(same ?? child, next);
    if (same) update(same, child);
  }
  while (next) {
    const gone = next;
    next = next.nextElementSibling;
    gone.remove();
  }
}

function replace(part) {
  const fresh = document.createElement("template");
  fresh.innerHTML = part.html; // made and escaped by the server; the policy of the page stops what is inline
  const focus = document.activeElement?.id;
  update(document.getElementById(part.id), fresh.content.firstElementChild);
  if (focus && document.activeElement === document.body) document.getElementById(focus)?.focus();
}

function open() {
  const events = new EventSource("/page/events");
  events.addEventListener("part", (e) => replace(JSON.parse(e.data)));
  events.addEventListener("time", (e) => {
    const at = document.getElementById("at");
    at.dateTime = at.textContent = JSON.parse(e.data);
    say("Live.");
  });
  events.onerror = () => {
    // The browser opens a stream that ended again by itself, but not one that was denied.
    if (events.readyState !== EventSource.CLOSED) return;
    say("Not live. The verifier does not answer, or too many pages are open.");
    setTimeout(open, 10000);
  };
}

document.addEventListener("click", async (e) => {
  const id = e.target.closest(".copy")?.dataset.copy;
  if (!id) return;
  await navigator.clipboard.writeText(document.getElementById(id).textContent);
  say("Copied.");
});

document.documentElement.classList.add("script");
open();
