// The chat page. What comes from the service is written as text (textContent) and never as HTML.
"use strict";

const TOLD_ITEMS = 5; // of a list, in the conversation that the model reads next
const byId = (id) => document.getElementById(id);
const KINDS = { seen: "seen", liked: "liked", disliked: "not for me" }; // of marks, as the page calls them
const TOLD = { liked: "I liked", disliked: "I did not like" }; // marks that the model reads, in the next message
const exchanges = []; // {said: the user's turn, items, question in place of items, note}: those that were answered
const marks = new Map(); // item_id -> {item, kind: "seen" | "liked" | "disliked", told: the model has read it}
let running = null; // AbortController of the list that is being written
let ready; // a promise: the models are known, and the conversation of before is on the page
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

const chosenModel = () => models.find((one) => one.id === byId("model").value);
const untold = (kind) => [...marks.values()].filter((one) => one.kind === kind && !one.told);
const withYear = (title, item) => (item.year === null ? title : `${title} (${item.year})`);
const named = (item) => withYear(item.clean_title, item);
const listed = (item) => withYear(item.title, item); // as the model writes it

async function ask(path, options = {}) {
  const key = sessionStorage.getItem("key");
  const headers = { "Content-Type": "application/json", ...(key ? { Authorization: `Bearer ${key}` } : {}) };
  const response = await fetch(path, { ...options, headers });
  byId("key-form").hidden = response.status !== 401;
  if (response.ok) return response;
  if (response.status === 401) {
    const problem = key ? "The service does not take this key." : "The service asks for a key.";
    askForKey(key ? problem : "");
    throw new Error(problem);
  }
  const body = await response.json().catch(() => null);
  throw new Error(body?.error?.message ?? `the service answered with status ${response.status}`);
}

// Stands in place of the message's form. problem: what is wrong with the key that was given; "" where none was.
function askForKey(problem) {
  byId("key-problem").textContent = problem;
  byId("key-problem").hidden = !problem;
  byId("key").focus();
}

async function describe() {
  try {
    const { data } = await (await ask("v1/models")).json();
    models = data.filter((model) => model.catalog_items !== null);
    const chosen = byId("model").value;
    byId("model").replaceChildren(...models.map((model) => new Option(model.id, model.id, false, model.id === chosen)));
    byId("choice").hidden = models.length < 2;
    about();
    await exemplify();
  } catch (error) {
    byId("about").textContent = error.message;
  }
}

// What may be written, with a title of this catalog.
async function exemplify() {
  if (!chosenModel()) return;
  const { items } = await (await ask(`v1/catalog/items?limit=1&model=${encodeURIComponent(chosenModel().id)}`)).json();
  if (items.length) byId("text").placeholder = `Something like ${items[0].clean_title}`;
}

function about() {
  const model = chosenModel();
  byId("about").textContent = model
    ? `${model.id}, ${model.catalog_items.toLocaleString("en")} items`
    : "This service recommends nothing: it has chat completions alone.";
  byId("about").title = model ? `version ${model.version}` : "";
  showFilters(model?.filters ?? []);
}

// ---- filters of the operator's choice: chips, of which each narrows the next list while it is pressed

function showFilters(filters) {
  byId("filters").hidden = !filters.length;
  byId("filters").replaceChildren(...filters.map(({ label, where }) => {
    const chip = button(label, "chip", () => chip.setAttribute("aria-pressed", String(!isPressed(chip))));
    chip.setAttribute("aria-pressed", "false");
    chip.where = where;
    return chip;
  }));
}

const isPressed = (chip) => chip.getAttribute("aria-pressed") === "true";

// The conditions of all pressed chips; of two of one column the later one counts. null: none is pressed.
function chosenFilters() {
  const pressed = [...document.querySelectorAll(".chip")].filter(isPressed);
  return pressed.length ? Object.assign({}, ...pressed.map((chip) => chip.where)) : null;
}

// ---- marks

function mark(item, kind) {
  if (marks.get(item.item_id)?.kind === kind) marks.delete(item.item_id);
  else {
    marks.set(item.item_id, { item, kind, told: false });
    if (kind !== "seen") tellService(item, kind.replace(/d$/, ""));
  }
  showMarks();
  save();
}

// Feedback, where the service keeps it. The page does not wait for it, and goes on without.
function tellService(item, event) {
  if (!chosenModel()?.keeps_feedback) return;
  const body = JSON.stringify({ list_id: item.list_id, item_id: item.item_id, event });
  ask("v1/feedback", { method: "POST", body, keepalive: true }).catch((error) => console.warn(error.message));
}

function showMarks() {
  for (const one of document.querySelectorAll("[data-item]")) {
    one.setAttribute("aria-pressed", String(marks.get(one.dataset.item)?.kind === one.dataset.kind));
  }
  byId("no-marks").hidden = marks.size > 0;
  byId("count").textContent = marks.size ? `(${marks.size})` : "";
  const all = [...marks.values()].map(({ item }) => named(item));
  byId("marks").replaceChildren(...[...marks.values()].map(({ item, kind }) => {
    const line = element("li");
    const isAlone = all.filter((name) => name === named(item)).length < 2;
    const forget = button("Undo", "", () => { mark(item, kind); byId("text").focus(); });
    forget.setAttribute("aria-label", `Undo: ${named(item)} is ${KINDS[kind]}`);
    line.append(element("span", isAlone ? named(item) : listed(item)), element("span", KINDS[kind], kind), forget);
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

// A column's value as people write it: "a, b" of a list, 12.50 of a price, 3 Mar 2024 of a date, and nothing of null.
function written(value, name) {
  if (Array.isArray(value)) return value.map((one) => written(one, name)).join(", ");
  if (typeof value === "number") return writtenNumber(value, name);
  const date = typeof value === "string" && /^(\d{4}-\d{2}-\d{2})(?:[T ]00:00(?::00(?:\.0+)?)?)?$/.exec(value);
  if (date && !Number.isNaN(Date.parse(date[1]))) {
    return new Date(`${date[1]}T00:00Z`).toLocaleDateString("en-GB", { dateStyle: "medium", timeZone: "UTC" });
  }
  return value === null ? "" : String(value);
}

function writtenNumber(value, name) {
  const isPrice = /price|cost/i.test(name);
  return value.toLocaleString("en", isPrice ? { minimumFractionDigits: 2, maximumFractionDigits: 2 } : {});
}

// `in_stock` as "in stock".
const words = (name) => name.replaceAll("_", " ");

// A column and its value: "price: 12.50"; of a boolean "in stock" or "not in stock"; "" where there is no value.
function column(name, value) {
  if (typeof value === "boolean") return value ? words(name) : `not ${words(name)}`;
  const text = written(value, name);
  return text && `${words(name)}: ${text}`;
}

const address = (value) => (typeof value === "string" && /^https?:\/\//.test(value) ? value : null);

function itemLine(item) {
  const { picture, link, ...others } = item.columns;
  const line = element("li");
  const title = element(address(link) ? "a" : "span", item.clean_title);
  if (address(link)) {
    Object.assign(title, { href: link, target: "_blank", rel: "noopener noreferrer" });
    title.addEventListener("click", () => tellService(item, "click"));
  }
  const heading = element("span", undefined, "title");
  heading.append(title);
  const display = element("span", item.title.slice(item.clean_title.length), "display"); // " [Adele]"
  display.dataset.named = named(item);
  display.hidden = true; // until there is another item of this title: tellApart
  heading.append(display);
  if (item.year !== null) heading.append(" ", element("span", `(${item.year})`, "year"));
  const body = element("div", undefined, "item");
  body.append(heading);
  const facts = Object.entries(others).map(([name, value]) => column(name, value)).filter(Boolean);
  if (facts.length) body.append(element("p", facts.join(" · "), "columns"));
  if (item.why) body.append(element("p", item.why, "why"));
  body.append(element("p", item.item_id, "id"));
  const buttons = element("span", undefined, "marks");
  buttons.append(
    markButton(item, "seen", "Seen"), markButton(item, "liked", "Like"), markButton(item, "disliked", "Not for me"),
  );
  line.append(element("span", item.rank, "rank"));
  if (address(picture)) {
    const shown = Object.assign(element("img", undefined, "picture"), { src: picture, alt: "", loading: "lazy" });
    shown.addEventListener("error", () => shown.remove());
    line.append(shown);
  }
  line.append(body, buttons);
  return line;
}

// Of items of one title and year, all show what tells them apart.
function tellApart(list) {
  const displays = [...list.querySelectorAll(".display")];
  const count = (name) => displays.filter((one) => one.dataset.named === name).length;
  for (const one of displays) one.hidden = count(one.dataset.named) < 2;
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
  const fit = Math.floor((chosen.max_turns - 1) / 2);
  return exchanges.slice(Math.max(0, exchanges.length - fit)).flatMap(({ said, items, question }) => [
    said, { role: "assistant", content: question?.text ?? items.slice(0, TOLD_ITEMS).map(listed).join("\n") },
  ]);
}

// The elements of a message and its answer, which may be to come.
function showExchange({ said, items, question, note }) {
  byId("hint").hidden = true;
  for (const one of document.querySelectorAll(".answers")) one.remove(); // of a question that this message answers
  const shown = { bubble: element("p", said.content, "user"), answer: element("div", undefined, "answer") };
  Object.assign(shown, { list: element("ol"), note: element("p", note, "note") });
  shown.list.append(...items.map(itemLine));
  tellApart(shown.list);
  shown.note.hidden = !note;
  shown.answer.append(shown.list, shown.note);
  if (question) showQuestion(shown.answer, question);
  byId("log").append(shown.bubble, shown.answer);
  return shown;
}

// A question of the model's, and answers to click; what is written answers it, too.
function showQuestion(answer, { text, answers }) {
  const quick = element("div", undefined, "answers");
  quick.append(...[...answers, "I don't mind"].map((one) => button(one, "quick", () => running || recommend(`${one}.`))));
  answer.prepend(element("p", text, "question"), quick);
}

async function recommend(text) {
  const mine = conversation;
  running = new AbortController();
  byId("send").textContent = "Stop";
  await ready;
  const chosen = chosenModel() ?? { max_turns: 1, max_items: 1 };
  const fresh = Object.keys(TOLD).map((kind) => [kind, untold(kind)]).filter(([, marked]) => marked.length);
  const tastes = fresh.map(([kind, marked]) => `${TOLD[kind]} ${marked.map((one) => named(one.item)).join(", ")}.`);
  const said = { role: "user", content: [text, ...tastes].filter(Boolean).join("\n") };
  const { bubble, answer, list, note } = showExchange({ said, items: [], note: "Thinking…" });
  bubble.scrollIntoView({ block: "start" }); // what comes grows below it: the first rank stays in view
  const items = [];
  let question, wrong = "";
  try {
    const last = byId("again").checked ? [] : exchanges.findLast((one) => one.items.length)?.items ?? [];
    const body = JSON.stringify({
      conversation: [...newest(chosen), said], k: Math.min(Number(byId("k").value), chosen.max_items), stream: true,
      seen: [...marks.keys()].map(asGiven), exclude: last.map((item) => asGiven(item.item_id)), why: true, may_ask: true,
      liked: [...marks.values()].filter((one) => one.kind === "liked").map((one) => asGiven(one.item.item_id)),
      model: byId("model").value, where: chosenFilters(),
    });
    const response = await ask("v1/recommendations", { method: "POST", body, signal: running.signal });
    let ended = false;
    for await (const { kind, data } of events(response)) {
      if (kind === "item") {
        items.push(data);
        list.append(itemLine(data));
        tellApart(list);
      } else if (kind === "question") {
        question = data;
        showQuestion(answer, data);
      } else if (kind === "error") {
        throw new Error(data.error.message);
      } else if (kind === "end") {
        ended = true;
        const notes = [data.reason, data.prompt_truncated ? "The beginning of the conversation was too long and was cut." : ""];
        if (data.fallback) notes.push("These are what others wanted: the model did not answer in time.");
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
    const retry = button("Try again", "retry", () => {
      if (running) return;
      bubble.remove();
      answer.remove();
      if (byId("text").value === text) byId("text").value = "";
      recommend(text);
    });
    answer.append(problem, retry);
    if (!byId("text").value) byId("text").value = text; // to change and send
  }
  if ((items.length || question) && !wrong) { // else the turn was not answered whole, and is not part of the conversation
    exchanges.push({ said, items, question, note: note.textContent });
    for (const one of fresh.flatMap(([, marked]) => marked)) one.told = true;
    showMarks();
    save();
  }
  if (wrong) byId("log").scrollTop = byId("log").scrollHeight;
  else bubble.scrollIntoView({ block: "start" }); // the list from its first rank on
}

// ---- the conversation stays in this tab when the page is loaded again, until there is a new one

function save() {
  sessionStorage.setItem("conversation", JSON.stringify({ model: byId("model").value, exchanges, marks: [...marks] }));
}

function restore() {
  const kept = JSON.parse(sessionStorage.getItem("conversation") ?? "null");
  if (!kept || !models.some((model) => model.id === kept.model)) return;
  byId("model").value = kept.model;
  exchanges.push(...kept.exchanges);
  for (const [id, one] of kept.marks) marks.set(id, one);
  exchanges.forEach(showExchange);
  about();
  showMarks();
  byId("log").querySelector(".user:nth-last-of-type(1)")?.scrollIntoView({ block: "start" });
}

function restart() {
  running?.abort();
  conversation += 1;
  exchanges.length = 0;
  marks.clear();
  sessionStorage.removeItem("conversation");
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
  if (!text && !Object.keys(TOLD).some((kind) => untold(kind).length)) return byId("text").focus();
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
byId("ids").addEventListener("change", () => byId("log").classList.toggle("with-ids", byId("ids").checked));
byId("key-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  sessionStorage.setItem("key", byId("key").value.trim());
  byId("key").value = "";
  await describe();
  if (byId("key-form").hidden) byId("text").focus();
  if (!exchanges.length) restore();
});
byId("marks-box").open = !matchMedia("(max-width: 760px)").matches; // a small screen is for the list
ready = describe().then(restore);
