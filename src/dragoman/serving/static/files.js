"use strict";
// Files on the page: they are sent when they are chosen or dropped, show their progress, and end as a link to the translation.

const POLL_MILLISECONDS = 700;
const MAX_FLAGGED_SHOWN = 5;

function announce(message) {
  element("file-state").textContent = message;
}

async function loadFormats() {
  const answer = await fetch("frontend/settings");
  if (answer.ok) element("file").accept = (await answer.json()).supportedFilesFormat.join(",");
}

function addFiles(files) {
  for (const file of files) translateFile(file);
}

function addRow(name) {
  const row = document.createElement("li");
  const label = document.createElement("span");
  label.textContent = name;
  const progress = document.createElement("progress");
  progress.setAttribute("aria-label", words("Progress of {name}", { name }));
  const note = document.createElement("span");
  const remove = document.createElement("button");
  remove.type = "button";
  remove.textContent = words("Remove");
  remove.setAttribute("aria-label", words("Remove {name}", { name }));
  row.append(label, progress, note, remove);
  element("file-list").append(row);
  return { row, label, progress, note, remove, isRemoved: false };
}

async function translateFile(file) {
  const view = addRow(file.name);
  let url = "";
  view.remove.addEventListener("click", () => {
    view.isRemoved = true;
    view.row.remove();
    element("choose").focus();
    if (url) fetch(url, { method: "DELETE" }).catch(() => {});
  });
  try {
    const form = new FormData();
    form.append("target", target.value);
    if (source.value) form.append("source", source.value);
    form.append("file", file);
    const answer = await fetch("v1/files", { method: "POST", body: form });
    if (!answer.ok) throw new Error(await readError(answer));
    let job = await answer.json();
    url = `v1/files/${job.id}`;
    if (view.isRemoved) await fetch(url, { method: "DELETE" });
    while (!view.isRemoved && job.status !== "done" && job.status !== "error") {
      if (job.total) [view.progress.max, view.progress.value] = [job.total, job.done];
      view.note.textContent = job.total ? words("{count} of {total} texts", { count: job.done, total: job.total }) : words("Waiting");
      await new Promise((resolve) => setTimeout(resolve, POLL_MILLISECONDS));
      const next = await fetch(url);
      if (!next.ok) throw new Error(await readError(next));
      job = await next.json();
    }
    if (job.status === "error") throw new Error(job.error.message);
    if (job.status === "done") showResult(view, job, url);
  } catch (error) {
    if (view.isRemoved) return;
    view.progress.remove();
    view.note.textContent = error instanceof TypeError ? words("The server cannot be reached.") : error.message;
    view.note.className = "error";
    announce(`${file.name}: ${view.note.textContent}`);
  }
}

function showResult(view, job, url) {
  const link = document.createElement("a");
  link.href = `${url}/content`;
  link.download = job.name;
  link.textContent = words("Download {name}", { name: job.name });
  view.progress.replaceWith(link);
  const doubtful = job.flagged ? words(", {count} of them may be wrong", { count: job.flagged }) : "";
  view.note.textContent = words("{count} texts", { count: job.total }) + doubtful;
  if (job.flagged) view.row.append(buildFlaggedList(job.flagged_texts.slice(0, MAX_FLAGGED_SHOWN)));
  announce(words("{name} is ready.", { name: job.name }));
}

function buildFlaggedList(texts) {
  const list = document.createElement("ul");
  list.append(...texts.map((item) => {
    const line = document.createElement("li");
    line.textContent = `${item.flags.map(warn).join(" ")} ${item.source.slice(0, 120)} → ${item.text.slice(0, 120)}`;
    return line;
  }));
  return list;
}

const hasFiles = (event) => [...(event.dataTransfer ? event.dataTransfer.types : [])].includes("Files");
element("choose").addEventListener("click", () => element("file").click());
element("file").addEventListener("change", (event) => {
  addFiles(event.target.files);
  event.target.value = "";
});
document.addEventListener("dragover", (event) => {
  if (!hasFiles(event)) return;
  event.preventDefault();
  document.body.classList.add("dropping");
});
document.addEventListener("dragleave", (event) => {
  if (!event.relatedTarget) document.body.classList.remove("dropping");
});
document.addEventListener("drop", (event) => {
  if (!hasFiles(event)) return;
  event.preventDefault();
  document.body.classList.remove("dropping");
  addFiles(event.dataTransfer.files);
});
loadFormats().catch(() => {});
