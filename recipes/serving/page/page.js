// The chat page. What comes from the service is written as text (textContent) and never as HTML.
"use strict";

const TOLD_ITEMS = 5; // of a list, in the conversation that the model reads next
const byId = (id) => document.getElementById(id);
const turns = []; // {role, content}, as POST /v1/recommendations takes them
const marks = new Map(); // item_id -> {item, kind: "seen" | "liked", told: the model has read it}
let running = null; // AbortController of the list that is being written
let models = [];
let conversation = 0; // its number: what an earlier one still gets is dropped

// An item's id as requests give it: where a catalog has no ids it is the number of a row, and as a text could be a title.
const asGiven = (id) => (/^(0|[1-9]\d{0,14})$/.test(id) ? Number(id) : id);

function element(name, text, className) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

function button(text, className, onClick) {
  const made = element("button", text, className);
  made.type = "button";
  made.addEventListener("click", onClick);
  return made;
}

const withYear = (title, item) => (item.year === null ? title : `${title} (${item.year})`);
const named = (item) => withYear(item.clean_title, item);
const listed = (item) => withYear(item.title, item); // as the model writes it

async function ask(path, options = {}) {
  const key = sessionStorage.getItem("key");
  const headers = { "Content-Type": "application/json", ...(key ? { Authorization: `Bearer ${key}` } : {}) };
  const response = await fetch(path, { ...options, headers });
  if (response.ok) return response;
  const body = await response.json().catch(() => null);
  byId("key-form").hidden = response.status !== 401;
  if (response.status === 401) byId("key").focus();
  throw new Error(body?.error?.message ?? `the service answered with status ${response.status}`);
}

async function describe() {
  try {
    const { data } = await (await ask("v1/models")).json();
    models = data.filter((model) => model.catalog_items !== null);
    byId("key-form").hidden = true;
    const chosen = byId("model").value;
    byId("model").replaceChildren(...models.map((model) => new Option(model.id, model.id, false, model.id === chosen)));
    byId("choice").hidden = models.length < 2;
    about();
  } catch (error) {
    byId("about").textContent = error.message;
  }
}

function about() {
  const model = models.find((one) => one.id === byId("model").value);
  byId("about").textContent = model
    ? `${model.id}, version ${model.version}; ${model.catalog_items.toLocaleString("en")} items`
    : "This service recommends nothing: it has chat completions alone.";
}

// ---- marks

function mark(item, kind) {
  if (marks.get(item.item_id)?.kind === kind) marks.delete(item.item_id);
  else marks.set(item.item_id, { item, kind, told: false });
  showMarks();
}

function showMarks() {
  for (const one of document.querySelectorAll("[data-item]")) {
    one.setAttribute("aria-pressed", String(marks.get(one.dataset.item)?.kind === one.dataset.kind));
  }
  byId("no-marks").hidden = marks.size > 0;
  byId("marks").replaceChildren(...[...marks.values()].map(({ item, kind }) => {
    const line = element("li");
    const forget = button("Undo", "", () => { mark(item, kind); byId("text").focus(); });
    forget.setAttribute("aria-label", `Undo: ${named(item)} is ${kind}`);
    line.append(element("span", named(item)), element("span", kind, kind), forget);
    return line;
  }));
}

function markButton(item, kind, text) {
  const made = button(text, kind, () => mark(item, kind));
  made.dataset.item = item.item_id;
  made.dataset.kind = kind;
  made.setAttribute("aria-pressed", "false");
  made.setAttribute("aria-label", `${text}: ${named(item)}`);
  return made;
}

function itemLine(item) {
  const line = element("li");
  const title = element("span", undefined, "title");
  title.append(element("span", item.clean_title));
  if (item.year !== null) title.append(" ", element("span", `(${item.year})`, "year"));
  const both = element("span", undefined, "marks");
  both.append(markButton(item, "seen", "Seen"), markButton(item, "liked", "Like"));
  line.append(element("span", item.rank, "rank"), title, both);
  return line;
}

// ---- a list

async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const fields = Object.fromEntries(block.split("\n").map((line) => line.split(/: (.*)/s)));
      yield { kind: fields.event, data: JSON.parse(fields.data) };
    }
  }
}

// Of the conversation what the service takes beside a further message: the newest, from a user's turn on.
function newest(chosen) {
  const fit = Math.floor((chosen.max_turns - 1) / 2) * 2;
  return turns.slice(Math.max(0, turns.length - fit));
}

async function recommend(text) {
  const mine = conversation;
  const chosen = models.find((one) => one.id === byId("model").value) ?? { max_turns: 1, max_items: 1 };
  const liked = [...marks.values()].filter((one) => one.kind === "liked" && !one.told);
  const likes = liked.length ? `I liked ${liked.map((one) => named(one.item)).join(", ")}.` : "";
  const said = { role: "user", content: [text, likes].filter(Boolean).join("\n") };
  byId("hint").hidden = true;
  const bubble = element("p", said.content, "user");
  const answer = element("div", undefined, "answer");
  const list = element("ol");
  const note = element("p", "Thinking…", "note");
  answer.append(list, note);
  byId("log").append(bubble, answer);
  bubble.scrollIntoView({ block: "nearest" });
  running = new AbortController();
  byId("send").textContent = "Stop";
  const items = [];
  let wrong = "";
  try {
    const body = JSON.stringify({
      conversation: [...newest(chosen), said], k: Math.min(Number(byId("k").value), chosen.max_items), seen: [...marks.keys()].map(asGiven), stream: true,
      model: byId("model").value,
    });
    const response = await ask("v1/recommendations", { method: "POST", body, signal: running.signal });
    let ended = false;
    for await (const { kind, data } of events(response)) {
      if (kind === "item") {
        items.push(data);
        list.append(itemLine(data));
        byId("log").scrollTop = byId("log").scrollHeight;
      } else if (kind === "error") {
        throw new Error(data.error.message);
      } else if (kind === "end") {
        ended = true;
        const notes = [data.reason, data.prompt_truncated ? "The beginning of the conversation was too long and was cut." : ""];
        note.textContent = notes.filter(Boolean).join(" ");
      }
    }
    if (!ended) throw new Error("the service ended before the list did");
  } catch (error) {
    note.textContent = "";
    wrong = running.signal.aborted ? "Stopped." : error instanceof TypeError ? "The service cannot be reached." : error.message;
  }
  running = null;
  byId("send").textContent = "Send";
  if (mine !== conversation) return;
  note.hidden = !note.textContent;
  if (wrong) {
    const problem = element("p", wrong, "wrong");
    problem.setAttribute("role", "alert");
    answer.append(problem);
    if (!byId("text").value) byId("text").value = text; // to send again
  }
  if (items.length) { // else the turn was not answered, and is not part of the conversation
    const told = items.slice(0, TOLD_ITEMS).map(listed).join("\n");
    turns.push(said, { role: "assistant", content: told });
    for (const one of liked) one.told = true;
    showMarks();
  }
  byId("log").scrollTop = byId("log").scrollHeight;
}

function restart() {
  running?.abort();
  conversation += 1;
  turns.length = 0;
  marks.clear();
  showMarks();
  byId("log").replaceChildren(byId("hint"));
  byId("hint").hidden = false;
  byId("text").focus();
  describe();
}

byId("form").addEventListener("submit", (event) => {
  event.preventDefault();
  if (running) return running.abort();
  const text = byId("text").value.trim();
  const hasLikes = [...marks.values()].some((one) => one.kind === "liked" && !one.told);
  if (!text && !hasLikes) return byId("text").focus();
  byId("text").value = "";
  recommend(text);
});
byId("text").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  if (!running) byId("form").requestSubmit();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") running?.abort();
});
byId("restart").addEventListener("click", restart);
byId("model").addEventListener("change", restart);
byId("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("key", byId("key").value.trim());
  byId("key").value = "";
  describe();
});
describe();
